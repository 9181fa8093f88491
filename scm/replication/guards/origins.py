"""Quasi-closed containers: which replica of an origin may be removed. Pure.

An origin is the datanode that took a replica's writes. Until it is certain which of them has the
last commit, the data of every origin is kept: three copies of those with the highest commit, two of
the others (Ozone's numbers). A container of one origin needs as many as any other.
"""

from dataclasses import dataclass, replace
from typing import Final

from health.rules import Rules
from merkle.replica import ReplicaState
from scm.cluster.case import Case, Placed, present
from scm.replication.guards.delete_safety import is_equal, may_remove
from scm.state.facts import ContainerState, Health, OpState

RULES: Final = Rules()


@dataclass(frozen=True, slots=True)
class Origin:
    """The replicas of one origin, and how many copies of it there should be."""

    replicas: tuple[Placed, ...]
    target_count: int


def origins(case: Case) -> list[Origin]:
    """Return the origins of a quasi-closed container that is not erasure-coded."""
    grouped: dict[str, list[Placed]] = {}
    for p in present(case.placed):
        grouped.setdefault(p.replica.origin_datanode_id or p.datanode_id, []).append(p)
    if len(grouped) == 1:
        [held] = grouped.values()
        return [Origin(tuple(held), case.container.replication_factor)]
    whole = [p for p in present(case.placed) if p.replica.state is not ReplicaState.UNHEALTHY]
    last = max((p.replica.bcsid for p in whole), default=-1)
    return [
        Origin(
            tuple(held),
            RULES.best_origin_copies
            if any(p in whole and p.replica.bcsid == last for p in held)
            else RULES.other_origin_copies,
        )
        for held in grouped.values()
    ]


def spare(case: Case) -> set[str]:
    """Return the datanodes whose replica is one too many of its origin.

    Each only while as many equal ones stay as there should be; none while a delete is pending.
    """
    if case.deletes:
        return set()
    found: set[str] = set()
    for origin in origins(case):
        able = [p for p in origin.replicas if _is_sound(p) and p.datanode_id not in case.excluded]
        found |= {
            p.datanode_id
            for p in able
            if sum(q is not p and _covers(q, p) for q in able) >= origin.target_count
        }
    return found


def may_be_removed(case: Case, datanode_id: str, *, keep_count: int) -> bool:
    """Whether a replica may be removed now: enough whole ones, or enough of its origin, stay."""
    if case.container.state is not ContainerState.QUASI_CLOSED:
        return may_remove(case, datanode_id, keep_count=keep_count)
    others = tuple(node for node in case.deletes if node != datanode_id)
    return datanode_id in spare(replace(case, deletes=others))


def _is_sound(p: Placed) -> bool:
    return (
        p.health is Health.HEALTHY
        and p.op_state is OpState.IN_SERVICE
        and p.is_confirmed
        and p.replica.state is ReplicaState.QUASI_CLOSED
        and not p.replica.load_error
        and not p.replica.finding_count
    )


def _covers(one: Placed, other: Placed) -> bool:
    return one.replica.bcsid >= other.replica.bcsid and is_equal(one, other)
