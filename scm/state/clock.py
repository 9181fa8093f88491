"""Time, handed in so that tests own it."""

import time
from collections.abc import Callable
from dataclasses import dataclass


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Clock:
    """Two clocks: the wall's for people and for the wire, the monotonic one for every duration.

    A wall clock that jumps must not declare a whole cluster dead.
    """

    wall_ms: Callable[[], int] = _wall_ms
    monotonic_s: Callable[[], float] = time.monotonic
