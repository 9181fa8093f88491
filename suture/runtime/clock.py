"""Clocks, which are passed to the rest of the code as arguments.

The two clocks are never mixed. Wall time dates facts that leave the process (findings, reports),
and may jump. Monotonic time measures waits, ages and deadlines inside the process.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of wall time and of monotonic time."""

    def now_ms(self) -> int:
        """Return wall time in milliseconds since the epoch."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary start, which never decrease."""
        ...


def monotonic_ms(clock: Clock) -> int:
    """Return the monotonic time in whole milliseconds, the unit of task deadlines."""
    return int(clock.monotonic_s() * 1000)


class SystemClock:
    """The clocks of the operating system."""

    def now_ms(self) -> int:
        """Return wall time in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary start, which never decrease."""
        return time.monotonic()
