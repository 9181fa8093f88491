"""The directory of a state: its lock file, its permissions, and the durability of its name."""

import fcntl
import os
import shutil
import stat
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Final, Self

import structlog

from scm.state.state_environment import DATA
from suture.errors import Code, RefusedError

DIRECTORY_MODE: Final = 0o750
GROWING: Final = "state.restoring"  # exists beside the state while a restore is running

_FILES: Final = frozenset({DATA})
_OWN_NAMES: Final = ("LOCK", "state", "snapshots", "runs")
"""Names of the files and directories that the SCM creates in its directory."""
_OWNER_BYTES: Final = 512
_FIRST_START: Final = "first start, "  # prefix of the lock file's text until there is a cluster

_log = structlog.get_logger("suture.scm")


class StateDirectoryLock:
    """The lock file of a state directory.

    The process that holds a lock (flock) on it owns the directory. The text of the file names this
    process. The text also records whether the first start of a cluster is in progress
    (`note_start`). This distinguishes a first start that was killed from a lost state.
    """

    def __init__(self, descriptor: int, left: str) -> None:
        self._descriptor = descriptor
        self.left = left
        """The text that the previous owner wrote to the lock file."""

    @classmethod
    def acquire(cls, path: Path, *, is_first: bool = False) -> Self:
        """Acquire the lock of a directory.

        `is_first` is True if no SCM has used the directory before. Raise
        RefusedError(VOLUME_IN_USE) if another process holds the lock; the error names this process.
        Raise RefusedError(INCONSISTENT_VOLUME) if the file cannot be opened or written.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(path, flags, 0o640)
        except OSError as error:
            raise RefusedError(Code.INCONSISTENT_VOLUME, f"{path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, _OWNER_BYTES).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise RefusedError(
                Code.VOLUME_IN_USE,
                f"cannot use {path.parent}: another control plane uses it: {holder}",
                hint="stop it first, or name another --data directory",
            ) from error
        left = os.pread(descriptor, _OWNER_BYTES, 0).decode(errors="replace").strip()
        owner = cls(descriptor, left)
        try:
            owner._write(is_first=is_first or left.startswith(_FIRST_START))
        except OSError as error:
            owner.release()
            raise RefusedError(
                Code.INCONSISTENT_VOLUME,
                f"cannot write {path}: {error.strerror}",
                hint="free space on the disk",
            ) from error
        return owner

    def note_start(self, *, is_first: bool) -> None:
        """Record on disk whether the first start of a cluster is in progress in this directory."""
        self._write(is_first=is_first)
        os.fsync(self._descriptor)

    def _write(self, *, is_first: bool) -> None:
        """Overwrite the text of the lock file in a single write.

        If the process is killed during the write, the file has the old or the new text.
        """
        kind = _FIRST_START if is_first else ""
        text = f"{kind}pid {os.getpid()}: {' '.join(sys.argv)}".encode()[: _OWNER_BYTES - 1]
        os.pwrite(self._descriptor, text.ljust(_OWNER_BYTES - 1) + b"\n", 0)

    def release(self) -> None:
        """Release the lock. The kernel also releases it when the process dies."""
        os.close(self._descriptor)


def cut_off_bytes(directory: Path) -> int:
    """Return the number of bytes that an interrupted restore left in a directory.

    Return 0 if there was no interrupted restore.
    """
    growing = directory / GROWING
    if growing.is_symlink() or not growing.is_dir():
        return 0
    files = list(growing.iterdir())
    if any(file.name not in _FILES or file.is_symlink() or file.is_dir() for file in files):
        return 0  # not made by a restore
    return sum(file.lstat().st_blocks * 512 for file in files) or 1


def remove_cut_off(directory: Path) -> bool:
    """Remove the files of an interrupted restore. Return True if there were any.

    The caller must own the directory, so that no restore is running in it.
    """
    is_there = cut_off_bytes(directory) > 0
    if is_there:
        shutil.rmtree(directory / GROWING)
    return is_there


def settle_cut_off(directory: Path) -> None:
    """Remove the files of an interrupted restore, so that the SCM can start.

    Raise RefusedError if there is no state besides these files, because the start would create a
    new state.
    """
    if (directory / GROWING).exists() and not (directory / "state").exists():
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"cannot start on {directory}: a restore into it was interrupted",
            hint="run suture scm restore again; it starts over",
        )
    if remove_cut_off(directory):
        _log.warning("incomplete_restore_removed", path=str(directory / GROWING))


def names_left(directory: Path) -> tuple[str, ...]:
    """Return the names in a directory that the SCM has created."""
    return tuple(name for name in _OWN_NAMES if os.path.lexists(directory / name))


def settle_start(
    directory: Path, owner: StateDirectoryLock, left: Sequence[str], *, is_new: bool
) -> bool:
    """Return True if a new cluster begins in the directory, because there was none before.

    `left` are the names that existed before this start. If an operator wants a new cluster
    (`is_new`), a lost state is renamed. Otherwise, raise RefusedError if the state is lost, because
    a new cluster would reject all its datanodes.
    """
    data = directory / "state" / DATA
    is_empty = not data.exists() or (data.is_file() and not data.stat().st_size)
    is_killed = owner.left.startswith(_FIRST_START) or (not owner.left and left == ("LOCK",))
    is_first = not left or is_killed
    if is_empty and not is_first:
        if not is_new:
            raise lost_state(directory, f"{data} is {'empty' if data.exists() else 'missing'}")
        _set_aside(directory)
        is_first = True
    if is_empty:
        owner.note_start(is_first=True)
    return is_first


def lost_state(directory: Path, why: str) -> RefusedError:
    """Return the error for a start in a directory whose state is lost. `why` describes the loss."""
    return RefusedError(
        Code.INCONSISTENT_VOLUME,
        f"cannot start on {directory}: the state of its cluster is lost, {why}",
        hint="restore a backup with suture scm restore; to abandon the cluster, start a new "
        "one with --new-cluster, which rejects the old datanodes",
    )


def not_new(directory: Path, cluster_id: str) -> RefusedError:
    """Return the error for the start of a new cluster in a directory that already has a state."""
    return RefusedError(
        Code.INVALID_CONFIG,
        f"cannot start a new cluster in {directory}: it has the state of cluster {cluster_id}",
        hint="omit --new-cluster, or name another --data directory",
    )


def _set_aside(directory: Path) -> None:
    """Rename the directory of a lost state to `state.lost-<number>`, if it exists."""
    if not (directory / "state").exists():
        return
    names = (f"state.lost-{number}" for number in count(1))
    aside = next(directory / name for name in names if not os.path.lexists(directory / name))
    (directory / "state").rename(aside)
    _log.warning("state_set_aside", path=str(aside))


def made_directory(path: Path) -> list[Path]:
    """Create a directory and its missing parents. Return the directories that were created.

    Raise RefusedError if they cannot be created.
    """
    try:
        missing = [one for one in (path, *path.parents) if not one.exists()]
        path.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    except OSError as error:
        why = f"{path} cannot be the directory of a state: {error.strerror}"
        raise RefusedError(Code.INCONSISTENT_VOLUME, why) from error
    return missing


def check_directory(path: Path) -> None:
    """Raise RefusedError if other users can change a directory. They could replace the state."""
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(facts.st_mode):
        raise RefusedError(Code.INCONSISTENT_VOLUME, f"cannot use {path}: it is not a directory")
    if facts.st_mode & stat.S_IWOTH:
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"cannot use {path}: its mode {stat.S_IMODE(facts.st_mode):04o} lets every user "
            "change it",
            hint=f"chmod o-w {path}",
        )
    if facts.st_uid not in {0, os.geteuid()}:
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"cannot use {path}: its owner is user {facts.st_uid}, expected root or the user "
            "of suture-scm",
        )


def make_durable(directory: Path, made: Sequence[Path]) -> None:
    """Sync the directory entries of the state and of the directories in `made` to the disk.

    Otherwise, a power failure could remove acknowledged data together with its directory. The entry
    of `directory` is also synced if an earlier process created the directory, because that process
    may have been killed before its sync. A parent directory that this process may not read is not
    synced.
    """
    above = [path.parent for path in made or [directory]]
    readable = [path for path in above if os.access(path, os.R_OK)]
    for named_in in (directory / "state", directory, *readable):
        descriptor = os.open(named_in, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
