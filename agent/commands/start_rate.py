"""How many tasks begin in a second, whatever storm they come in."""

import threading
from typing import Final

from agent.runtime.clock import Clock

STARTS_PER_S: Final = 200.0  # a real task waits for disks and networks much longer
STARTS_BURST: Final = 20.0


class Turnstile:
    """Lets `per_s` through a second, and `burst` at once after a pause. For any threads."""

    def __init__(
        self, clock: Clock, *, per_s: float = STARTS_PER_S, burst: float = STARTS_BURST
    ) -> None:
        self._clock = clock
        self._step_s = 1 / per_s
        self._slack_s = burst / per_s
        self._lock = threading.Lock()
        self._free_at_s = float("-inf")

    def delay_s(self) -> float:
        """Take the next pass; return how long to wait before it is used."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            self._free_at_s = max(self._free_at_s, now_s - self._slack_s) + self._step_s
            return max(0.0, self._free_at_s - now_s)
