"""Reading a replica's files to send them away: past the page cache, many readers at once.

Unlike a scan this asks the medium nothing twice and judges nothing: whoever receives the bytes
checks them. Large files are read with O_DIRECT, small ones with RWF_DONTCACHE, where they can.
"""

import os
from collections import deque
from pathlib import Path
from typing import Final

from agent.store.blockfile import ALIGNMENT_BYTES
from agent.store.durable import disk_errors
from agent.store.writebehind import REFUSED, RWF_DONTCACHE, huge_pages
from merkle.replica import BlockId

ABSENT: Final = -1
HUGE_PAGE_BYTES: Final = 2 * 1024**2
OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class BlockFiles:
    """The block files of one replica. `read` may be called by many threads; close it after them."""

    def __init__(self, chunks: Path) -> None:
        """Open the chunks directory; raises VolumeFailed. Without one every file is absent."""
        self._chunks = chunks
        self._buffers: deque[memoryview] = deque()
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        with disk_errors(chunks):
            try:
                self._directory_fd = os.open(chunks, flags)
            except (FileNotFoundError, NotADirectoryError):
                self._directory_fd = ABSENT

    def close(self) -> None:
        """Close the directory. Nobody may be reading."""
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


def _open(name: str, directory_fd: int, *, direct: bool) -> int:
    if direct:
        try:
            return os.open(name, OPEN_FLAGS | os.O_DIRECT, dir_fd=directory_fd)
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
