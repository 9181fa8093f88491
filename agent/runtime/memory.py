"""What this process holds of the machine's memory, and how it gives it back.

Going through a hundred thousand replicas takes tens of megabytes for a moment, in whichever thread
does it: glibc keeps them for each thread, and every page of a mapped index that was looked at stays
mapped. What carries data is the opposite: as glibc comes, each message of a megabyte is new memory
from the kernel, page by page, and goes back at once; that took half of the processor time of a
gRPC stream (`make bench NAME=replicate`). Another C library may not have these calls: then nothing
is kept and nothing is given back.
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

from agent.errors import Code, Unavailable

ARENAS_MAX: Final = 2  # what allocates most holds the interpreter lock; glibc: eight for each core
KEPT_BYTES: Final = 32 * 1024**2  # free at the end of a heap: the messages of a few streams
MAPPED_BYTES_MIN: Final = 32 * 1024**2  # glibc's maximum: above any message, a chunk and more
M_TRIM_THRESHOLD: Final = -1  # these three: malloc.h
M_MMAP_THRESHOLD: Final = -3
M_ARENA_MAX: Final = -8
MAPS: Final = Path("/proc/self/maps")
OWN_BYTES: Final = 128 * 1024**2  # a process that serves nothing yet, and what it knows of replicas
IN_FLIGHT_BYTES_MIN: Final = 128 * 1024**2  # two writes of the largest chunk, or less at a time
WAIT_S: Final = 30.0  # for memory that others have
LOOK_S: Final = 0.25


def share_heaps() -> None:
    """Let all threads share a few heaps, which keep what streams use again and again; call it
    before there are threads."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_ARENA_MAX, ARENAS_MAX)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)


def give_back() -> None:
    """Give freed memory back to the system: after work on all replicas, or on a whole one."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def let_go_of_pages(file: Path) -> None:
    """Take the pages of a file that is mapped shared out of this process's memory; they stay in
    the page cache, and come back when they are looked at.

    The caller makes sure that the file stays mapped meanwhile: else its addresses may be another's.
    """
    with suppress(OSError, AttributeError):
        madvise = ctypes.CDLL(None).madvise
        for start, end in _mapped_at(os.fsencode(file)):
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_DONTNEED)


def _mapped_at(file: bytes) -> list[tuple[int, int]]:
    """Return the addresses at which a file is mapped shared: privately mapped pages may be the
    only copy of what was written to them."""
    places = []
    for line in MAPS.read_bytes().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == file and fields[1].endswith(b"s"):
            start, _, end = fields[0].partition(b"-")
            places.append((int(start, 16), int(end, 16)))
    return places


def limit_bytes(root: Path = Path("/")) -> int:
    """Return how much memory this process may have: the machine's, or the least that a control
    group it is in has (cgroups v2 and v1)."""
    found = [_kilobytes(root / "proc/meminfo", "MemTotal:")]
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in {"", "memory"}:
                continue
            top = root / "sys/fs/cgroup" / controllers
            name = "memory.limit_in_bytes" if controllers else "memory.max"
            group = top / path.lstrip("/")
            found += [_limit(place / name) for place in (group, *group.parents)]
    return min(size for size in found if size)


def in_flight_bytes(configured: int, memory_bytes: int) -> int:
    """Return how much may be in flight: as configured, or half of what there is beside our own."""
    return configured or max((memory_bytes - OWN_BYTES) // 2, IN_FLIGHT_BYTES_MIN)


def _kilobytes(file: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 2**63


def _limit(file: Path) -> int:
    """Return the limit in a file; a group that has none says "max", or a number beyond any."""
    with suppress(OSError, ValueError):
        return int(file.read_text())
    return 0


class MemoryBudget:
    """Bytes that may be in flight at once. Of the owners that wait for some, the one that has least
    is next; of several the one whose last turn was first."""

    def __init__(
        self, total_bytes: int, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.total_bytes = total_bytes
        self._monotonic_s = monotonic_s
        self._used_bytes = 0
        self._used_by: Counter[str] = Counter()
        self._waiting: dict[object, str] = {}  # owners, by ticket; the oldest first
        self._next: object = None
        self._turns = count(1)
        self._last_turn: dict[str, int] = {}  # of owners that wait
        self._changed = threading.Condition()

    @property
    def used_bytes(self) -> int:
        """How much is in flight."""
        return self._used_bytes

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
        """Have so much in flight in the body, all there is at most. `while_short` is called now and
        then while it waits. Raises `Unavailable(BUSY)` when it has waited too long, or `stop`."""
        size_bytes = min(size_bytes, self.total_bytes)
        ticket = object()
        ends_at_s = self._monotonic_s() + timeout_s
        with self._changed:
            self._waiting[ticket] = owner
            self._choose()
            try:
                while self._next is not ticket or self._lacks(size_bytes):
                    if stop() or self._monotonic_s() >= ends_at_s:
                        raise Unavailable(
                            Code.BUSY,
                            f"{size_bytes} bytes of memory are not free: {self._used_bytes} of "
                            f"{self.total_bytes} are in use, {len(self._waiting)} wait",
                            hint="node.in_flight_bytes, or more memory",
                        )
                    while_short()
                    self._changed.wait(LOOK_S)
                self._used_bytes += size_bytes
                self._used_by[owner] += size_bytes
                self._last_turn[owner] = next(self._turns)
            finally:
                del self._waiting[ticket]
                self._choose()
        try:
            yield
        finally:
            with self._changed:
                self._used_bytes -= size_bytes
                self._used_by[owner] -= size_bytes
                if not self._used_by[owner]:
                    del self._used_by[owner]
                self._choose()

    def _choose(self) -> None:
        """Say who is next: of one owner the ticket that has waited longest."""
        first = {owner: ticket for ticket, owner in reversed(self._waiting.items())}
        last_turn = {owner: self._last_turn.get(owner, 0) for owner in first}
        chosen = min(first, key=lambda owner: (self._used_by[owner], last_turn[owner]), default="")
        self._last_turn, self._next = last_turn, first.get(chosen)
        self._changed.notify_all()

    def _lacks(self, size_bytes: int) -> bool:
        return self._used_bytes + size_bytes > self.total_bytes


UNLIMITED: Final = MemoryBudget(2**62)
