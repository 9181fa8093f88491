"""Memory settings and memory limits of this process.

An iteration over 100,000 replicas needs tens of megabytes for a short time. glibc keeps freed
memory per thread, and each page of a mapped index that was read remains mapped. `trim_heap` and
`let_go_of_pages` return this memory.

With glibc's defaults, each message of a megabyte in a data transfer gets new memory from the
kernel, page by page. That took half of the CPU time of a gRPC stream (`make bench NAME=replicate`).
`share_heaps` makes glibc reuse the memory.

If another C library lacks these calls, the functions do nothing.
"""

import ctypes
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from mmap import MADV_DONTNEED
from pathlib import Path
from typing import Final

from suture.errors import Code, UnavailableError

ARENAS_MAX: Final = 2  # few, because most allocations hold the GIL; glibc's default is 8 per core
KEPT_BYTES: Final = 32 * 1024**2  # kept free at the end of a heap: the messages of a few streams
MAPPED_BYTES_MIN: Final = 32 * 1024**2  # glibc's maximum: above any message, a chunk and more
M_TRIM_THRESHOLD: Final = -1  # these three are from malloc.h
M_MMAP_THRESHOLD: Final = -3
M_ARENA_MAX: Final = -8
MAPS: Final = Path("/proc/self/maps")
OWN_BYTES: Final = 128 * 1024**2  # memory of an idle process, including its data about replicas
IN_FLIGHT_BYTES_MIN: Final = 128 * 1024**2  # memory of two writes of the largest chunk
WAIT_S: Final = 30.0  # maximum wait for memory that others use
LOOK_S: Final = 0.25


def share_heaps() -> None:
    """Make all threads share a few heaps, which keep the memory that streams use repeatedly. Call
    the function before any thread is started."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_ARENA_MAX, ARENAS_MAX)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)


def trim_heap() -> None:
    """Return freed memory to the operating system. Call the function after work on all replicas, or
    on one complete replica."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def let_go_of_pages(file: Path) -> None:
    """Unmap the pages of a file's shared memory mappings that are in memory.

    The pages remain in the page cache and are mapped again when they are read. The caller must keep
    the file mapped during the call, because the addresses might otherwise be used for something
    else.
    """
    with suppress(OSError, AttributeError):
        madvise = ctypes.CDLL(None).madvise
        for start, end in _mapped_at(os.fsencode(file)):
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_DONTNEED)


def _mapped_at(file: bytes) -> list[tuple[int, int]]:
    """Return (start address, end address) of each shared mapping of a file. Private mappings are
    omitted, because their pages may be the only copy of written data."""
    places = []
    for line in MAPS.read_bytes().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == file and fields[1].endswith(b"s"):
            start, _, end = fields[0].partition(b"-")
            places.append((int(start, 16), int(end, 16)))
    return places


def limit_bytes(root: Path = Path("/")) -> int:
    """Return the memory limit of this process in bytes: the memory of the machine, or the lowest
    limit of its control groups (cgroups v2 and v1)."""
    found = [_kilobytes(root / "proc/meminfo", "MemTotal:")]
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in {"", "memory"}:
                continue
            top = root / "sys/fs/cgroup" / controllers
            names = ("memory.limit_in_bytes",) if controllers else ("memory.max", "memory.high")
            group = top / path.lstrip("/")
            found += [_limit(place / name) for place in (group, *group.parents) for name in names]
    return min(size for size in found if size)


def in_flight_bytes(configured: int, memory_bytes: int) -> int:
    """Return the limit on the bytes in flight: `configured`, or if that is 0, half of the memory
    that the process does not need for itself."""
    return configured or max((memory_bytes - OWN_BYTES) // 2, IN_FLIGHT_BYTES_MIN)


def _kilobytes(file: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 2**63


def _limit(file: Path) -> int:
    """Return the limit in bytes in a file of a control group. Return 0 if there is no file, or if
    it contains "max". In cgroups v1, a huge number means that there is no limit."""
    with suppress(OSError, ValueError):
        return int(file.read_text())
    return 0


class MemoryBudget:
    """Limits the bytes in flight. If several owners wait, the one with the fewest bytes in flight
    is served first. If they have equally many, it is the owner that was served least recently."""

    def __init__(
        self, total_bytes: int, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.total_bytes = total_bytes
        self._monotonic_s = monotonic_s
        self._used_bytes = 0
        self._used_by: Counter[str] = Counter()
        self._waiting: dict[object, str] = {}  # owner by ticket; oldest first
        self._next: object = None
        self._turns = count(1)
        self._last_turn: dict[str, int] = {}  # owner -> number of its last turn, for waiting owners
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    @property
    def used_bytes(self) -> int:
        """Number of bytes that are reserved now."""
        return self._used_bytes

    def waiting_count(self, owner: str) -> int:
        """Return the number of requests of this owner that are waiting for memory."""
        if not self._waiting:  # needs no lock
            return 0
        with self._changed:
            return sum(waiting == owner for waiting in self._waiting.values())

    @contextmanager
    def hold(
        self,
        size_bytes: int,
        *,
        owner: str = "",
        timeout_s: float = WAIT_S,
        stop: Callable[[], bool] = lambda: False,
        while_short: Callable[[], object] = lambda: None,
    ) -> Iterator[None]:
        """Reserve `size_bytes` bytes during the `with` block. Raise the errors of `acquire`."""
        self.acquire(size_bytes, owner, timeout_s=timeout_s, stop=stop, while_short=while_short)
        try:
            yield
        finally:
            self.release(size_bytes, owner)

    def try_acquire(self, size_bytes: int, owner: str) -> bool:
        """Reserve `size_bytes` until `release`. Return False if requests wait, or if the bytes are
        not free."""
        size_bytes = min(size_bytes, self.total_bytes)
        with self._lock:
            if self._waiting or self._used_bytes + size_bytes > self.total_bytes:
                return False
            self._used_bytes += size_bytes
            self._used_by[owner] = self._used_by.get(owner, 0) + size_bytes
            return True

    def acquire(
        self,
        size_bytes: int,
        owner: str,
        *,
        timeout_s: float,
        stop: Callable[[], bool],
        while_short: Callable[[], object],
    ) -> None:
        """Reserve `size_bytes` until `release`.

        A request for more than the complete budget reserves the complete budget. While the request
        waits, `while_short` is called from time to time. Raise `UnavailableError(BUSY)` after
        `timeout_s` seconds, or when `stop` returns True.
        """
        size_bytes = min(size_bytes, self.total_bytes)
        ticket = object()
        ends_at_s = self._monotonic_s() + timeout_s
        with self._changed:
            self._waiting[ticket] = owner
            self._choose()
            try:
                while self._next is not ticket or self._lacks(size_bytes):
                    if stop() or self._monotonic_s() >= ends_at_s:
                        raise UnavailableError(
                            Code.BUSY,
                            f"cannot reserve {size_bytes} bytes of memory: {self._used_bytes} "
                            f"of {self.total_bytes} are in use, {len(self._waiting)} requests "
                            "wait",
                            hint="raise node.in_flight_bytes, or add memory",
                        )
                    while_short()
                    self._changed.wait(LOOK_S)
                self._used_bytes += size_bytes
                self._used_by[owner] += size_bytes
                self._last_turn[owner] = next(self._turns)
            finally:
                del self._waiting[ticket]
                self._choose()

    def release(self, size_bytes: int, owner: str) -> None:
        """Return bytes that were reserved for an owner."""
        size_bytes = min(size_bytes, self.total_bytes)
        with self._lock:
            self._used_bytes -= size_bytes
            self._used_by[owner] -= size_bytes
            if not self._used_by[owner]:
                del self._used_by[owner]
            if self._waiting:
                self._choose()

    def _choose(self) -> None:
        """Choose the request to serve next, and wake the waiting threads. Among the requests of one
        owner, the oldest is served first."""
        first = {owner: ticket for ticket, owner in reversed(self._waiting.items())}
        last_turn = {owner: self._last_turn.get(owner, 0) for owner in first}
        chosen = min(first, key=lambda owner: (self._used_by[owner], last_turn[owner]), default="")
        self._last_turn, self._next = last_turn, first.get(chosen)
        self._changed.notify_all()

    def _lacks(self, size_bytes: int) -> bool:
        return self._used_bytes + size_bytes > self.total_bytes


UNLIMITED: Final = MemoryBudget(2**62)
