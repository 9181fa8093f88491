"""A temporary directory for the tables of one archive.

The directory is in memory while the tables are small. RocksDB syncs a dozen times when it opens a
database and ingests a table, and temporary data need not be durable. Larger tables are moved to
disk. If a process was killed, the next process removes its directories, in memory and on disk.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from suture.errors import UnavailableError
from suture.runtime.durable import error_of

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - only private directories are made in it
MEMORY_BYTES_MAX: Final = 8 * 1024**2  # of one archive's tables; their database needs as much again
MEMORY_FREE_BYTES_MIN: Final = 16 * MEMORY_BYTES_MAX  # several archives arrive at a time
PREFIX: Final = "suture-archive-"
YOUNG_S: Final = 60.0  # a newer directory may not be locked yet


@contextmanager
def scratch_errors() -> Iterator[None]:
    """Convert errors of the temporary directory in a `with` block to UnavailableError."""
    try:
        yield
    except OSError as error:
        known = error_of(error, Path(error.filename or "scratch"))
        what = f"tables of an archive: {known}"
        raise UnavailableError(known.code, what, hint="free space in TMPDIR") from error


class Scratch:
    """A temporary directory as a context manager, which removes it at the end.

    Only one thread may use it. `path` may change with each call of `reserve`.
    """

    def __init__(self, memory: Path = MEMORY) -> None:
        self._memory = memory
        self._ends = ExitStack()
        self._reserved_bytes = 0
        self._is_in_memory = False
        self.path = Path()

    def __enter__(self) -> Self:
        self._is_in_memory = _has_room(self._memory)
        with scratch_errors():
            self.path = self._made(self._memory if self._is_in_memory else None)
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def reserve(self, size_bytes: int) -> Path:
        """Return the directory in which to create a file of `size_bytes`.

        If the files would then exceed MEMORY_BYTES_MAX, first move all files to disk. Raise
        UnavailableError if they cannot be moved.
        """
        self._reserved_bytes += size_bytes
        if self._is_in_memory and self._reserved_bytes > MEMORY_BYTES_MAX:
            self._is_in_memory = False
            with scratch_errors():
                small, self.path = self.path, self._made(None)
                for file in small.iterdir():
                    shutil.move(file, self.path / file.name)
        return self.path

    def _made(self, parent: Path | None) -> Path:
        made = tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent)
        path = Path(self._ends.enter_context(made))
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._ends.callback(os.close, fd)
        with suppress(OSError):  # if locks do not work, no directory is ever cleared
            fcntl.flock(fd, fcntl.LOCK_EX)  # held until this process ends
        return path


def clear_abandoned(memory: Path = MEMORY) -> None:
    """Remove the temporary directories of killed processes, which hold no lock on them."""
    places = [memory]
    with suppress(OSError):  # this host has no temporary directory on a disk
        places.append(Path(tempfile.gettempdir()))
    for path in (path for place in places for path in place.glob(f"{PREFIX}*")):
        with suppress(OSError):  # in use, owned by another user, or already removed
            if time.time() - path.stat().st_mtime < YOUNG_S:
                continue
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(fd)


def _has_room(memory: Path) -> bool:
    try:
        room = os.statvfs(memory)
    except OSError:
        return False
    free_bytes = room.f_bavail * room.f_frsize
    return free_bytes >= MEMORY_FREE_BYTES_MIN and os.access(memory, os.W_OK | os.X_OK)
