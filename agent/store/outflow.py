"""Reading a replica's files to send them away: past the page cache, many readers at once.

Unlike a scan this asks the medium nothing twice and judges nothing: whoever receives the bytes
checks them. Whole pages are read with O_DIRECT, and so are whole small files, many at once; what
else there is, or cannot be read so, with RWF_DONTCACHE, where the kernel knows it.
"""

import errno
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from agent.store.blockfile import ALIGNMENT_BYTES
from agent.store.durable import disk_errors
from agent.store.readqueue import READS_MAX, Read, ReadQueue, address_of
from agent.store.writebehind import REFUSED, RWF_DONTCACHE, huge_pages
from merkle.replica import BlockId

ABSENT: Final = -1
HUGE_PAGE_BYTES: Final = 2 * 1024**2
OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
DIRECT_FLAGS: Final = OPEN_FLAGS | os.O_DIRECT
NOT_TOGETHER: Final = -errno.EINVAL


class BlockFiles:
    """The block files of one replica. `read` may be called by many threads; close it after them."""

    def __init__(self, chunks: Path) -> None:
        """Open the chunks directory; raises VolumeFailed. Without one every file is absent."""
        self._chunks = chunks
        self._buffers: deque[memoryview] = deque()
        self._queues: deque[ReadQueue] = deque()
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        with disk_errors(chunks):
            try:
                self._directory_fd = os.open(chunks, flags)
            except (FileNotFoundError, NotADirectoryError):
                self._directory_fd = ABSENT

    def close(self) -> None:
        """Close the directory. Nobody may be reading."""
        while self._queues:
            self._queues.pop().close()
        if self._directory_fd != ABSENT:
            os.close(self._directory_fd)
            self._directory_fd = ABSENT

    def size_bytes(self, block_id: BlockId) -> int:
        """Return the size of a block's file, `ABSENT` if there is none."""
        if self._directory_fd == ABSENT:
            return ABSENT
        with disk_errors(self._chunks):
            try:
                name = f"{block_id}.block"
                return os.stat(name, dir_fd=self._directory_fd, follow_symlinks=False).st_size
            except FileNotFoundError:
                return ABSENT

    def borrow(self, size_bytes: int) -> memoryview:
        """Return an aligned buffer of at least that size, used or new; `give_back` ends its use."""
        try:
            buffer = self._buffers.pop()
        except IndexError:
            return memoryview(huge_pages(max(size_bytes, HUGE_PAGE_BYTES)))
        assert len(buffer) >= size_bytes, "one size for all"
        return buffer

    def give_back(self, buffer: memoryview) -> None:
        """Let another read use the buffer."""
        self._buffers.append(buffer)

    def read(self, block_id: BlockId, offset: int, target: memoryview) -> int:
        """Fill `target` from a file; return how many bytes there were. Raises OSError.

        What begins and ends at whole pages is read directly.
        """
        name = f"{block_id}.block"
        is_aligned = not (offset | len(target)) % ALIGNMENT_BYTES
        fd = _open(name, self._directory_fd, direct=is_aligned)
        try:
            return _fill(fd, offset, target)
        finally:
            os.close(fd)

    def read_whole(
        self, files: Sequence[tuple[BlockId, int]], buffer: memoryview
    ) -> "list[memoryview | OSError]":
        """Read whole small files of these sizes into a buffer of `spread_bytes` of them all.

        Returns what there was of each, at most its size, or why it could not be read.
        """
        found: list[memoryview | OSError] = []
        queue = self._borrow_queue()
        start = 0
        for first in range(0, len(files), READS_MAX):
            some = files[first : first + READS_MAX]
            slots = []
            for _, size_bytes in some:
                slots.append(buffer[start : start + spread_bytes(size_bytes)])
                start += len(slots[-1])
            counts = [NOT_TOGETHER] * len(some)
            if queue is not None:
                counts = self._read_together(queue, some, slots)
            for (block_id, size_bytes), slot, count in zip(some, slots, counts, strict=True):
                found.append(self._found(block_id, slot[:size_bytes], count))
        if queue is not None:
            self._queues.append(queue)
        return found

    def _read_together(
        self,
        queue: ReadQueue,
        files: Sequence[tuple[BlockId, int]],
        slots: Sequence[memoryview],
    ) -> list[int]:
        """Return how many bytes of each file came into its slot, or the error number, negative."""
        failed: dict[int, int] = {}
        reads: list[Read] = []
        try:
            for index, ((block_id, _), slot) in enumerate(zip(files, slots, strict=True)):
                try:
                    fd = os.open(f"{block_id}.block", DIRECT_FLAGS, dir_fd=self._directory_fd)
                except OSError as error:
                    failed[index] = -(error.errno or errno.EIO)
                else:
                    reads.append((fd, address_of(slot), len(slot)))
            counts = queue.read(reads)
        finally:
            for fd, _, _ in reads:
                os.close(fd)
        for index, count in failed.items():  # by ascending index
            counts.insert(index, count)
        return counts

    def _found(self, block_id: BlockId, target: memoryview, count: int) -> "memoryview | OSError":
        """Return what was read; what cannot be read together is read by itself now."""
        if -count in REFUSED:
            try:
                count = self.read(block_id, 0, target)
            except OSError as error:
                return error
        return target[:count] if count >= 0 else OSError(-count, os.strerror(-count))

    def _borrow_queue(self) -> ReadQueue | None:
        """Return a queue, used or new, None where the kernel has none for us."""
        try:
            return self._queues.pop()
        except IndexError:
            with suppress(OSError):
                return ReadQueue()
        return None


def spread_bytes(size_bytes: int) -> int:
    """Return what a file takes in a buffer where each begins at a page."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _open(name: str, directory_fd: int, *, direct: bool) -> int:
    if direct:
        try:
            return os.open(name, DIRECT_FLAGS, dir_fd=directory_fd)
        except OSError as error:
            if error.errno not in REFUSED:
                raise
    return os.open(name, OPEN_FLAGS, dir_fd=directory_fd)


def _fill(fd: int, offset: int, target: memoryview) -> int:
    """Read until `target` is full or the file ends; leave no pages behind where that is known."""
    flags, filled = RWF_DONTCACHE, 0
    while filled < len(target):
        try:
            count = os.preadv(fd, [target[filled:]], offset + filled, flags)
        except OSError as error:
            if error.errno not in REFUSED or not flags:
                raise
            flags = 0
            continue
        if not count:
            break
        filled += count
    return filled
