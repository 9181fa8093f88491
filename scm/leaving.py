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
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from agent.errors import size_text
from scm.allocate import Candidate
from scm.counting import is_bad, present
from scm.facts import ContainerState, Health, OpState
from scm.replication import Case, sources, vulnerable
from scm.shards import ONLINE_SPARE_COUNT, lacking, may_do_without

_IGNORED: Final = frozenset({ContainerState.DELETING, ContainerState.DELETED})
_CLOSED: Final = frozenset({ContainerState.CLOSED, ContainerState.QUASI_CLOSED})
NAMED_MAX: Final = 5  # containers that a message names

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
class Need:
    """What one container asks of the nodes that stay, if others leave or rest."""

    container_id: int
    scheme: str  # of which there are few: what is violated is said for each of them
    online_count: int  # nodes in service that it must be on
    copied_bytes: int = 0
    is_stuck: bool = False  # it lacks replicas, and there is nothing to make them from
    is_locked: bool = False  # it can be read now, and could not if the nodes were off now


def need(case: Case, leaving: frozenset[str], op_state: OpState) -> Need:
    """Say what a container needs if these nodes leave (DECOMMISSIONING) or rest (S2.76, S5.12)."""
    container = case.container
    gone = tuple(
        replace(p, op_state=op_state) if p.datanode_id in leaving else p for p in case.placed
    )
    after = replace(case, placed=gone)
    size_bytes = max((p.replica.bytes_used for p in present(case.placed)), default=0)
    online_count = container.replication_factor
    if container.scheme:
        if op_state is not OpState.DECOMMISSIONING:
            online_count = min(online_count, container.data_count + ONLINE_SPARE_COUNT)
        made_count, is_stuck = lacking(after)
    else:
        if op_state is not OpState.DECOMMISSIONING:
            online_count = min(online_count, case.maintenance_min_count)
        made_count = after.count(with_unhealthy=True).needed_count
        is_stuck = made_count > 0 and not sources(after)
    off = replace(case, placed=tuple(p for p in case.placed if p.datanode_id not in leaving))
    return Need(
        container.container_id,
        container.scheme or f"{container.replication_factor} replicas",
        online_count,
        made_count * size_bytes,
        is_stuck and container.state in _CLOSED,
        is_locked=is_readable(case) and not is_readable(off),
    )


def is_readable(case: Case) -> bool:
    """Whether all data of a container can be read from nodes that answer."""
    good = [
        p
        for p in case.placed
        if p.health is Health.HEALTHY and not is_bad(case.container, p.replica)
    ]
    if case.container.scheme:
        return len({p.replica.replica_index for p in good}) >= case.container.data_count
    return bool(good)


def violations(needs: Sequence[Need], remaining: Collection[Candidate]) -> list[str]:
    """Name what speaks against letting the nodes leave, for each scheme: nodes, copies, space.

    `remaining` are the nodes in service that answer, without those that leave (S2.76).
    """
    found = []
    to_copy: dict[str, int] = {}
    for scheme in sorted({n.scheme for n in needs}):
        mine = [n for n in needs if n.scheme == scheme]
        to_copy[scheme] = sum(n.copied_bytes for n in mine)
        needed = max(n.online_count for n in mine)
        if len(remaining) < needed:
            tight = sum(n.online_count > len(remaining) for n in mine)
            found.append(
                f"{scheme}: {needed} nodes in service are needed for {tight} containers, "
                f"{len(remaining)} would be left"
            )
        stuck = [n.container_id for n in mine if n.is_stuck]
        if stuck:
            found.append(
                f"{scheme}: {len(stuck)} containers lack replicas that can be made from nothing: "
                + ", ".join(map(str, sorted(stuck)[:NAMED_MAX]))
            )
    free_bytes = sum(max(0, c.available_bytes - c.scheduled_bytes) for c in remaining)
    total_bytes = sum(to_copy.values())
    if total_bytes > free_bytes:
        parts = ", ".join(f"{name}: {size_text(size)}" for name, size in to_copy.items() if size)
        found.append(
            f"{size_text(total_bytes)} would have to be copied ({parts}), "
            f"the nodes that are left have {size_text(free_bytes)} free"
        )
    return found


def lock_out(needs: Sequence[Need]) -> str:
    """Say how many containers nobody could read if the nodes were off now; empty: none (S5.12)."""
    locked = sorted(n.container_id for n in needs if n.is_locked)
    if not locked:
        return ""
    named = ", ".join(map(str, locked[:NAMED_MAX]))
    return f"{len(locked)} containers cannot be read without them until they are copied: {named}"
