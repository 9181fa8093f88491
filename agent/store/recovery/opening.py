"""Opening of the volumes of a datanode.

Working volumes are recovered. The other volumes are reported as failed.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agent.store.files.layout import VolumeLayout, VolumeVersion
from agent.store.index.facts import VolumeFacts
from agent.store.options import StoreOptions
from agent.store.recovery.startup_recovery import StartupResult, recover
from agent.store.volumes.ballast import with_ballast
from agent.store.volumes.identity import is_of, read_versions
from agent.store.volumes.service_mode import VolumeMode, read_service
from agent.store.volumes.volume import (
    Volume,
    check_any_opened,
    check_volume_paths,
    failed_volume,
    open_volume,
)
from agent.store.volumes.volume_registry import VolumeRegistry, newest_known, remember
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.durable import error_of


@dataclass(frozen=True, slots=True)
class OpenResult:
    """Result of opening the volumes: the open and the failed volumes.

    `shelf` is the result of the recovery of the open volumes.
    """

    volumes: Sequence[Volume]
    shelf: StartupResult
    failed: Sequence[VolumeFacts]


def open_volumes(
    volume_paths: Sequence[Path],
    *,
    cluster_id: str,
    datanode_id: str,
    options: StoreOptions,
    keeps_failed: bool = False,
    rebuilds_later: bool = False,
) -> OpenResult:
    """Open and recover volumes. Return the open and the failed volumes.

    A volume that does not work, or that belongs to another datanode, is reported as failed and not
    changed. If no volume works, close all and raise the error of the first. With `keeps_failed`, do
    not raise this error if a failed volume belongs to this datanode or has an unknown owner. With
    `rebuilds_later`, the caller rebuilds lost indexes (`shelf.backlogs`).

    Raise `RefusedError(VOLUME_IN_USE)` if another process uses a volume, and
    `UnavailableError(BUSY)` if the host is short of descriptors or memory.
    """
    check_volume_paths(volume_paths)
    known = newest_known([_layout(path, cluster_id) for path in volume_paths])
    volume_paths = [*volume_paths, *_added(known, volume_paths)]
    retired = [path for path in volume_paths if _is_retired(_layout(path, cluster_id))]
    volume_paths = [path for path in volume_paths if path not in retired]
    check_any_left(volume_paths, retired)
    versions = read_versions(volume_paths)
    layouts = {path: _layout(path, cluster_id) for path in volume_paths}
    ids = {path: one.volume_id for path, one in versions.items() if isinstance(one, VolumeVersion)}
    opening = partial(open_volume, cluster_id=cluster_id, datanode_id=datanode_id, options=options)
    opened: dict[Path, Volume] = {}
    failed: dict[Path, SutureError] = {}
    try:
        for path in volume_paths:
            expected = known.at(path)
            try:
                check_single(layouts[path], ids.get(path, ""), list(opened.values()))
                expected = "" if expected in ids.values() else expected
                open_one = partial(opening, path, expected=expected)
                opened[path] = with_ballast(layouts[path], options.reserve_bytes, open_one)
            except SutureError as error:
                if error.code in {Code.VOLUME_IN_USE, Code.BUSY}:
                    raise
                failed[path] = error
        shelf = recover(list(opened.values()), options, rebuilds_later=rebuilds_later)
        for volume, failure in shelf.failed:
            path = next(path for path, one in opened.items() if one is volume)
            opened.pop(path).close(is_well=False)
            failed[path] = failure
        lost = {
            path
            for path, one in versions.items()
            if isinstance(one, SutureError) or is_of(one, cluster_id, datanode_id)
        }
        if not (keeps_failed and lost & failed.keys()):
            check_any_opened(list(opened.values()), list(failed.items()))
    except BaseException:
        _close(opened.values())
        raise
    today = {path: ids.get(path) or known.at(path) for path in failed}
    out = [failed_volume(path, error, today[path]) for path, error in failed.items()]
    today |= {path: volume.volume_id for path, volume in opened.items()}
    remember(
        [volume.layout for volume in opened.values()],
        known,
        {path: volume_id for path, volume_id in today.items() if volume_id},
        added={path for path in known.added if Path(path) in today},
    )
    return OpenResult(list(opened.values()), shelf, out)


def _close(volumes: Iterable[Volume]) -> None:
    for volume in volumes:
        volume.close(is_well=False)


def check_any_left(paths: Sequence[Path], retired: Sequence[Path]) -> None:
    """Raise RefusedError if `paths` is empty because all volumes are retired."""
    if not paths:
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"all volumes are retired: {', '.join(map(str, retired))}",
            hint="name a directory that is not in storage.volumes",
        )


def _layout(path: Path, cluster_id: str) -> VolumeLayout:
    return VolumeLayout(Path(os.path.realpath(path)), cluster_id)


def _added(known: VolumeRegistry, volume_paths: Sequence[Path]) -> list[Path]:
    """Return the volumes that an operator added at run time, and that the config does not name."""
    named = {os.path.realpath(path) for path in volume_paths}
    return [Path(path) for path in known.added if os.path.realpath(path) not in named]


def _is_retired(layout: VolumeLayout) -> bool:
    """Return whether the volume was emptied and retired. A retired volume is not opened."""
    return read_service(layout).mode is VolumeMode.RETIRED


def check_apart(layout: VolumeLayout, others: Iterable[Path]) -> None:
    """Raise RefusedError if the volume is inside one of the other volumes, or contains one."""
    for path in others:
        other = Path(os.path.realpath(path))
        if layout.volume in other.parents or other in layout.volume.parents:
            raise RefusedError(
                Code.INCONSISTENT_VOLUME,
                f"{layout.volume} and the volume {other} share a directory",
                hint="name a directory that neither is in another volume nor contains one",
            )


def check_single(layout: VolumeLayout, volume_id: str, opened: Sequence[Volume]) -> None:
    """Raise RefusedError if the volume, or a copy of it, is already open under another path."""
    for other in opened:
        try:
            is_same = layout.hdds.samefile(other.layout.hdds)
        except FileNotFoundError:
            is_same = False
        except OSError as error:
            raise error_of(error, layout.hdds) from error
        if is_same:
            raise RefusedError(
                Code.INCONSISTENT_VOLUME,
                f"{layout.volume} is the same directory as {other.layout.volume}",
                hint="name each disk once in storage.volumes",
            )
        if volume_id == other.volume_id:
            raise RefusedError(
                Code.INCONSISTENT_VOLUME,
                f"{layout.volume} has the id of {other.layout.volume}, {volume_id}: one is a copy",
                hint="unmount the copy; nothing was changed on it",
            )
