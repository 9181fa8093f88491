"""The threads of calls: many may wait for their callers, few work at once.

A call has a thread from its first byte on, whatever its caller does then. So there is one for every
call that is let in, and a call that has its request takes one of a few slots for as long as it
works; it gives the slot back while it waits for its caller. A thread that only waits costs some
ten kilobytes, and is made when it is first needed.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue
from typing import Final

LATE_S: Final = 5.0  # a call that found no slot for so long is a reason to say so


class CallThreads(ThreadPoolExecutor):
    """A pool for `grpc.server`, and the slots of what it runs."""

    def __init__(
        self,
        slot_count: int,
        call_count_max: int,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Let `slot_count` calls work at once, of `call_count_max` that are there."""
        super().__init__(max(slot_count, call_count_max), thread_name_prefix="rpc")
        self._free: SimpleQueue[None] = SimpleQueue()  # a Semaphore takes ten times as long
        for _ in range(slot_count):
            self._free.put(None)
        self._monotonic_s = monotonic_s
        self._tickets = count()
        self._waiting: dict[int, float] = {}  # since when, by ticket; the oldest first

    def take(self) -> None:
        """Wait for a slot."""
        with suppress(Empty):
            self._free.get_nowait()
            return
        ticket = next(self._tickets)
        self._waiting[ticket] = self._monotonic_s()
        self._free.get()
        del self._waiting[ticket]

    def give(self) -> None:
        """Give a slot back."""
        self._free.put(None)

    @property
    def waiting_count(self) -> int:
        """How many calls wait for a slot."""
        return len(self._waiting)

    @property
    def trouble(self) -> str:
        """Why nothing may be answered now; "" while calls find their slots."""
        begun_s = next(iter(list(self._waiting.values())), None)
        late_s = 0.0 if begun_s is None else self._monotonic_s() - begun_s
        if late_s < LATE_S:
            return ""
        return f"{self.waiting_count} calls wait for a thread, the first for {late_s:.0f} s"
