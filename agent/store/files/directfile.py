"""One file at a time written past the page cache while more of it arrives, from two buffers.

What a client has just written is read again by few, and in the page cache each byte costs the
kernel a copy and pages of its own. A buffer is written by the executor while the other is filled.
Buffers are kept from file to file: fresh memory would cost as much as the writing.
"""

import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

from agent.store.files.blockfile import ALIGNMENT_BYTES
from agent.store.files.durable import open_new
from agent.store.files.writebehind import (
    REFUSED,
    Submit,
    WriteBehind,
    huge_pages,
    write_direct,
)

BUFFER_BYTES: Final = 2 * 1024**2  # in one write: enough for a disk with queues to be busy
KEPT_COUNT: Final = 8  # buffers, for the files that are written at once most of the time

assert BUFFER_BYTES % ALIGNMENT_BYTES == 0


class Buffers:
    """Buffers that nobody uses now. Threads may take and give at once: single operations on a
    deque are atomic."""

    def __init__(self) -> None:
        self._free: deque[memoryview] = deque(maxlen=KEPT_COUNT)

    def take(self) -> memoryview:
        """Return a buffer, aligned as O_DIRECT wants it."""
        try:
            return self._free.pop()
        except IndexError:
            return memoryview(huge_pages(BUFFER_BYTES))

    def give(self, buffer: memoryview) -> None:
        """Take a buffer back; beyond what is kept it goes."""
        self._free.append(buffer)


class DirectFile:
    """A new file; ends with `finish` or `abandon`. Every call raises OSError."""

    def __init__(self, path: Path, buffers: Buffers, submit: Submit | None) -> None:
        """Create the file; what has the name is taken away."""
        self.path = path
        self.size_bytes = 0
        self._pool = buffers
        self._fd = open_new(path, os.O_DIRECT, refused=REFUSED)
        self._behind = WriteBehind(submit)
        self._buffers = [buffers.take(), buffers.take()]
        self._filled = 0
        self._handed_bytes = 0  # to the writing

    def append(self, data: memoryview) -> None:
        """Add bytes; raises also what the writing of those before raised."""
        self.size_bytes += len(data)
        while data:
            count = min(len(data), BUFFER_BYTES - self._filled)
            self._buffers[0][self._filled : self._filled + count] = data[:count]
            self._filled += count
            data = data[count:]
            if self._filled == BUFFER_BYTES:
                self._flush(BUFFER_BYTES)

    def finish(self) -> None:
        """Make what was added durable, and close the file; its name is not durable yet."""
        padded = -(-self._filled // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if padded:
            self._buffers[0][self._filled : padded] = bytes(padded - self._filled)
            self._flush(padded)
        self._behind.settle()
        if padded:
            os.ftruncate(self._fd, self.size_bytes)
        os.fdatasync(self._fd)
        self._close()

    def abandon(self) -> None:
        """Close the file and remove it, unless it has another place by now."""
        self._behind.abandon()
        self._close()
        with suppress(OSError):  # the next start removes it
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
                self._pool.give(buffer)
