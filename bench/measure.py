"""Measured numbers with bounds, and a fair comparison of the durations of two actions."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

ROUNDS_DEFAULT = 7  # odd, so that the median is a measured value; tolerates two outliers


@dataclass(frozen=True, slots=True)
class Measure:
    """A measured number, with the number that it is compared with, and its bound.

    `bound` is the required value as text ("at least 8 x"). `holds` is True if the value satisfies
    the bound; None if there is no bound.
    """

    name: str
    value: float
    unit: str
    compared_with: str = ""
    bound: str = ""
    holds: bool | None = None

    @property
    def outcome(self) -> str:
        """Return "holds" or "short"; "-" if there is no bound."""
        if self.holds is None:
            return "-"
        return "holds" if self.holds else "short"


def at_least(name: str, value: float, unit: str, low: float, *, compared_with: str = "") -> Measure:
    """Return a measure that holds at `low` or above."""
    return Measure(name, value, unit, compared_with, f"at least {low:g}", value >= low)


def at_most(name: str, value: float, unit: str, high: float, *, compared_with: str = "") -> Measure:
    """Return a measure that holds at `high` or below."""
    return Measure(name, value, unit, compared_with, f"at most {high:g}", value <= high)


def duration_s(action: Callable[[], object]) -> float:
    """Call `action`; return its duration in seconds."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def interleaved_medians(
    first: Callable[[], object], second: Callable[[], object], *, rounds: int = ROUNDS_DEFAULT
) -> tuple[float, float]:
    """Return the median seconds of `first` and of `second`, which are called alternately.

    The machine's speed changes within a minute; alternation affects both equally. The order within
    a round alternates, because the second call finds caches and allocator as the first left them.
    """
    assert rounds >= 1
    first_s: list[float] = []
    second_s: list[float] = []
    for index in range(rounds):
        order = [(first, first_s), (second, second_s)]
        for action, durations in order if index % 2 == 0 else reversed(order):
            durations.append(duration_s(action))
    return statistics.median(first_s), statistics.median(second_s)
