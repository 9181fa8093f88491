"""Reads that are handed to the kernel and waited for later (Linux AIO, io_submit(2)).

A small file that is read by itself costs a request to the disk, an interrupt and two switches of
threads: several times what is done with its bytes. Reads that are submitted together go to the
disk together, and what lies side by side there as one request. Of a large file the next parts are
read while one is sent, and no thread has to be woken for it. glibc has no functions for these
calls, so they are made by number; where the machine or its kernel has none, OSError says so.
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

READS_MAX: Final = 64  # at once; more gained nothing
REQUEST: Final = np.dtype(  # struct iocb of linux/aio_abi.h
    [("number", "<u8"), ("key", "<u4"), ("rw_flags", "<u4"), ("opcode", "<u2"),
     ("priority", "<i2"), ("fd", "<u4"), ("address", "<u8"), ("size_bytes", "<u8"),
     ("offset", "<i8"), ("reserved", "<u8"), ("flags", "<u4"), ("event_fd", "<u4")]
)  # fmt: skip
FIELDS: Final = ("fd", "address", "size_bytes", "offset")  # what a read says of its request
EVENT: Final = struct.Struct("<QQqq")  # struct io_event
PREAD: Final = 0  # IOCB_CMD_PREAD, which a new request says by itself
INTERRUPTED: Final = -errno.EINTR

Read: TypeAlias = tuple[int, int, int, int]
"""A descriptor opened with O_DIRECT, the address of whole pages, how many bytes they hold, and
where in the file, at a page, to begin."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of the calls on one kind of machine."""

    setup: int
    destroy: int
    submit: int
    getevents: int


NUMBERS: Final = {"x86_64": Numbers(206, 207, 209, 208), "aarch64": Numbers(0, 1, 2, 4)}


def address_of(view: memoryview) -> int:
    """Return where the memory of a writable view begins. The view must outlive the address."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class ReadQueue:
    """One queue of the kernel. Used by one thread at a time; `close` ends it."""

    def __init__(self) -> None:
        """Open a queue. Raises OSError where there is none to be had."""
        numbers = NUMBERS.get(platform.machine())
        if numbers is None:
            raise OSError(errno.ENOSYS, "no numbers for the calls of this machine")
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
        """Give the queue back; takes the kernel some milliseconds. Harmless when it was closed: the
        kernel may have given its number to another queue since."""
        context, self._context = self._context, ctypes.c_ulong(0)
        self._call(self._numbers.destroy, context)

    def begin_all(self, reads: Sequence[Read]) -> None:
        """Begin to read so many parts of files; nothing else may be under way. `results` waits
        for them. The descriptors may be closed at once: the kernel keeps the files open."""
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
            elif taken != INTERRUPTED:  # which is said of the first that was not taken
                self._results[index] = taken or -errno.EAGAIN
                index += 1

    def results(self) -> list[int]:
        """Wait for all that `begin_all` has begun; return of each how many bytes came, or the error
        number, negative. No memory is written to any more when this returns. Raises OSError."""
        try:
            while self._begun:
                ended = self.wait(self._begun)
                for number, result in ended:
                    self._results[number] = result
                self._begun -= len(ended)
        except OSError:
            self.close()  # which waits for what is under way
            self._begun = 0
            raise
        return self._results

    def begin(self, number: int, read: Read) -> None:
        """Begin one read. `number` (below READS_MAX, of none that is
        under way) is what `wait` calls it. Raises OSError."""
        request = self._requests[number]
        for field, value in zip(FIELDS, read, strict=True):
            request[field] = value
        while (taken := self._submit(number, 1)) < 1:
            if taken != INTERRUPTED:
                code = -taken or errno.EAGAIN
                raise OSError(code, os.strerror(code))

    def wait(self, count: int = 1) -> list[tuple[int, int]]:
        """Wait until so many have ended; return the number of each that has, and how many bytes
        came or the error number, negative. Raises OSError."""
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
        """Hand over reads that were described; return how many were taken, or the error number."""
        place = ctypes.byref(self._places, ctypes.sizeof(ctypes.c_void_p) * first)
        return self._call(self._numbers.submit, self._context, count, place)

    def _call(self, number: int, *arguments: Any) -> int:
        """Make a call; return what it returned, or the error number, negative."""
        wide = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
        result = int(self._library.syscall(ctypes.c_long(number), *wide))
        return -ctypes.get_errno() if result < 0 else result
