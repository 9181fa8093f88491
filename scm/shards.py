"""Shards of erasure-coded containers on nodes that leave or rest: which of them to copy. Pure.

A lost shard is computed from the others (`scm.coding`); one that is only about to go is copied,
which costs one transfer instead of as many as there are data shards (health-rules 2.7, 3.5).
"""

from typing import Final

from merkle.replica import ReplicaState
from scm.counting import LEAVING, Placed, is_bad, present
from scm.facts import Health, OpState
from scm.replication import Case

ONLINE_SPARE_COUNT: Final = (
    1  # shards online beyond those that are needed to read (Ozone's default)
)


def staying_indexes(case: Case) -> set[int]:
    """Return the indexes that have a good replica on a node in service, not being deleted."""
    return {p.replica.replica_index for p in _good(case) if p.op_state is OpState.IN_SERVICE}


def to_copy(case: Case) -> list[Placed]:
    """Return the replicas to copy elsewhere, one an index, lowest first.

    Every index that is only on leaving nodes, and as many of those that are only on resting ones
    as it takes to have one more online than reading needs.
    """
    staying = staying_indexes(case)
    leaving: dict[int, Placed] = {}
    resting: dict[int, Placed] = {}
    for p in _good(case):
        index = p.replica.replica_index
        if index not in staying and p.op_state is not OpState.IN_SERVICE:
            (leaving if p.op_state in LEAVING else resting).setdefault(index, p)
    alone = {index: p for index, p in leaving.items() if index not in resting}
    online_min = min(
        case.container.replication_factor, case.container.data_count + ONLINE_SPARE_COUNT
    )
    lacking = max(0, online_min - len(staying) - len(alone))
    chosen = [alone[i] for i in sorted(alone)] + [resting[i] for i in sorted(resting)][:lacking]
    return [p for p in chosen if p.health is Health.HEALTHY]


def may_do_without(case: Case) -> bool:
    """Whether the nodes of a container that leave or rest may be switched off."""
    resting = {p.replica.replica_index for p in _good(case) if p.op_state not in LEAVING}
    staying = staying_indexes(case)
    data_count, total = case.container.data_count, case.container.replication_factor
    is_all_there = len(staying | resting) >= total
    return is_all_there and len(staying) >= min(total, data_count + ONLINE_SPARE_COUNT)


def _good(case: Case) -> list[Placed]:
    return [
        p
        for p in present(case.placed)
        if p.replica.state is ReplicaState.CLOSED
        and not is_bad(case.container, p.replica)
        and p.datanode_id not in case.deletes
    ]
