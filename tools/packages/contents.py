"""Contents of the packages: the copyright file, and the bill of materials in CycloneDX."""

import base64
import csv
import hashlib
import json
import re
import tarfile
import tempfile
import uuid
import zipfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from tools.packages.wheels import ARCHIVE, metadata_of

HOME: Final = Path("opt/suture")
WRITTEN: Final = re.compile(  # by Python's venv module, pip and make-environment
    r"\.pyc$|\.dist-info/(INSTALLER|REQUESTED|RECORD|direct_url\.json)$"
    rf"|^/{HOME}/(lock|environments/[^/]+/(made-of|pyvenv\.cfg|\.gitignore|bin/[^/]+))$"
)
TERMS: Final = re.compile(r"(licen[cs]e|copying|notice|authors)", re.IGNORECASE)


class UnlicensedError(Exception):
    """Raised if a wheel names no licence or has no text of it."""


def copyright_text(wheels: Iterable[Path]) -> str:
    """Return a text with the name, version, licence and licence texts of each wheel. Raise
    UnlicensedError if a wheel has no licence or no text of it."""
    parts = ["The wheels in /opt/suture come from these projects, each under its own licence.\n"]
    done = set[str]()
    for wheel in sorted(wheels):
        metadata = metadata_of(wheel)
        title = f"{metadata['Name']} {metadata['Version']}"
        if title in done:
            continue
        done.add(title)
        texts = list(terms_of(wheel))
        if not texts:
            raise UnlicensedError(f"cannot write the copyright file: {wheel.name} has no text")
        parts += [f"\n{'=' * 80}\n{title}\nLicence: {licence_of(wheel)}\n"]
        parts += [f"\n--- {name}\n{text.rstrip()}\n" for name, text in texts]
    return "".join(parts)


def licence_of(wheel: Path) -> str:
    """Return the licence that a wheel's metadata states. Raise UnlicensedError if none."""
    metadata = metadata_of(wheel)
    classifiers = [c for c in metadata.get_all("Classifier") or [] if c.startswith("License ::")]
    stated = metadata["License-Expression"] or (metadata["License"] or "").partition("\n")[0]
    names = [stated, *(c.rpartition(":: ")[2] for c in classifiers)]
    found: str = next(filter(None, names), "")
    if not found:
        raise UnlicensedError(f"cannot state the licence of {wheel.name}: its metadata has none")
    return found


def terms_of(wheel: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of each file with licence terms in a wheel's metadata folder."""
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            folder, _, rest = name.partition("/")
            if folder.endswith(".dist-info") and TERMS.search(Path(rest).name):
                yield rest, archive.read(name).decode(errors="replace")


def bill_of_materials(
    roots: Iterable[Path], version: str, built_at: int, debian: Iterable[str] = ()
) -> str:
    """Return every file below /opt/suture of staged packages, the wheels within the archive, and
    the files within each wheel, as a CycloneDX document (JSON, version 1.6). `built_at` is in
    seconds since the epoch. `debian` has lines of image.lock."""
    files = sorted(path for root in roots for path in (root / HOME).rglob("*") if path.is_file())
    whole = hashlib.sha256(b"".join(hashlib.sha256(p.read_bytes()).digest() for p in files))
    suture = Component(name="suture", version=version, type=ComponentType.APPLICATION)
    components = [component_of(p, f"/{HOME}/{str(p).partition(f'/{HOME}/')[2]}") for p in files]
    components += map(debian_package, debian)
    bom = Bom(
        components=components,
        serial_number=uuid.UUID(bytes=whole.digest()[:16], version=4),
        metadata=BomMetaData(component=suture, timestamp=datetime.fromtimestamp(built_at, UTC)),
    )
    suture.bom_ref.value = "suture"
    bom.register_dependency(suture, components)
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def debian_package(line: str) -> Component:
    """Return a package of Debian in the image."""
    pin, _, digest = line.partition(" --hash=sha256:")
    name, _, version = pin.partition("=")
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"deb:{name}",
        purl=PackageURL("deb", "debian", name, version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
    )


def component_of(path: Path, name: str) -> Component:
    """Return the CycloneDX component of a file in a package. The component of a wheel also has its
    project, licence and files. The component of the archive has its wheels."""
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=sha256_of(path))]
    if path.suffix != ".whl":
        contents = list(archived(path, name)) if path.name == ARCHIVE else []
        return Component(
            name=name, type=ComponentType.FILE, bom_ref=name, hashes=hashes, components=contents
        )
    metadata = metadata_of(path)
    licence = licence_of(path)
    return Component(
        name=metadata["Name"],
        version=metadata["Version"],
        type=ComponentType.LIBRARY,
        bom_ref=name,
        purl=PackageURL("pypi", None, metadata["Name"].lower(), metadata["Version"]),
        hashes=hashes,
        licenses=[
            LicenseExpression(licence)
            if metadata["License-Expression"]
            else DisjunctiveLicense(name=licence)
        ],
        components=list(members_of(path, name)),
    )


def archived(archive: Path, reference: str) -> Iterator[Component]:
    """Yield the wheels in an archive."""
    with tarfile.open(archive) as packed, tempfile.TemporaryDirectory() as scratch:
        for member in packed:
            content = packed.extractfile(member)
            assert content is not None, "the archive has only files"
            wheel = Path(scratch, member.name)
            wheel.write_bytes(content.read())
            yield component_of(wheel, f"{reference}!{member.name}")
            wheel.unlink()


def members_of(wheel: Path, reference: str) -> Iterator[Component]:
    """Yield the files that a wheel installs, from its RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        (record,) = (n for n in archive.namelist() if n.endswith(".dist-info/RECORD"))
        rows = list(csv.reader(archive.read(record).decode().splitlines()))
    for name, digest, *_ in rows:
        encoded = digest.removeprefix("sha256=")
        content = base64.urlsafe_b64decode(f"{encoded}==").hex()
        yield Component(
            name=name,
            type=ComponentType.FILE,
            bom_ref=f"{reference}!{name}",
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=content)] if digest else [],
        )


def unlisted(root: Path, bill: str) -> list[str]:
    """Return the files below /opt/suture of a host that are not in a bill of materials, or have
    other content there. Files that the installation itself writes are left out."""
    listed: dict[str, set[str]] = {}
    components = json.loads(bill)["components"]
    for each in components:  # grows by the contents of archives and wheels
        components += each.get("components", ())
        hashes = {digest["content"] for digest in each.get("hashes", ())}
        listed.setdefault(each["bom-ref"].rpartition("!")[2], set()).update(hashes)
    found = []
    for path in sorted(path for path in (root / HOME).rglob("*") if path.is_file()):
        _, installed, member = str(path).partition("/site-packages/")
        name = member if installed else f"/{path.relative_to(root)}"
        if not WRITTEN.search(name) and sha256_of(path) not in listed.get(name, ()):
            found.append(str(path.relative_to(root)))
    return found


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
