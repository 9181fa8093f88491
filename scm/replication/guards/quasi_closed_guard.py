"""Decides which replica of an origin in a quasi-closed container may be removed. Pure.

An origin is the datanode that took a replica's writes. Until it is certain which origin has the
last commit, the data of every one is kept: three copies of those with the highest commit, two of
the others (Ozone's numbers, which an operator may change). A container of one origin needs as many
copies as any other. If its origins are as many as its replicas should be, no origin needs more
copies.
"""

from dataclasses import dataclass, replace

from health.rules import Rules
from merkle.replica import ReplicaState
from scm.cluster.container_context import ContainerContext, PlacedReplica, is_bad, present
from scm.replication.guards.delete_safety import (
    is_equal,
    is_kept_by_origin,
    is_sound,
    may_remove,
    origin_of,
)
from scm.state.entities import ContainerState

_WRITTEN = frozenset({ReplicaState.QUASI_CLOSED, ReplicaState.OPEN})


@dataclass(frozen=True, slots=True)
class Origin:
    """The replicas of one origin, and the number of copies it should have."""

    replicas: tuple[PlacedReplica, ...]
    target_count: int


def origins(case: ContainerContext, rules: Rules) -> list[Origin]:
    """Return the origins of a quasi-closed container that is not erasure-coded."""
    grouped: dict[str, list[PlacedReplica]] = {}
    for p in present(case.placed):
        grouped.setdefault(origin_of(p), []).append(p)
    factor = case.container.replication_factor
    if len(grouped) == 1:
        [held] = grouped.values()
        return [Origin(tuple(held), factor)]
    whole = [p for p in present(case.placed) if p.replica.state is not ReplicaState.UNHEALTHY]
    last = max((p.replica.bcsid for p in whole), default=-1)
    writers = {origin_of(p) for p in whole if p.replica.state in _WRITTEN}
    best, other = rules.best_origin_copies, rules.other_origin_copies
    if len(writers) >= factor:
        best, other = min(best, factor), min(other, factor)
    return [
        Origin(
            tuple(held),
            best if any(p in whole and p.replica.bcsid == last for p in held) else other,
        )
        for held in grouped.values()
    ]


def surplus_datanodes(case: ContainerContext, rules: Rules) -> set[str]:
    """Return the datanodes whose replica is surplus for its origin.

    Each only while the required number of equal ones stays; none while a delete is pending.
    """
    if case.deletes:
        return set()
    found: set[str] = set()
    for origin in origins(case, rules):
        able = [p for p in origin.replicas if is_sound(case, p)]
        found |= {
            p.datanode_id
            for p in able
            if sum(q is not p and _covers(q, p) for q in able) >= origin.target_count
        }
    return found


def may_be_removed(
    case: ContainerContext, datanode_id: str, *, keep_count: int, rules: Rules
) -> bool:
    """Return True if a replica may be removed now: enough whole ones, or enough of its origin,
    stay.
    """
    if case.container.state is not ContainerState.QUASI_CLOSED:
        return may_remove(case, datanode_id, keep_count=keep_count)
    others = tuple(node for node in case.deletes if node != datanode_id)
    given = replace(case, deletes=others)
    return datanode_id in surplus_datanodes(given, rules) or _is_damaged_spare(
        given, datanode_id, keep_count
    )


def others_with(case: ContainerContext, victim: PlacedReplica) -> list[PlacedReplica]:
    """Return the replicas that report everything a replica of a quasi-closed container may have.

    These are equal ones of any origin with at least as many commits. No tree equals that of a
    damaged replica, so for it they are those of its origin with as many commits: they have its
    whole data, too, and can prove it. Another one, or one that has less, cannot, and would read its
    whole replica for nothing.
    """
    is_damaged = is_bad(case.container, victim.replica)
    return [
        p
        for p in case.placed
        if p is not victim
        and p.datanode_id not in case.deletes
        and is_sound(case, p)
        and p.replica.bcsid >= victim.replica.bcsid
        and (is_equal(p, victim) or (is_damaged and origin_of(p) == origin_of(victim)))
    ]


def _is_damaged_spare(case: ContainerContext, datanode_id: str, keep_count: int) -> bool:
    """Return True if a replica is damaged, others of its origin have everything it may have, and at
    least `keep_count` whole ones of any origin stay.
    """
    bad = next((p for p in present(case.placed) if p.datanode_id == datanode_id), None)
    if bad is None or case.deletes or not is_bad(case.container, bad.replica):
        return False
    kept_count = sum(is_sound(case, p) for p in case.placed)
    return kept_count >= keep_count and is_kept_by_origin(case, bad)


def _covers(one: PlacedReplica, other: PlacedReplica) -> bool:
    return one.replica.bcsid >= other.replica.bcsid and is_equal(one, other)
