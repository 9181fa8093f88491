"""A finished snapshot put where Spark's workers reach it: an object store, HDFS, a shared disk.

    <address>/<snapshot>/{containers,replicas,nodes,pending_ops}/part-…
    <address>/<snapshot>/manifest.json     written last: no manifest, no snapshot

No directory can be renamed in a store, so what was begun and not finished lies where it would be,
without its manifest, which every reader asks for first. The next snapshot removes it.
"""

from pathlib import Path
from typing import Final

import pyarrow

from agent.errors import Code, Unavailable
from agent.rpc.wire.addresses import below, opened
from agent.rpc.wire.file_systems import Place

MANIFEST: Final = "manifest.json"
PAGE_BYTES: Final = 4 * 1024**2  # in memory at once


def publish(snapshot: Path, address: str, *, keep_count: int) -> str:
    """Copy a finished snapshot below an address, remove the oldest there beyond `keep_count` and
    what was left unfinished; return its own address.

    Raises Refused(INVALID_CONFIG) for an address that is none, Unavailable when it cannot be
    written: no reader takes it for a snapshot then.
    """
    directory = opened(address)
    names = sorted(p.relative_to(snapshot).as_posix() for p in snapshot.rglob("*") if p.is_file())
    try:
        for name in sorted(names, key=lambda name: name == MANIFEST):
            _copy(snapshot / name, directory / snapshot.name / name)
        _remove_old(directory, snapshot.name, keep_count)
    except (OSError, pyarrow.ArrowException) as error:
        raise Unavailable(
            Code.UNAVAILABLE,
            f"snapshot {snapshot.name} cannot be written to {address}: {error}",
            hint=f"it is whole in {snapshot}",
        ) from error
    return below(address, snapshot.name)


def _copy(source: Path, target: Place) -> None:
    with source.open("rb") as read, target.created() as written:
        while page := read.read(PAGE_BYTES):
            written.write(page)


def _remove_old(directory: Place, newest: str, keep_count: int) -> None:
    """Remove the oldest snapshots, and those older than the newest that have no manifest."""
    found = [one.place for one in directory.listed() if not one.is_file]
    ours = [place for place in found if place.name[:1].isdigit() and place.name <= newest]
    whole = [place for place in ours if (place / MANIFEST).is_file()]
    kept = {place.name for place in whole[-keep_count:]}
    for place in ours:
        if place.name not in kept:
            # First what makes it a snapshot: nobody reads one of which half is gone.
            (place / MANIFEST).remove()
            place.remove()
