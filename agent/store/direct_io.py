"""Reads of block files that bypass the page cache, into reusable buffers.

A read with O_DIRECT returns the bytes of the disk. It needs a fifth of the CPU time of a buffered
read, and leaves the page cache to the clients. If a file system refuses O_DIRECT, this module uses
a buffered read, and drops the pages of the range from the cache before and after it.

Each thread has its own buffers.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import stat
from typing import Final

import numpy as np

from agent.store.files.blockfile import ALIGNMENT_BYTES
from agent.store.index.packformat import PackedPlace
from agent.store.replica.packs import size_in
from merkle.replica import CHUNK_BYTES_MAX
from scanner.ports import ReadSplitting
from suture.runtime.file_kinds import no_file

BUFFER_BYTES: Final = CHUNK_BYTES_MAX + 2 * ALIGNMENT_BYTES  # the kernel allocates pages on use
HUGE_PAGE_BYTES: Final = 2 * 1024**2
SMALL_BYTES: Final = 64 * 1024  # smaller reads are not divided
OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
DIRECT_FLAGS: Final = OPEN_FLAGS | os.O_DIRECT
DIRECT_REFUSED: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP})
NO_BLOCK_FILE: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR})  # links, pipes, ...

assert BUFFER_BYTES % ALIGNMENT_BYTES == 0


class ReadBuffers:
    """Two aligned buffers: `first` for reads, `again` for repeated reads from the disk.

    The buffers use huge pages if the kernel has any. A direct read then pins two pages instead of a
    thousand, and the device gets a few large requests instead of many small ones.
    """

    def __init__(self) -> None:
        self.first = _huge_buffer()
        self.again = _huge_buffer()


def _huge_buffer() -> memoryview:
    """Return a view of BUFFER_BYTES of memory, aligned to a huge page.

    The view keeps the memory alive.
    """
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory gets no huge pages on request
    memory = mmap.mmap(-1, BUFFER_BYTES + HUGE_PAGE_BYTES, flags=private)
    with contextlib.suppress(OSError):  # slower on a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    skipped_bytes = -np.frombuffer(memory, dtype=np.uint8).ctypes.data % HUGE_PAGE_BYTES
    return memoryview(memory)[skipped_bytes : skipped_bytes + BUFFER_BYTES]


class BlockFile:
    """An open file that contains one block (`scanner.ports.BlockFileReader`)."""

    def __init__(
        self,
        name: str,
        buffers: ReadBuffers,
        *,
        directory_fd: int,
        direct: bool = True,
        pieces: ReadSplitting | None = None,
        packed: PackedPlace | None = None,
    ) -> None:
        """Open the block's own file, or the pack file if `packed` has the range of the block in it.

        Raise FileNotFoundError if there is no regular file of that name.
        """
        self._packed = packed
        self._buffers = buffers
        self._pieces = pieces
        self._fd, self._direct = open_regular(name, directory_fd, direct=direct)

    @property
    def size_bytes(self) -> int:
        """Current length of the block's own file, or of the block's part of the pack file."""
        size = os.fstat(self._fd).st_size
        return size if self._packed is None else size_in(size, self._packed)

    def read(self, offset: int, length_bytes: int) -> memoryview:
        """Return a view of the requested bytes, read into the first buffer.

        The next read with the same buffers overwrites the bytes of the view.
        """
        offset, length_bytes = self._range(offset, length_bytes)
        return self._read(self._buffers.first, offset, length_bytes, self._pieces)

    def reread_past_cache(self, offset: int, length_bytes: int) -> memoryview:
        """Read the range from the disk again, into the second buffer. Return a view of the bytes.

        The next repeated read with the same buffers overwrites the bytes of the view.
        """
        offset, length_bytes = self._range(offset, length_bytes)
        return self._read(self._buffers.again, offset, length_bytes)

    def _range(self, offset: int, length_bytes: int) -> tuple[int, int]:
        """Convert (offset, length) in the block to (offset, length) in the file, both in bytes."""
        if self._packed is None:
            return offset, length_bytes
        left = max(self._packed.length_bytes - offset, 0)
        return self._packed.offset + offset, min(length_bytes, left)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _read(
        self,
        buffer: memoryview,
        offset: int,
        length_bytes: int,
        pieces: ReadSplitting | None = None,
    ) -> memoryview:
        if self._direct:
            try:
                return read_aligned(self._fd, buffer, offset, length_bytes, pieces)
            except OSError as error:
                if error.errno not in DIRECT_REFUSED:
                    raise
                self._stop_direct()  # some file systems refuse only on read
        self._drop_pages(offset, length_bytes)
        try:
            return read_aligned(self._fd, buffer, offset, length_bytes, pieces)
        finally:
            self._drop_pages(offset, length_bytes)

    def _stop_direct(self) -> None:
        self._direct = False
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)

    def _drop_pages(self, offset: int, length_bytes: int) -> None:
        """Write the dirty pages of the range to the disk, then drop the range from the page cache.

        The range is rounded up to full pages, because the kernel keeps pages that a range covers
        partly.
        """
        os.fdatasync(self._fd)
        start = offset - offset % ALIGNMENT_BYTES
        end = -(-(offset + length_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        os.posix_fadvise(self._fd, start, end - start, os.POSIX_FADV_DONTNEED)


def read_at_once(
    name: str, directory_fd: int, buffer: memoryview, length_bytes: int
) -> memoryview | None:
    """Read a small file in three system calls, bypassing the page cache.

    Return a view of the content, which is longer than `length_bytes` if the file is longer. Return
    None if the file is shorter than `length_bytes`, or if the file system refuses O_DIRECT. Raise
    OSError if the read fails.
    """
    room = buffer[: length_bytes - length_bytes % ALIGNMENT_BYTES + ALIGNMENT_BYTES]
    try:
        fd = os.open(name, DIRECT_FLAGS, dir_fd=directory_fd)
        try:
            count = os.preadv(fd, [room], 0)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in DIRECT_REFUSED:
            return None
        raise
    return room[:count] if count >= length_bytes else None


def is_cut(pieces: ReadSplitting | None, length_bytes: int) -> bool:
    """Return whether a read of this length is divided into several calls.

    Other readers can use the disk between these calls.
    """
    if pieces is None or length_bytes <= SMALL_BYTES:
        return False
    return 0 < pieces.piece_bytes() < length_bytes


def open_regular(name: str, directory_fd: int, *, direct: bool) -> tuple[int, bool]:
    """Open a regular file. Return its descriptor, and True if the file is open with O_DIRECT.

    Raise FileNotFoundError if the name is not a regular file. Raise OSError if the file cannot be
    opened.
    """
    try:
        fd = os.open(name, OPEN_FLAGS | (os.O_DIRECT if direct else 0), dir_fd=directory_fd)
    except OSError as error:
        if direct and error.errno in DIRECT_REFUSED:
            return open_regular(name, directory_fd, direct=False)
        if error.errno in NO_BLOCK_FILE:
            raise no_file(name, directory_fd) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise no_file(name, directory_fd)
    return fd, direct


def read_aligned(
    fd: int, buffer: memoryview, offset: int, length_bytes: int, pieces: ReadSplitting | None
) -> memoryview:
    """Return a view of the requested range, after reading the aligned range around it.

    The view is shorter if the file ends within the requested range. Raise OSError if the read
    fails.
    """
    if length_bytes > CHUNK_BYTES_MAX:
        raise ValueError(f"a read of {length_bytes} bytes is larger than any chunk")
    start = offset - offset % ALIGNMENT_BYTES
    wanted = -(-(offset + length_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES - start
    filled = 0
    while filled < wanted:
        piece_bytes = (pieces.piece_bytes() if pieces else 0) or wanted
        end = min(wanted, filled + piece_bytes)
        count = os.preadv(fd, [buffer[filled:end]], start + filled)
        filled += count
        if not count or count % ALIGNMENT_BYTES:  # end of file
            break
        if pieces and filled < wanted:
            pieces.throttle_part(count)
    head = offset - start
    return buffer[head : max(head, min(filled, head + length_bytes))]
