"""The health states of containers as of the last check of each."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from health.words import HealthState
from scm.state.container_queues import ContainerBitmap


@dataclass(frozen=True, slots=True)
class HealthStates:
    """The health states of containers. Only those that are not HEALTHY are stored, because they are
    few."""

    unhealthy: Mapping[int, HealthState]
    judged: ContainerBitmap
    """Containers that have not changed since their last check."""

    def of(self, container_id: int) -> str | None:
        """Return the health state as a word. Return None if it is unknown because the container
        waits for a check."""
        if container_id not in self.judged:
            return None
        return self.unhealthy.get(container_id, HealthState.HEALTHY).name


AT_RISK: Final = frozenset(
    {
        HealthState.MISSING,
        HealthState.MISSING_UNDER_REPLICATED,
        HealthState.UNHEALTHY,
        HealthState.UNHEALTHY_UNDER_REPLICATED,
        HealthState.UNHEALTHY_OVER_REPLICATED,
        HealthState.QUASI_CLOSED_STUCK,
        HealthState.QUASI_CLOSED_STUCK_UNDER_REPLICATED,
        HealthState.QUASI_CLOSED_STUCK_OVER_REPLICATED,
        HealthState.QUASI_CLOSED_STUCK_MISSING,
    }
)
"""States of containers without any known intact replica, or without one that has the last
commits."""


class UnhealthyContainers(dict[int, HealthState]):
    """The states of containers that are not HEALTHY. The number per state is maintained, because a
    failed rack makes millions of such containers."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[HealthState] = Counter()
        self.since_ms: dict[int, int] = {}
        """By container: time of the first check that found a state other than HEALTHY, since the
        container was last HEALTHY."""

    def record_states(self, found: Iterable[tuple[int, HealthState]], now_ms: int) -> None:
        """Record the states of containers; a HEALTHY container is removed."""
        for container_id, health in found:
            before = self.pop(container_id, None)
            if before is not None:
                self.counts[before] -= 1
            if health is HealthState.HEALTHY:
                self.since_ms.pop(container_id, None)
            else:
                self[container_id] = health
                self.counts[health] += 1
                self.since_ms.setdefault(container_id, now_ms)


NOT_KNOWN: Final = HealthStates({}, ContainerBitmap())
