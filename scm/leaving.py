"""When a datanode may be switched off, and when one should not even begin to leave. Pure.

    IN_SERVICE ──► DECOMMISSIONING ──every container is safe without it──► DECOMMISSIONED
        │   ▲
        ▼   └── recommissioned, or its maintenance is over: at any time
    ENTERING_MAINTENANCE ──enough of every container stays online──► IN_MAINTENANCE

The stop conditions are those of the counts (`scm.counting`): leaving replicas do not count, resting
ones count beside as many online ones as `maintenance_replica_min` says (S2.31, S2.39, S2.41). They
look at all that is known of a container, not at one state: a container of which only unhealthy
replicas are left holds its nodes back, too.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from agent.errors import size_text
from scm.allocate import Candidate
from scm.counting import is_bad, present
from scm.facts import Container, ContainerState, OpState
from scm.replication import Case, vulnerable
from scm.shards import may_do_without

_IGNORED: Final = frozenset({ContainerState.DELETING, ContainerState.DELETED})
_CLOSED: Final = frozenset({ContainerState.CLOSED, ContainerState.QUASI_CLOSED})

DONE: Final = {
    OpState.DECOMMISSIONING: OpState.DECOMMISSIONED,
    OpState.ENTERING_MAINTENANCE: OpState.IN_MAINTENANCE,
}
"""What a state becomes when nothing stands in the way any more."""


class Obstacle(StrEnum):
    """Why a container needs a node that is to leave."""

    UNCLOSED = "UNCLOSED"  # it is still being written, or not closed everywhere
    TOO_FEW = "TOO_FEW"  # too few replicas would be left or stay online


def obstacle(case: Case) -> Obstacle | None:
    """Say what keeps the nodes of a container that are to leave; None if they may go."""
    if case.container.state in _IGNORED:
        return None
    if case.container.state not in _CLOSED:
        return Obstacle.UNCLOSED
    if case.container.scheme:
        return None if may_do_without(case) else Obstacle.TOO_FEW
    here = present(case.placed)
    with_unhealthy = all(is_bad(case.container, p.replica) for p in here)
    counted = case.count(with_unhealthy=with_unhealthy)
    is_short = counted.available_count < 1 or not counted.is_sufficient(with_adds=False)
    if is_short or vulnerable(case):
        return Obstacle.TOO_FEW
    return None


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be asked of the cluster: the nodes that leave, and what they hold."""

    leaving: frozenset[str]
    is_maintenance: bool
    containers: Sequence[Container]  # of which a leaving node has a replica
    copied_bytes: int  # to be copied, as far as the counts say
    maintenance_min_count: int = 2


def violations(plan: Plan, remaining: Collection[Candidate]) -> list[str]:
    """Name what speaks against letting the nodes leave: too few nodes, or too little space.

    `remaining` are the nodes in service that answer, without those that leave (S2.76).
    """
    found = []
    needed = max((_online_count(plan, c) for c in plan.containers), default=0)
    if len(remaining) < needed:
        tight = sum(_online_count(plan, c) > len(remaining) for c in plan.containers)
        found.append(
            f"{needed} nodes in service are needed for {tight} containers, "
            f"{len(remaining)} would be left"
        )
    free_bytes = sum(max(0, c.available_bytes - c.scheduled_bytes) for c in remaining)
    if plan.copied_bytes > free_bytes:
        found.append(
            f"{size_text(plan.copied_bytes)} would have to be copied, "
            f"the nodes that are left have {size_text(free_bytes)} free"
        )
    return found


def _online_count(plan: Plan, container: Container) -> int:
    if plan.is_maintenance:
        return min(container.replication_factor, plan.maintenance_min_count)
    return container.replication_factor
