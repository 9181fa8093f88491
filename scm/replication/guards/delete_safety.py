"""The final check before a replica is deleted: enough whole and equal ones must stay. Pure.

The judge decides what is surplus. The cluster may change between that decision and the sending of
the delete. So only replicas count here that are whole and equal, and that are on answering nodes
which have reported all their replicas.
"""

import zlib
from collections.abc import Collection
from typing import Final

from merkle.diff import SummaryComparison, compare
from merkle.replica import ReplicaState
from scm.cluster.container_context import ContainerContext, PlacedReplica, is_bad, present
from scm.cluster.lifecycle import is_complete
from scm.state.entities import ContainerState, Replica

UNBLOCK_REPLICAS_MIN: Final = 3  # two stay if an unhealthy one makes room for a copy


def movable(case: ContainerContext) -> set[str]:
    """Return the datanodes whose replica is whole, so that it may be moved."""
    return {p.datanode_id for p in case.placed if is_whole(case, p)} - case.excluded


def good_replicas(case: ContainerContext) -> list[PlacedReplica]:
    """Return the replicas that are known to be whole, equal and permanent.

    That is: CLOSED with all commits and no findings, on an answering node in service that has
    confirmed it, not being deleted, and with a tree equal to the others'. If any two of them
    differ, return an empty list, because it is unknown which one is right.
    """
    whole = [p for p in case.placed if is_whole(case, p)]
    return whole if all(is_equal(whole[0], p) for p in whole) else []


def is_whole(case: ContainerContext, p: PlacedReplica) -> bool:
    """Return True if a replica has all commits, is confirmed, and is on a node that stays."""
    return (
        p.is_staying
        and p.datanode_id not in case.deletes
        and is_complete(case.container, p.replica)
        and not p.replica.load_error
        and not p.replica.finding_count
    )


def is_equal(one: PlacedReplica, other: PlacedReplica) -> bool:
    """Return True if two replicas report equal trees; False if one has no tree."""
    mine, theirs = one.replica.tree, other.replica.tree
    return (
        mine is not None and theirs is not None and compare(mine, theirs) is SummaryComparison.EQUAL
    )


def is_sound(case: ContainerContext, p: PlacedReplica) -> bool:
    """Return True if a replica reports all data that its origin's writes left in a quasi-closed
    container, on a node that stays.
    """
    return (
        p.is_staying
        and p.datanode_id not in case.excluded
        and p.replica.state is ReplicaState.QUASI_CLOSED
        and p.replica.tree is not None
        and not p.replica.load_error
        and not p.replica.finding_count
    )


def is_kept_by_origin(case: ContainerContext, bad: PlacedReplica) -> bool:
    """Return True if other replicas of its origin have everything that a damaged replica of a
    quasi-closed container may have: at least as many commits, and equal to each other.
    """
    origin = origin_of(bad)
    others = [p for p in case.placed if is_sound(case, p) and origin_of(p) == origin]
    last = max((p.replica.bcsid for p in others), default=-1)
    latest = [p for p in others if p.replica.bcsid == last]
    return last >= bad.replica.bcsid and all(is_equal(latest[0], p) for p in latest)


def origin_of(p: PlacedReplica) -> str:
    """Return the datanode that took a replica's writes."""
    return p.replica.origin_datanode_id or p.datanode_id


def has_more(p: PlacedReplica, others: Collection[PlacedReplica]) -> bool:
    """Return True if a replica has commits that none of the others has.

    Its container was closed without them, because the replica was absent or is damaged. They may be
    the only copy of a client's data, so only an operator gives them up.
    """
    return p.replica.bcsid > max((other.replica.bcsid for other in others), default=0)


def stable_order(replica: Replica) -> int:
    """Return a replica's position in an order that every control plane agrees on (HDDS-4589)."""
    return zlib.crc32(f"{replica.container_id}:{replica.datanode_id}".encode())


def unblock_victim(case: ContainerContext) -> PlacedReplica | None:
    """Return the unhealthy replica to remove because no node has room for a copy beside it.

    At least two replicas stay, one of them whole (in a quasi-closed container one of the same
    origin). Nothing may be pending, and a replica that is excluded or that a repair may heal is
    kept. Among several, choose the one with the fewest commits, then the fewest blocks: the whole
    data in another may exist only once more.
    """
    here = present(case.placed)
    matching = [p for p in here if not is_bad(case.container, p.replica)]
    is_quasi = case.container.state is ContainerState.QUASI_CLOSED
    if case.deletes or case.adds or len(here) < UNBLOCK_REPLICAS_MIN:
        return None
    if not is_quasi and not good_replicas(case):
        return None
    bad = [
        p
        for p in here
        if is_bad(case.container, p.replica)
        and p.is_staying
        and p.datanode_id not in case.healable_holders | case.excluded
        and not has_more(p, matching)
        and (not is_quasi or is_kept_by_origin(case, p))
        and (
            p.replica.state is not ReplicaState.QUASI_CLOSED
            or p.replica.bcsid < case.container.sequence_id
        )
    ]
    return min(
        bad,
        key=lambda p: (p.replica.bcsid, p.replica.block_count, stable_order(p.replica)),
        default=None,
    )


def may_remove(case: ContainerContext, datanode_id: str, *, keep_count: int) -> bool:
    """Return True if at least `keep_count` other replicas are whole and equal to each other."""
    return sum(p.datanode_id != datanode_id for p in good_replicas(case)) >= keep_count
