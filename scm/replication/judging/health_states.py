"""The health states of containers as of the last check of each."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from health.words import Health
from scm.state.quiet_containers import Settled


@dataclass(frozen=True, slots=True)
class States:
    """The health state of each container; few are not HEALTHY."""

    unwell: Mapping[int, Health]
    judged: Settled
    """Containers about which nothing changed since their last look."""

    def of(self, container_id: int) -> str | None:
        """Return the state as a word; None if it is unknown because the container waits for a
        check.
        """
        if container_id not in self.judged:
            return None
        return self.unwell.get(container_id, Health.HEALTHY).name


AT_RISK: Final = frozenset(
    {
        Health.MISSING,
        Health.MISSING_UNDER_REPLICATED,
        Health.UNHEALTHY,
        Health.UNHEALTHY_UNDER_REPLICATED,
        Health.UNHEALTHY_OVER_REPLICATED,
        Health.QUASI_CLOSED_STUCK,
        Health.QUASI_CLOSED_STUCK_UNDER_REPLICATED,
        Health.QUASI_CLOSED_STUCK_OVER_REPLICATED,
        Health.QUASI_CLOSED_STUCK_MISSING,
    }
)
"""Of a container so called no whole replica is known, or not of its last commits."""


class Unwell(dict[int, Health]):
    """The states of containers that are not HEALTHY, with a maintained count of each state, because
    a failed rack makes millions of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Health] = Counter()

    def note(self, found: Iterable[tuple[int, Health]]) -> None:
        """Record the states of containers, including HEALTHY ones."""
        for container_id, health in found:
            before = self.pop(container_id, None)
            if before is not None:
                self.counts[before] -= 1
            if health is not Health.HEALTHY:
                self[container_id] = health
                self.counts[health] += 1


NOT_KNOWN: Final = States({}, Settled())
