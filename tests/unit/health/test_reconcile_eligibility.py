"""Why a container is to be reconciled, what may still be lost, and what a repair costs."""

import re
from dataclasses import replace

import pytest

from health.judge import judge
from health.reconcile_eligibility import (
    CHUNK_BYTES,
    REASONS,
    REDUNDANCY_UNKNOWN,
    ReconcileEligibility,
)
from health.rules import Rules
from tests.support.verification.judged import cut
from tests.support.verification.snapshots import SnapshotRows, container, gather

MIB = 1024**2
CONTRADICT, SPLIT, MINORITY, SICK, FINDINGS, TOMBSTONES, BEHIND = REASONS


def reconciles(*parts: SnapshotRows) -> ReconcileEligibility:
    """Judge containers in one batch."""
    return judge(cut(gather(parts)).batch, Rules()).reconciles


WHY: tuple[tuple[str, str, str, set[str], bool], ...] = (
    # container, replicas, ops, reasons, wanted
    ("R CLOSED", "C=7x3", "", set(), False),
    ("R CLOSED", "C=7x2 C=0", "", set(), False),
    ("R CLOSED", "C=7x2 C=9", "", {MINORITY}, True),
    ("R CLOSED", "C=7 C=9", "", {SPLIT}, True),
    ("R CLOSED", "C=7x2 C=9$", "", {CONTRADICT}, True),
    ("R CLOSED", "C=7x2 U=7", "", {SICK}, True),
    ("R CLOSED", "C=7x2 U=7?s", "", set(), False),  # it cannot answer
    ("R CLOSED", "C=7x2 C=7*1", "", {FINDINGS}, True),
    ("R CLOSED", "C=7x2 C=7*1?s", "", set(), False),
    ("R CLOSED", "C=7x2 C=7%5", "", {TOMBSTONES}, True),
    ("R CLOSED", "C=7x2 Q=7@9", "", {BEHIND}, True),
    ("R CLOSED", "C=7 Q=7@9", "", {BEHIND}, True),
    ("R CLOSED", "C=7x2 Q=7", "", set(), False),  # it is closed by a close
    ("R CLOSED", "C=7x2 Q=7@11", "", set(), False),
    ("R CLOSED", "C=7x2 Q=7@-1", "", set(), False),  # its commit id is not known
    ("R CLOSED", "C=7x2 Q=7@9?s", "", set(), False),
    ("R CLOSED", "C=7x2 Q=0@9", "", set(), False),  # it has no tree yet
    ("R CLOSED", "C=0x2 Q=7@9", "", set(), False),
    ("R CLOSED", "C=7x2 Q=7@9*1", "", {FINDINGS}, True),
    ("R CLOSED", "C=7x2 Q=8@9", "", {MINORITY}, True),
    ("R CLOSED", "C=7x2 Q=7%5@9", "", {TOMBSTONES}, True),
    ("R CLOSED", "C=7@9 Q=7@9", "", set(), False),  # nobody has the last commit
    ("R CLOSED", "Q=7 Q=7@9", "", set(), False),  # nobody is closed
    ("R CLOSED", "C=7*1 Q=7@9", "", {FINDINGS}, True),
    ("R QUASI_CLOSED", "C=7 Q=7@9", "", set(), False),
    ("EC CLOSED", "C#1=1 C#2=2 C#3=3 C#4=4 Q#5=7@9", "", {BEHIND}, True),
    ("EC CLOSED", "C#1=1 C#2=2 Q#5=7@9", "", {BEHIND}, False),  # too few to make what it missed
    ("EC CLOSED", "C#1=1 C#2=2 C#3=3 C#4=4 Q#5=7", "", set(), False),
    ("EC CLOSED", "C#1=1 C#2=2 C#3=3 C#4=4 Q#5=7@9*1", "", {FINDINGS}, True),
    ("EC CLOSED", "C#1=1@9 C#2=2@9 C#3=3@9 Q#5=7@9", "", set(), False),  # nobody has it
    ("R CLOSED", "C=7x2 U=9*3", "", {MINORITY, SICK, FINDINGS}, True),
    ("R CLOSED", "C=7 C=7%5 C=9", "", {MINORITY, TOMBSTONES}, True),
    ("R CLOSED", "C=7x2 C=9", "!", {MINORITY}, False),  # under way already
    ("R CLOSED", "C=7 C=9 O", "", {SPLIT}, True),  # the open one is left out
    ("R CLOSED", "C!*1x2", "", {FINDINGS}, False),  # empty: it is deleted, not repaired
    ("R OPEN", "O O*1", "", set(), False),
    ("EC CLOSED", "C#1 C#2 C#3 C#4*1 C#5", "", {FINDINGS}, True),
    ("EC CLOSED", "C#1 C#2 C#3 C#4*1 C#5", "+#4", {FINDINGS}, True),
    ("EC CLOSED", "C#1 C#2 C#3 C#4*1 C#5", "!", {FINDINGS}, False),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5*1?s", "", set(), False),
    ("EC CLOSED", "C#1 C#1 C#2 U#3", "", {SICK}, False),  # two other indexes, not three
    ("EC CLOSED", "C#1 C#2 U#3 U#3", "", {SICK}, True),  # two of one index are each other's
    ("EC CLOSED", "C#1 C#2 U#3 U#4", "", {SICK}, True),  # by what each has that verifies
    ("EC CLOSED", "U#1 U#2 U#3 U#4 U#5", "", {SICK}, True),
    ("EC CLOSED", "C#1 C#2 U#3 U#4?s", "", {SICK}, False),
    ("EC CLOSED", "C#1 C#2 C#3?s U#4", "", {SICK}, False),
    ("EC CLOSED", "C#1 C#2 C#3*1", "", {FINDINGS}, False),
    ("EC CLOSED", "C#1 C#2 C#3*1 C#4*1", "", {FINDINGS}, True),
    ("EC CLOSED", "C#1 C#2 C#3 C#4=7$ C#4=7 U#5", "", {CONTRADICT, SICK}, False),
    ("EC CLOSED", "C#1 C#2 C#3 C#4=7x2 C#4=9 U#5", "", {MINORITY, SICK}, True),
    ("EC CLOSED", "C#1 C#2 C#3 C#4=7x2 U#4=9", "", {MINORITY, SICK}, False),  # it has whole ones
    ("EC CLOSED", "C#1 C#2 C#3 U#4=7 U#4=9", "", {SPLIT, SICK}, True),
    ("EC CLOSED", "C#1 C#2 C#3 C#4=7/d U#4=9", "", {SPLIT, SICK}, True),  # the whole one goes
    ("EC CLOSED", "C#1 C#2 C#3 C#4=7/m U#4=9", "", {SPLIT, SICK}, True),
    ("EC CLOSED", "C#1 C#2 C#3 C#4=7 U#4=9/m", "", {SPLIT, SICK}, True),  # nobody removes it
    ("EC CLOSED", "C#1 C#2 C#3 C#4=7/d C#4=7 U#4=9", "", {MINORITY, SICK}, False),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 U#5 I#5", "", {SICK}, True),
)


def test_reconcile_reasons_and_obstacles_are_given() -> None:
    """A reason is given even if the container may not be reconciled now."""
    found = reconciles(*(container(i, *line[:3]) for i, line in enumerate(WHY)))

    told = [
        (
            *line[:3],
            {word for place, word in enumerate(REASONS) if found.reasons[i] >> place & 1},
            bool(found.is_wanted[i]),
        )
        for i, line in enumerate(WHY)
    ]
    assert told == list(WHY)
    mended = [line[4] and line[0].startswith("EC") for line in WHY]
    assert found.is_mendable.tolist() == mended


@pytest.mark.parametrize("replicas", ["C=7%1 C=7%2x2", "C=7*1 C=7x2", "U=7 C=7x2", "C=7x2 C=7%5*2"])
@pytest.mark.parametrize("what", ["R CLOSED", "R QUASI_CLOSED"])
def test_empty_containers_are_left_out(what: str, replicas: str) -> None:
    """Their replicas need no repair, and the health rules delete them. One replica with a block
    is enough for the container not to be empty.
    """
    empty = " ".join(word[0] + "!" + word[1:] for word in replicas.split())
    one_is_not = re.sub("!", "", empty, count=1)
    parts = [container(i, what, told) for i, told in enumerate((empty, one_is_not, replicas))]

    found = reconciles(*parts)

    assert found.reasons.all(), "there is something that would be a reason"
    assert found.is_wanted.tolist() == [False, True, True]


def test_suppressed_container_is_not_reconciled() -> None:
    """This holds for the replicas' vote and for the stripe."""
    words = (("R CLOSED", "C=7x2 C=9"), ("EC CLOSED", "C#1 C#2 C#3 C#4 U#5"))
    shown = reconciles(*(container(i, *line) for i, line in enumerate(words)))

    hidden = reconciles(*(container(i, *line, suppressed=True) for i, line in enumerate(words)))

    assert shown.is_wanted.all()
    assert not hidden.is_wanted.any()


LEFT: tuple[tuple[str, str, int], ...] = (
    ("R CLOSED", "C=7x3", 2),
    ("R CLOSED", "C=7", 0),
    ("R CLOSED", "Cx3", 2),
    ("R CLOSED", "C=7x2 U=7", 1),
    ("R CLOSED", "C=7x2 C=7*1", 1),
    ("R CLOSED", "C=7x2 C=7?s", 1),
    ("R CLOSED", "C=7x2 C=9", 1),  # those that agree
    ("R CLOSED", "C=7x3 C=9x2", 2),
    ("R CLOSED", "C=7*1 C=7 C=9", 0),
    ("R CLOSED", "C=7*1 C=7*1 C=9", 0),
    ("R CLOSED", "C=7 C=8 C=9", 0),  # each may be the only right one
    ("R CLOSED", "C=7x3 C=7$", 3),
    ("R CLOSED", "U=7x2", -1),
    ("R CLOSED", "", -1),
    ("R QUASI_CLOSED", "Q=7x2", 1),
    ("R OPEN", "O=7x3", REDUNDANCY_UNKNOWN),
    ("R DELETING", "C=7x3", REDUNDANCY_UNKNOWN),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5", 2),
    ("EC CLOSED", "C#1 C#2 C#4 C#5", 1),
    ("EC CLOSED", "C#1 C#2 C#3", 0),
    ("EC CLOSED", "C#1 C#2", -1),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5/d", 2),  # on its way, and still there
)


def test_redundancy_is_what_may_still_be_lost() -> None:
    """
    Good and agreeing replicas beyond the last one; of EC the indexes beyond the data.
    """
    found = reconciles(*(container(i, *line[:2]) for i, line in enumerate(LEFT)))

    told = [(*line[:2], int(found.redundancy[i])) for i, line in enumerate(LEFT)]
    assert told == list(LEFT)


COSTS: tuple[tuple[str, tuple[int, int, int], int], ...] = (
    # replicas, MiB that each has, MiB that a repair moves
    ("C=7x3", (10, 10, 10), 0),
    ("C=7x2 C=0", (10, 10, 6), 4),  # what is missing
    ("C=7x2 C=7*2", (10, 10, 10), 8),  # a chunk for each finding
    ("C=7x2 C=7*2", (10, 10, 6), 10),  # not more than there is
    ("C=7x2 C=9", (10, 10, 10), 4),  # at least one chunk differs
    ("C=7x2 C=9*2", (10, 10, 10), 8),
    ("C=7 C=8 C=9", (10, 10, 10), 12),  # nobody knows which
    ("C=7 C=7 C=7*2?s", (10, 10, 10), 0),  # silent: nothing is moved to or from it
    ("C=7 C=7 C=7?s", (10, 10, 90), 0),
    ("C=7*1 C=7 C=7", (3, 10, 10), 10),
)


def test_the_cost_is_what_is_missing_and_a_chunk_for_each_finding() -> None:
    """
    Bytes of replicas that answer, in chunks of the default size.
    """
    parts = []
    for i, (words, used_mib, _) in enumerate(COSTS):
        rows = container(i, "R CLOSED", words)
        rows.replicas = [
            replace(row, used_bytes=used * MIB)
            for row, used in zip(rows.replicas, used_mib, strict=True)
        ]
        parts.append(rows)

    found = reconciles(*parts)

    assert CHUNK_BYTES == 4 * MIB
    told = [(*line[:2], int(found.bytes_estimated[i]) / MIB) for i, line in enumerate(COSTS)]
    assert told == list(COSTS)
