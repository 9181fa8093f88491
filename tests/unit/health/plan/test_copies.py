"""Who is copied or rebuilt: from where, how urgently, how much."""

from dataclasses import replace
from zlib import crc32

import pytest

from health.rules import Rules
from tests.support.verification.judged import PlanRow, judged
from tests.support.verification.snapshots import container

Copy = tuple[list[int], list[int], int, int, str]
"""Numbers of the sources, EC indexes, copies, priority, reason."""

FEW, BAD, LEAVES = "too few replicas", "too few replicas, none healthy", "node leaves"
RACKS, VULNERABLE = "too few racks", "only copy of an origin's last commit, UNHEALTHY"
Q11 = "R QUASI_CLOSED 11"

COPIES: tuple[tuple[str, str, str, list[Copy]], ...] = (
    ("R CLOSED 10", "C C", "", [([0, 1], [], 1, 1, FEW)]),
    ("R CLOSED 10", "C", "", [([0], [], 2, 0, FEW)]),
    ("R CLOSED 10", "C", "+", [([0], [], 1, 0, FEW)]),
    ("R CLOSED 10", "C C", "+", []),
    ("R5 CLOSED 10", "Cx4", "", [([0, 1, 2, 3], [], 1, 3, FEW)]),
    ("R CLOSED 10", "C C C", "-n0 -n1", [([2], [], 2, 0, FEW)]),
    ("R CLOSED 10", "C C C/d", "", [([0, 1, 2], [], 1, 5, LEAVES)]),
    ("R CLOSED 10", "C C/d C/d", "", [([0, 1, 2], [], 2, 5, LEAVES)]),
    ("R CLOSED 10", "C C/d", "", [([0, 1], [], 2, 1, FEW)]),  # one lacks whoever leaves
    ("R CLOSED 10", "C C/e C/e", "", [([0, 1, 2], [], 1, 5, LEAVES)]),
    ("R CLOSED 10", "U U", "", [([0, 1], [], 1, 0, BAD)]),
    ("R CLOSED 10", "U U", "+", []),
    ("R CLOSED 10", "U", "+", [([0], [], 1, 0, BAD)]),
    ("R CLOSED 10", "U@9 U@10", "", [([1], [], 1, 0, BAD)]),
    ("R CLOSED 10", "C U", "", [([0], [], 2, 0, FEW)]),
    ("R CLOSED 10", "C?s U", "", []),  # the good one will be back; the bad one is not copied
    ("R CLOSED 10", "C?d U", "", [([1], [], 2, 0, BAD)]),
    ("R CLOSED 10", "Q@9 Q@8", "", [([0], [], 1, 0, BAD)]),
    ("R CLOSED 10", "C@9 Q@10", "", [([0], [], 1, 1, FEW)]),
    ("R CLOSED 10", "C?s Q@10 O", "", []),
    ("R CLOSED 10", "O O", "", []),  # nothing may be read before it is closed
    ("R QUASI_CLOSED 10", "Q@10 U@9 U@9 C@10", "", [([3, 0], [], 1, 1, FEW)]),  # closed ones first
    ("R CLOSED 10", "C&ax3", "", [([0, 1, 2], [], 1, 6, RACKS)]),
    # Beside one that nobody may delete the good ones stand on one rack.
    ("R CLOSED 10", "C&ax3 U@11&b", "", [([0, 1, 2], [], 1, 6, RACKS)]),
    ("R CLOSED 10", "C&ax3 U@11&a", "", [([0, 1, 2], [], 1, 6, RACKS)]),
    ("R CLOSED 10", "C&ax2 C&b U@11&a", "", []),
    ("R CLOSED 10", "C&ax3 U@11&b", "+", []),
    ("R CLOSED 10", "C&ax3 U@11&b", "-n3", []),
    ("R CLOSED 10", "C&ax4 U@11&b", "", []),  # first what is too many goes
    ("R CLOSED 10", "C&ax3 C&b/d U@11&b", "", [([0, 1, 2, 3], [], 1, 6, RACKS)]),
    ("R1 CLOSED 10", "C&a U@11&b", "", []),
    ("R QUASI_CLOSED 10", "Q&a^ax3 U&b^a", "", []),
    ("R CLOSED 10", "C&ax3", "+", []),  # it arrives on another rack
    ("R CLOSED 10", "C&ax2 C&b", "", []),
    # Origins of a container that is stuck, as nobody has commit 11, which was acknowledged: each is
    # copied from its own replicas only.
    (Q11, "Q@10^ax2 Q@8^b", "", [([0, 1], [], 1, 1, "a"), ([2], [], 1, 1, "b")]),
    (Q11, "Q@10^ax3 Q@8^b", "", [([3], [], 1, 1, "b")]),
    (Q11, "Q@10^ax3 Q@8^b", "+", []),
    (Q11, "Q@10^ax2 Q@9^a/m Q@8^bx2", "", []),  # one of it is online
    (Q11, "Q@10^a/m Q@8^bx2", "", [([0], [], 1, 1, "a")]),
    (Q11, "Q@9^a Q@10^a Q@8^bx2", "", [([1], [], 1, 1, "a")]),
    (Q11, "Q@10^a U@11^a Q@8^bx2", "", [([0], [], 1, 1, "a")]),  # not the bad one's later commit
    (Q11, "Q@10^a*1 Q@10^a Q@8^bx2", "", [([1], [], 1, 1, "a")]),
    (Q11, "Q@10^ax3 U@8^b", "", [([3], [], 1, 1, "b")]),
    (Q11, "Q@10^ax3 Q@8^b?s", "", []),
    # The last commit of an origin on a bad replica only.
    ("R QUASI_CLOSED 10", "Q@9x3 U@10/d", "", [([3], [], 1, 0, VULNERABLE)]),
    ("R QUASI_CLOSED 10", "Q@9x3 U@10/d", "+", []),
    (
        "R QUASI_CLOSED 10",
        "Q@9x3 U@10/d U@10/m",
        "+",
        [([i], [], 1, 0, VULNERABLE) for i in (3, 4)],
    ),
    ("R QUASI_CLOSED 10", "Q@9x3 U!@10/d", "", []),
    ("R QUASI_CLOSED 10", "Q@9x3 U@10?s/d", "", []),
    ("R QUASI_CLOSED 10", "Q@9x3 U@9/d", "", []),
    # Erasure-coded: what lacks is computed, what leaves is copied.
    ("EC CLOSED", "C#1 C#2 C#4 C#5", "", [([0, 1, 2, 3], [3], 1, 1, "missing indexes 3")]),
    ("EC CLOSED", "C#1 C#2 C#4", "", [([0, 1, 2], [3, 5], 2, 0, "missing indexes 3, 5")]),
    ("EC CLOSED", "C#1 C#2 C#4", "+#3", [([0, 1, 2], [5], 1, 1, "missing indexes 5")]),
    ("EC CLOSED", "C#1 C#2 C#4?s", "", []),
    ("EC DELETING", "C#1 C#2 C#3", "", []),  # going, or not yet there: nothing is mended
    ("EC DELETING", "C#1 C#2 C#3 C#4 C#5/d", "", []),
    ("EC OPEN", "C#1 C#2 C#3", "", []),
    ("R DELETING 10", "C", "", []),
    ("EC CLOSED", "C#1 C#2 C#4", "-#4n2", []),
    ("EC CLOSED", "C#1 C#2 G#3 C#4", "", [([0, 1, 3], [5], 1, 1, "missing indexes 5")]),
    (
        "EC CLOSED",
        "C#1/d C#1 C#2 C#3 C#4",
        "",
        [([1, 2, 3, 4], [5], 1, 1, "missing indexes 5")],
    ),
    (
        "EC CLOSED",
        "C#1*1 C#1/d C#2 C#3",
        "",
        [([1, 2, 3], [4, 5], 2, 0, "missing indexes 4, 5")],
    ),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 R#5", "", []),  # it is just arriving
    ("EC CLOSED", "C#1 C#2 C#3 C#4 R#5?d", "", [([0, 1, 2, 3], [5], 1, 1, "missing indexes 5")]),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5/d", "", [([4], [5], 1, 5, "node leaves, index 5")]),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5/dx2", "", [([4, 5], [5], 1, 5, "node leaves, index 5")]),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5/d", "+#5", []),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5?s/d", "", []),  # it cannot be read now
    ("EC CLOSED", "C#1 C#2 C#3 C#4 U#5/d", "", [([0, 1, 2, 3], [5], 1, 1, "missing indexes 5")]),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5/m", "", []),
    ("EC CLOSED", "C#1/e C#2/e C#3 C#4 C#5", "", [([0], [1], 1, 5, "node leaves, index 1")]),
    ("EC CLOSED", "C#1 C#2 C#3 C#4/m", "", [([0, 1, 2, 3], [5], 1, 1, "missing indexes 5")]),
    (
        "EC CLOSED",
        "C#1/e C#2/e C#3/m C#4 C#5",
        "",
        [([i], [i + 1], 1, 5, f"node leaves, index {i + 1}") for i in (0, 1)],
    ),
    (
        "EC CLOSED",
        "C#1 C#2 C#3 C#4/d",
        "",
        [
            ([0, 1, 2, 3], [5], 1, 1, "missing indexes 5"),
            ([3], [4], 1, 5, "node leaves, index 4"),
        ],
    ),
    (
        "EC CLOSED",
        "C#1/d C#2 C#3",
        "",
        [
            ([0, 1, 2], [4, 5], 2, 0, "missing indexes 4, 5"),
            ([0], [1], 1, 5, "node leaves, index 1"),
        ],
    ),
    ("EC CLOSED", "C#1 C#2/d", "", [([1], [2], 1, 5, "node leaves, index 2")]),  # while it is there
)
USED_BYTES = 1000


def expected_row(container_id: int, copy: Copy, data: int) -> PlanRow:
    """Return the row of the plan: what is computed reads `data` shards, and writes each copy."""
    sources, indexes, copies, priority, reason = copy
    is_computed = reason.startswith("missing")
    if len(reason) == 1:
        reason = f"stuck quasi-closed, origin dn-{container_id}-{reason}"
    return PlanRow(
        "reconstruct" if is_computed else "replicate",
        tuple(f"dn-{container_id}-{i}" for i in sources),
        (),
        (),
        tuple(indexes),
        copies,
        priority,
        reason,
        is_forced=False,
        bytes_estimated=USED_BYTES * (copies + is_computed * data),
    )


def test_copy_rows_have_sources_priority_and_size() -> None:
    """All lines are in one batch. Closes, deletes and doubts have tests of their own."""
    parts = [
        container(i, *line[:3], acknowledged_bcsid=11 if line[0] == Q11 else None)
        for i, line in enumerate(COPIES)
    ]

    rows = judged(parts, rack_count=2)

    for i, (what, words, ops, copies) in enumerate(COPIES):
        found = [
            replace(row, doubts=(), reason=row.reason.partition("; no better")[0])
            for row in rows[i].plan
            if row.action in ("replicate", "reconstruct")
        ]
        expected = [expected_row(i, copy, data=3) for copy in copies]
        assert (what, words, ops, found) == (what, words, ops, expected)


@pytest.mark.parametrize("index", [0, 4])
def test_a_rebuilt_shard_is_as_long_as_the_longest(index: int) -> None:
    """
    Shards of a stripe that is not full differ in length; data of RS(6,3) are read six times.
    """
    rows = container(1, "EC6-3 CLOSED", "C#1 C#2 C#3 C#4 C#5 C#6 C#7")
    rows.replicas[index] = replace(rows.replicas[index], used_bytes=3000)

    plan = judged([container(0, "R CLOSED", "C C"), rows], rack_count=2)[1].plan

    found = [(row.indexes, row.copies, row.bytes_estimated) for row in plan]
    assert found == [((8, 9), 2, (6 + 2) * 3000)]


def test_maintenance_may_take_as_many_shards_as_the_operator_allows() -> None:
    """
    With more redundancy asked for during maintenance, more shards are copied before.
    """
    words = "C#1/e C#2/e C#3 C#4 C#5"
    moved = {}
    for redundancy in (0, 1, 2, 5):
        rules = Rules(ec_redundancy=redundancy, rack_count=2)
        plan = judged([container(1, "EC CLOSED", words)], rules=rules)[1].plan
        moved[redundancy] = [row.indexes for row in plan]

    assert moved == {0: [], 1: [(1,)], 2: [(1,), (2,)], 5: [(1,), (2,)]}


def test_suppressed_container_is_not_copied() -> None:
    """This holds whatever it lacks."""
    parts = [container(i, *line[:3], suppressed=True) for i, line in enumerate(COPIES)]

    assert not any(row.plan for row in judged(parts, rack_count=2).values())


CROWD = "too many shards on one rack, index "
SPREADS = (
    # replicas on two racks of which one holds four of five; ops; who is copied off it
    ("C#1&b C#2&a*1 C#3&a C#4&a?s C#5&a", "", {3: 3, 5: 5}),
    ("C#1&b C#2&a C#3&a C#4&a C#5&a", "+#5", {}),
    ("C#1&a C#2&a C#3&a C#4&a C#5&a", "", {1: 1, 2: 2, 3: 3, 4: 4, 5: 5}),
    ("C#1&a C#2&a C#3&a C#4&a C#5&a", "+#5", {}),  # too many though that one is on its way
    ("C#1&b C#2&a C#3&a C#4&a C#5&a", "-n0", {}),
    ("C#1&b C#2&a C#3&a C#4&b C#5&a", "", {}),
)


@pytest.mark.parametrize(("words", "ops", "allowed"), SPREADS)
def test_a_whole_shard_is_copied_off_the_fullest_rack(
    words: str, ops: str, allowed: dict[int, int]
) -> None:
    """One shard is copied at a time while nothing else is in transit, whichever comes last by
    the checksum.
    """
    found = judged([container(i, "EC CLOSED", words, ops) for i in range(1, 9)], rack_count=2)

    for i, box in found.items():
        rows = [row for row in box.plan if row.reason.startswith(CROWD)]
        if not allowed:
            assert [] == rows
            continue
        last = max(allowed, key=lambda n: crc32(f"{i}:dn-{i}-{n - 1}".encode()))
        [row] = rows
        assert (
            (f"dn-{i}-{last - 1}",),
            (allowed[last],),
            1,
            6,
            f"{CROWD}{allowed[last]}",
            1000,
        ) == (
            row.sources,
            row.indexes,
            row.copies,
            row.priority,
            row.reason,
            row.bytes_estimated,
        )
