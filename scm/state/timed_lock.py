"""A lock that reports how long it was held.

Every call to the control plane waits for the same lock. The lock also reports the CPU time of each
hold. The rest of the time was spent waiting for the disk or for a CPU core, and splitting the work
into smaller portions would not shorten it. The CPU time is read outside of the lock, because a
thread that reads it may be preempted on a busy host.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType


class MeteredLock:
    """A lock that reports the duration of each hold. It can only be used as a context manager."""

    def __init__(self, held: Callable[[float, float], object]) -> None:
        """Create the lock.

        After each hold, `held` is called with its duration and its CPU time in seconds.
        """
        self._lock = threading.RLock()  # so that a second `__enter__` of the holder returns
        self._is_held = False
        self._held = held
        self._since_s = 0.0
        self._spent_s = 0.0  # CPU time of the holding thread before it took the lock

    def __enter__(self) -> None:
        """Acquire the lock. Wait without a time limit.

        Raise RuntimeError if this thread already holds the lock, because it would wait for itself
        forever.
        """
        spent_s = time.thread_time()
        self._lock.acquire()
        if self._is_held:
            self._lock.release()
            raise RuntimeError("a call that holds the lock of the state takes it again")
        self._is_held = True
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
        self._is_held = False
        self._lock.release()
        self._held(held_s, time.thread_time() - before_s)
