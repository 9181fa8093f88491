"""Asynchronous reads by the kernel (Linux AIO, io_submit(2)).

Reading small files one by one costs a disk request, an interrupt and two thread switches per file,
several times the cost of processing the bytes. Reads that are submitted together reach the disk
together, and the disk merges adjacent ones. Large files are read ahead without a thread.

glibc has no functions for these system calls. Therefore, this module calls them by number.
`ReadQueue` raises OSError if the architecture or the kernel does not support them.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

READS_MAX: Final = 64  # running at once; more were not faster
REQUEST: Final = np.dtype(  # struct iocb of linux/aio_abi.h
    [("number", "<u8"), ("key", "<u4"), ("rw_flags", "<u4"), ("opcode", "<u2"),
     ("priority", "<i2"), ("fd", "<u4"), ("address", "<u8"), ("size_bytes", "<u8"),
     ("offset", "<i8"), ("reserved", "<u8"), ("flags", "<u4"), ("event_fd", "<u4")]
)  # fmt: skip
FIELDS: Final = ("fd", "address", "size_bytes", "offset")  # fields that a read sets
EVENT: Final = struct.Struct("<QQqq")  # struct io_event
PREAD: Final = 0  # IOCB_CMD_PREAD, the value of a zeroed request
INTERRUPTED: Final = -errno.EINTR

Read: TypeAlias = tuple[int, int, int, int]
"""One read: (file descriptor opened with O_DIRECT, address of page-aligned memory, size of this
memory in bytes, page-aligned offset in the file)."""


@dataclass(frozen=True, slots=True)
class SyscallNumbers:
    """System call numbers of one architecture."""

    setup: int
    destroy: int
    submit: int
    getevents: int


NUMBERS: Final = {
    "x86_64": SyscallNumbers(206, 207, 209, 208),
    "aarch64": SyscallNumbers(0, 1, 2, 4),
}


def address_of(view: memoryview) -> int:
    """Return the address of a writable view.

    The caller keeps the view alive while it uses the address.
    """
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class ReadQueue:
    """A queue of asynchronous reads in the kernel. Only one thread at a time may use it."""

    def __init__(self) -> None:
        """Open a queue. Raise OSError if the architecture or the kernel does not support it."""
        numbers = NUMBERS.get(platform.machine())
        if numbers is None:
            raise OSError(errno.ENOSYS, "the system calls of this architecture are not supported")
        self._numbers = numbers
        self._library = ctypes.CDLL(None, use_errno=True)
        self._context = ctypes.c_ulong(0)
        self._requests = np.zeros(READS_MAX, REQUEST)
        self._requests["number"] = range(READS_MAX)
        self._requests["opcode"] = PREAD
        first = self._requests.ctypes.data
        places = range(first, first + self._requests.nbytes, REQUEST.itemsize)
        self._places = (ctypes.c_void_p * READS_MAX)(*places)
        self._results: list[int] = []
        self._begun = 0
        self._events = ctypes.create_string_buffer(READS_MAX * EVENT.size)
        made = self._call(numbers.setup, READS_MAX, ctypes.byref(self._context))
        if made < 0:
            raise OSError(-made, os.strerror(-made))

    def close(self) -> None:
        """Close the queue. This takes some milliseconds, and waits for running reads.

        A second call does nothing.
        """
        context, self._context = self._context, ctypes.c_ulong(0)
        self._call(self._numbers.destroy, context)

    def begin_all(self, reads: Sequence[Read]) -> None:
        """Start these reads. No other read of the queue may be running.

        The caller then calls `results` to wait for them. The caller may close the file descriptors
        at once, because the kernel keeps the files open.
        """
        assert len(reads) <= READS_MAX, "a queue has so many places"
        self._results, self._begun = [0] * len(reads), 0
        if not reads:
            return
        requests = self._requests[: len(reads)]
        for field, column in zip(FIELDS, zip(*reads, strict=True), strict=True):
            requests[field] = column
        index = 0
        while index < len(reads):
            taken = self._submit(index, len(reads) - index)
            if taken > 0:
                index += taken
                self._begun += taken
            elif taken != INTERRUPTED:  # the error of the first request that was not accepted
                self._results[index] = taken or -errno.EAGAIN
                index += 1

    def results(self) -> list[int]:
        """Wait for all reads of `begin_all`.

        Return the byte count of each read, or its negative errno. After the return, the kernel no
        longer writes to the memory of the reads. Raise OSError if the queue fails.
        """
        try:
            while self._begun:
                ended = self.wait(self._begun)
                for number, result in ended:
                    self._results[number] = result
                self._begun -= len(ended)
        except OSError:
            self.close()  # waits for running reads
            self._begun = 0
            raise
        return self._results

    def begin(self, number: int, read: Read) -> None:
        """Start one read. Raise OSError if it cannot be started.

        `number` identifies the read in the result of `wait`. It must be below READS_MAX, and no
        running read may have it.
        """
        request = self._requests[number]
        for field, value in zip(FIELDS, read, strict=True):
            request[field] = value
        while (taken := self._submit(number, 1)) < 1:
            if taken != INTERRUPTED:
                code = -taken or errno.EAGAIN
                raise OSError(code, os.strerror(code))

    def wait(self, count: int = 1) -> list[tuple[int, int]]:
        """Wait until at least `count` reads have ended.

        Return (number, result) for each ended read. The number is that of `begin`. The result is
        the byte count, or a negative errno. Raise OSError if the queue fails.
        """
        while True:
            ended = self._call(
                self._numbers.getevents, self._context, count, READS_MAX, self._events, None
            )
            if ended >= 0:
                events = EVENT.iter_unpack(self._events.raw[: EVENT.size * ended])
                return [(number, result) for number, _, result, _ in events]
            if ended != INTERRUPTED:
                raise OSError(-ended, os.strerror(-ended))

    def _submit(self, first: int, count: int) -> int:
        """Submit `count` prepared reads, starting at index `first`.

        Return the number of accepted reads, or a negative errno.
        """
        place = ctypes.byref(self._places, ctypes.sizeof(ctypes.c_void_p) * first)
        return self._call(self._numbers.submit, self._context, count, place)

    def _call(self, number: int, *arguments: Any) -> int:
        """Make the system call `number`. Return its result, or a negative errno."""
        wide = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
        result = int(self._library.syscall(ctypes.c_long(number), *wide))
        return -ctypes.get_errno() if result < 0 else result
