"""The plan: who is copied, rebuilt, deleted, closed; and what is never deleted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import pytest

from tests.support.verification.judged import judged
from tests.support.verification.snapshots import SnapshotRows, container

Row = tuple[str, list[int], list[int], list[int], int, int]


@dataclass(frozen=True, slots=True)
class Planned:
    """Per container: the rows of its plan, and by replica number what speaks against sources."""

    rows: dict[int, list[Row]]
    doubts: dict[int, dict[int, str]]
    reasons: dict[int, list[str]]


def planned(parts: Sequence[SnapshotRows]) -> Planned:
    """Plan: action, sources, targets (as replica numbers), indexes, copies, priority."""
    rows: dict[int, list[Row]] = {}
    told: dict[int, dict[int, str]] = {}
    reasons: dict[int, list[str]] = {}
    for container_id, found in judged(parts, rack_count=2).items():
        rows[container_id] = [
            (
                row.action,
                [_number(name) for name in row.sources],
                [_number(name) for name in row.targets],
                list(row.indexes),
                row.copies,
                row.priority,
            )
            for row in found.plan
        ]
        reasons[container_id] = [row.reason for row in found.plan]
        for doubt in (doubt for row in found.plan for doubt in row.doubts):
            name, _, why = doubt.partition(": ")
            told.setdefault(container_id, {})[_number(name)] = why
    return Planned(rows, told, reasons)


def _number(name: str) -> int:
    return int(name.rsplit("-", 1)[1])


REPLICATE = (
    ("R CLOSED 10", "C C", "", [("replicate", [0, 1], [], [], 1, 1)]),
    ("R CLOSED 10", "C", "+", [("replicate", [0], [], [], 1, 0)]),
    ("R CLOSED 10", "C C U", "", [("replicate", [0, 1], [], [], 1, 1)]),
    ("R CLOSED 10", "C C/d C/D", "", [("replicate", [0, 1, 2], [], [], 2, 5)]),
    ("R CLOSED 10", "C?s C", "", [("replicate", [1], [], [], 1, 1)]),  # a stale node is no source
    ("R CLOSED 10", "C@10 C@9", "", [("replicate", [0], [], [], 1, 1)]),  # the last commit only
    ("R CLOSED 10", "C C C", "-n0", [("replicate", [1, 2], [], [], 1, 1)]),
    ("R CLOSED 10", "U U", "", [("replicate", [0, 1], [], [], 1, 0)]),  # better bad than gone
    ("R CLOSED 10", "C&a C&a C&a", "", [("replicate", [0, 1, 2], [], [], 1, 6)]),
    ("R CLOSED 10", "", "", []),  # nothing to copy from
    (
        "R QUASI_CLOSED 11",
        "Q@10 Q@8 U@11",
        "",
        [
            ("replicate", [0], [], [], 2, 1),
            ("replicate", [1], [], [], 1, 1),
            ("replicate", [2], [], [], 1, 1),
        ],
    ),
)
RECONSTRUCT = (
    ("EC CLOSED", "C#1 C#2 C#4 C#5", "", [("reconstruct", [0, 1, 2, 3], [], [3], 1, 1)]),
    ("EC CLOSED", "C#1 C#2 C#3", "", [("reconstruct", [0, 1, 2], [], [4, 5], 2, 0)]),
    ("EC CLOSED", "C#1 C#2", "", []),  # two of three data indexes: nobody can
    (
        "EC CLOSED",
        "C#1 C#2 C#3 C#4/d C#5/D",
        "",
        [("replicate", [3], [], [4], 1, 5), ("replicate", [4], [], [5], 1, 5)],
    ),
    ("EC CLOSED", "C#1 C#2 C#3 C#4/d C#4 C#5/D", "+#5", []),
)
DELETE = (
    ("R CLOSED 10", "C=7x3 U=7", "", [("delete", [], [3], [0], 0, 7)]),  # the bad one first
    ("R CLOSED 20", "C@20=7x3 Q@19=7", "", [("delete", [], [3], [0], 0, 7)]),
    ("R CLOSED 10", "C=7x3 U@11=7", "", []),  # what it has beyond the others may be all there is
    ("R CLOSED 10", "C=7x3 U=9", "", [("delete", [], [3], [0], 0, 7)]),  # three equal ones stay
    ("R CLOSED 10", "C=7x3 C=9", "", []),  # roots differ: reconcile, and never delete before
    ("R CLOSED 10", "C=7x4", "-n0", []),  # a delete under way counts
    ("R CLOSED 10", "C=7x2 C=7?s C=7", "", []),  # stale nodes count for nothing
    ("R CLOSED 10", "C=7x3 C=7/d", "", []),
    ("R CLOSED 10", "U=7x4", "", []),  # no good one is left: none may go
    ("R CLOSED 10", "C!x3", "", [("delete", [], [0, 1, 2], [0, 0, 0], 0, 7)]),
    ("R DELETING 10", "C! C", "", [("delete", [], [0], [0], 0, 7)]),  # only what is empty
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5 U#5", "", [("delete", [], [5], [5], 0, 7)]),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 U#5", "", [("reconstruct", [0, 1, 2, 3], [], [5], 1, 1)]),
)
CLOSE = (
    ("R OPEN 10", "O O C", "", [("close", [], [0, 1], [], 0, 6)]),
    ("R CLOSING 10", "O C U", "", [("close", [], [0], [], 0, 6)]),
    ("R CLOSED 10", "C C O", "", [("close", [], [2], [], 0, 6)]),
    ("R CLOSED 10", "C C Q@10", "", [("close", [], [2], [], 0, 6)]),
    ("R QUASI_CLOSED 12", "Q@12x2 Q@11", "", [("close", [], [0, 1], [], 0, 6)]),
    ("R QUASI_CLOSED 12", "Q@11x2 O@12", "", [("close", [], [2], [], 0, 6)]),
)


# What speaks against sources: they are left out, unless nothing better is left.
DOUBTS: tuple[tuple[str, str, list[Row], dict[int, str]], ...] = (
    ("R CLOSED 10", "C*1 C", [("replicate", [1], [], [], 1, 1)], {}),
    ("R4 CLOSED 10", "C=7x2 C=9", [("replicate", [0, 1], [], [], 1, 2)], {}),
    (
        "R CLOSED 10",
        "C=7 C=9",
        [("replicate", [0, 1], [], [], 1, 1)],
        {0: "roots differ", 1: "roots differ"},
    ),
    ("R CLOSED 10", "C*1", [("replicate", [0], [], [], 2, 0)], {0: "scan findings"}),
    (
        "R CLOSED 10",
        "C*1 Q@10",
        [("replicate", [1], [], [], 1, 1), ("close", [], [1], [], 0, 6)],
        {},
    ),
    ("R5 CLOSED 10", "C=7*1 C=7*1 C=9 C=9", [("replicate", [2, 3], [], [], 1, 3)], {}),
    ("R CLOSED 10", "U=7", [("replicate", [0], [], [], 2, 0)], {0: "UNHEALTHY"}),
    ("EC CLOSED", "C#1*1 C#2 C#3 C#4", [("reconstruct", [1, 2, 3], [], [5], 1, 1)], {}),
    (
        "EC CLOSED",
        "C#1*1 C#2 C#3",
        [("reconstruct", [1, 2, 0], [], [4, 5], 2, 0)],
        {0: "scan findings"},
    ),
    ("EC CLOSED", "C#1*1 C#1 C#2 C#3 C#4", [("reconstruct", [1, 2, 3, 4], [], [5], 1, 1)], {}),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5*1/d C#5/d", [("replicate", [5], [], [5], 1, 5)], {}),
)

TABLE: tuple[tuple[str, str, str, list[Row]], ...] = (
    *REPLICATE,
    *RECONSTRUCT,
    *DELETE,
    *CLOSE,
    *((what, words, "", rows) for what, words, rows, _ in DOUBTS),
)


VICTIM = len(TABLE) + 1
EQUAL = range(VICTIM + 1, VICTIM + 6)  # more like it
UNLOADED = VICTIM + 6  # of two bad replicas one cannot even be loaded


def parts() -> list[SnapshotRows]:
    """Return all lines of the tables, one suppressed container, one with four equal replicas."""
    unloaded = container(UNLOADED, "R CLOSED 10", "U=7 U=7")
    unloaded.replicas[0] = replace(unloaded.replicas[0], load_error="no descriptor")
    return [
        unloaded,
        *(container(i, *line[:3]) for i, line in enumerate(TABLE)),
        container(len(TABLE), "R CLOSED 10", "C C", suppressed=True),
        container(VICTIM, "R CLOSED 10", "C=7&a C=7&b C=7&a C=7&b"),
        *(container(number, "R CLOSED 10", "C=7x4") for number in EQUAL),
    ]


@pytest.fixture(scope="module")
def found() -> Planned:
    return planned(parts())


def test_every_container_gets_the_rows_that_the_rules_ask_for(found: Planned) -> None:
    """
    Each line of the tables is one container; sources and victims are named by replica number.
    """
    assert [(*line[:3], found.rows[i]) for i, line in enumerate(TABLE)] == list(TABLE)
    assert found.rows[len(TABLE)] == [], "an operator's word stands above every rule"
    assert [row[:2] for row in found.rows[UNLOADED]] == [("replicate", [1])]


def test_a_source_that_something_speaks_against_is_marked(found: Planned) -> None:
    """
    In a column of its own and in the reason, which people and the control plane's log see.
    """
    first = len(TABLE) - len(DOUBTS)

    for number, (_, words, _, told) in enumerate(DOUBTS, first):
        assert (words, told) == (words, found.doubts.get(number, {}))
        marks = ["no better source than" in reason for reason in found.reasons[number]]
        assert bool(told) == any(marks), words


def test_the_plan_is_the_same_whoever_plans(found: Planned) -> None:
    """
    Among equal replicas the victim follows from the ids, not from the order of rows.
    """
    turned = [
        SnapshotRows(p.containers, p.replicas[::-1], p.nodes[::-1], p.pending_ops[::-1])
        for p in parts()[::-1]
    ]

    other = planned(turned)

    assert other == found
    assert [row[0] for row in found.rows[VICTIM]] == ["delete"]


def test_the_victim_is_the_one_that_the_control_plane_would_choose(
    found: Planned,
) -> None:
    """The control plane confirms no other row, because both order equal replicas in the same
    way.
    """
    for number in (VICTIM, *EQUAL):
        order = [crc32(f"{number}:dn-{number}-{i}".encode()) for i in range(4)]
        [(action, _, targets, *_)] = found.rows[number]
        assert ("delete", [order.index(min(order))]) == (action, targets), number


MENDED = (
    ("EC CLOSED", "C#1 C#2 C#3 C#4 U#5", True),
    ("EC CLOSED", "C#1 C#2 C#3 C#4*2 U#5", True),  # three good ones are enough to compute from
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5*1", True),
    ("EC CLOSED", "C#1 C#2 U#3 U#4 U#5", True),  # from what of each of them verifies
    ("EC CLOSED", "C#1 C#2 U#3", False),  # nothing to compute from
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5", False),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5=7 U#5=9", False),  # nothing says which of the two is right
    ("EC OPEN", "O#1 O#2 O#3 O#4 U#5", False),
)


def test_damaged_shards_are_to_be_mended_in_place() -> None:
    """
    A container of which a shard is damaged and enough others are there is to be reconciled.
    """
    parts = [container(i, spec, words) for i, (spec, words, _) in enumerate(MENDED)]

    rows = judged(parts, rack_count=2)

    wanted = {i for i, line in enumerate(MENDED) if line[2]}
    assert wanted == {i for i, row in rows.items() if row.is_wanted}
    named = {"replica UNHEALTHY", "scan findings"}
    assert all(named & set(rows[i].reasons) for i in wanted)
