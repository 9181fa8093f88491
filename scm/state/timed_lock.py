"""A lock that reports how long it was held: every call to the control plane waits for one.

It also reports the holder's processor time: the rest was spent waiting for the disk or a core,
which smaller portions of work would not shorten. The processor time is read outside of the lock,
because the kernel updates its accounts for it and, on a busy host, may preempt the thread.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType


class MeteredLock:
    """A lock, as a context manager only."""

    def __init__(self, held: Callable[[float, float], object]) -> None:
        """`held` receives the seconds of each hold and its processor time, after its end."""
        self._lock = threading.Lock()
        self._held = held
        self._since_s = 0.0
        self._spent_s = 0.0  # by the holding thread, before it took the lock

    def __enter__(self) -> None:
        """Take the lock, however long that takes."""
        spent_s = time.thread_time()
        self._lock.acquire()
        self._since_s = time.perf_counter()
        self._spent_s = spent_s

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the lock."""
        held_s = time.perf_counter() - self._since_s
        before_s = self._spent_s
        self._lock.release()
        self._held(held_s, time.thread_time() - before_s)
