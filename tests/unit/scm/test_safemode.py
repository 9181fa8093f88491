"""The start: nothing is decided before the cluster is known again."""

import pytest

from scm.safemode import gate

EIGHT = [f"dn{i}" for i in range(8)]


@pytest.mark.parametrize(
    ("seen_count", "waited_s", "is_open"),
    [
        (8, 0.0, True),
        (7, 299.0, False),
        (7, 300.0, True),
        (6, 10_000.0, False),  # 75 %
        (0, 10_000.0, False),
    ],
)
def test_all_at_once_or_a_quorum_after_a_while(
    seen_count: int, waited_s: float, is_open: bool
) -> None:
    """S5.17: of ten nodes eight were online, and only these are waited for."""
    answer = gate(EIGHT, EIGHT[:seen_count], waited_s=waited_s, wait_s=300.0, quorum_percent=80)

    assert is_open is answer.is_open
    assert tuple(EIGHT[seen_count:]) == answer.missing
    assert str(seen_count) in answer.reason


@pytest.mark.parametrize(
    ("known_count", "seen_count", "is_open"),
    [(10, 7, False), (10, 8, True), (5, 4, True), (5, 3, False), (1, 0, False)],
)
def test_four_fifths_are_a_quorum(known_count: int, seen_count: int, is_open: bool) -> None:
    """Exactly so many suffice, after their time."""
    nodes = [f"dn{number}" for number in range(known_count)]

    answer = gate(nodes, nodes[:seen_count], waited_s=300.0, wait_s=300.0, quorum_percent=80)

    assert (is_open, known_count) == (answer.is_open, answer.expected_count)
    assert 0.0 == answer.left_s


def test_it_says_how_long_the_others_are_waited_for() -> None:
    """As long as a quorum alone does not do; an open gate waits for nobody."""
    waiting = gate(EIGHT, EIGHT[:7], waited_s=120.0, wait_s=300.0, quorum_percent=80)
    few = gate(EIGHT, EIGHT[:2], waited_s=120.0, wait_s=300.0, quorum_percent=80)
    all_there = gate(EIGHT, EIGHT, waited_s=120.0, wait_s=300.0, quorum_percent=80)

    assert (180.0, 180.0, 0.0) == (waiting.left_s, few.left_s, all_there.left_s)
    assert "180 s more" in waiting.reason
    assert "80 % must" in few.reason


@pytest.mark.parametrize(
    ("seen", "expected", "waited_s", "is_open"),
    [
        ([], [], 0.0, False),
        (["dn9"], [], 1_199.0, False),
        (["dn9"], [], 1_200.0, True),
        (EIGHT, EIGHT, 0.0, True),
        (EIGHT[:7], EIGHT, 1_199.0, False),
    ],
)
def test_a_cold_start_waits_for_whoever_comes(
    seen: list[str], expected: list[str], waited_s: float, is_open: bool
) -> None:
    """With nobody known the whole time is waited; else for those that are known."""
    answer = gate(
        expected, seen, waited_s=waited_s, wait_s=1_200.0, quorum_percent=80, is_cold=True
    )

    assert (is_open, True) == (answer.is_open, answer.is_cold)


def test_a_new_cluster_is_open() -> None:
    """There is nobody to wait for and nothing to lose."""
    assert gate([], ["dn1"], waited_s=0.0, wait_s=300.0, quorum_percent=80).is_open
