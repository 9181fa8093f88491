"""Time as a dependency, so that tests control it."""

import time
from collections.abc import Callable
from dataclasses import dataclass


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class ScmClock:
    """Two clocks: wall time for display and for messages, monotonic time for every duration.

    A jump of the wall clock must not make all datanodes DEAD.
    """

    wall_ms: Callable[[], int] = _wall_ms
    monotonic_s: Callable[[], float] = time.monotonic
