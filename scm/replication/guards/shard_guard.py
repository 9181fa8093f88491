"""Decides which shards of erasure-coded containers may be removed, and where one may go, and
whether any replica may be deleted (`may_delete`). Pure.

The judge decides what is missing and what is surplus. A delete is sent only while every index has a
whole shard or, if an operator or lack of room requires it, while more shards than reading needs are
whole.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from health.racks import misplaced_count
from health.rules import Rules
from merkle.replica import ReplicaState
from scm.cluster.container_context import ContainerContext, PlacedReplica, is_bad, present
from scm.replication.guards.delete_safety import good_replicas, is_equal, is_whole, stable_order
from scm.replication.guards.quasi_closed_guard import may_be_removed
from scm.state.entities import Container


def replaceable_shard(case: ContainerContext) -> PlacedReplica | None:
    """Return the replica to remove because no other node has room for a missing shard, if any.

    It is a bad one that no repair is expected to heal, or one of two of the same index, and not
    excluded. As many whole shards stay as reading needs, and one more unless another one has its
    index and the same data. Nothing else may be pending.
    """
    whole = _whole(case)
    indexes = {index for index, found in whole.items() if found}
    if case.adds or case.deletes or len(indexes) < case.container.data_count:
        return None
    bad = [
        p
        for p in case.placed
        if p.is_staying
        and p.replica.state is not ReplicaState.RECOVERING
        and (
            p.replica.replica_index in indexes
            or len(indexes) > case.container.data_count
            or equivalent_shards(case, p)
        )
        and is_bad(case.container, p.replica)
        and p.datanode_id not in case.healable_holders | case.excluded
        and not _is_beyond(case, p, whole.get(p.replica.replica_index, []))
    ]
    return min(
        bad,
        key=lambda p: (p.replica.replica_index not in indexes, stable_order(p.replica)),
        default=_twin(case, whole),
    )


def may_remove_shard(case: ContainerContext, datanode_id: str) -> bool:
    """Return True if a replica may still be removed at the time its delete would be sent."""
    held = next((p for p in case.placed if p.datanode_id == datanode_id), None)
    if held is None:
        return False
    whole = {
        index: [p for p in found if p.datanode_id != datanode_id]
        for index, found in _whole(case).items()
    }
    left_count = sum(bool(found) for found in whole.values())
    twins = whole.get(held.replica.replica_index, [])
    if is_bad(case.container, held.replica):
        is_doubled = bool(twins or equivalent_shards(case, held))
        needed_count = case.container.data_count + (0 if is_doubled else 1)
        return left_count >= needed_count and not _is_beyond(case, held, twins)
    return left_count >= case.container.data_count and any(_covers(case, p, held) for p in twins)


def may_lose_shard(case: ContainerContext, datanode_id: str) -> bool:
    """Return True if an operator may have a seemingly good replica removed.

    More whole shards must stay than reading needs: the removed one is rebuilt from them.
    """
    without = replace(case, deletes=(*case.deletes, datanode_id))
    return whole_count(without) >= operator_keep_count(case.container)


def may_delete(case: ContainerContext, datanode_id: str, *, keep_count: int, rules: Rules) -> bool:
    """Return True if a replica may be deleted, whoever orders it: enough others stay."""
    if not case.container.scheme:
        return may_be_removed(case, datanode_id, keep_count=keep_count, rules=rules)
    is_asked_for = keep_count == operator_keep_count(case.container)
    may_go = may_lose_shard if is_asked_for else may_remove_shard
    return may_go(case, datanode_id)


def copy_count(case: ContainerContext) -> int:
    """Return how many whole and equal copies, or indexes with a whole shard, a container has."""
    return whole_count(case) if case.container.scheme else len(good_replicas(case))


def operator_keep_count(container: Container) -> int:
    """Return how many indexes keep a whole replica when an operator has one removed."""
    return container.data_count + 1


def whole_count(case: ContainerContext) -> int:
    """Return how many indexes have a whole replica that is not being deleted."""
    return sum(bool(found) for found in _whole(case).values())


def is_better_rack(case: ContainerContext, moved: PlacedReplica, rack: str) -> bool:
    """Return True if the shards are better spread with `moved` on `rack`."""
    after = _racks(case)
    after.remove(moved.rack)
    return _misplaced(case, [*after, rack]) < _misplaced(case, _racks(case))


def _good(case: ContainerContext) -> list[PlacedReplica]:
    return [
        p
        for p in present(case.placed)
        if p.replica.state is ReplicaState.CLOSED
        and not is_bad(case.container, p.replica)
        and p.datanode_id not in case.deletes
    ]


def _racks(case: ContainerContext) -> list[str]:
    return [p.rack for p in _good(case)]


def _misplaced(case: ContainerContext, racks: list[str]) -> int:
    return misplaced_count(
        racks,
        cluster_rack_count=case.cluster_rack_count,
        required_count=case.container.replication_factor,
        is_scattered=True,
    )


def _whole(case: ContainerContext) -> dict[int, list[PlacedReplica]]:
    """Return the whole replicas of each index, none of them being deleted."""
    found: dict[int, list[PlacedReplica]] = {
        index: [] for index in range(1, case.container.replication_factor + 1)
    }
    for p in case.placed:
        if is_whole(case, p) and p.replica.replica_index in found:
            found[p.replica.replica_index].append(p)
    return found


def _twin(case: ContainerContext, whole: dict[int, list[PlacedReplica]]) -> PlacedReplica | None:
    """Return the surplus replica of an index: one that its twin covers, or else on the
    fuller rack.
    """
    racks = Counter(p.rack for found in whole.values() for p in found)
    for found in whole.values():
        if len(found) < 2:
            continue
        twins = sorted(found, key=lambda p: stable_order(p.replica))
        best = max(twins, key=_tombstone_count)
        if all(_covers(case, best, p) for p in twins):
            behind = [p for p in twins if not is_equal(best, p)]
            able = [p for p in behind or twins if p.datanode_id not in case.excluded]
            if able:
                return max(able, key=lambda p: racks[p.rack])
    return None


def _is_beyond(case: ContainerContext, bad: PlacedReplica, twins: Sequence[PlacedReplica]) -> bool:
    """Return True if a bad shard has commits that neither its container nor a whole one of its
    index has, so that it alone holds that data.
    """
    last = max((p.replica.bcsid for p in twins), default=0)
    return bad.replica.bcsid > max(case.container.sequence_id, last)


def _covers(case: ContainerContext, one: PlacedReplica, other: PlacedReplica) -> bool:
    """Return True if `one` makes another whole shard of its index unnecessary.

    Equal trees do. So does a shard that came back beside one that was rebuilt meanwhile: a rebuilt
    shard has the live blocks but no tombstones of those deleted before, so its root differs for
    ever. It holds nothing more once no delete is pending, both hold as many live blocks, and both
    hold all commits (`is_whole`). The one with the tombstones stays, because its root is the one
    that every replica of this index had.
    """
    if is_equal(one, other):
        return True
    mine, theirs = one.replica.tree, other.replica.tree
    return (
        mine is not None
        and theirs is not None
        and not case.owes_deletes
        and mine.algorithm == theirs.algorithm
        and mine.block_count == theirs.block_count
        and mine.tombstone_count > theirs.tombstone_count == 0
    )


def equivalent_shards(case: ContainerContext, bad: PlacedReplica) -> list[PlacedReplica]:
    """Return other nodes' replicas of the same index with the same data that are bad only because
    they also missed a commit, for instance a copy made before the first one was known to be bad.
    """
    return [
        p
        for p in case.placed
        if p.is_staying
        and p is not bad
        and p.replica.replica_index == bad.replica.replica_index
        and p.replica.state is bad.replica.state is ReplicaState.QUASI_CLOSED
        and not p.replica.finding_count
        and p.replica.bcsid == bad.replica.bcsid
        and is_equal(p, bad)
        and p.datanode_id not in case.deletes
    ]


def _tombstone_count(p: PlacedReplica) -> int:
    return 0 if p.replica.tree is None else p.replica.tree.tombstone_count
