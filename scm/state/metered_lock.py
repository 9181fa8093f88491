"""A lock that tells how long it was held: every call to the control plane waits for one.

Beside it stands the processor time of who held it: the rest was spent waiting, for the disk or for
a core, and no smaller portion of work would shorten it. It is asked for outside of the lock: the
kernel brings its books up to date for it, and on a busy host takes the core away just then.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType


class MeteredLock:
    """A lock, as a context manager only."""

    def __init__(self, held: Callable[[float, float], object]) -> None:
        """`held` is told the seconds of each hold and its processor time, after its end."""
        self._lock = threading.Lock()
        self._held = held
        self._since_s = 0.0
        self._spent_s = 0.0  # by the thread that holds it, before it took it

    def __enter__(self) -> None:
        """Take it, however long that takes."""
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
        """Let go of it."""
        held_s = time.perf_counter() - self._since_s
        before_s = self._spent_s
        self._lock.release()
        self._held(held_s, time.thread_time() - before_s)
