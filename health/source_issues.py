"""Finds known problems of replicas that could be the source of a copy.

A replica with findings has damaged chunks. If roots differ, it is unknown which replica is correct,
but a replica whose root fewer other replicas have is more likely wrong. The plan uses such a
replica as a source only if there is no better one, and the row of the plan names the problem.
"""

from enum import IntEnum
from typing import Final

import numpy as np

from health.batch import BatchView
from health.root_comparison import MAJORITY_MIN
from health.segmented_rows import Bools, Groups, Ints, first_that_holds

DOUBTS: Final = ("", "UNHEALTHY", "scan findings", "outvoted", "roots differ")
"""The texts with which a plan names the problems of a source."""


class SourceIssue(IntEnum):
    """The known problem that makes a replica a bad source of a copy. The codes are indexes in
    `DOUBTS`."""

    NONE = 0
    UNHEALTHY = 1
    FINDINGS = 2
    OUTVOTED = 3
    ROOTS_DIFFER = 4


def source_issues(view: BatchView) -> Ints:
    """Return a code of `SourceIssue` for each replica.

    To compare roots, only undamaged replicas on answering nodes are counted, and only those of the
    same index and algorithm.
    """
    replicas = view.batch.replicas
    has_findings = view.is_present & (replicas.findings > 0)
    damage = first_that_holds(
        [(view.is_sick, SourceIssue.UNHEALTHY), (has_findings, SourceIssue.FINDINGS)],
        SourceIssue.NONE,
    )
    asked = _disputed(view, np.flatnonzero(view.is_present & replicas.has_root))
    is_voter = (view.is_countable & (damage == SourceIssue.NONE))[asked]
    lost = np.zeros(len(damage), dtype=np.int64)
    lost[asked] = _vote_issues(view, asked, is_voter)
    return np.where(damage == SourceIssue.NONE, lost, damage)


def _disputed(view: BatchView, rows: Ints) -> Ints:
    """Return the replicas in `rows` whose container has replicas in `rows` with different roots."""
    replicas = view.batch.replicas
    owner, root = replicas.container[rows], replicas.root[rows]
    any_root = np.empty(view.rows.count, dtype=np.int64)
    any_root[owner] = root
    is_disputed = np.zeros(view.rows.count, dtype=np.bool_)
    is_disputed[owner[any_root[owner] != root]] = True
    return rows[is_disputed[owner]]


def _vote_issues(view: BatchView, rows: Ints, is_voter: Bools) -> Ints:
    """Return a code of `SourceIssue` for each replica in `rows`.

    The code depends on the number of replicas with the same root, and on the numbers for the other
    roots. Only replicas in `is_voter` are counted.
    """
    replicas = view.batch.replicas
    keys = [column[rows] for column in (replicas.container, replicas.index, replicas.algorithm)]
    roots = Groups.of(*keys, replicas.root[rows])
    contests = Groups.of(*(key[roots.first] for key in keys))
    votes = roots.tally(is_voter)
    best, is_alone = _best_rival(votes, contests)
    mine = votes
    has_rival = best > 0
    has_won = (mine >= MAJORITY_MIN) & (mine > best)
    is_outvoted = (best >= MAJORITY_MIN) & (best > mine) & is_alone
    word = np.where(is_outvoted, int(SourceIssue.OUTVOTED), int(SourceIssue.ROOTS_DIFFER))
    return np.where(has_rival & ~has_won, word, int(SourceIssue.NONE))[roots.of_row]


def _best_rival(votes: Ints, contests: Groups) -> tuple[Ints, Bools]:
    """Return, for each root, the largest number of replicas that another root of the same group
    has.

    A group (`contests`) has the roots of one container, index and algorithm, and `votes` has the
    number of replicas with each root. Also return, for each root, True if only one root of its
    group has the largest number.
    """
    order = np.lexsort((-votes, contests.of_row))
    ranked = votes[order]
    contest = contests.of_row[order]
    starts = np.searchsorted(contest, np.arange(contests.count + 1))
    size = np.diff(starts)

    def at(place: int) -> Ints:
        """Return, for each group, the number of replicas of the root at rank `place` (0 = the most
        replicas); 0 if the group has fewer roots."""
        inside = np.minimum(starts[:-1] + place, len(ranked) - 1)
        return np.where(size > place, ranked[inside], 0)

    first, second = at(0), at(1)
    is_first = np.zeros(len(votes), dtype=np.bool_)
    is_first[order[starts[:-1]]] = True
    own = contests.of_row
    return np.where(is_first, second[own], first[own]), (second < first)[own]
