"""Ballast: files on each volume that the agent removes to get space on a full disk.

The agent creates BALLAST_FILES files with allocated space when it opens a volume. If a delete or a
start finds no space or no inode, the agent removes these files, tries again, and then recreates
them as far as there is space.

The agent's own writes leave `storage.reserve_bytes` free, but other programs may fill the disk. A
delete itself needs space, for the tree with its tombstones and for the index. Without ballast, a
full disk would stay full. CockroachDB has ballast files, and ZFS has slop space, for the same
reason.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import structlog

from agent.store.files.layout import VolumeLayout
from suture.errors import SutureError
from suture.runtime.durable import DIRECTORY_MODE, allocate, is_out_of_space, open_new

BALLAST_FILES: Final = 8  # each also frees an inode; a delete needs two at once
BYTES_MAX: Final = 16 * 1024**2  # size of a tree of half a million blocks
BYTES_MIN: Final = 128 * 1024
SHARE_OF_RESERVE: Final = 16
SHARE_OF_DISK: Final = 64

T = TypeVar("T")
log = structlog.get_logger()


def fill_ballast(layout: VolumeLayout, reserve_bytes: int) -> None:
    """Create missing ballast files as far as there is space.

    Ignore errors, because the volume check reports faults of the disk.
    """
    with suppress(OSError):
        layout.ballast.mkdir(DIRECTORY_MODE, exist_ok=True)
        space = os.statvfs(layout.ballast)
        total_bytes = min(
            max(reserve_bytes // SHARE_OF_RESERVE, BYTES_MIN),
            BYTES_MAX,
            space.f_blocks * space.f_frsize // SHARE_OF_DISK,
        )
        for number in range(BALLAST_FILES):
            path = layout.ballast / str(number)
            if not os.path.lexists(path):
                _make(path, total_bytes // BALLAST_FILES)


def _make(path: Path, size_bytes: int) -> None:
    fd = open_new(path)
    try:
        allocate(fd, size_bytes)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(fd)


def release_ballast(layout: VolumeLayout) -> bool:
    """Remove the ballast files; return whether there were any."""
    count = 0
    with suppress(OSError):
        for path in list(layout.ballast.iterdir()):
            path.unlink()
            count += 1
    if count:
        log.warning("ballast_released", volume=str(layout.volume))
    return count > 0


def with_ballast(layout: VolumeLayout, reserve_bytes: int, change: Callable[[], T]) -> T:
    """Run `change` and return its result.

    If the disk is full, remove the ballast files and run it again.
    """
    try:
        return change()
    except (SutureError, OSError) as error:
        if not is_out_of_space(error) or not release_ballast(layout):
            raise
    try:
        return change()
    finally:
        fill_ballast(layout, reserve_bytes)
