"""Compares the roots of a container's replicas, and computes the checksum class of the container.

Only these replicas are compared: CLOSED, QUASI_CLOSED or UNHEALTHY, on a reachable node. For EC,
only replicas of the same index are compared. Roots of different tree algorithms are not compared.
An unknown root is not equal to any other root.

Different programs may build different trees of the same data. Therefore, a complete read computes a
settled root from the checksums that were stored at the write. If all replicas to compare have
settled roots, these are compared instead of the reported roots. If the settled roots are equal, the
difference of the reported roots is explained. If one replica has no settled root, the reported
roots are compared.

The root that the majority of replicas has determines the order of repairs. It never determines
which bytes are correct. A datanode decides this by verifying bytes against the checksums that were
stored with them.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from health.batch import BatchView
from health.segmented_rows import Bools, Groups, Ints, first_that_holds
from health.words import UNKNOWN, ChecksumClass, Incomparable, SharedState

MAJORITY_MIN: Final = 2
"""Minimum number of replicas with the same root for a majority."""

NO_VOTE: Final = -1
"""Group number (`contest`) of a replica whose root is not compared with any other root."""

_KEYS: Final = ("container", "index", "algorithm")


@dataclass(frozen=True, slots=True, kw_only=True)
class RootComparison:
    """The result of the comparison of roots. The first five fields have one value per container,
    the last three one value per replica."""

    checksum_class: Ints
    roots_differ: Bools
    """True if replicas that can be compared have different roots."""
    tombstones_differ: Bools
    is_unreachable_different: Bools
    """True if the last reported root of a replica on an unreachable node differs. This causes no
    action."""
    agreeing_max: Ints
    """Largest number of undamaged replicas with the same root."""
    is_minority: Bools
    """True if the majority of the replicas in the same group (`contest`) has another root."""
    contest: Ints
    """Number of the group of replicas with which the replica is compared: those of the same
    container, index and algorithm. NO_VOTE if the replica has no root."""
    is_exposed: Bools
    """True if the replica's group (`contest`) has a majority and enough replicas, so that the
    replica could be in the minority."""


def incomparable_reasons(view: BatchView, compared: RootComparison) -> Ints:
    """Return, for each container of the class NOT_COMPARABLE, the reason as a code of
    `Incomparable`. Return UNKNOWN for a container of another class."""
    state = view.batch.containers.state
    is_grey = compared.checksum_class == ChecksumClass.NOT_COMPARABLE
    is_written = (state != SharedState.CLOSED) & (state != SharedState.QUASI_CLOSED)
    is_alone = view.is_ec & ~view.rows.some(compared.contest != NO_VOTE)
    rules = (
        (~is_grey, UNKNOWN),
        (is_written, Incomparable.NOT_CLOSED),
        (view.countable == 0, Incomparable.NO_REPLICA_ANSWERS),
        (is_alone, Incomparable.SHARDS_ALONE),
    )
    return first_that_holds(rules, Incomparable.TREES_OF_OTHER_KINDS)


@dataclass(frozen=True, slots=True)
class _Votes:
    """The replicas to compare, in groups with equal roots. All groups of one container, index and
    algorithm form a contest."""

    known: Ints
    roots: Groups
    contest: Ints
    """The contest number of each group."""
    contest_first: Ints
    """For each contest, the position in `known` of one of its replicas."""
    has_majority: Bools
    is_majority: Bools
    is_disputed: Bools


def compare(view: BatchView, is_good: Bools) -> RootComparison:
    """Compare the roots of the replicas of every container. `is_good` is True for each replica
    without a known problem."""
    replicas, rows = view.batch.replicas, view.rows
    is_compared = _with_companion(view)
    known = np.flatnonzero(is_compared & replicas.has_root)
    told = _comparison_roots(view, known)
    votes = _vote(view, known, told)
    container = replicas.container[votes.known]
    contest = votes.contest[votes.roots.of_row]
    is_loser = (votes.is_disputed & votes.has_majority)[contest] & ~votes.is_majority[
        votes.roots.of_row
    ]
    is_minority = np.zeros(len(rows.owner), dtype=np.bool_)
    is_minority[votes.known[is_loser]] = True
    of_replica = np.full(len(rows.owner), NO_VOTE, dtype=np.int64)
    of_replica[votes.known] = contest
    agreeing = votes.roots.tally(is_good[votes.known])
    agreeing_max = np.zeros(rows.count, dtype=np.int64)
    np.maximum.at(agreeing_max, container[votes.roots.first], agreeing)
    classes = _classes(view, is_compared, votes)
    return RootComparison(
        checksum_class=classes,
        roots_differ=(classes <= ChecksumClass.MISMATCH_MINORITY)
        & _of_contests(view, votes, votes.is_disputed),
        tombstones_differ=_tombstones_differ(view, votes),
        is_unreachable_different=_unreachable_differs(view, votes, told),
        agreeing_max=agreeing_max,
        is_minority=is_minority,
        contest=of_replica,
        is_exposed=_exposed(votes, of_replica),
    )


def _exposed(votes: _Votes, of_replica: Ints) -> Bools:
    """Return, for each replica, True if it could have a different root than the majority.

    This requires a contest (replicas of one container, index and algorithm) with a majority and
    more than MAJORITY_MIN replicas. `of_replica` has the contest number of each replica.
    """
    voters = np.bincount(votes.contest[votes.roots.of_row], minlength=len(votes.has_majority))
    is_real = votes.has_majority & (voters > MAJORITY_MIN)
    return np.append(is_real, False)[of_replica]


def _with_companion(view: BatchView) -> Bools:
    """Return, for each replica, True if it can be compared with another. A shard can be compared
    only if another shard of the same index is available."""
    replicas = view.batch.replicas
    coded = np.flatnonzero(view.is_countable & view.is_shard)
    same = Groups.of(replicas.container[coded], replicas.index[coded])
    compared = view.is_countable & ~view.is_shard
    compared[coded] = same.tally()[same.of_row] > 1
    return compared


def _comparison_roots(view: BatchView, known: Ints) -> Ints:
    """Return the root with which each replica is compared.

    This is the settled root (computed from the stored checksums) if every replica in `known` of the
    same container, index and algorithm has one. Otherwise it is the reported root.
    """
    replicas = view.batch.replicas
    if not replicas.has_settled.any():
        return replicas.root
    rows = np.flatnonzero(view.is_tree & replicas.has_root)
    same = Groups.of(*[getattr(replicas, name)[rows] for name in _KEYS])
    is_voter = np.zeros(len(replicas.root), dtype=np.bool_)
    is_voter[known] = True
    is_open = same.tally((is_voter & ~replicas.has_settled)[rows]) > 0
    rows = rows[replicas.has_settled[rows] & ~is_open[same.of_row]]
    told = replicas.root.copy()
    told[rows] = replicas.settled[rows]
    return told


def _explained(view: BatchView, votes: _Votes) -> Bools:
    """Return, for each container, True if replicas of one index and algorithm reported different
    roots.

    All values are False if no replica has a settled root, because then no difference can be
    explained.
    """
    replicas = view.batch.replicas
    found = np.zeros(view.rows.count, dtype=np.bool_)
    if replicas.has_settled.any():
        root = replicas.root[votes.known]
        contest = votes.contest[votes.roots.of_row]
        first = root[votes.contest_first][contest]
        found[replicas.container[votes.known[root != first]]] = True
    return found


def _vote(view: BatchView, known: Ints, told: Ints) -> _Votes:
    replicas = view.batch.replicas
    keys = [getattr(replicas, name)[known] for name in _KEYS]
    roots = Groups.of(*keys, told[known])
    begins = np.ones(roots.count, dtype=np.bool_)
    begins[1:] = False
    for key in keys:
        own = key[roots.first]
        begins[1:] |= own[1:] != own[:-1]
    contest = np.cumsum(begins) - 1
    count = int(begins.sum())
    votes = roots.tally()
    starts = np.flatnonzero(begins)
    most = np.maximum.reduceat(votes, starts)
    is_top = votes == most[contest]
    is_clear = np.bincount(contest[is_top], minlength=count) == 1
    has_majority = is_clear & (most >= MAJORITY_MIN)
    return _Votes(
        known=known,
        roots=roots,
        contest=contest,
        contest_first=roots.first[begins],
        has_majority=has_majority,
        is_majority=is_top & has_majority[contest],
        is_disputed=np.bincount(contest, minlength=count) > 1,
    )


def _tombstones_differ(view: BatchView, votes: _Votes) -> Bools:
    """Return, for each container, True if two replicas with the same root have different
    tombstones."""
    replicas = view.batch.replicas
    tells = replicas.has_tombstones[votes.known]
    group = votes.roots.of_row[tells]
    rows = votes.known[tells]
    said = replicas.tombstones[rows]
    first = np.zeros(votes.roots.count, dtype=np.int64)
    first[group[::-1]] = said[::-1]  # the first of each group is written last
    found = np.zeros(view.rows.count, dtype=np.bool_)
    found[replicas.container[rows[said != first[group]]]] = True
    return found


def _unreachable_differs(view: BatchView, votes: _Votes, told: Ints) -> Bools:
    replicas = view.batch.replicas
    found = np.zeros(view.rows.count, dtype=np.bool_)
    silent = np.flatnonzero(view.is_tree & ~view.is_reachable & replicas.has_root)
    if not len(silent):
        return found
    voters = votes.known[votes.contest_first]
    both = np.concatenate((voters, silent))
    same = Groups.of(*[getattr(replicas, name)[both] for name in _KEYS])
    contest_of = np.full(same.count, -1, dtype=np.int64)
    contest_of[same.of_row[: len(voters)]] = np.arange(len(voters))
    contest = contest_of[same.of_row[len(voters) :]]
    silent, contest = silent[contest >= 0], contest[contest >= 0]
    other = told[silent] != told[voters[contest]]
    found[replicas.container[silent[votes.is_disputed[contest] | other]]] = True
    return found


def _of_contests(view: BatchView, votes: _Votes, mask: Bools) -> Bools:
    """Return, for each container, True if `mask` selects one of its contests (replicas of one index
    and algorithm)."""
    found = np.zeros(view.rows.count, dtype=np.bool_)
    found[view.batch.replicas.container[votes.known[votes.contest_first[mask]]]] = True
    return found


def _classes(view: BatchView, is_compared: Bools, votes: _Votes) -> Ints:
    containers, replicas, rows = view.batch.containers, view.batch.replicas, view.rows
    first = votes.known[votes.contest_first]
    is_mixed = np.zeros(len(first), dtype=np.bool_)
    own, index = replicas.container[first], replicas.index[first]
    is_mixed[1:] = (own[1:] == own[:-1]) & (index[1:] == index[:-1])
    is_comparable = (containers.state == SharedState.CLOSED) | (
        containers.state == SharedState.QUASI_CLOSED
    )
    is_undecided = votes.is_disputed & ~votes.has_majority
    compared = rows.tally(is_compared)
    known = rows.tally(is_compared & replicas.has_root)
    rules = (
        (~is_comparable, ChecksumClass.NOT_COMPARABLE),
        (rows.sizes() == 0, ChecksumClass.EMPTY),
        (view.countable == 0, ChecksumClass.NOT_COMPARABLE),
        (~rows.some(view.is_countable & ~replicas.is_empty), ChecksumClass.EMPTY),
        (rows.some(view.is_countable & replicas.is_contradictory), ChecksumClass.CONTRADICTORY),
        (
            _of_contests(view, votes, is_undecided),
            ChecksumClass.MISMATCH_SPLIT,
        ),
        (_of_contests(view, votes, votes.is_disputed), ChecksumClass.MISMATCH_MINORITY),
        (view.is_ec & (compared == 0), ChecksumClass.NOT_COMPARABLE),
        (compared == 1, ChecksumClass.SINGLE),
        (known == 0, ChecksumClass.UNKNOWN),
        (_of_contests(view, votes, is_mixed), ChecksumClass.NOT_COMPARABLE),
        (known < compared, ChecksumClass.PARTIAL),
        (_explained(view, votes), ChecksumClass.EXPLAINED),
    )
    return first_that_holds(rules, ChecksumClass.MATCH)
