"""Conditions that the state hides, and those of one kind of container only."""

from tests.support.verification.judged import judged
from tests.support.verification.snapshots import NodeRow, OpRow, container

BAD, EXCESS = "UNHEALTHY_REPLICA", "UNHEALTHY_EXCESS"

FLAGGED: tuple[tuple[str, str, set[str]], ...] = (
    ("R CLOSED 10", "C=7x3", set()),
    ("R CLOSED 10", "C*1 C C", {"SCAN_FINDINGS"}),
    ("R CLOSED 10", "C*1?s C C", set()),
    ("R CLOSED 10", "C=7x2 C=9", {"ROOTS_DIFFER"}),
    ("R CLOSED 10", "C=7 C=8 C=9", {"ROOTS_DIFFER"}),
    ("R CLOSED 10", "C=7x2 C=9$", {"ROOTS_DIFFER", "CONTRADICTORY"}),
    ("R CLOSED 10", "C=7x2 C=7$", {"CONTRADICTORY"}),
    ("R CLOSED 10", "C=7x2 C=7%5", {"TOMBSTONES_DIFFER"}),
    ("R CLOSED 10", "C=7x2 C=9?s", {"UNREACHABLE_DIFFERS"}),
    ("R CLOSED 10", "C=7x3 U=9?s", {BAD, "OVER_REPLICATED", "UNREACHABLE_DIFFERS"}),
    ("R DELETING 10", "C=7 C=9", set()),
    ("R CLOSED 10", "C C O", {"MISMATCHED_STATE"}),
    ("R CLOSED 10", "C C C I", set()),
    ("R CLOSED 10", "", {"MISSING", "DATA_AT_RISK"}),
    ("R CLOSING 10", "", {"MISSING"}),
    ("R CLOSING 10", "G U", {BAD}),
    ("R OPEN 10", "O O G", {"OPEN_UNHEALTHY"}),
    ("R CLOSED 10", "C!x3", {"EMPTY"}),
    ("R CLOSED 10", "C C C/d", {"UNDER_REPLICATED"}),
    ("R QUASI_CLOSED 10", "Q@9x3 U@10/d", {"QUASI_CLOSED_STUCK", "VULNERABLE", BAD}),
    ("R QUASI_CLOSED 10", "Q@9!^ax3 U@10!^b/d", {"EMPTY", BAD}),
    # The rules of the other kind would say something else.
    (
        "EC CLOSED",
        "Q@9#1 Q@9#2 Q@9#3 Q@9#4 Q@9#5",
        {"MISMATCHED_STATE", "UNHEALTHY", "DATA_AT_RISK"},
    ),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5 U#5", {BAD, EXCESS}),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5 U#5/m", {BAD, EXCESS}),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 U#5", {BAD, "UNDER_REPLICATED"}),
    ("EC CLOSED", "C#1 C#2 C#3 C#4 C#5 C#5", {"OVER_REPLICATED"}),
    ("EC QUASI_CLOSED 10", "Q@9#1 Q@9#2 Q@9#3 Q@9#4 U@10#5/d", {BAD, "UNDER_REPLICATED"}),
)


def test_every_condition_shows_whatever_the_state_is() -> None:
    """Each line has one container, and the racks suffice."""
    rows = judged(container(i, *line[:2]) for i, line in enumerate(FLAGGED))

    told = [(*line[:2], set(rows[i].opinion.flags)) for i, line in enumerate(FLAGGED)]
    assert told == list(FLAGGED)


MISPLACED: tuple[tuple[str, str, bool], ...] = (
    ("R CLOSED 10", "C&ax3", True),
    ("R CLOSED 10", "C&ax2 C&b", False),
    ("R CLOSED 10", "C&ax2", False),  # first enough, then well placed
    ("R CLOSED 10", "", False),
    ("R CLOSED 10", "U&ax3", False),
    ("R1 CLOSED 10", "C&a", False),
    ("EC CLOSED", "C#1&a C#2&a C#3&b C#4&b C#5&c", False),
    ("EC CLOSED", "C#1&a C#2&a C#3&a C#4&b C#5&c", True),  # three of five on one rack of three
    ("EC CLOSED", "C#1&a C#2&a C#3&b C#4&b C#5&b", True),  # two racks of three
    ("EC CLOSED", "C#1&a C#2&a C#3&a C#3&b C#4&b C#5&c", False),  # one more is spare
    ("EC CLOSED", "C#1&a C#2&a C#3&a C#4&b", False),
)


def test_replicas_stand_on_too_few_racks_only_when_they_are_enough() -> None:
    """The cluster has three racks. With one rack no replica is misplaced."""
    parts = [container(i, *line[:2]) for i, line in enumerate(MISPLACED)]

    spread, flat = judged(parts, rack_count=3), judged(parts, rack_count=1)

    told = [
        (*line[:2], "MIS_REPLICATED" in spread[i].opinion.flags) for i, line in enumerate(MISPLACED)
    ]
    assert told == list(MISPLACED)
    assert not any("MIS_REPLICATED" in row.opinion.flags for row in flat.values())


def test_a_copy_on_its_way_to_another_rack_is_waited_for() -> None:
    """The target may be any node. A target that is not listed has no rack."""
    queues = {}
    for target in ("aa", "zz", "nobody"):
        rows = container(1, "R CLOSED 10", "C&ax3")
        rows.nodes += [NodeRow("aa", rack="/b"), NodeRow("zz", rack="/b")]
        rows.pending_ops = [OpRow(1, "ADD", target)]
        found = judged([rows], rack_count=2)[1].opinion
        queues[target] = (found.state, found.queue)

    assert queues == {
        "aa": ("MIS_REPLICATED", "-"),
        "zz": ("MIS_REPLICATED", "-"),
        "nobody": ("MIS_REPLICATED", "U"),
    }


def test_a_cluster_without_a_living_rack_has_nothing_misplaced() -> None:
    """
    The number of racks is nought while all nodes are dead.
    """
    parts = [container(i, *line[:2]) for i, line in enumerate(MISPLACED)]

    rows = judged(parts, rack_count=0)

    assert not any("MIS_REPLICATED" in row.opinion.flags for row in rows.values())
