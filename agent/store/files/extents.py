"""Data and holes of a file: what is copied is what takes room, and a hole stays one.

A file can claim any size and hold nothing: whoever reads such a file from end to end, or copies it
byte by byte, fills memory or disk with zeros that nobody ever wrote.
"""

import errno
import os
from collections.abc import Iterator
from typing import Final

from agent.store.files.durable import write_all
from merkle.checksum import crc32c

COPY_BYTES: Final = 4 * 1024**2  # in memory at a time
NO_HOLES: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP})  # a file system that knows of none


def runs(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield where there is data in `[start, end)`, as (offset, end) in order. Raises OSError."""
    while start < end:
        try:
            first = os.lseek(fd, start, os.SEEK_DATA)
            behind = os.lseek(fd, first, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            if error.errno not in NO_HOLES:
                raise
            first, behind = start, end
        if first >= end:
            return
        yield first, min(behind, end)
        start = behind


def pieces(fd: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the data in `[start, end)` with its offsets, a bounded piece at a time.

    Raises OSError, EIO also where the file ends before `end` says.
    """
    for first, behind in runs(fd, start, end):
        offset = first
        while offset < behind:
            data = os.pread(fd, min(COPY_BYTES, behind - offset), offset)
            if not data:
                raise OSError(errno.EIO, f"ends at byte {offset} while it is copied")
            yield offset, data
            offset += len(data)


def data_bytes(fd: int, start: int, end: int) -> int:
    """Return how much of `[start, end)` takes room. Raises OSError."""
    return sum(behind - first for first, behind in runs(fd, start, end))


def copy(*, source_fd: int, target_fd: int, start: int, end: int) -> None:
    """Copy `[start, end)` to the beginning of an empty file, durably and with its holes; what was
    written is read back. Raises OSError."""
    os.ftruncate(target_fd, end - start)
    sums = []
    for offset, data in pieces(source_fd, start, end):
        write_all(target_fd, data, offset - start)
        sums.append((offset - start, len(data), crc32c(data)))
    os.fsync(target_fd)
    os.posix_fadvise(target_fd, 0, 0, os.POSIX_FADV_DONTNEED)
    for offset, length_bytes, checksum in sums:
        if crc32c(os.pread(target_fd, length_bytes, offset)) != checksum:
            raise OSError(errno.EIO, f"the copy reads back otherwise at byte {offset}")
