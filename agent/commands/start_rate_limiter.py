"""Limit on the number of tasks that start per second."""

import threading
from typing import Final

from suture.runtime.clock import Clock

STARTS_PER_S: Final = 200.0  # far more than the disks and networks of a host can serve
STARTS_BURST: Final = 20.0


class StartRateLimiter:
    """Allows `per_s` starts of tasks per second, and up to `burst` at once after a pause.
    Thread-safe."""

    def __init__(
        self, clock: Clock, *, per_s: float = STARTS_PER_S, burst: float = STARTS_BURST
    ) -> None:
        self._clock = clock
        self._step_s = 1 / per_s
        self._slack_s = burst / per_s
        self._lock = threading.Lock()
        self._free_at_s = float("-inf")

    def delay_s(self) -> float:
        """Reserve the next start. Return the number of seconds that the caller must wait before the
        start."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            self._free_at_s = max(self._free_at_s, now_s - self._slack_s) + self._step_s
            return max(0.0, self._free_at_s - now_s)
