"""The health states of containers as they were when each was looked at last."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from health.words import Health
from scm.state.quiet_containers import Settled


@dataclass(frozen=True, slots=True)
class States:
    """One word a container; a cluster has few that are not HEALTHY."""

    unwell: Mapping[int, Health]
    judged: Settled
    """Containers about which nothing changed since their last look."""

    def of(self, container_id: int) -> str | None:
        """Return the state as a word; None: it is not known now, the container waits for a look."""
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
    """The states of containers that are not HEALTHY, and how many are in each: kept, because a
    rack that died makes millions of them."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Health] = Counter()

    def note(self, found: Iterable[tuple[int, Health]]) -> None:
        """Take in how containers are, HEALTHY ones too."""
        for container_id, health in found:
            before = self.pop(container_id, None)
            if before is not None:
                self.counts[before] -= 1
            if health is not Health.HEALTHY:
                self[container_id] = health
                self.counts[health] += 1


NOT_KNOWN: Final = States({}, Settled())
