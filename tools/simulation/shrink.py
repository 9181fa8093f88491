"""Minimises a schedule with a violation: removes events as long as the violation remains.

Halves are removed first, then quarters, down to single events (the delta debugging of Zeller and
Hildebrandt). The shorter schedule must violate the same promise, but the text of the violation may
differ.
"""

from collections.abc import Callable, Sequence
from typing import Final

from tools.simulation.events import Event
from tools.simulation.schedule import simulate

TRIES_MAX: Final = 400


def shrunk(
    seed: int, events: Sequence[Event], *, tell: Callable[[str], object] = lambda _: None
) -> list[Event] | None:
    """Return a shorter list of events that violates the same promise as the schedule; None if the
    schedule violates none."""
    laws = _broken(seed, events)
    if not laws:
        return None
    left, tries = list(events), 0
    size = max(len(left) // 2, 1)
    while tries < TRIES_MAX:
        for start in range(0, len(left), size):
            fewer = left[:start] + left[start + size :]
            tries += 1
            if fewer and laws & _broken(seed, fewer):
                left = fewer
                tell(f"{len(left)} events")
                break
        else:
            if size == 1:
                break
            size = max(size // 2, 1)
    return left


def _broken(seed: int, events: Sequence[Event]) -> set[str]:
    return {violation.partition(":")[0] for violation in simulate(seed, events).violations}
