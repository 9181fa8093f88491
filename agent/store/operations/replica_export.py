"""Reads of a replica's files for an export, past the page cache, by many threads at once.

Unlike a scan, an export reads the disk only once and verifies nothing, because the receiver
verifies the bytes. Full pages are read with O_DIRECT. Large files are read ahead. Small files are
read many at once. If a direct read is impossible, the file is read with RWF_DONTCACHE, which keeps
no pages in the cache, if the kernel supports it.
"""

import errno
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from agent.store.files.blockfile import ALIGNMENT_BYTES
from agent.store.files.layout import PACK_NAME
from agent.store.files.readqueue import READS_MAX, Read, ReadQueue, address_of
from agent.store.files.writebehind import REFUSED, RWF_DONTCACHE, huge_pages
from agent.store.index.packformat import PackedBlocks
from agent.store.replica.packs import size_in
from merkle.replica import BlockId
from suture.runtime.durable import disk_errors

ABSENT: Final = -1
HUGE_PAGE_BYTES: Final = 2 * 1024**2
OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
DIRECT_FLAGS: Final = OPEN_FLAGS | os.O_DIRECT
NOT_TOGETHER: Final = -errno.EINVAL

_Sizes = TypeVar("_Sizes", int, npt.NDArray[np.int64])


class ExportFiles:
    """The block files of one replica. Several threads may call `read`.

    The owner calls `close` after the last read.
    """

    def __init__(self, chunks: Path, packed: PackedBlocks) -> None:
        """Open the directory of block files, and the pack file if it has some of the blocks.

        If there is no directory, every file is reported as absent. Raise `VolumeFailed` if the
        directory cannot be opened.
        """
        self._chunks = chunks
        self._packed = packed
        self._pack_fd = ABSENT
        self._buffers: deque[memoryview] = deque()
        self._queues: deque[ReadQueue] = deque()
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        with disk_errors(chunks):
            try:
                self._directory_fd = os.open(chunks, flags)
            except (FileNotFoundError, NotADirectoryError):
                self._directory_fd = ABSENT
            if self._directory_fd != ABSENT and len(packed):
                with suppress(OSError):  # reads of its blocks will raise the error
                    self._pack_fd = _open(PACK_NAME, self._directory_fd, direct=True)

    def close(self) -> None:
        """Close the directory, the pack file and the read queues. No read may be running."""
        while self._queues:
            self._queues.pop().close()
        for fd in (self._directory_fd, self._pack_fd):
            if fd != ABSENT:
                os.close(fd)
        self._directory_fd = self._pack_fd = ABSENT

    def size_bytes(self, block_id: BlockId) -> int:
        """Return the size in bytes of a block in its own file or in the pack file.

        Return `ABSENT` if there is no file.
        """
        if self._directory_fd == ABSENT:
            return ABSENT
        packed = self._packed.of(block_id)
        if packed is not None:
            pack_bytes = ABSENT if self._pack_fd == ABSENT else os.fstat(self._pack_fd).st_size
            return size_in(pack_bytes, packed)
        with disk_errors(self._chunks):
            try:
                name = f"{block_id}.block"
                return os.stat(name, dir_fd=self._directory_fd, follow_symlinks=False).st_size
            except FileNotFoundError:
                return ABSENT

    def borrow(self, size_bytes: int) -> memoryview:
        """Return an aligned buffer of at least `size_bytes`.

        The caller gives it back with `release`.
        """
        try:
            buffer = self._buffers.pop()
        except IndexError:
            return memoryview(huge_pages(max(size_bytes, HUGE_PAGE_BYTES)))
        assert len(buffer) >= size_bytes, "one size for all"
        return buffer

    def release(self, buffer: memoryview) -> None:
        """Accept a buffer of `borrow` for reuse."""
        self._buffers.append(buffer)

    def read(self, block_id: BlockId, offset: int, target: memoryview) -> int:
        """Fill `target` from the file of a block. Return the number of bytes read.

        Page-aligned ranges are read with O_DIRECT. Raise OSError if the read fails.
        """
        is_aligned = not (offset | len(target)) % ALIGNMENT_BYTES
        name, start = f"{block_id}.block", 0
        packed = self._packed.of(block_id)
        if packed is not None:
            name, start = PACK_NAME, packed.offset
        fd = _open(name, self._directory_fd, direct=is_aligned)
        try:
            return _fill(fd, start + offset, target)
        finally:
            os.close(fd)

    def borrow_queue(self) -> ReadQueue | None:
        """Return a read queue, or None if the kernel provides none.

        The caller gives the queue back with `give_back_queue`.
        """
        try:
            return self._queues.pop()
        except IndexError:
            with suppress(OSError):
                return ReadQueue()
        return None

    def give_back_queue(self, queue: ReadQueue) -> None:
        """Accept a read queue for reuse. No read may be running in it."""
        self._queues.append(queue)

    def open_direct(self, block_id: BlockId) -> tuple[int, int]:
        """Return a descriptor opened with O_DIRECT, and the offset of the block in that file.

        The caller calls `done_with` after the last use. Raise OSError if the file cannot be opened.
        """
        packed = self._packed.of(block_id) if self._pack_fd != ABSENT else None
        if packed is not None:
            return self._pack_fd, packed.offset
        return os.open(f"{block_id}.block", DIRECT_FLAGS, dir_fd=self._directory_fd), 0

    def done_with(self, *fds: int) -> None:
        """Close descriptors from `open_direct`. Running reads continue."""
        for fd in fds:
            if fd != self._pack_fd:
                os.close(fd)


class WholeFiles:
    """Small files, each read completely and many at once. The first reads start at construction.

    Only one thread may use the object. The results are views of its memory, which are valid until
    `close`.
    """

    def __init__(
        self, files: ExportFiles, wanted: Sequence[tuple[BlockId, int]], room_bytes: int
    ) -> None:
        """Start to read these blocks, given as (block id, size in bytes).

        The sum of the `spread_bytes` of the sizes must be at most `room_bytes`.
        """
        self._files = files
        self._wanted = wanted
        self._buffer = files.borrow(room_bytes)
        self._address = address_of(self._buffer)
        self._queue = files.borrow_queue()
        spread = spread_bytes(np.array([0, *(size for _, size in wanted)], np.int64))
        self._starts: list[int] = np.cumsum(spread).tolist()
        self._failed: dict[int, int] = {}
        self._begin(0)

    def close(self) -> None:
        """Wait for running reads, then give back the queue and the memory."""
        if self._queue is not None:
            with suppress(OSError):  # if the queue fails, it has waited for all reads
                self._queue.results()
            self._files.give_back_queue(self._queue)
            self._queue = None
        self._files.release(self._buffer)

    def read_results(self) -> "list[memoryview | OSError]":
        """Return the data of each file, or the error of its read.

        The results are in the order of the requested blocks. The data of a file has at most its
        expected size.
        """
        found: list[memoryview | OSError] = []
        buffer = self._buffer
        for first in range(0, len(self._wanted), READS_MAX):
            some = self._wanted[first : first + READS_MAX]
            counts = self._counts(len(some))
            self._begin(first + READS_MAX)
            starts = self._starts[first : first + len(some)]
            for (block_id, size_bytes), at, count in zip(some, starts, counts, strict=True):
                if count >= size_bytes:
                    found.append(buffer[at : at + size_bytes])
                else:
                    found.append(self._read_result(block_id, buffer[at : at + size_bytes], count))
        return found

    def _begin(self, first: int) -> None:
        """Start to read at most READS_MAX files, beginning with the file at index `first`."""
        if self._queue is None:
            return
        self._failed = {}
        reads: list[Read] = []
        open_direct, address = self._files.open_direct, self._address
        starts = self._starts[first : first + READS_MAX + 1]
        some = self._wanted[first : first + READS_MAX]
        try:
            for index, ((block_id, _), (start, end)) in enumerate(
                zip(some, pairwise(starts), strict=True)
            ):
                try:
                    fd, offset = open_direct(block_id)
                except OSError as error:
                    self._failed[index] = -(error.errno or errno.EIO)
                else:
                    reads.append((fd, address + start, end - start, offset))
            self._queue.begin_all(reads)
        finally:
            self._files.done_with(*[fd for fd, _, _, _ in reads])

    def _counts(self, count: int) -> list[int]:
        """Return the number of bytes read from each started file, or a negative errno."""
        if self._queue is None:
            return [NOT_TOGETHER] * count
        try:
            counts = self._queue.results()
        except OSError:  # if the queue fails, it has waited for all reads
            return [NOT_TOGETHER] * count
        for index, code in self._failed.items():  # by ascending index
            counts.insert(index, code)
        return counts

    def _read_result(
        self, block_id: BlockId, target: memoryview, count: int
    ) -> "memoryview | OSError":
        """Return the data of a file, or the error of its read.

        If the file could not be read in the batch, read it alone now.
        """
        if -count in REFUSED:
            try:
                count = self._files.read(block_id, 0, target)
            except OSError as error:
                return error
        return target[:count] if count >= 0 else OSError(-count, os.strerror(-count))


class ReadsAhead:
    """Asynchronous reads of full pages.

    Only one thread may use the object. It waits for each read before it calls `close`.
    """

    def __init__(self, files: ExportFiles) -> None:
        self._files = files
        self._queue = files.borrow_queue()
        self._free = list(range(READS_MAX))
        self._under_way: set[int] = set()
        self._ended: dict[int, int] = {}

    @property
    def is_possible(self) -> bool:
        """Return whether the kernel supports asynchronous reads."""
        return self._queue is not None

    def close(self) -> None:
        """Give back the queue. No read may be running."""
        assert not self._under_way, "their memory would be written to later"
        if self._queue is not None:
            self._files.give_back_queue(self._queue)
            self._queue = None

    def begin(self, block_id: BlockId, offset: int, target: memoryview) -> int:
        """Start to fill `target` with full pages of a block.

        Return an id, with which `count` waits. The memory of `target` must remain valid until the
        read has ended. Raise OSError if the file cannot be opened, if there is no queue, or if the
        queue is full.
        """
        if self._queue is None or not self._free:
            raise OSError(errno.EAGAIN, "a queue is full")
        fd, start = self._files.open_direct(block_id)
        number = self._free[-1]
        try:
            self._queue.begin(number, (fd, address_of(target), len(target), start + offset))
        finally:
            self._files.done_with(fd)
        self._under_way.add(self._free.pop())
        return number

    def count(self, number: int) -> int:
        """Wait for the read with this id.

        Return its number of bytes. Raise OSError if the read failed.
        """
        assert self._queue is not None
        while number not in self._ended:
            try:
                ended = self._queue.wait()
            except OSError:
                self._queue.close()  # waits for all running reads
                ended = [(left, -errno.EIO) for left in self._under_way]
            for one, result in ended:
                self._under_way.discard(one)
                self._ended[one] = result
        self._free.append(number)
        count = self._ended.pop(number)
        if count < 0:
            raise OSError(-count, os.strerror(-count))
        return count


def spread_bytes(size_bytes: _Sizes) -> _Sizes:
    """Return a size in bytes, rounded up to full pages. Return an array for an array of sizes."""
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
    """Read until `target` is full or the file ends. Return the number of bytes read.

    The read keeps no pages in the cache if the kernel supports RWF_DONTCACHE.
    """
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
