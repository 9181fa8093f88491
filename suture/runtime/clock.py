"""The clocks. Code gets the time only from a clock object that is passed as an argument.

The two kinds of time are never mixed. Wall time is for facts that leave the process (findings,
reports), and may jump. Monotonic time is for waits, ages and deadlines in the process.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Provides wall time and monotonic time."""

    def now_ms(self) -> int:
        """Return the wall time in milliseconds since 1970."""
        ...

    def monotonic_s(self) -> float:
        """Return the monotonic time in seconds since an arbitrary start."""
        ...


def monotonic_ms(clock: Clock) -> int:
    """Return the monotonic time in whole milliseconds. Deadlines of tasks are in this unit."""
    return int(clock.monotonic_s() * 1000)


class SystemClock:
    """Returns the time of the operating system."""

    def now_ms(self) -> int:
        """Return the wall time in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return the monotonic time in seconds since an arbitrary start."""
        return time.monotonic()
