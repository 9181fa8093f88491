"""Measured numbers, and fair measurement of two things against each other."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

ROUNDS_DEFAULT = 7  # odd, so that the median is a measured value; tolerates two outliers


@dataclass(frozen=True, slots=True)
class Measure:
    """A number with its comparison and whether its bound holds.

    `bound` is the promise as text ("at least 8 x"); `holds` is None for a number without one.
    """

    name: str
    value: float
    unit: str
    compared_with: str = ""
    bound: str = ""
    holds: bool | None = None

    @property
    def outcome(self) -> str:
        """`holds`, `short`, or `-` if nothing was promised."""
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
    """Return how long one call takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def interleaved_medians(
    first: Callable[[], object], second: Callable[[], object], *, rounds: int = ROUNDS_DEFAULT
) -> tuple[float, float]:
    """Return the median seconds of each, run in alternation.

    The machine's speed changes within a minute; alternation exposes both equally. The order
    alternates, because the second of a pair finds caches and allocator as the first left them.
    """
    assert rounds >= 1
    first_s: list[float] = []
    second_s: list[float] = []
    for index in range(rounds):
        order = [(first, first_s), (second, second_s)]
        for action, durations in order if index % 2 == 0 else reversed(order):
            durations.append(duration_s(action))
    return statistics.median(first_s), statistics.median(second_s)
