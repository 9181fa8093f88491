"""Checks a volume's directories for symbolic links and wrong owners.

A user who can write to a volume's directories could replace one by a link. The agent would then
read or write files elsewhere with its own rights. Replicas and block files are opened without
following links. The directories above them are checked when the volume is opened.
"""

import os
import stat
from pathlib import Path

from agent.store.files.layout import VolumeLayout
from suture.errors import Code, RefusedError
from suture.runtime.durable import disk_errors


def check_volume(layout: VolumeLayout) -> None:
    """Check the owners, modes and types of the directories of a volume. Ignore missing directories.

    Raise RefusedError(INCONSISTENT_VOLUME) if other users can write to a directory, or if one is a
    link or has another owner than root or the agent's user.
    """
    with disk_errors(layout.volume):
        if layout.volume.exists():
            _check_writers(layout.volume, layout.volume.stat())
    for path in (layout.hdds, layout.cluster, layout.current, layout.database):
        _check(path)
    for path in layout.remade_directories():
        if not path.is_symlink():  # `own_places` moves links aside
            _check(path)


def _check(path: Path) -> None:
    with disk_errors(path):
        try:
            facts = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return
    if stat.S_ISLNK(facts.st_mode):
        raise linked(path)
    _check_writers(path, facts)
    if facts.st_uid not in {0, os.geteuid()}:
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"cannot use {path}: its owner is user {facts.st_uid}, expected root or the "
            f"agent's user {os.geteuid()}",
            hint=f"run chown -R with the agent's user on {path}",
        )


def _check_writers(path: Path, facts: os.stat_result) -> None:
    if facts.st_mode & stat.S_IWOTH:
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"cannot use {path}: its mode {stat.S_IMODE(facts.st_mode):04o} lets every user "
            "change it",
            hint=f"chmod o-w {path}",
        )


def linked(path: Path) -> RefusedError:
    """Return the error for a symbolic link in the place of a directory."""
    return RefusedError(
        Code.INCONSISTENT_VOLUME,
        f"cannot use {path}: it is a symbolic link, expected a directory",
        hint="replace the link with the directory; only a volume itself may be a link",
    )
