"""Rules for when a datanode may be stopped, and when it must not begin to leave. No I/O.

A datanode that an operator decommissions changes from IN_SERVICE to DECOMMISSIONING. It becomes
DECOMMISSIONED when all its containers have enough replicas on other datanodes. For maintenance, it
changes to ENTERING_MAINTENANCE. It becomes IN_MAINTENANCE when enough replicas of every container
remain online. A datanode in any of these states returns to IN_SERVICE if an operator recommissions
it, or if its maintenance time is over.

`health.departure` decides which containers still need a datanode. It does not count replicas on
leaving datanodes. It counts replicas in maintenance only if the container also has
`maintenance_replica_min` online replicas. This module finds the objections to a departure.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from health.rules import Rules
from scm.cluster.allocate import TargetCandidate
from scm.replication.health.live_judge import DepartureImpact
from scm.state.entities import Container, ContainerState, OpState
from suture.errors import size_text

_CLOSED: Final = frozenset({ContainerState.CLOSED, ContainerState.QUASI_CLOSED})
NAMED_MAX: Final = 5  # containers named in one message


class DepartureCheck(StrEnum):
    """A check that the SCM makes before datanodes leave service or go into maintenance.

    An operator's request can skip any of these checks.
    """

    NODES = "nodes"  # enough datanodes stay for each scheme
    SOURCES = "sources"  # missing replicas can be copied or rebuilt
    SPACE = "space"  # the datanodes that stay have room for the copies


Violation: TypeAlias = tuple[DepartureCheck, str]

DONE: Final = {
    OpState.DECOMMISSIONING: OpState.DECOMMISSIONED,
    OpState.ENTERING_MAINTENANCE: OpState.IN_MAINTENANCE,
}
"""The final operational state for each state of a leaving datanode.

For instance, a DECOMMISSIONING datanode becomes DECOMMISSIONED when no container needs it any more.
"""


@dataclass(frozen=True, slots=True)
class ReplicaNeed:
    """The replicas of one container that other datanodes must provide if some datanodes leave.

    A datanode leaves by decommissioning, or for maintenance.
    """

    container_id: int
    scheme: str  # erasure code or replica count; violations are reported per scheme
    online_count: int  # in-service nodes that must have a replica
    copied_bytes: int = 0
    is_stuck: bool = False  # replicas are missing and there is no source for them
    is_locked: bool = False  # readable now, but not if the nodes were off


def need(
    container: Container, loss: DepartureImpact, op_state: OpState, rules: Rules, *, size_bytes: int
) -> ReplicaNeed:
    """Return the replicas of a container that other datanodes must provide if some datanodes leave.

    `op_state` is DECOMMISSIONING, or the state for maintenance. `size_bytes` is the size of one
    replica.
    """
    online_count = container.replication_factor
    if op_state is OpState.DECOMMISSIONING:
        if rules.leaving_min and not container.scheme:
            online_count = min(online_count, rules.leaving_min)
    else:
        spare = container.data_count + rules.ec_redundancy
        online_count = min(online_count, spare if container.scheme else rules.maintenance_min)
    return ReplicaNeed(
        container.container_id,
        container.scheme or f"{container.replication_factor} replicas",
        online_count,
        loss.made_count * size_bytes,
        loss.is_stuck and container.state in _CLOSED,
        is_locked=loss.is_locked,
    )


def violations(
    needs: Sequence[ReplicaNeed], remaining: Collection[TargetCandidate]
) -> list[Violation]:
    """Return the objections to a departure of datanodes.

    There are three kinds of objection: too few datanodes remain for a replication scheme, missing
    replicas have no source, or the remaining datanodes have too little free space. `remaining` are
    the reachable datanodes in service that do not leave.
    """
    found: list[Violation] = []
    to_copy: dict[str, int] = {}
    for scheme in sorted({n.scheme for n in needs}):
        mine = [n for n in needs if n.scheme == scheme]
        to_copy[scheme] = sum(n.copied_bytes for n in mine)
        needed = max(n.online_count for n in mine)
        if len(remaining) < needed:
            tight = sum(n.online_count > len(remaining) for n in mine)
            text = (
                f"{scheme}: {needed} nodes in service are needed for {tight} containers, "
                f"{len(remaining)} would be left"
            )
            found.append((DepartureCheck.NODES, text))
        stuck = [n.container_id for n in mine if n.is_stuck]
        if stuck:
            named = ", ".join(map(str, sorted(stuck)[:NAMED_MAX]))
            text = f"{scheme}: {len(stuck)} containers lack replicas that can be made from nothing"
            found.append((DepartureCheck.SOURCES, f"{text}: {named}"))
    free_bytes = sum(max(0, c.available_bytes - c.scheduled_bytes) for c in remaining)
    total_bytes = sum(to_copy.values())
    if total_bytes > free_bytes:
        parts = ", ".join(f"{name}: {size_text(size)}" for name, size in to_copy.items() if size)
        text = (
            f"{size_text(total_bytes)} would have to be copied ({parts}), "
            f"the nodes that are left have {size_text(free_bytes)} free"
        )
        found.append((DepartureCheck.SPACE, text))
    return found


def lock_out(needs: Sequence[ReplicaNeed]) -> str:
    """Return a warning about the containers that would be unreadable without the leaving datanodes.

    Return an empty string if there is no such container.
    """
    locked = sorted(n.container_id for n in needs if n.is_locked)
    if not locked:
        return ""
    named = ", ".join(map(str, locked[:NAMED_MAX]))
    return f"{len(locked)} containers cannot be read without them until they are copied: {named}"


def not_known(container_ids: Collection[int]) -> str:
    """Return a warning about containers of which the control plane makes no copies.

    The control plane did not create these containers, or an operator marked them as lost. Return an
    empty string if there is no such container.
    """
    if not container_ids:
        return ""
    named = ", ".join(map(str, sorted(container_ids)[:NAMED_MAX]))
    count = len(container_ids)
    return f"{count} containers on them are not known here, no copy is made of them: {named}"
