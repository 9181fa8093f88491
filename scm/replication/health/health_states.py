"""The health states of containers, each as of the last check of the container."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from health.words import HealthState
from scm.state.container_queues import ContainerBitmap


@dataclass(frozen=True, slots=True)
class HealthStates:
    """The health states of all containers.

    Only states other than HEALTHY are stored, because almost all containers are HEALTHY.
    """

    unhealthy: Mapping[int, HealthState]
    judged: ContainerBitmap
    """The containers that were checked and have not changed since."""

    def of(self, container_id: int) -> str | None:
        """Return the health state of a container as a word.

        Return None if the state is unknown, because the container must be checked again.
        """
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
"""States in which no intact replica is known, or no intact replica that has the last commits."""


class UnhealthyContainers(dict[int, HealthState]):
    """The health states of containers that are not HEALTHY, by container id.

    The number of containers per state is updated with each change, because a failed rack makes
    millions of containers unhealthy, and to count them would take long.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[HealthState] = Counter()
        self.since_ms: dict[int, int] = {}
        """For each container, the time of the first check that found it not HEALTHY.

        The time is in ms since 1970. It is deleted when the container becomes HEALTHY.
        """

    def record_states(self, found: Iterable[tuple[int, HealthState]], now_ms: int) -> None:
        """Record the health states of containers. Delete the entries of HEALTHY containers."""
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
