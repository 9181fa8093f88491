"""Opening all volumes of a datanode: the working ones recovered, the others told of."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.errors import SutureError, Unavailable, VolumeFailed
from agent.store.facts import VolumeFacts
from agent.store.options import StoreOptions
from agent.store.recovery import Shelf, recover
from agent.store.volume import (
    Volume,
    check_any_opened,
    check_volume_paths,
    failed_volume,
    open_volume,
)


@dataclass(frozen=True, slots=True)
class Opened:
    """What a start has found."""

    volumes: Sequence[Volume]
    shelf: Shelf
    failed: Sequence[VolumeFacts]


def open_volumes(
    volume_paths: Sequence[Path], *, cluster_id: str, datanode_id: str, options: StoreOptions
) -> Opened:
    """Open and recover volumes. One that does not work is left out; if none works, or one is not
    ours (`Refused`), none stays open."""
    check_volume_paths(volume_paths)
    opened: list[Volume] = []
    failed: list[tuple[Path, SutureError]] = []
    try:
        for path in volume_paths:
            try:
                volume = open_volume(
                    path, cluster_id=cluster_id, datanode_id=datanode_id, options=options
                )
                opened.append(volume)
            except (Unavailable, VolumeFailed) as error:
                failed.append((path, error))
        shelf = recover(opened, options)
        for volume, failure in shelf.failed:
            opened.remove(volume)
            volume.close()
            failed.append((volume.layout.volume, failure))
        check_any_opened(opened, failed)
    except BaseException:
        for volume in opened:
            volume.close()
        raise
    return Opened(opened, shelf, [failed_volume(*one) for one in failed])
