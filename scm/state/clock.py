"""The clocks of the control plane, which tests can replace."""

import time
from collections.abc import Callable
from dataclasses import dataclass


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class ScmClock:
    """Two clocks: wall time for display and messages, and monotonic time for all durations.

    A jump of the wall clock must not make all datanodes DEAD, so no duration is measured with it.
    """

    wall_ms: Callable[[], int] = _wall_ms
    monotonic_s: Callable[[], float] = time.monotonic
