"""A finished snapshot put where Spark's workers reach it: an object store, HDFS, a shared disk.

    <address>/<snapshot>/{containers,replicas,nodes,pending_ops}/part-…
    <address>/<snapshot>/manifest.json     written last: no manifest, no snapshot

Nothing can be renamed there, so what was begun and not finished lies where it would be, without its
manifest, which every reader asks for first. The next snapshot removes it.
"""

from pathlib import Path
from typing import Any, Final

import pyarrow
import pyarrow.fs

from agent.errors import Code, Unavailable
from agent.rpc.wire.addresses import below, opened

MANIFEST: Final = "manifest.json"
PAGE_BYTES: Final = 4 * 1024**2  # in memory at once

fs: Any = pyarrow.fs  # compiled code without types


def publish(snapshot: Path, address: str, *, keep_count: int) -> str:
    """Copy a finished snapshot below an address, remove the oldest there beyond `keep_count` and
    what was left unfinished; return its own address.

    Raises Refused(INVALID_CONFIG) for an address that is none, Unavailable when it cannot be
    written: no reader takes it for a snapshot then.
    """
    files, directory = opened(address)
    target = f"{directory}/{snapshot.name}"
    names = sorted(p.relative_to(snapshot).as_posix() for p in snapshot.rglob("*") if p.is_file())
    try:
        for name in sorted(names, key=lambda name: name == MANIFEST):
            _copy(snapshot / name, files, f"{target}/{name}")
        _remove_old(files, directory, snapshot.name, keep_count)
    except (OSError, pyarrow.ArrowException) as error:
        raise Unavailable(
            Code.UNAVAILABLE,
            f"snapshot {snapshot.name} cannot be written to {address}: {error}",
            hint=f"it is whole in {snapshot}",
        ) from error
    return below(address, snapshot.name)


def _copy(source: Path, files: Any, target: str) -> None:
    if isinstance(files, fs.LocalFileSystem):
        Path(target).parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as read, files.open_output_stream(target) as written:
        while page := read.read(PAGE_BYTES):
            written.write(page)


def _remove_old(files: Any, directory: str, newest: str, keep_count: int) -> None:
    """Remove the oldest snapshots, and those older than the newest that have no manifest."""
    found = files.get_file_info(fs.FileSelector(directory))
    names = sorted(i.base_name for i in found if i.type == fs.FileType.Directory)
    ours = [name for name in names if name[:1].isdigit() and name <= newest]
    manifests = files.get_file_info([f"{directory}/{name}/{MANIFEST}" for name in ours])
    whole = [
        name for name, info in zip(ours, manifests, strict=True) if info.type == fs.FileType.File
    ]
    for name in set(ours) - set(whole[-keep_count:]):
        # First what makes it a snapshot: nobody reads one of which half is gone.
        if name in whole:
            files.delete_file(f"{directory}/{name}/{MANIFEST}")
        files.delete_dir(f"{directory}/{name}")
