"""Clocks, which the rest of the agent receives as arguments.

Two clocks are never mixed. Wall time names instants that leave the process (findings, reports); it
may jump. Monotonic time measures waits, ages and deadlines inside the process.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

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
    """This machine's clocks."""

    def now_ms(self) -> int:
        """Return wall time in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary start, which never decrease."""
        return time.monotonic()
