"""Data ranges and holes of a file. Copies contain only the data, and keep the holes.

A sparse file can have any size and contain no data. Reading it to its end, or copying it byte by
byte, would fill memory or the disk with zeros.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from merkle.checksum import crc32c
from suture.runtime.durable import open_new, write_all

COPY_BYTES: Final = 4 * 1024**2  # read into memory at once
NO_HOLES: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP})  # the file system has no holes


def runs(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the data ranges in `[start, end)` as (offset, end), in ascending order.

    Raise OSError if the ranges cannot be determined.
    """
    while start < end:
        try:
            first = os.lseek(fd, start, os.SEEK_DATA)
            behind = os.lseek(fd, first, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole remains
                return
            if error.errno not in NO_HOLES:
                raise
            first, behind = start, end
        if first >= end:
            return
        yield first, min(behind, end)
        start = behind


def pieces(fd: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the data in `[start, end)` as (offset, bytes), in pieces of at most COPY_BYTES.

    Raise OSError if a read fails. Its errno is EIO if the file ends before `end`.
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
    """Return how many bytes of `[start, end)` are not in holes.

    Raise OSError if the data ranges cannot be read.
    """
    return sum(behind - first for first, behind in runs(fd, start, end))


def copy(fd: int, target: Path, *, start: int, end: int) -> None:
    """Copy `[start, end)` to the new file `target`, and keep the holes.

    Sync the new file, and verify it by reading it. The name of the new file is not durable yet.
    Raise OSError if the copy fails.
    """
    target_fd = open_new(target)
    try:
        os.ftruncate(target_fd, end - start)
        sums = []
        for offset, data in pieces(fd, start, end):
            write_all(target_fd, data, offset - start)
            sums.append((offset - start, len(data), crc32c(data)))
        os.fsync(target_fd)
        os.posix_fadvise(target_fd, 0, 0, os.POSIX_FADV_DONTNEED)
        for offset, length_bytes, checksum in sums:
            if crc32c(os.pread(target_fd, length_bytes, offset)) != checksum:
                raise OSError(errno.EIO, f"the copy reads back different bytes at byte {offset}")
    finally:
        os.close(target_fd)
