"""The reference of `health.removal`, in plain Python: which replicas of a container may be removed.

It decides about one container at a time and shares no code with the judge, so a mistake in one of
the two implementations shows as a difference.
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
    """Return the datanodes whose replica is whole, so that it may be moved."""
    return {p.datanode_id for p in case.placed if is_whole(case, p)} - case.excluded


def good_replicas(case: JudgedContainer) -> list[JudgedReplica]:
    """Return the replicas that are known to be whole, equal and permanent.

    Such a replica is CLOSED, with all commits and no findings. It is on an answering node in
    service that has confirmed it, and no delete of it is pending. Its tree equals those of the
    others. If any two trees differ, return an empty list, because it is unknown which one is right.
    """
    whole = [p for p in case.placed if is_whole(case, p)]
    return whole if all(is_equal(whole[0], p) for p in whole) else []


def is_whole(case: JudgedContainer, p: JudgedReplica) -> bool:
    """Return True if a replica has all commits, is confirmed, and its node is not leaving."""
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
    """Return True if a replica reports all data that the writes of its origin left in a
    quasi-closed container, and its node is not leaving."""
    return (
        p.is_staying
        and p.datanode_id not in case.excluded
        and p.replica.state is ReplicaState.QUASI_CLOSED
        and p.replica.tree is not None
        and not p.replica.load_error
        and not p.replica.finding_count
    )


def is_kept_by_origin(case: JudgedContainer, bad: JudgedReplica) -> bool:
    """Return True if other replicas of its origin have everything that a damaged replica of a
    quasi-closed container may have: at least as many commits, and equal to each other.
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
    """Return True if a replica has commits that no other replica has.

    Its container was closed without these commits, because the replica was absent or is damaged.
    They may be the only copy of a client's data, so only an operator may abandon them.
    """
    return p.replica.bcsid > max((other.replica.bcsid for other in others), default=0)


def stable_order(replica: Replica) -> int:
    """Return a replica's position in an order that every control plane agrees on (HDDS-4589)."""
    return zlib.crc32(f"{replica.container_id}:{replica.datanode_id}".encode())


def unblock_victim(case: JudgedContainer) -> JudgedReplica | None:
    """Return the unhealthy replica to remove because no node has room for another copy.

    At least two replicas must remain, one of them whole (in a quasi-closed container one of the
    same origin). No command may be pending. A replica that is excluded, or that a repair may heal,
    is kept. Of several, choose the one with the fewest commits, then the fewest blocks, because the
    data of a fuller one may exist only once more.
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
    """Return True if at least `keep_count` other replicas are whole and equal to each other."""
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
            if sum(q is not p and _origin_covers(q, p) for q in able) >= origin.target_count
        }
    return found


def may_be_removed(
    case: JudgedContainer, datanode_id: str, *, keep_count: int, rules: Rules
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


def others_with(case: JudgedContainer, victim: JudgedReplica) -> list[JudgedReplica]:
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


def _is_damaged_spare(case: JudgedContainer, datanode_id: str, keep_count: int) -> bool:
    """Return True if a replica is damaged, others of its origin have everything it may have, and at
    least `keep_count` whole ones of any origin stay.
    """
    bad = next((p for p in present(case.placed) if p.datanode_id == datanode_id), None)
    if bad is None or case.deletes or not is_bad(case.container, bad.replica):
        return False
    kept_count = sum(is_sound(case, p) for p in case.placed)
    return kept_count >= keep_count and is_kept_by_origin(case, bad)


def _origin_covers(one: JudgedReplica, other: JudgedReplica) -> bool:
    return one.replica.bcsid >= other.replica.bcsid and is_equal(one, other)


def replaceable_shard(case: JudgedContainer) -> JudgedReplica | None:
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


def may_remove_shard(case: JudgedContainer, datanode_id: str) -> bool:
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


def may_lose_shard(case: JudgedContainer, datanode_id: str) -> bool:
    """Return True if an operator may have a seemingly good replica removed.

    More whole shards must stay than reading needs: the removed one is rebuilt from them.
    """
    without = replace(case, deletes=(*case.deletes, datanode_id))
    return whole_count(without) >= operator_keep_count(case.container)


def may_delete(case: JudgedContainer, datanode_id: str, *, keep_count: int, rules: Rules) -> bool:
    """Return True if a replica may be deleted, whoever orders it: enough others stay."""
    if not case.container.scheme:
        return may_be_removed(case, datanode_id, keep_count=keep_count, rules=rules)
    is_asked_for = keep_count == operator_keep_count(case.container)
    may_go = may_lose_shard if is_asked_for else may_remove_shard
    return may_go(case, datanode_id)


def copy_count(case: JudgedContainer) -> int:
    """Return how many whole and equal copies, or indexes with a whole shard, a container has."""
    return whole_count(case) if case.container.scheme else len(good_replicas(case))


def operator_keep_count(container: Container) -> int:
    """Return how many indexes keep a whole replica when an operator has one removed."""
    return container.data_count + 1


def whole_count(case: JudgedContainer) -> int:
    """Return how many indexes have a whole replica that is not being deleted."""
    return sum(bool(found) for found in _whole(case).values())


def _whole(case: JudgedContainer) -> dict[int, list[JudgedReplica]]:
    """Return the whole replicas of each index, none of them being deleted."""
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
    """Return True if a bad shard has commits that neither its container nor a whole one of its
    index has, so that it alone holds that data.
    """
    last = max((p.replica.bcsid for p in twins), default=0)
    return bad.replica.bcsid > max(case.container.sequence_id, last)


def _covers(case: JudgedContainer, one: JudgedReplica, other: JudgedReplica) -> bool:
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


def equivalent_shards(case: JudgedContainer, bad: JudgedReplica) -> list[JudgedReplica]:
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


def _tombstone_count(p: JudgedReplica) -> int:
    return 0 if p.replica.tree is None else p.replica.tree.tombstone_count


def witnesses(case: JudgedContainer, victim: JudgedReplica) -> list[JudgedReplica]:
    """Return the replicas that can prove that they have the data of another one."""
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
    """Return the replica to remove because no other node has room for a missing one."""
    return replaceable_shard(case) if case.container.scheme else unblock_victim(case)
