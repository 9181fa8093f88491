"""Uploads a finished snapshot for Spark's workers: to an object store, HDFS, or a shared disk.

    <address>/<snapshot>/{containers,replicas,nodes,pending_ops}/part-…
    <address>/<snapshot>/manifest.json

The manifest is written last, because an object store cannot rename a directory. A directory without
a manifest is no snapshot: every reader opens the manifest first. The next upload removes an
unfinished snapshot.
"""

from pathlib import Path
from typing import Final

import pyarrow

from suture.errors import Code, UnavailableError
from suture.wire.mapping.addresses import below, opened
from suture.wire.mapping.file_systems import FsPath

MANIFEST: Final = "manifest.json"
PAGE_BYTES: Final = 4 * 1024**2  # bytes in memory at once


def publish(snapshot: Path, address: str, *, keep_count: int) -> str:
    """Upload a finished snapshot below `address`, and return the address of the uploaded snapshot.

    Also remove unfinished snapshots below `address`, and the oldest snapshots beyond `keep_count`.
    Raise RefusedError(INVALID_CONFIG) if the address is invalid. Raise UnavailableError if the
    upload fails; readers then ignore the unfinished snapshot.
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
    """Remove the oldest snapshots beyond `keep_count`, and old unfinished snapshots.

    An unfinished snapshot is removed if it is older than the newest snapshot.
    """
    found = [one.place for one in directory.listed() if not one.is_file]
    ours = [place for place in found if place.name[:1].isdigit() and place.name <= newest]
    whole = [place for place in ours if (place / MANIFEST).is_file()]
    kept = {place.name for place in whole[-keep_count:]}
    for place in ours:
        if place.name not in kept:
            # Remove the manifest first, so that no reader opens a half-removed snapshot.
            (place / MANIFEST).remove()
            place.remove()
