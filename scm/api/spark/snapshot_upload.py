"""Uploads a finished snapshot for Spark's workers: to an object store, HDFS, or a shared disk.

    <address>/<snapshot>/{containers,replicas,nodes,pending_ops}/part-…
    <address>/<snapshot>/manifest.json     written last: no manifest, no snapshot

An object store cannot rename a directory. So an unfinished upload lies at its final place without a
manifest, which every reader opens first. The next upload removes it.
"""

from pathlib import Path
from typing import Final

import pyarrow

from suture.errors import Code, UnavailableError
from suture.wire.mapping.addresses import below, opened
from suture.wire.mapping.file_systems import FsPath

MANIFEST: Final = "manifest.json"
PAGE_BYTES: Final = 4 * 1024**2  # in memory at once


def publish(snapshot: Path, address: str, *, keep_count: int) -> str:
    """Upload a finished snapshot below an address, remove the oldest there beyond `keep_count` and
    unfinished ones; return its address.

    Raise RefusedError(INVALID_CONFIG) for an invalid address, UnavailableError if it cannot be
    written; readers ignore the unfinished snapshot.
    """
    directory = opened(address)
    names = sorted(p.relative_to(snapshot).as_posix() for p in snapshot.rglob("*") if p.is_file())
    try:
        for name in sorted(names, key=lambda name: name == MANIFEST):
            _copy(snapshot / name, directory / snapshot.name / name)
        _remove_old(directory, snapshot.name, keep_count)
    except (OSError, pyarrow.ArrowException) as error:
        raise UnavailableError(
            Code.UNAVAILABLE,
            f"cannot write snapshot {snapshot.name} to {address}: {error}",
            hint=f"a complete copy is in {snapshot}",
        ) from error
    return below(address, snapshot.name)


def _copy(source: Path, target: FsPath) -> None:
    with source.open("rb") as read, target.created() as written:
        while page := read.read(PAGE_BYTES):
            written.write(page)


def _remove_old(directory: FsPath, newest: str, keep_count: int) -> None:
    """Remove the oldest snapshots, and those before the newest without a manifest."""
    found = [one.place for one in directory.listed() if not one.is_file]
    ours = [place for place in found if place.name[:1].isdigit() and place.name <= newest]
    whole = [place for place in ours if (place / MANIFEST).is_file()]
    kept = {place.name for place in whole[-keep_count:]}
    for place in ours:
        if place.name not in kept:
            # Remove the manifest first, so that no reader opens a half-removed snapshot.
            (place / MANIFEST).remove()
            place.remove()
