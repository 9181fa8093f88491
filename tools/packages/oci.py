"""Container images as archives in OCI's image layout; equal layers give equal archives.

https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
"""

import gzip
import json
import os
import shutil
import tarfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tools.packages.contents import sha256_of

TYPE: Final = "application/vnd.oci.image"
GZIP_LEVEL: Final = 6


def write(
    layer: Path, target: Path, name: str, architecture: str, config: Mapping[str, object]
) -> None:
    """Write an image with one layer, a tar file, and with the time of SOURCE_DATE_EPOCH. The other
    files of the image are written beside the layer."""
    made_at = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC).isoformat()
    blobs = layer.parent / "blobs/sha256"
    blobs.mkdir(parents=True)
    packed = layer.with_suffix(".tar.gz")
    with (
        layer.open("rb") as source,
        packed.open("wb") as file,
        gzip.GzipFile("", "wb", GZIP_LEVEL, file, mtime=0) as compressed,
    ):
        shutil.copyfileobj(source, compressed)
    layers = [moved(packed, blobs, f"{TYPE}.layer.v1.tar+gzip")]
    about = {
        "architecture": architecture,
        "config": config,
        "created": made_at,
        "history": [{"created": made_at, "created_by": "tools/make_image.py"}],
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256_of(layer)}"]},
    }
    manifest = {
        "config": placed(about, blobs, f"{TYPE}.config.v1+json"),
        "layers": layers,
        "mediaType": f"{TYPE}.manifest.v1+json",
        "schemaVersion": 2,
    }
    described = placed(manifest, blobs, f"{TYPE}.manifest.v1+json")
    index = {
        "manifests": [described | {"annotations": {"org.opencontainers.image.ref.name": name}}],
        "mediaType": f"{TYPE}.index.v1+json",
        "schemaVersion": 2,
    }
    (layer.parent / "index.json").write_text(json.dumps(index))
    (layer.parent / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    with tarfile.open(target, "w") as archive:
        for path in [
            *sorted(blobs.iterdir()),
            layer.parent / "index.json",
            layer.parent / "oci-layout",
        ]:
            member = tarfile.TarInfo(str(path.relative_to(layer.parent)))
            member.size, member.mode = path.stat().st_size, 0o644
            with path.open("rb") as content:
                archive.addfile(member, content)


def placed(document: Mapping[str, object], blobs: Path, media_type: str) -> dict[str, Any]:
    """Write a document as a blob; return its descriptor."""
    path = blobs / "document"
    path.write_text(json.dumps(document))
    return moved(path, blobs, media_type)


def moved(path: Path, blobs: Path, media_type: str) -> dict[str, Any]:
    """Move a file to its place among the blobs; return its descriptor."""
    digest = sha256_of(path)
    path.rename(blobs / digest)
    size = (blobs / digest).stat().st_size
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}
