"""What a closed container needs: copies, or fewer replicas. Pure.

The order of the checks is that of Ozone's replication manager (health-rules 2.6 and 3.5). What may
be destroyed is chosen more carefully than there: only replicas that are seen, on nodes that answer
and have reported all they hold, and only while as many whole and equal ones stay as are required.
"""

import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from merkle.diff import Comparison, compare
from merkle.replica import ReplicaState
from scm.counting import LEAVING, NO_BAND, Band, Placed, Tally, is_bad, present, tally
from scm.doubts import doubts
from scm.facts import Container, ContainerState, Health, OpState, Replica
from scm.lifecycle import is_complete
from scm.placement import is_removable, misplaced_count

OUT_OF_SERVICE_WEIGHT: Final = 5  # nothing is lost yet: the leaving node still has its replica
MISPLACED_WEIGHT: Final = 6
UNBLOCK_REPLICAS_MIN: Final = 3  # two stay when an unhealthy one makes room for a copy


class Condition(StrEnum):
    """The health of a container as far as numbers and places go (Ozone's names)."""

    HEALTHY = "HEALTHY"
    UNDER_REPLICATED = "UNDER_REPLICATED"
    MIS_REPLICATED = "MIS_REPLICATED"
    OVER_REPLICATED = "OVER_REPLICATED"
    MISSING = "MISSING"
    MISSING_UNDER_REPLICATED = "MISSING_UNDER_REPLICATED"  # shards that may come back are offline
    UNHEALTHY = "UNHEALTHY"
    UNHEALTHY_UNDER_REPLICATED = "UNHEALTHY_UNDER_REPLICATED"
    UNHEALTHY_OVER_REPLICATED = "UNHEALTHY_OVER_REPLICATED"
    EMPTY = "EMPTY"  # about to be deleted as a whole
    OPEN_UNHEALTHY = "OPEN_UNHEALTHY"  # a replica is not open: it is about to be closed
    QUASI_CLOSED_STUCK = "QUASI_CLOSED_STUCK"  # nothing can be closed for good


UNDER: Final = frozenset(
    {
        Condition.UNDER_REPLICATED,
        Condition.UNHEALTHY_UNDER_REPLICATED,
        Condition.MIS_REPLICATED,
    }
)
OVER: Final = frozenset({Condition.OVER_REPLICATED, Condition.UNHEALTHY_OVER_REPLICATED})


@dataclass(frozen=True, slots=True)
class Case:
    """A container, its replicas and pending ops, and how many racks there are.

    `adds` and `deletes` are the datanodes to which a replica comes and from which one goes;
    `hopeful` are those whose unhealthy replica a repair is expected to heal.
    """

    container: Container
    placed: tuple[Placed, ...]
    adds: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    hopeful: frozenset[str] = frozenset()
    cluster_rack_count: int = 1
    maintenance_min_count: int = 2
    add_racks: tuple[str, ...] = ()
    excluded: frozenset[str] = frozenset()  # nothing is ordered of these datanodes' replicas
    owes_deletes: bool = False  # blocks are deleted that not every holder knows of yet
    band: Band = NO_BAND

    def count(self, *, with_unhealthy: bool, is_hopeful: bool = False) -> Tally:
        """Count the replicas."""
        return tally(
            self.container,
            self.placed,
            adds=self.adds,
            deletes=self.deletes,
            with_unhealthy=with_unhealthy,
            maintenance_min_count=self.maintenance_min_count,
            hopeful=self.hopeful if is_hopeful else (),
            band=self.band,
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a container is, and what is to be done about it beside what is pending."""

    condition: Condition
    copies: int = 0  # to make now
    surplus: int = 0  # to remove now, if it is safe
    weight: int = 0  # of the need for copies; the smallest is the most urgent


def judge(case: Case) -> Judgement:
    """Judge a CLOSED or QUASI_CLOSED container."""
    good = case.count(with_unhealthy=False)
    every = case.count(with_unhealthy=True)
    if not every.total_count:
        return Judgement(Condition.MISSING)
    if not any(not is_bad(case.container, p.replica) for p in present(case.placed)):
        return _judge_unhealthy(every)
    if not good.is_sufficient(with_adds=False):
        expected = case.count(with_unhealthy=False, is_hopeful=True)
        return Judgement(
            Condition.UNDER_REPLICATED,
            copies=min(good.needed_count, expected.needed_count),
            weight=_weight(good),
        )
    if vulnerable(case):
        return Judgement(
            Condition.UNHEALTHY_UNDER_REPLICATED,
            copies=0 if case.adds else 1,
            weight=OUT_OF_SERVICE_WEIGHT,
        )
    if every.excess_count(with_deletes=False):
        return Judgement(Condition.OVER_REPLICATED, surplus=every.excess_count(with_deletes=True))
    return _judge_places(case)


def _judge_unhealthy(every: Tally) -> Judgement:
    if not every.is_sufficient(with_adds=False):
        return Judgement(
            Condition.UNHEALTHY_UNDER_REPLICATED,
            copies=every.needed_count,
            weight=_weight(every),
        )
    if every.excess_count(with_deletes=False):
        # None of them is known whole: which one may go, nobody knows.
        return Judgement(Condition.UNHEALTHY_OVER_REPLICATED)
    return Judgement(Condition.UNHEALTHY)


def _judge_places(case: Case) -> Judgement:
    racks = [p.rack for p in present(case.placed)]
    required = case.container.replication_factor
    now, later = (
        misplaced_count(r, cluster_rack_count=case.cluster_rack_count, required_count=required)
        for r in (racks, [*racks, *case.add_racks])
    )
    if now:
        is_quiet = not case.adds and not case.deletes
        copies = 1 if later and is_quiet else 0
        return Judgement(Condition.MIS_REPLICATED, copies=copies, weight=MISPLACED_WEIGHT)
    bad = any(is_bad(case.container, p.replica) for p in present(case.placed))
    return Judgement(Condition.UNHEALTHY if bad else Condition.HEALTHY)


def _weight(counted: Tally) -> int:
    if counted.is_due_to_out_of_service:
        return OUT_OF_SERVICE_WEIGHT
    return counted.remaining_redundancy


def sources(case: Case) -> list[Placed]:
    """Return the replicas to copy from: the best kind there is, with the highest bcsid.

    The node must answer; what the operator wants of it does not matter. An unhealthy replica is
    copied only when there is no other, or when it is about to leave with what no other has; one
    in doubt (`scm.doubts`) only when all that have as many commits are.
    """
    alone = vulnerable(case)
    if alone:
        return alone[:1]
    able = [
        p
        for p in case.placed
        if p.health is Health.HEALTHY
        and p.datanode_id not in case.deletes
        and p.datanode_id not in case.excluded
        and not p.replica.load_error
    ]
    closed = [p for p in able if p.replica.state is ReplicaState.CLOSED]
    quasi = [p for p in able if p.replica.state is ReplicaState.QUASI_CLOSED]
    if not closed or case.container.state is ContainerState.QUASI_CLOSED:
        closed += quasi
    chosen = closed
    if not any(not is_bad(case.container, p.replica) for p in present(case.placed)):
        chosen = [p for p in able if p.replica.state is ReplicaState.UNHEALTHY] or quasi
    highest = max((p.replica.bcsid for p in chosen), default=0)
    best = [p for p in chosen if p.replica.bcsid == highest]
    whole = [p for p in quasi if p.replica.bcsid == max(highest, case.container.sequence_id)]
    doubtful = doubts(case.placed)
    for kind in (best, whole):
        sound = [p for p in kind if p.datanode_id not in doubtful]
        if sound:
            return sound
    return best


def vulnerable(case: Case) -> list[Placed]:
    """Return the UNHEALTHY replicas that would take the last commits with them (health-rules 2.8).

    Of a quasi-closed container that has others: damaged, but with all that was committed, on an
    answering node that is not in service, and no replica of the same origin in service has as much.
    """
    here = present(case.placed)
    is_open_question = case.container.state is ContainerState.QUASI_CLOSED
    if not is_open_question or all(p.replica.state is ReplicaState.UNHEALTHY for p in here):
        return []
    last = [
        p
        for p in here
        if p.health is Health.HEALTHY and p.replica.bcsid == case.container.sequence_id
    ]
    kept = {_origin(p) for p in last if p.op_state is OpState.IN_SERVICE}
    return [
        p
        for p in last
        if p.replica.state is ReplicaState.UNHEALTHY
        and _origin(p) not in kept
        and not p.replica.is_empty
        and not p.replica.load_error
        and p.datanode_id not in case.deletes
        and p.datanode_id not in case.excluded
    ]


def _origin(p: Placed) -> str:
    return p.replica.origin_datanode_id or p.datanode_id


def neighbours(case: Case, *, to_remove: Collection[str] = ()) -> tuple[set[str], set[str]]:
    """Return the nodes that count for racks, and those that do not; no copy goes to either.

    The first are good replicas, maintenance ones included, and pending adds; the second are those
    that are bad, leaving, being deleted or to be removed. What died in maintenance is in neither.
    """
    used, excluded = set(case.adds), set[str]()
    for p in case.placed:
        if p.health is Health.DEAD:
            continue
        is_out = (
            p.datanode_id in case.deletes
            or p.datanode_id in to_remove
            or p.op_state in LEAVING
            or is_bad(case.container, p.replica)
        )
        (excluded if is_out else used).add(p.datanode_id)
    return used, excluded


def good_replicas(case: Case) -> list[Placed]:
    """Return the replicas that are known whole, equal, and here to stay.

    CLOSED with all that was committed, without findings, on an answering node in service that has
    confirmed it, not being deleted, and with a tree that equals that of the others; none if any
    two of them differ, because then nobody knows who is right.
    """
    whole = [p for p in case.placed if is_whole(case, p)]
    trees = [p.replica.tree for p in whole]
    for tree in trees:
        if tree is None or trees[0] is None or compare(trees[0], tree) is not Comparison.EQUAL:
            return []
    return whole


def is_whole(case: Case, p: Placed) -> bool:
    """Whether a replica has all that was committed, and is seen to, on a node that stays."""
    return (
        p.health is Health.HEALTHY
        and p.op_state is OpState.IN_SERVICE
        and p.is_confirmed
        and p.datanode_id not in case.deletes
        and is_complete(case.container, p.replica)
        and not p.replica.load_error
        and not p.replica.finding_count
    )


def victims(case: Case) -> list[Placed]:
    """Return the replicas that may be removed now, in the order everyone would choose.

    First those that do not match the container's state, the lowest bcsid foremost; then whole
    ones whose absence makes the placement no worse. Never more than the excess, counted without
    the nodes that do not answer, and never so that fewer whole ones than required stay.
    """
    reachable = tuple(p for p in case.placed if p.health is Health.HEALTHY)
    seen = Case(
        case.container,
        reachable,
        deletes=case.deletes,
        cluster_rack_count=case.cluster_rack_count,
        maintenance_min_count=case.maintenance_min_count,
        band=case.band,
    )
    surplus = seen.count(with_unhealthy=True).excess_count(with_deletes=True)
    good = good_replicas(case)
    required = case.container.replication_factor
    if not surplus or len(good) < required:
        return []
    chosen: list[Placed] = []
    left = [p for p in present(reachable) if p.datanode_id not in case.deletes]
    for p in _in_order(case, left, good):
        if len(chosen) == surplus:
            break
        if p in good:
            if len(good) <= required or not is_removable(
                [q.rack for q in left],
                p.rack,
                cluster_rack_count=case.cluster_rack_count,
                required_count=required,
            ):
                continue
            good.remove(p)
        left.remove(p)
        chosen.append(p)
    return chosen


def _in_order(case: Case, left: Sequence[Placed], good: Sequence[Placed]) -> list[Placed]:
    deletable = [
        p
        for p in left
        if p.op_state is OpState.IN_SERVICE and p.is_confirmed and not has_more(p, good)
    ]
    return sorted(
        deletable,
        key=lambda p: (
            p in good,
            p.replica.bcsid if is_bad(case.container, p.replica) else case.container.sequence_id,
            stable_order(p.replica),
        ),
    )


def has_more(p: Placed, others: Collection[Placed]) -> bool:
    """Whether a replica has commits that none of the others has.

    Its container was closed without them, because it was not there or is damaged (`scm.closure`):
    they may be all that is left of what somebody wrote, and only a person lets go of them.
    """
    return p.replica.bcsid > max((other.replica.bcsid for other in others), default=0)


def stable_order(replica: Replica) -> int:
    """Return the place of a replica in an order that every control plane agrees on (HDDS-4589)."""
    return zlib.crc32(f"{replica.container_id}:{replica.datanode_id}".encode())


def unblock_victim(case: Case) -> Placed | None:
    """Return the unhealthy replica to remove because no node has room for a copy beside it.

    At least two replicas stay, one of them as it should be; nothing is pending; a replica that a
    repair may heal is not touched.
    """
    here = present(case.placed)
    matching = [p for p in here if not is_bad(case.container, p.replica)]
    if case.deletes or case.adds or len(here) < UNBLOCK_REPLICAS_MIN or not matching:
        return None
    bad = [
        p
        for p in here
        if is_bad(case.container, p.replica)
        and p.health is Health.HEALTHY
        and p.op_state is OpState.IN_SERVICE
        and p.is_confirmed
        and p.datanode_id not in case.hopeful
        and not has_more(p, matching)
        and (
            p.replica.state is not ReplicaState.QUASI_CLOSED
            or p.replica.bcsid < case.container.sequence_id
        )
    ]
    return min(bad, key=lambda p: (p.replica.bcsid, stable_order(p.replica)), default=None)


def may_remove(case: Case, datanode_id: str, *, keep_count: int) -> bool:
    """Whether a replica may go now: so many whole ones, equal among each other, stay."""
    return sum(p.datanode_id != datanode_id for p in good_replicas(case)) >= keep_count
