"""Many reads handed to the kernel at once (Linux AIO, io_submit(2)).

A small file that is read by itself costs a request to the disk, an interrupt and two switches of
threads: several times what is done with its bytes. Reads that are submitted together go to the
disk together, and what lies side by side there as one request. glibc has no functions for these
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

READS_MAX: Final = 32  # at once: each has an open file; more gained nothing
REQUEST: Final = struct.Struct("<QIIHhIQQqQII")  # struct iocb of linux/aio_abi.h
EVENT: Final = struct.Struct("<QQqq")  # struct io_event
PREAD: Final = 0  # IOCB_CMD_PREAD
INTERRUPTED: Final = -errno.EINTR

Read: TypeAlias = tuple[int, int, int]
"""A descriptor opened with O_DIRECT, the address of whole pages, and how many bytes they hold."""


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
        self._requests = ctypes.create_string_buffer(READS_MAX * REQUEST.size)
        first = ctypes.addressof(self._requests)
        places = [first + REQUEST.size * index for index in range(READS_MAX)]
        self._places = (ctypes.c_void_p * READS_MAX)(*places)
        self._events = ctypes.create_string_buffer(READS_MAX * EVENT.size)
        made = self._call(numbers.setup, READS_MAX, ctypes.byref(self._context))
        if made < 0:
            raise OSError(-made, os.strerror(-made))

    def close(self) -> None:
        """Give the queue back; takes the kernel some milliseconds."""
        self._call(self._numbers.destroy, self._context)

    def read(self, reads: Sequence[Read]) -> list[int]:
        """Read from the start of each file; return how many bytes came, or the error number,
        negative. No memory is written to any more when this returns."""
        assert len(reads) <= READS_MAX, "a queue has so many places"
        for index, (fd, address, size_bytes) in enumerate(reads):
            request = (index, 0, 0, PREAD, 0, fd, address, size_bytes, 0, 0, 0, 0)
            REQUEST.pack_into(self._requests, REQUEST.size * index, *request)
        results = [0] * len(reads)
        index = begun = 0
        while index < len(reads):
            place = ctypes.byref(self._places, ctypes.sizeof(ctypes.c_void_p) * index)
            taken = self._call(self._numbers.submit, self._context, len(reads) - index, place)
            if taken > 0:
                index += taken
                begun += taken
            elif taken != INTERRUPTED:  # which is said of the first that was not taken
                results[index] = taken or -errno.EAGAIN
                index += 1
        try:
            self._await(begun, results)
        except OSError:
            self.close()  # which waits for what is under way
            raise
        return results

    def _await(self, count: int, results: list[int]) -> None:
        """Wait for the end of `count` reads."""
        while count:
            ended = self._call(
                self._numbers.getevents, self._context, count, count, self._events, None
            )
            if ended < 0:
                if ended == INTERRUPTED:
                    continue
                raise OSError(-ended, os.strerror(-ended))
            for index in range(ended):
                number, _, result, _ = EVENT.unpack_from(self._events, EVENT.size * index)
                results[number] = result
            count -= ended

    def _call(self, number: int, *arguments: Any) -> int:
        """Make a call; return what it returned, or the error number, negative."""
        wide = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
        result = int(self._library.syscall(ctypes.c_long(number), *wide))
        return -ctypes.get_errno() if result < 0 else result
