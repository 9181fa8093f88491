"""Shards of erasure-coded containers: how the container is, which to copy, which to remove. Pure.

A lost shard is computed from the others (`scm.coding`); one that is only about to go is copied,
which costs one transfer instead of as many as there are data shards (health-rules 2.7, 3.5). So is
one on a crowded rack. What is removed is one of two shards of the same index, and only while every
index has a whole one.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from merkle.diff import Comparison, compare
from merkle.replica import ReplicaState
from scm.counting import LEAVING, RESTING, Placed, is_bad, present
from scm.doubts import doubts
from scm.facts import Container, ContainerState, Health, OpState
from scm.placement import misplaced_count
from scm.replication import Case, Condition, has_more, is_whole, stable_order

ONLINE_SPARE_COUNT: Final = (
    1  # shards online beyond those that are needed to read (Ozone's default)
)


def condition(case: Case) -> Condition:
    """Return how a CLOSED or QUASI_CLOSED container is, by its index sets (S1.32 to S1.39).

    One word for what may be several things at once, chosen as Ozone's code chooses it: what lacks
    before what is too much.
    """
    data_count, total = case.container.data_count, case.container.replication_factor
    good = [p for p in present(case.placed) if _counts(case, p)]
    bad = {
        p.replica.replica_index for p in present(case.placed) if is_bad(case.container, p.replica)
    }
    serving = Counter(p.replica.replica_index for p in good if p.op_state is OpState.IN_SERVICE)
    going = Counter(p.replica.replica_index for p in good if p.datanode_id in case.deletes)
    online = set(serving - going)
    resting = {p.replica.replica_index for p in good if p.op_state in RESTING}
    offline = resting | {p.replica.replica_index for p in good if p.op_state in LEAVING}
    online_min = min(total, data_count + ONLINE_SPARE_COUNT)
    if len(online) < total and (len(online | resting) < total or len(online) < online_min):
        has_offline_only = bool(offline - online)
        if len(online | offline) >= data_count:
            return Condition.UNDER_REPLICATED
        if len(online | offline | bad) < data_count:
            return Condition.MISSING_UNDER_REPLICATED if has_offline_only else Condition.MISSING
        return Condition.UNHEALTHY_UNDER_REPLICATED if has_offline_only else Condition.UNHEALTHY
    if any(count > 1 for count in serving.values()):
        return Condition.OVER_REPLICATED
    if bad:
        return Condition.UNHEALTHY_OVER_REPLICATED
    return Condition.MIS_REPLICATED if _misplaced(case, _racks(case)) else Condition.HEALTHY


def surplus(case: Case) -> list[Placed]:
    """Return the replicas to remove now, in the order everyone would choose.

    Bad ones, and all but one of those with the same index and an equal tree; each only while every
    index has a whole replica that stays. Two of one index whose trees differ both stay, because
    nobody knows which of them is right; unless one only lacks the other's tombstones (`_covers`).
    """
    whole = _whole(case)
    if case.container.state is not ContainerState.CLOSED or any(not w for w in whole.values()):
        return []
    bad = [
        p
        for p in _removable(case)
        if is_bad(case.container, p.replica)
        and not has_more(p, whole.get(p.replica.replica_index, []))
    ]
    return sorted(bad, key=lambda p: stable_order(p.replica)) + list(_twins(case, whole))


def gives_way(case: Case) -> Placed | None:
    """Return the replica to remove because no other node has room for what lacks, if any.

    A bad one, only while more whole shards stay than reading needs, nothing else is pending, and
    nobody expects it to be healed; or one of two of the same index.
    """
    whole = _whole(case)
    indexes = {index for index, found in whole.items() if found}
    if case.adds or case.deletes or len(indexes) <= case.container.data_count:
        return None
    bad = [
        p
        for p in _removable(case)
        if is_bad(case.container, p.replica)
        and p.datanode_id not in case.hopeful
        and p.replica.bcsid <= case.container.sequence_id  # else it alone has what it has
    ]
    twins = list(_twins(case, {index: found for index, found in whole.items() if found}))
    return min(
        bad,
        key=lambda p: (p.replica.replica_index not in indexes, stable_order(p.replica)),
        default=twins[0] if twins else None,
    )


def may_remove_shard(case: Case, datanode_id: str) -> bool:
    """Whether a replica that is to be removed may go, as things are when its turn has come."""
    held = next((p for p in case.placed if p.datanode_id == datanode_id), None)
    if held is None:
        return False
    whole = {
        index: [p for p in found if p.datanode_id != datanode_id]
        for index, found in _whole(case).items()
    }
    left_count = sum(bool(found) for found in whole.values())
    if is_bad(case.container, held.replica):
        is_beyond = held.replica.bcsid > case.container.sequence_id
        return left_count > case.container.data_count and not is_beyond
    twins = whole.get(held.replica.replica_index, [])
    return left_count >= case.container.data_count and any(_covers(case, p, held) for p in twins)


def may_lose_shard(case: Case, datanode_id: str) -> bool:
    """Whether a replica may be removed although it looks right, because an operator says so.

    More whole shards must stay than reading needs: it is rebuilt from them.
    """
    without = replace(case, deletes=(*case.deletes, datanode_id))
    return whole_count(without) >= operator_keep_count(case.container)


def operator_keep_count(container: Container) -> int:
    """Return how many indexes keep a whole replica when an operator has one removed."""
    return container.data_count + 1


def whole_count(case: Case) -> int:
    """Return how many indexes have a whole replica that is not being deleted."""
    return sum(bool(found) for found in _whole(case).values())


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
    doubtful = doubts(case.placed)
    good = sorted(
        _good(case), key=lambda p: (p.health is not Health.HEALTHY, p.datanode_id in doubtful)
    )
    for p in good:
        index = p.replica.replica_index
        if index not in staying and p.op_state is not OpState.IN_SERVICE:
            (leaving if p.op_state in LEAVING else resting).setdefault(index, p)
    alone = {index: p for index, p in leaving.items() if index not in resting}
    online_min = min(
        case.container.replication_factor, case.container.data_count + ONLINE_SPARE_COUNT
    )
    lacking = max(0, online_min - len(staying) - len(alone))
    chosen = [alone[i] for i in sorted(alone)] + [resting[i] for i in sorted(resting)][:lacking]
    return [p for p in chosen if p.health is Health.HEALTHY and p.datanode_id not in case.excluded]


def to_move(case: Case) -> Placed | None:
    """Return the shard to copy to another rack, if the shards are too many on one of theirs.

    Only when nothing is on its way: the copy makes it one too many, and `surplus` then names the
    one on the fullest rack.
    """
    if case.adds or case.deletes or condition(case) is not Condition.MIS_REPLICATED:
        return None
    crowd = Counter(_racks(case))
    movable = [p for p in _good(case) if is_whole(case, p) and p.datanode_id not in case.excluded]
    return max(movable, key=lambda p: (crowd[p.rack], stable_order(p.replica)), default=None)


def is_better_rack(case: Case, moved: Placed, rack: str) -> bool:
    """Whether the shards are spread better once `moved` is on `rack` instead."""
    after = _racks(case)
    after.remove(moved.rack)
    return _misplaced(case, [*after, rack]) < _misplaced(case, _racks(case))


def may_do_without(case: Case) -> bool:
    """Whether the nodes of a container that leave or rest may be switched off."""
    resting = {p.replica.replica_index for p in _good(case) if p.op_state not in LEAVING}
    staying = staying_indexes(case)
    data_count, total = case.container.data_count, case.container.replication_factor
    is_all_there = len(staying | resting) >= total
    return is_all_there and len(staying) >= min(total, data_count + ONLINE_SPARE_COUNT)


def lacking(case: Case) -> tuple[int, bool]:
    """Return how many shards must be made so that the nodes that leave or rest may be off.

    And whether one of them can be made from nothing: it can neither be copied nor computed.
    """
    staying = staying_indexes(case)
    resting = {p.replica.replica_index for p in _good(case) if p.op_state in RESTING}
    data_count, total = case.container.data_count, case.container.replication_factor
    able = [
        p for p in _good(case) if p.health is Health.HEALTHY and p.datanode_id not in case.excluded
    ]
    readable = {p.replica.replica_index for p in able}
    online_min = min(total, data_count + ONLINE_SPARE_COUNT)
    lost = set(range(1, total + 1)) - staying - resting
    count = max(len(lost), online_min - len(staying))
    return count, len(readable) < data_count and not lost <= readable


def _good(case: Case) -> list[Placed]:
    return [
        p
        for p in present(case.placed)
        if p.replica.state is ReplicaState.CLOSED
        and not is_bad(case.container, p.replica)
        and p.datanode_id not in case.deletes
    ]


def _racks(case: Case) -> list[str]:
    return [p.rack for p in _good(case)]


def _misplaced(case: Case, racks: list[str]) -> int:
    return misplaced_count(
        racks,
        cluster_rack_count=case.cluster_rack_count,
        required_count=case.container.replication_factor,
        is_scattered=True,
    )


def _counts(case: Case, p: Placed) -> bool:
    """Whether a replica counts for health: one that is being rebuilt does not, yet."""
    is_there = p.replica.state is not ReplicaState.RECOVERING
    return is_there and not is_bad(case.container, p.replica)


def _whole(case: Case) -> dict[int, list[Placed]]:
    """Return the whole replicas of each index, none of them being deleted."""
    found: dict[int, list[Placed]] = {
        index: [] for index in range(1, case.container.replication_factor + 1)
    }
    for p in case.placed:
        if is_whole(case, p) and p.replica.replica_index in found:
            found[p.replica.replica_index].append(p)
    return found


def _removable(case: Case) -> list[Placed]:
    """Return the replicas on nodes in service that answer and have named all they hold."""
    return [
        p
        for p in case.placed
        if p.health is Health.HEALTHY
        and p.op_state is OpState.IN_SERVICE
        and p.is_confirmed
        and p.datanode_id not in case.deletes
        and p.replica.state is not ReplicaState.RECOVERING
    ]


def _twins(case: Case, whole: dict[int, list[Placed]]) -> Iterator[Placed]:
    """Yield what is too much of each index: what others cover, then from the fullest racks."""
    racks = Counter(p.rack for found in whole.values() for p in found)
    for found in whole.values():
        left = sorted(found, key=lambda p: stable_order(p.replica))
        best = max(left, key=_tombstone_count)
        if not all(_covers(case, best, p) for p in left):
            continue
        while len(left) > 1:
            behind = [p for p in left if not _is_equal(best, p)]
            victim = max(behind or left, key=lambda p: racks[p.rack])
            left.remove(victim)
            racks[victim.rack] -= 1
            yield victim


def _covers(case: Case, one: Placed, other: Placed) -> bool:
    """Whether `one` makes another whole shard of its index needless.

    Equal trees do. So does a shard that came back beside one that was rebuilt meanwhile: a rebuilt
    shard has the blocks that live, and no tombstones of those deleted before, hence another root
    for ever. It holds nothing more once no delete is owed, both hold as many live blocks, and both
    hold all that was committed (`is_whole`). The one with the tombstones stays: its root is the one
    that every replica of this index had.
    """
    if _is_equal(one, other):
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


def _tombstone_count(p: Placed) -> int:
    return 0 if p.replica.tree is None else p.replica.tree.tombstone_count


def _is_equal(one: Placed, other: Placed) -> bool:
    mine, theirs = one.replica.tree, other.replica.tree
    return mine is not None and theirs is not None and compare(mine, theirs) is Comparison.EQUAL
