"""The directory of a state: whose it is, who may change it, and that its name is durable."""

import fcntl
import os
import shutil
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import structlog

from agent.errors import Code, Refused

DIRECTORY_MODE: Final = 0o750
GROWING: Final = "state.restoring"  # beside the place of the state, while a restore is at work

_FILES: Final = frozenset({"data.mdb", "lock.mdb"})

_log = structlog.get_logger("suture.scm")


class Ownership:
    """A lock file: who holds the flock owns the directory; the text inside is for the loser."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> Self:
        """Take the lock. Raises Refused(VOLUME_IN_USE) naming the process that has it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(path, flags, 0o640)
        except OSError as error:
            raise Refused(Code.INCONSISTENT_VOLUME, f"{path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 512).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise Refused(
                Code.VOLUME_IN_USE,
                f"{path.parent} is in use by another control plane: {holder}",
                hint="stop it first, or give this one its own --data directory",
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()}: {' '.join(sys.argv)}"[:500].encode(), 0)
        return cls(descriptor)

    def release(self) -> None:
        """Give the directory back; the kernel does so too when the process dies."""
        os.close(self._descriptor)


def cut_off_bytes(directory: Path) -> int:
    """Return how much room that takes which a restore left here that was killed; 0: nothing."""
    growing = directory / GROWING
    if growing.is_symlink() or not growing.is_dir():
        return 0
    files = list(growing.iterdir())
    if any(file.name not in _FILES or file.is_symlink() or file.is_dir() for file in files):
        return 0  # no restore made that
    return sum(file.lstat().st_blocks * 512 for file in files) or 1


def remove_cut_off(directory: Path) -> bool:
    """Remove that, part of a copy of a backup; whoever calls owns the directory: none is at work
    in it. Return whether there was any."""
    is_there = cut_off_bytes(directory) > 0
    if is_there:
        shutil.rmtree(directory / GROWING)
    return is_there


def settle_cut_off(directory: Path) -> None:
    """Make sure that a control plane may begin in its directory after a restore was killed there.

    Raises Refused where that left no state: a new one would take the place of what is restored.
    """
    if (directory / GROWING).exists() and not (directory / "state").exists():
        raise Refused(
            Code.INCONSISTENT_VOLUME,
            f"a restore into {directory} was cut off: there is no state yet",
            hint="run suture scm restore again, it begins anew",
        )
    if remove_cut_off(directory):
        _log.warning("restore_cut_off_removed", path=str(directory / GROWING))


def made_directory(path: Path) -> list[Path]:
    """Make a directory, unless it is there; return which of it and those above were missing."""
    try:
        missing = [one for one in (path, *path.parents) if not one.exists()]
        path.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    except OSError as error:
        why = f"{path} cannot be the directory of a state: {error.strerror}"
        raise Refused(Code.INCONSISTENT_VOLUME, why) from error
    return missing


def check_directory(path: Path) -> None:
    """Refuse a directory that others may change: they could give this process another state."""
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(facts.st_mode):
        raise Refused(Code.INCONSISTENT_VOLUME, f"{path} is no directory")
    if facts.st_mode & stat.S_IWOTH:
        raise Refused(
            Code.INCONSISTENT_VOLUME,
            f"{path} has mode {stat.S_IMODE(facts.st_mode):04o}: every user may change it",
            hint=f"chmod o-w {path}",
        )
    if facts.st_uid not in {0, os.geteuid()}:
        raise Refused(
            Code.INCONSISTENT_VOLUME,
            f"{path} belongs to user {facts.st_uid}, neither to root nor to us",
        )


def make_durable(directory: Path, made: Sequence[Path]) -> None:
    """Make the names of the state durable, and those of the directories made for it: a power cut
    must not take what was acknowledged with the directory that it is in.

    Its own name always, if we may: who made it may have been killed before it came here.
    """
    above = [path.parent for path in made or [directory]]
    readable = [path for path in above if os.access(path, os.R_OK)]
    for named_in in (directory / "state", directory, *readable):
        descriptor = os.open(named_in, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
