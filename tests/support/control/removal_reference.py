"""Reference implementation of `health.removal`: the replicas of a container that may be removed.

It is plain Python, decides about one container at a time, and shares no code with the judge.
Therefore, a mistake in one of the two implementations shows as a difference.
"""

import zlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from health.rules import Rules
from merkle.diff import SummaryComparison, compare
from merkle.replica import ReplicaState
from scm.cluster.container_context import is_bad, present
from scm.cluster.lifecycle import is_complete
from scm.state.entities import Container, ContainerState, Replica
from tests.support.control.judged_container import JudgedContainer, JudgedReplica


def movable(case: JudgedContainer) -> set[str]:
    """Return the datanodes whose replica may be moved, because it is intact and not excluded."""
    return {p.datanode_id for p in case.placed if is_whole(case, p)} - case.excluded


def good_replicas(case: JudgedContainer) -> list[JudgedReplica]:
    """Return the replicas that are known to be intact, equal and permanent.

    Such a replica is CLOSED, with all commits and no findings. Its node answers, is in service, and
    has confirmed the replica. No delete of the replica is pending. If the trees of two such
    replicas differ, return an empty list, because it is unknown which tree is right.
    """
    whole = [p for p in case.placed if is_whole(case, p)]
    return whole if all(is_equal(whole[0], p) for p in whole) else []


def is_whole(case: JudgedContainer, p: JudgedReplica) -> bool:
    """Return True if a replica has all commits and no known fault, its node is in service and has
    confirmed the replica, and no delete of it is pending."""
    return (
        p.is_staying
        and p.datanode_id not in case.deletes
        and is_complete(case.container, p.replica)
        and not p.replica.load_error
        and not p.replica.finding_count
    )


def is_equal(one: JudgedReplica, other: JudgedReplica) -> bool:
    """Return True if two replicas report equal trees; False if one has no tree."""
    mine, theirs = one.replica.tree, other.replica.tree
    return (
        mine is not None and theirs is not None and compare(mine, theirs) is SummaryComparison.EQUAL
    )


def is_sound(case: JudgedContainer, p: JudgedReplica) -> bool:
    """Return True if a replica of a quasi-closed container is not damaged, so that it has all data
    that the writer sent to its origin, and its node is in service."""
    return (
        p.is_staying
        and p.datanode_id not in case.excluded
        and p.replica.state is ReplicaState.QUASI_CLOSED
        and p.replica.tree is not None
        and not p.replica.load_error
        and not p.replica.finding_count
    )


def is_kept_by_origin(case: JudgedContainer, bad: JudgedReplica) -> bool:
    """Return True if other replicas have all data that the damaged replica `bad` of a quasi-closed
    container may have. They have the same origin, at least as many commits, and equal trees.
    """
    origin = origin_of(bad)
    others = [p for p in case.placed if is_sound(case, p) and origin_of(p) == origin]
    last = max((p.replica.bcsid for p in others), default=-1)
    latest = [p for p in others if p.replica.bcsid == last]
    return last >= bad.replica.bcsid and all(is_equal(latest[0], p) for p in latest)


def origin_of(p: JudgedReplica) -> str:
    """Return the datanode to which a replica's writer wrote."""
    return p.replica.origin_datanode_id or p.datanode_id


def has_more(p: JudgedReplica, others: Collection[JudgedReplica]) -> bool:
    """Return True if replica `p` has commits that none of `others` has.

    The container was closed without these commits, because the replica was absent or is damaged.
    The commits may be the only copy of a client's data, so only an operator may abandon them.
    """
    return p.replica.bcsid > max((other.replica.bcsid for other in others), default=0)


def stable_order(replica: Replica) -> int:
    """Return a replica's position in an order that every control plane agrees on (HDDS-4589)."""
    return zlib.crc32(f"{replica.container_id}:{replica.datanode_id}".encode())


def unblock_victim(case: JudgedContainer) -> JudgedReplica | None:
    """Return the unhealthy replica to remove because no node has space for another copy.

    At least two replicas must remain. One of them must be intact (in a quasi-closed container, and
    of the same origin). No command may be pending. A replica that is excluded, or that a repair may
    heal, is kept. Of several unhealthy replicas, choose the one with the fewest commits, then the
    fewest blocks, because a replica with more data is more likely to have the only copy of data.
    """
    here = present(case.placed)
    matching = [p for p in here if not is_bad(case.container, p.replica)]
    is_quasi = case.container.state is ContainerState.QUASI_CLOSED
    if case.deletes or case.adds or len(here) < 3:
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


def may_remove(case: JudgedContainer, datanode_id: str, *, keep_count: int) -> bool:
    """Return True if at least `keep_count` other replicas are intact and equal to each other."""
    return sum(p.datanode_id != datanode_id for p in good_replicas(case)) >= keep_count


_WRITTEN = frozenset({ReplicaState.QUASI_CLOSED, ReplicaState.OPEN})


@dataclass(frozen=True, slots=True)
class Origin:
    """The replicas of one origin, and the number of copies it should have."""

    replicas: tuple[JudgedReplica, ...]
    target_count: int


def origins(case: JudgedContainer, rules: Rules) -> list[Origin]:
    """Return the origins of a quasi-closed container that is not erasure-coded."""
    grouped: dict[str, list[JudgedReplica]] = {}
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


def surplus_datanodes(case: JudgedContainer, rules: Rules) -> set[str]:
    """Return the datanodes whose replica is surplus for its origin.

    A replica is surplus only if the required number of equal replicas remains without it. While a
    delete is pending, return an empty set.
    """
    if case.deletes:
        return set()
    found: set[str] = set()
    for origin in origins(case, rules):
        able = [p for p in origin.replicas if is_sound(case, p)]
        found |= {
            p.datanode_id
            for p in able
            if sum(q is not p and _origin_covers(q, p) for q in able) >= origin.target_count
        }
    return found


def may_be_removed(
    case: JudgedContainer, datanode_id: str, *, keep_count: int, rules: Rules
) -> bool:
    """Return True if a replica may be removed now, because enough intact replicas remain, or in a
    quasi-closed container, enough replicas of its origin.
    """
    if case.container.state is not ContainerState.QUASI_CLOSED:
        return may_remove(case, datanode_id, keep_count=keep_count)
    others = tuple(node for node in case.deletes if node != datanode_id)
    given = replace(case, deletes=others)
    return datanode_id in surplus_datanodes(given, rules) or _is_damaged_spare(
        given, datanode_id, keep_count
    )


def others_with(case: JudgedContainer, victim: JudgedReplica) -> list[JudgedReplica]:
    """Return the replicas that have all data of `victim`, a replica of a quasi-closed container.

    These are the replicas with an equal tree and at least as many commits, of any origin. If the
    victim is damaged, no tree equals its tree. Then they are the replicas of its origin with at
    least as many commits. Other replicas cannot prove that they have the data, and would read all
    their data in vain.
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


def _is_damaged_spare(case: JudgedContainer, datanode_id: str, keep_count: int) -> bool:
    """Return True if a replica is damaged, other replicas of its origin have all data that it may
    have, and at least `keep_count` undamaged replicas of any origin remain.
    """
    bad = next((p for p in present(case.placed) if p.datanode_id == datanode_id), None)
    if bad is None or case.deletes or not is_bad(case.container, bad.replica):
        return False
    kept_count = sum(is_sound(case, p) for p in case.placed)
    return kept_count >= keep_count and is_kept_by_origin(case, bad)


def _origin_covers(one: JudgedReplica, other: JudgedReplica) -> bool:
    return one.replica.bcsid >= other.replica.bcsid and is_equal(one, other)


def replaceable_shard(case: JudgedContainer) -> JudgedReplica | None:
    """Return the replica to remove because no other node has space for a missing shard, or None.

    The replica is damaged and no repair is expected to heal it, or it is one of two with the same
    index. It is not excluded. Enough intact shards to read the data must remain, and one more
    unless another replica has the same index and data. No other command may be pending.
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


def may_remove_shard(case: JudgedContainer, datanode_id: str) -> bool:
    """Return True if a shard may still be removed at the time when its delete would be sent."""
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


def may_lose_shard(case: JudgedContainer, datanode_id: str) -> bool:
    """Return True if an operator may remove a shard that seems to be intact.

    The intact shards that remain must be more than a read needs, because the removed shard is
    reconstructed from them.
    """
    without = replace(case, deletes=(*case.deletes, datanode_id))
    return whole_count(without) >= operator_keep_count(case.container)


def may_delete(case: JudgedContainer, datanode_id: str, *, keep_count: int, rules: Rules) -> bool:
    """Return True if a replica may be deleted because enough other replicas remain. `keep_count`
    shows whether an operator or the SCM orders the delete of a shard."""
    if not case.container.scheme:
        return may_be_removed(case, datanode_id, keep_count=keep_count, rules=rules)
    is_asked_for = keep_count == operator_keep_count(case.container)
    may_go = may_lose_shard if is_asked_for else may_remove_shard
    return may_go(case, datanode_id)


def copy_count(case: JudgedContainer) -> int:
    """Return the number of intact and equal copies of a container; if it is erasure-coded, the
    number of indexes with an intact shard."""
    return whole_count(case) if case.container.scheme else len(good_replicas(case))


def operator_keep_count(container: Container) -> int:
    """Return how many indexes must keep an intact shard if an operator removes a shard."""
    return container.data_count + 1


def whole_count(case: JudgedContainer) -> int:
    """Return how many indexes have an intact replica without a pending delete."""
    return sum(bool(found) for found in _whole(case).values())


def _whole(case: JudgedContainer) -> dict[int, list[JudgedReplica]]:
    """Return the intact replicas without a pending delete, by index."""
    found: dict[int, list[JudgedReplica]] = {
        index: [] for index in range(1, case.container.replication_factor + 1)
    }
    for p in case.placed:
        if is_whole(case, p) and p.replica.replica_index in found:
            found[p.replica.replica_index].append(p)
    return found


def _twin(case: JudgedContainer, whole: dict[int, list[JudgedReplica]]) -> JudgedReplica | None:
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


def _is_beyond(case: JudgedContainer, bad: JudgedReplica, twins: Sequence[JudgedReplica]) -> bool:
    """Return True if only the damaged shard `bad` has some of its commits: neither its container's
    sequence id nor the intact shards of its index (`twins`) include them.
    """
    last = max((p.replica.bcsid for p in twins), default=0)
    return bad.replica.bcsid > max(case.container.sequence_id, last)


def _covers(case: JudgedContainer, one: JudgedReplica, other: JudgedReplica) -> bool:
    """Return True if `one` has all data of `other`, another intact shard of its index.

    This is so if the trees are equal. It is also so if `other` was reconstructed while `one` was
    absent. A reconstructed shard has no tombstones of blocks that were deleted before, so its root
    differs permanently. It has no additional data if no delete is pending, and both shards have as
    many live blocks and all commits (`is_whole`). The shard with the tombstones is kept, because
    all earlier replicas of this index had its root.
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


def equivalent_shards(case: JudgedContainer, bad: JudgedReplica) -> list[JudgedReplica]:
    """Return the replicas on other nodes that have the index and the data of the replica `bad`.
    Like `bad`, they only lack a commit, for example because they are copies of `bad`.
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


def _tombstone_count(p: JudgedReplica) -> int:
    return 0 if p.replica.tree is None else p.replica.tree.tombstone_count


def witnesses(case: JudgedContainer, victim: JudgedReplica) -> list[JudgedReplica]:
    """Return the replicas that can prove that they have the data of `victim`."""
    if case.container.state is ContainerState.QUASI_CLOSED:
        return others_with(case, victim)
    index = victim.replica.replica_index
    whole = [
        p
        for p in case.placed
        if p is not victim and p.replica.replica_index == index and is_whole(case, p)
    ]
    return whole + equivalent_shards(case, victim) if case.container.scheme else whole


def giving_way(case: JudgedContainer) -> JudgedReplica | None:
    """Return the replica to remove because no other node has space for a missing replica, or
    None."""
    return replaceable_shard(case) if case.container.scheme else unblock_victim(case)
