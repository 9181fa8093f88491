"""Stuck quasi-closed containers: how many copies each origin has, lacks or has too many of. Pure.

An origin is the datanode that took a replica's writes. Until it is certain which of them has the
last commit, the data of every origin is kept: three copies of those with the highest commit, two of
the others (Ozone's numbers). A container of one origin is counted as any other.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from merkle.diff import Comparison, compare
from merkle.replica import ReplicaState
from scm.counting import RESTING, Placed, present
from scm.facts import ContainerState, Health, OpState
from scm.replication import Case, may_remove, stable_order

BEST_COPIES: Final = 3
OTHER_COPIES: Final = 2


@dataclass(frozen=True, slots=True)
class Origin:
    """The replicas of one origin, and how many copies of it there should be."""

    replicas: tuple[Placed, ...]
    target_count: int

    @property
    def _online_count(self) -> int:
        return sum(p.op_state is OpState.IN_SERVICE for p in self.replicas)

    @property
    def under_count(self) -> int:
        """Copies that lack; while one rests, one online is enough."""
        lacking = self.target_count - self._online_count
        if any(p.op_state in RESTING for p in self.replicas):
            lacking = min(lacking, 1 - self._online_count)
        return max(0, lacking)

    @property
    def over_count(self) -> int:
        """Copies in service beyond the target."""
        return max(0, self._online_count - self.target_count)


def origins(case: Case) -> list[Origin]:
    """Return the origins of a quasi-closed container; none if it has but one, or is of shards."""
    if case.container.state is not ContainerState.QUASI_CLOSED or case.container.scheme:
        return []
    grouped: dict[str, list[Placed]] = {}
    for p in present(case.placed):
        grouped.setdefault(p.replica.origin_datanode_id or p.datanode_id, []).append(p)
    if len(grouped) < 2:
        return []
    whole = [p for p in present(case.placed) if p.replica.state is not ReplicaState.UNHEALTHY]
    last = max((p.replica.bcsid for p in whole), default=-1)
    return [
        Origin(
            tuple(held),
            BEST_COPIES
            if any(p in whole and p.replica.bcsid == last for p in held)
            else OTHER_COPIES,
        )
        for held in grouped.values()
    ]


def lacking(case: Case, from_ids: Collection[str]) -> tuple[int, list[str]]:
    """Return how many copies of these datanodes' origin lack, and whom it can be copied from.

    None while a copy is on its way: nobody knows whose.
    """
    for origin in origins(case):
        if case.adds or not {p.datanode_id for p in origin.replicas} >= set(from_ids):
            continue
        able = [
            p
            for p in origin.replicas
            if p.datanode_id in from_ids
            and p.health is Health.HEALTHY
            and not p.replica.load_error
            and p.datanode_id not in case.deletes
            and p.datanode_id not in case.excluded
        ]
        highest = max((p.replica.bcsid for p in able), default=0)
        return origin.under_count, [p.datanode_id for p in able if p.replica.bcsid == highest]
    return 0, []


def spare(case: Case) -> list[Placed]:
    """Return the replicas that are too many of their origin, in the order everyone would choose.

    Each only while as many equal ones stay as there should be; none while a delete is pending.
    """
    if case.deletes:
        return []
    found = []
    for origin in origins(case):
        able = [p for p in origin.replicas if _is_sound(p) and p.datanode_id not in case.excluded]
        found += [
            p
            for p in able
            if origin.over_count
            and sum(q is not p and _covers(q, p) for q in able) >= origin.target_count
        ]
    return sorted(found, key=lambda p: stable_order(p.replica))


def may_be_removed(case: Case, datanode_id: str, *, keep_count: int) -> bool:
    """Whether a replica may be removed now: enough whole ones, or enough of its origin, stay."""
    if case.container.state is not ContainerState.QUASI_CLOSED:
        return may_remove(case, datanode_id, keep_count=keep_count)
    others = tuple(node for node in case.deletes if node != datanode_id)
    return datanode_id in {p.datanode_id for p in spare(replace(case, deletes=others))}


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
    mine, theirs = one.replica.tree, other.replica.tree
    return (
        mine is not None
        and theirs is not None
        and one.replica.bcsid >= other.replica.bcsid
        and compare(mine, theirs) is Comparison.EQUAL
    )
