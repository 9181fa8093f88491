"""Time, as the rest of the agent sees it: a value that somebody passed in.

Two clocks, never mixed. Wall time names instants that leave the process (findings, reports,
deadlines of commands); it may jump. Monotonic time measures waits and ages inside the process.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """What tells the time."""

    def now_ms(self) -> int:
        """Return wall time in milliseconds since the epoch."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary start; never goes back."""
        ...


class SystemClock:
    """This machine's clocks."""

    def now_ms(self) -> int:
        """Return wall time in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary start; never goes back."""
        return time.monotonic()
