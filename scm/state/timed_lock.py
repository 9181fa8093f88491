"""A lock that reports how long it was held, because every call to the control plane waits for one
lock.

The lock also reports the CPU time of each hold. The rest of the hold was spent waiting for the disk
or a CPU core, which smaller portions of work would not shorten. The CPU time is read outside of the
lock: the kernel updates its accounts for it and, on a busy host, may preempt the thread.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType


class MeteredLock:
    """A lock that reports the duration of each hold. It can only be used as a context manager."""

    def __init__(self, held: Callable[[float, float], object]) -> None:
        """`held` receives the seconds and the CPU time of each hold, after its end."""
        self._lock = threading.RLock()  # so that a second `__enter__` of the holder returns
        self._is_held = False
        self._held = held
        self._since_s = 0.0
        self._spent_s = 0.0  # CPU time of the holding thread before it took the lock

    def __enter__(self) -> None:
        """Take the lock; wait without a limit. Raise RuntimeError if this thread holds the lock:
        waiting for itself would stop the control plane."""
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
