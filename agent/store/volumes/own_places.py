"""Removal of foreign objects from the paths that the agent recreates at a start.

A lock file, an empty directory for running work, and the quarantine directory contain no data that
the volume serves. Therefore, the volume does not fail if a foreign object is at such a path. The
object is renamed, without being followed, opened or removed, and the path is recreated.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from agent.store.files.layout import VolumeLayout
from suture.errors import Code, RefusedError
from suture.runtime.durable import disk_errors, sync_directory
from suture.runtime.file_kinds import kind_at

ASIDE: Final = ".aside"
ASIDE_MAX: Final = 100  # per path; if there are more, a program keeps creating them

log = structlog.get_logger()


def free_places(layout: VolumeLayout) -> None:
    """Rename foreign objects at the paths that a start recreates.

    The path of the lock file is omitted. Raise SutureError if a rename fails.
    """
    for path in layout.remade_directories():
        free_place(path, stat.S_ISDIR)
    for path in layout.remade_files():
        free_place(path, stat.S_ISREG)


def free_place(path: Path, belongs: Callable[[int], bool]) -> None:
    """Rename the object at `path` unless `belongs` returns True for its file mode.

    Raise SutureError if the rename fails.
    """
    with disk_errors(path):
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return
        if belongs(mode):
            return
        kind, aside = kind_at(path), _free_name(path)
        path.rename(aside)
        sync_directory(path.parent)
    log.warning("volume_path_freed", path=str(path), kind=kind, aside=str(aside))


def _free_name(path: Path) -> Path:
    for number in range(1, ASIDE_MAX + 1):
        aside = path.with_name(f"{path.name}{ASIDE}{number}")
        if not os.path.lexists(aside):
            return aside
    raise RefusedError(
        Code.INCONSISTENT_VOLUME,
        f"cannot use {path}: foreign files were moved away {ASIDE_MAX} times",
        hint=f"find the program that creates them, and remove {path}{ASIDE}*",
    )
