"""A lock that tells how long it was held: every call to the control plane waits for one."""

import threading
import time
from collections.abc import Callable
from types import TracebackType


class MeteredLock:
    """A lock, as a context manager only."""

    def __init__(self, held: Callable[[float], object]) -> None:
        """`held` is told the seconds of each hold, after its end."""
        self._lock = threading.Lock()
        self._held = held
        self._since_s = 0.0

    def __enter__(self) -> None:
        """Take it, however long that takes."""
        self._lock.acquire()
        self._since_s = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of it."""
        held_s = time.perf_counter() - self._since_s
        self._lock.release()
        self._held(held_s)
