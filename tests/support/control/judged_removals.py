"""Results of `health.removal` for a case: the replicas of a container that may be removed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from health.batch import view
from health.quasi_closed import judge_quasi_closed
from health.remaining import whole
from health.removal import Removals
from health.rules import Rules
from scm.replication.processors.removals import is_kept
from tests.support.control.judged_case import batch_of, rules_of
from tests.support.control.judged_container import JudgedContainer, JudgedReplica


@dataclass(frozen=True, slots=True)
class Origin:
    """The replicas of one origin (the datanode to which their writer wrote), and the number of
    copies that the origin should have."""

    replicas: tuple[JudgedReplica, ...]
    target_count: int


def removals(case: JudgedContainer, rules: Rules | None = None) -> Removals:
    """Return the results of `health.removal` for the container of a case."""
    return Removals(view(batch_of(case)), rules or rules_of(case))


def may_be_removed(
    case: JudgedContainer, datanode_id: str, *, keep_count: int, rules: Rules | None = None
) -> bool:
    """Return whether a replica may be deleted, if `keep_count` intact replicas must remain."""
    number = case.container.container_id
    return removals(case, rules).may_remove(number, datanode_id, keep_count=keep_count)


def may_remove_shard(case: JudgedContainer, datanode_id: str) -> bool:
    """Return whether the control plane may order the delete of a shard."""
    return may_be_removed(case, datanode_id, keep_count=case.container.data_count)


def may_lose_shard(case: JudgedContainer, datanode_id: str) -> bool:
    """Return whether an operator may order the delete of a shard."""
    return may_be_removed(case, datanode_id, keep_count=case.container.data_count + 1)


def copy_count(case: JudgedContainer, *without: str) -> int:
    """Return the number of intact and equal copies on datanodes other than `without`; for an
    erasure-coded container, the number of indexes with an intact shard."""
    return removals(case).copy_count(case.container.container_id, without=without)


def whole_names(case: JudgedContainer) -> list[str]:
    """Return the datanodes with an intact replica."""
    seen = view(batch_of(case))
    return [
        seen.batch.nodes.names[seen.batch.replicas.node[r]] for r in np.flatnonzero(whole(seen))
    ]


def good_names(case: JudgedContainer) -> list[str]:
    """Return the datanodes with an intact replica; an empty list if two of these replicas
    differ."""
    names = [p.datanode_id for p in case.placed]
    return [name for name in names if copy_count(case, name) < copy_count(case)]


def movable(case: JudgedContainer) -> set[str]:
    """Return the datanodes whose replica may be moved."""
    found, number = removals(case), case.container.container_id
    return {p.datanode_id for p in case.placed if found.is_movable(number, p.datanode_id)}


def witnesses(case: JudgedContainer, datanode_id: str) -> list[str]:
    """Return the datanodes that can prove that they have the data of the replica on
    `datanode_id`."""
    return removals(case).witnesses(case.container.container_id, datanode_id)


def giving_way(case: JudgedContainer) -> JudgedReplica | None:
    """Return the replica to delete because no other node has space for a missing replica; None if
    there is none."""
    held = {p.datanode_id: p for p in case.placed}
    able = [held[name] for name in removals(case).giving_way(case.container.container_id)]
    return next((p for p in able if not is_kept(case.container, p.replica)), None)


def places(case: JudgedContainer) -> Sequence[int]:
    """Return the position of each replica in the order that every planner agrees on."""
    seen = view(batch_of(case))
    found: list[int] = seen.places(np.arange(len(seen.rows.owner))).tolist()
    return found


def origins(case: JudgedContainer, rules: Rules) -> list[Origin]:
    """Return the origins of a quasi-closed container."""
    seen = view(batch_of(case))
    found, names = judge_quasi_closed(seen, rules).origins, seen.batch.nodes.names
    held = {p.datanode_id: p for p in case.placed}
    rows = [np.flatnonzero(found.of_row == place) for place in range(len(found.container))]
    return [
        Origin(tuple(held[names[seen.batch.replicas.node[row]]] for row in own), target)
        for own, target in zip(rows, found.target.tolist(), strict=True)
    ]
