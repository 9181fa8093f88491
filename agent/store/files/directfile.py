"""A file writer that bypasses the page cache, with two buffers.

An executor writes one buffer to the disk while the caller fills the other. Clients rarely read data
that was just written, and the page cache would cost a copy and memory. Buffers are reused for later
files, because the allocation of new memory takes as long as the write.
"""

import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

from agent.store.files.blockfile import ALIGNMENT_BYTES
from agent.store.files.writebehind import REFUSED, Submit, WriteBehind, huge_pages, write_direct
from suture.runtime.durable import open_new

BUFFER_BYTES: Final = 2 * 1024**2  # size of one write; enough to keep a disk's queue busy
KEPT_COUNT: Final = 8  # unused buffers; enough for the usual number of concurrent files

assert BUFFER_BYTES % ALIGNMENT_BYTES == 0


class Buffers:
    """Pool of unused buffers. Thread-safe, because single operations on a deque are atomic."""

    def __init__(self) -> None:
        self._free: deque[memoryview] = deque(maxlen=KEPT_COUNT)

    def acquire(self) -> memoryview:
        """Return a buffer of BUFFER_BYTES, aligned for O_DIRECT."""
        try:
            return self._free.pop()
        except IndexError:
            return memoryview(huge_pages(BUFFER_BYTES))

    def release(self, buffer: memoryview) -> None:
        """Return a buffer to the pool. A full pool frees its oldest buffer."""
        self._free.append(buffer)


class DirectFile:
    """A new file that is being written. The caller ends it with `finish` or `abandon`.

    Every method may raise OSError, because each reports the errors of earlier background writes.
    """

    def __init__(self, path: Path, buffers: Buffers, submit: Submit | None) -> None:
        """Create the file. Remove an existing file of that name first."""
        self.path = path
        self.size_bytes = 0
        self._pool = buffers
        self._fd = open_new(path, os.O_DIRECT, refused=REFUSED)
        self._behind = WriteBehind(submit)
        self._buffers = [buffers.acquire(), buffers.acquire()]
        self._filled = 0
        self._handed_bytes = 0  # handed to the executor

    def append(self, data: memoryview) -> None:
        """Append bytes to the file.

        Raise OSError if this write or an earlier background write failed.
        """
        self.size_bytes += len(data)
        while data:
            count = min(len(data), BUFFER_BYTES - self._filled)
            self._buffers[0][self._filled : self._filled + count] = data[:count]
            self._filled += count
            data = data[count:]
            if self._filled == BUFFER_BYTES:
                self._flush(BUFFER_BYTES)

    def finish(self) -> None:
        """Wait for all writes, sync the content, and close the file.

        The name of the file is not durable yet.
        """
        padded = -(-self._filled // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if padded:
            self._buffers[0][self._filled : padded] = bytes(padded - self._filled)
            self._flush(padded)
        self._behind.wait_all()
        if padded:
            os.ftruncate(self._fd, self.size_bytes)
        os.fdatasync(self._fd)
        self._close()

    def abandon(self) -> None:
        """Close the file, and remove it if it still has its original name."""
        self._behind.abandon()
        self._close()
        with suppress(OSError):  # if this fails, the next start removes the file
            self.path.unlink(missing_ok=True)

    def _flush(self, length_bytes: int) -> None:
        fd, buffer = self._fd, self._buffers[0]
        offset = self._handed_bytes
        self._behind.run(lambda: write_direct(fd, buffer[:length_bytes], offset), others_max=0)
        self._handed_bytes += length_bytes
        self._buffers.reverse()
        self._filled = 0

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            for buffer in self._buffers:
                self._pool.release(buffer)
