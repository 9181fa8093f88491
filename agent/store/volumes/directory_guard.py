"""Guard of a volume's directories: no links, no foreign owners.

A user who may write into a volume's directories could replace one by a link, and make this process
read or write files elsewhere with its rights. Replicas and block files are opened without following
links; the directories above them are checked when a volume is opened.
"""

import os
import stat
from pathlib import Path

from agent.store.files.layout import VolumeLayout
from suture.errors import Code, RefusedError
from suture.runtime.durable import disk_errors


def check_volume(layout: VolumeLayout) -> None:
    """Refuse a volume that others may write, or whose directories are links or have another owner.

    Missing directories are ignored. Raise RefusedError(INCONSISTENT_VOLUME).
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
            f"{path} belongs to user {facts.st_uid}, neither to root nor to the agent's user "
            f"{os.geteuid()}",
            hint=f"chown -R it to the agent's user: {path}",
        )


def _check_writers(path: Path, facts: os.stat_result) -> None:
    if facts.st_mode & stat.S_IWOTH:
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"{path} has mode {stat.S_IMODE(facts.st_mode):04o}: every user may change what is in "
            "it",
            hint=f"chmod o-w {path}",
        )


def linked(path: Path) -> RefusedError:
    """Return the refusal of a link in the place of a directory."""
    return RefusedError(
        Code.INCONSISTENT_VOLUME,
        f"{path} is a symbolic link, where this agent makes only directories",
        hint="put the directory itself in its place; only a whole volume may be a link",
    )
