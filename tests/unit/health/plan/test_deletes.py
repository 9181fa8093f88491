"""Who is deleted: whom all agree on, and never what somebody may still need."""

from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest

from health.rules import Rules
from tests.support.verification.judged import Judged, PlanRow, judged
from tests.support.verification.snapshots import container

SPREAD = range(6)
"""So many containers are alike but for their number: chance picks each of their replicas."""


def deletes(found: Judged) -> list[PlanRow]:
    """Return the rows of a plan that delete."""
    return [row for row in found.plan if row.action == "delete"]


def victims(found: Judged) -> list[int]:
    """Return the numbers of the replicas that a plan deletes, row by row."""
    return [int(name.rsplit("-", 1)[1]) for row in deletes(found) for name in row.targets]


def first_in_order(container_id: int, allowed: tuple[int, ...]) -> int:
    """Return the replica that everyone chooses: the lowest CRC32 of "container:datanode"."""
    return min(allowed, key=lambda i: crc32(f"{container_id}:dn-{container_id}-{i}".encode()))


STUCK = "R QUASI_CLOSED 11"  # a client was told of commit 11, which no replica has
CHOICES: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    # container, replicas, which of them may be chosen
    ("R CLOSED 10", "C=7x4", (0, 1, 2, 3)),
    ("R CLOSED 10", "C=7*1 C=7x3", (0,)),  # three whole ones stay, the damaged one goes
    ("R CLOSED 10", "C@9=7 C=7x3", (0,)),  # the one that lacks a commit
    ("R CLOSED 10", "C@9=7 C=7x2 C=7?s", ()),  # two whole ones are too few to let it go
    ("R CLOSED 10", "C=7x3 C=7/m C=7", (0, 1, 2, 4)),
    ("R CLOSED 10", "C=7x3 C=7/d C=7", (0, 1, 2, 4)),
    ("R CLOSED 10", "C=7x4 C=7?s", (0, 1, 2, 3)),
    ("R CLOSED 10", "C=7x4 C=7?r", (0, 1, 2, 3, 4)),
    ("R CLOSED 10", "C=7&ax3 C=7&b", (0, 1, 2)),  # b is the only other rack
    ("R CLOSED 10", "C=7&a C=7&bx3 C=7&c?s", (1, 2, 3)),  # a rack that is silent is none
    ("R CLOSED 10", "C=7&ax2 C=7&b C=7&c", (0, 1, 2, 3)),  # two racks stay whoever goes
    ("R CLOSED 10", "C=7&a C=7&b C=7&ax2", (0, 2, 3)),
    ("R1 CLOSED 10", "C=7&a C=7&b", (0, 1)),  # a single replica is on one rack
    ("R CLOSED 10", "C=7^ax3 C=7^b", (0, 1, 2, 3)),  # closed: origins have become one
    ("R CLOSED 10", "C=7x4 U=7", (4,)),  # the bad one before any good one
    ("R QUASI_CLOSED 10", "Q=7^ax4", (0, 1, 2, 3)),
    ("R QUASI_CLOSED 10", "Q=7&a^ax3 Q=7&b^a U@11=7&c^a", (0, 1, 2)),  # a bad one is on no rack
    (STUCK, "Q@10=7^ax4 Q@8=7^bx2", (0, 1, 2, 3)),  # b has just as many as it needs
    (STUCK, "Q@10=7^ax3 Q@8=7^bx3", (3, 4, 5)),
    (STUCK, "Q@10=7^ax4 Q@8=7^bx3", (0, 1, 2, 3, 4, 5, 6)),
    (STUCK, "Q@9=7^a Q@10=7^ax3 Q@8=7^bx2", (0,)),  # the last commit stays thrice
    (STUCK, "Q@10=7*1^a Q@10=7^ax4 Q@8=7^bx2", (1, 2, 3, 4)),
    ("R QUASI_CLOSED 10", "Q=7^ax4 U=8^a", (4,)),  # the bad one before any good one
    (STUCK, "Q@10=7^ax3 U@10=7^ax2 Q@8=7^bx2", (3, 4)),
    (STUCK, "Q@10=7^ax3 U@11=7^a Q@8=7^bx2", ()),  # it has more than the others
    (STUCK, "Q@10=7^ax3 U@8=7^a Q@8=7^bx3", (3,)),
    (STUCK, "Q@10=7^ax3 Q@8=7^bx2 U@8=7^b", (5,)),
    (STUCK, "Q@10=7^ax3 Q@8=7^b Q@8=8^b U@8=7^b", ()),  # which of b is right?
    (STUCK, "Q@10=7^ax4 Q@8=7^b U@8=7^b", (0, 1, 2, 3)),  # b has not one too many
    (STUCK, "Q@10=7^ax3 U@8=7^bx3", ()),  # nobody has all that they may have
    (STUCK, "Q@10=7^ax2 U@10=7^ax2 C@8=7^bx2", ()),  # two whole ones are too few
    ("R CLOSED 10", "C=7&ax3 C=7&b C=7&b/d", (0, 1, 2)),  # what leaves will stand nowhere
    ("R CLOSED 10", "C=7&ax3 C=7&b C=7&b/m", (0, 1, 2)),
    ("EC CLOSED", "C#1=7&ax2 C#2&b C#3&b C#4&b C#5&a", (0, 1)),
    ("EC CLOSED", "C#1=7&ax2 C#2=8&bx2 C#3&b C#4&b C#5&a", (0, 1)),  # the lowest index
    ("EC CLOSED", "C#1=7x2 C#2 C#3 C#4 C#5", (0, 1)),  # of six racks two are enough here
    ("EC CLOSED", "C#1=7&a C#1=7&b C#2&b C#3&b C#4&c C#5&c", (1,)),  # b is the fullest rack
    ("EC CLOSED", "C#1=7*1&a C#1=7&a C#2&b C#3&b C#4&b C#5&a", ()),  # mended first
    ("EC CLOSED", "C#1=7&a C#1=7&b C#2&b C#3&b C#4&b C#5&b", (1,)),
    ("EC CLOSED", "C#1=7&ax2 C#1=7&a/d C#2&b C#3&b C#4&b C#5&a", (0, 1)),
    ("EC CLOSED", "C#1=7&a O#1=7&a C#2&b C#3&b C#4&b C#5&a", ()),  # an open one is no twin
    (
        "EC CLOSED",
        "C#1=7&ax2 C#2&a/d C#3&b C#4&b C#5&a",
        (),
    ),  # first what lacks, then what is spare
)


def test_chance_picks_among_those_that_may_go_only() -> None:
    """There are six containers for each line. The checksum decides the order, and not which
    replicas may go.
    """
    ids = {
        (what, words): range(1 + len(SPREAD) * i, 1 + len(SPREAD) * (i + 1))
        for i, (what, words, _) in enumerate(CHOICES)
    }
    parts = [
        container(i, *line, acknowledged_bcsid=11 if line[0] == STUCK else None)
        for line, numbers in ids.items()
        for i in numbers
    ]

    found = judged(parts, rack_count=2)

    for what, words, allowed in CHOICES:
        numbers = ids[what, words]
        expected = [[first_in_order(i, allowed)] if allowed else [] for i in numbers]
        assert (what, words, [victims(found[i]) for i in numbers]) == (what, words, expected)


SPARE, TWIN = "more replicas than needed", "unhealthy, its index has a good replica"
ROWS: tuple[tuple[str, str, str, list[tuple[tuple[int, ...], tuple[int, ...], str]]], ...] = (
    # container, replicas, ops, rows: targets (of which one, if several may be chosen), their
    # indexes, reason
    ("R CLOSED 10", "C=7x3 U=7", "", [((3,), (0,), SPARE)]),
    ("R CLOSED 10", "C=7x4", "+", [((0, 1, 2, 3), (0,), SPARE)]),
    ("R CLOSED 10", "Cx4", "", []),  # no root is known: nobody knows that they are equal
    ("R CLOSED 10", "C=7x3 U=9", "", [((3,), (0,), SPARE)]),  # three whole and equal ones stay
    # What lacks most goes first.
    ("R CLOSED 10", "C=7x3 U@9=7 U@8=7", "", [((4,), (0,), SPARE)]),
    ("R CLOSED 10", "C=7x3 U@8=7 U@9=7", "", [((3,), (0,), SPARE)]),
    ("R CLOSED 10", "C=7x3 U@10=7 Q@9=7", "", [((4,), (0,), SPARE)]),
    ("R CLOSED 10", "C=7x3 U@8=7 U@9=7", "-n3", [((4,), (0,), SPARE)]),
    ("R CLOSED 10", "C=7x3 U=7?s", "", []),
    ("R CLOSED 10", "C=7x3 Q@9=6^ax4", "", [((3, 4, 5, 6), (0,), SPARE)]),  # by one rule only
    ("R CLOSED 10", "C=7x3 U=7/m", "", []),
    ("R CLOSED 10", "C=7x2 C=7/m U=7", "", []),  # two of the three that are left are in service
    ("R CLOSED 10", "C=7x2 U=7x2", "", []),
    ("R CLOSED 10", "C=7x3 C=9", "", []),
    ("R CLOSED 10", "C=7x3 C=7$", "", []),
    ("R QUASI_CLOSED 10", "Q=7^ax3 U=7^a", "", [((3,), (0,), SPARE)]),
    ("R QUASI_CLOSED 10", "Q=7^ax3 U=7^b", "", []),  # what its origin had, it alone has
    ("R QUASI_CLOSED 10", "Q=7^ax3 U=7^a", "-n3", []),
    ("R QUASI_CLOSED 10", "Q=7^ax3 U=7?s^a", "", []),
    ("R QUASI_CLOSED 10", "Q=7^ax4", "", [((0, 1, 2, 3), (0,), SPARE)]),
    ("R2 QUASI_CLOSED 10", "Q=7^ax3 U^b", "", []),  # closed by force first
    ("R QUASI_CLOSED 10", "Q=7^ax5", "-n0", []),  # one at a time
    ("R QUASI_CLOSED 10", "Q=7^ax4 O^a", "", []),  # the open one is closed first
    ("R QUASI_CLOSED 10", "C@9=7^ax4", "", []),  # it is to be closed first
    ("EC CLOSED", "C#1=7x2 C#2=7 C#3=7 C#4=7 C#5=7", "", [((0, 1), (1,), SPARE)]),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5 U@11#5", "", []),  # it may have what nobody else has
    ("EC CLOSED", "C#1=7 C#1=8 C#2 C#3 C#4 C#5", "", []),  # nobody knows which is right
    ("EC CLOSED", "C#1=7 C#1=7%5 C#2 C#3 C#4 C#5", "", []),  # nor which blocks are deleted
    ("EC CLOSED", "C#1=7 C#1=7$ C#2 C#3 C#4 C#5", "", []),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5 U#5", "", [((5,), (5,), TWIN)]),
    ("EC CLOSED", "C#1=7x2 C#2 C#3 C#4 C#5 U#5", "", [((6,), (5,), TWIN)]),  # bad ones first
    ("EC CLOSED", "U#3 C#1 C#2 C#3 C#4 C#5", "", [((0,), (3,), TWIN)]),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5 U#5 U#1", "", [((5, 6), (5, 1), TWIN)]),  # one at a time
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5 U#5", "-n5", []),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5?s U#5", "", []),  # its twin does not answer
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5 U#5?s", "", []),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5 U#5/d", "", []),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 U#5 C#5 U#1/m", "", [((4,), (5,), TWIN)]),
)
EMPTY: tuple[tuple[str, str, str, list[int]], ...] = (
    ("R CLOSED 10", "C!x3", "", [0, 1, 2]),
    ("R CLOSED 10", "C! C!?s C!?d C!/m", "", [0, 1, 3]),
    ("R CLOSED 10", "C!x3", "-n1", [0, 2]),
    ("R CLOSED 10", "C!x2 C", "", []),
    ("R CLOSED 10", "C!=7x4", "", [0, 1, 2, 3]),  # all of them, and by this rule only
    ("R QUASI_CLOSED 10", "Q! U!", "", [0]),  # a bad one cannot say that it is empty
    ("R DELETING 10", "C! C U! G!", "", [0, 3]),
    ("R DELETED 10", "C!", "", []),
    ("EC CLOSED", "C#1! C#2!", "", [0, 1]),
)


def test_delete_rows_name_the_victim_and_the_reason() -> None:
    """The delete is forced, because the replica has data that others have, too."""
    parts = [container(i, *line[:3]) for i, line in enumerate(ROWS)]

    found = judged(parts, rack_count=2)

    for i, (what, words, ops, rows) in enumerate(ROWS):
        expected = []
        for allowed, indexes, reason in rows:
            victim = first_in_order(i, allowed)
            index = indexes[allowed.index(victim)] if len(indexes) > 1 else indexes[0]
            expected.append(
                PlanRow(
                    *("delete", (), (), (f"dn-{i}-{victim}",), (index,), 0, 7, reason),
                    is_forced=True,
                    bytes_estimated=0,
                )
            )
        assert (what, words, ops, deletes(found[i])) == (what, words, ops, expected)


def test_empty_replicas_are_deleted_without_force() -> None:
    """A datanode that has a block after all refuses."""
    parts = [container(i, *line[:3]) for i, line in enumerate(EMPTY)]

    found = judged(parts, rack_count=2)

    told = [
        (*line[:3], victims(found[i]) if deletes(found[i]) else []) for i, line in enumerate(EMPTY)
    ]
    assert told == list(EMPTY)
    rows = [row for i in range(len(EMPTY)) for row in deletes(found[i])]
    assert {(row.reason, row.is_forced, row.priority) for row in rows} == {("empty", False, 7)}
    assert found[len(EMPTY) - 1].plan[0].indexes == (1, 2)


def test_suppressed_container_is_not_deleted_from() -> None:
    """The replicas are surplus, a bad twin, or empty."""
    lines = (
        ("R CLOSED 10", "C=7x4"),
        ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5 U#5"),
        ("R CLOSED 10", "C!x3"),
        ("R DELETING 10", "C!"),
    )
    shown = judged([container(i, *line) for i, line in enumerate(lines)])

    hidden = judged([container(i, *line, suppressed=True) for i, line in enumerate(lines)])

    assert all(deletes(row) for row in shown.values())
    assert not any(row.plan for row in hidden.values())


@pytest.mark.parametrize(
    ("words", "ops", "is_one_deleted"),
    [
        ("C=7x4", "", False),
        ("C=7x5", "", True),
        ("C=7x4 C=7?s", "", False),  # who is silent is no witness
        ("C=7x4 C=7/m", "", False),
        ("C=7x5", "-n0", False),  # it is as good as gone
        ("C=7x4 U=7", "", True),
    ],
)
def test_up_to_the_end_of_a_band_nothing_is_deleted(
    words: str, ops: str, is_one_deleted: bool
) -> None:
    """
    Four may be there of a container that should have three.
    """
    found = judged([container(0, "R CLOSED 10", words, ops)], rules=Rules(most_copies=4))

    assert is_one_deleted is (len(victims(found[0])) == 1)
    assert is_one_deleted is bool(victims(found[0]))


TOMBS: dict[str, Any] = {"tombstones_checksum": 9, "tombstone_count": 1}


@pytest.mark.parametrize(
    ("row", "rebuilt", "returned", "owes_deletes", "is_deleted"),
    [
        ("one came back with its tombstones", {}, TOMBS, False, True),
        ("a delete is owed: each may have what the other has not", {}, TOMBS, True, False),
        ("other blocks live", {"block_count": 3}, TOMBS, False, False),
        ("nothing explains why they differ", {}, {}, False, False),
        ("both know deleted blocks", {"tombstone_count": 1}, TOMBS, False, False),
        ("folded otherwise", {"tree_algorithm": "crc32c"}, TOMBS, False, False),
        ("no root", {"root": None}, TOMBS, False, False),
        ("no root there", {}, {**TOMBS, "root": None}, False, False),
    ],
)
@pytest.mark.parametrize("first", [0, 1])
def test_a_rebuilt_shard_goes_when_its_twin_is_back(
    first: int,
    row: str,
    rebuilt: dict[str, Any],
    returned: dict[str, Any],
    owes_deletes: bool,
    is_deleted: bool,
) -> None:
    """
    Their roots differ for ever: a rebuilt shard knows no deleted blocks. Whichever is named first.
    """
    given = container(0, "EC CLOSED", "C#1=7 C#1=8 C#2 C#3 C#4 C#5", owes_deletes=owes_deletes)
    for place, changes in ((first, rebuilt), (1 - first, returned)):
        given.replicas[place] = replace(given.replicas[place], **changes)

    found = judged([given])

    assert ([first] if is_deleted else []) == victims(found[0]), row
