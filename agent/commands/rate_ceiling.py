"""A rate limit for background work that the control plane can change while the agent runs."""

from collections.abc import Callable
from threading import Lock
from typing import Final

from suture.runtime.clock import Clock

SLICE_S: Final = 1.0  # interval at which a long wait checks for a stop and a changed rate


class RateCeiling:
    """A rate limit that several threads share. Implements `Pace` of `suture.runtime.ports`."""

    def __init__(self, clock: Clock, wait: Callable[[float], bool]) -> None:
        """Create an object without a limit.

        `wait(seconds)` sleeps, and returns True early if the process stops, like `Event.wait`.
        """
        self._clock = clock
        self._wait = wait
        self._lock = Lock()
        self._owed_bytes = 0.0  # bytes of work by which the rate was exceeded at `_counted_at_s`
        self._counted_at_s = clock.monotonic_s()
        self.bytes_per_s = 0
        """The rate limit in bytes per second; 0 means no limit."""

    def change(self, bytes_per_s: int) -> None:
        """Set the rate limit for all future work. Thread-safe."""
        with self._lock:
            self._count()
            self.bytes_per_s = bytes_per_s

    def __call__(self, length_bytes: int, is_interrupted: Callable[[], bool]) -> None:
        """Count `length_bytes` of finished work, and wait until the rate limit allows more work.

        The wait ends early if `is_interrupted` returns True or the process stops.
        """
        if not self.bytes_per_s:
            return
        with self._lock:
            self._count()
            self._owed_bytes += length_bytes
        while (left_s := self._left_s()) > 0 and not is_interrupted():
            if self._wait(min(left_s, SLICE_S)):
                return

    def _left_s(self) -> float:
        with self._lock:
            self._count()
            return self._owed_bytes / self.bytes_per_s if self.bytes_per_s else 0.0

    def _count(self) -> None:
        """Subtract the bytes that the rate limit has allowed since the last call from
        `_owed_bytes`.

        The caller must hold the lock.
        """
        now_s = self._clock.monotonic_s()
        allowed_bytes = (now_s - self._counted_at_s) * self.bytes_per_s
        self._counted_at_s = now_s
        self._owed_bytes = max(0.0, self._owed_bytes - allowed_bytes) if self.bytes_per_s else 0.0
