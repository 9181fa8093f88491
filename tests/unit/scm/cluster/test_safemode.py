"""The start: nothing is decided before the cluster is known again."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scm.cluster.safemode import Gate, SafeMode, gate
from scm.state.clock import Clock
from scm.state.database import State
from scm.state.facts import Node, OpState
from scm.state.options import ScmOptions
from tests.support.clock import FakeClock
from tests.support.control.scm_world import MAP_BYTES

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
    """Of ten nodes eight were online, and only these are waited for."""
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


@pytest.mark.parametrize(
    ("seen", "is_open", "reason"),
    [
        ("dn0 dn1", False, "2 of 3 nodes that were online have reported, 75 % must"),
        ("dn0 dn1 dn3", True, "2 of 3 nodes that were online have reported, and 1 more, and the"),
        ("dn0 dn3", False, "1 of 3 nodes that were online have reported, and 1 more, 75 % must"),
    ],
)
def test_one_that_was_dead_and_is_back_is_one_more(seen: str, is_open: bool, reason: str) -> None:
    """Three of four are there, whichever of them was away when the control plane stopped."""
    expected = ["dn0", "dn1", "dn2"]

    answer = gate(expected, seen.split(), waited_s=300.0, wait_s=300.0, quorum_percent=75)

    assert is_open is answer.is_open
    assert answer.reason.startswith(reason)
    assert "dn2" in answer.missing


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


def test_what_a_gate_says_word_for_word() -> None:
    """Everything at once, for each of its five answers."""
    four = ["a", "b", "c", "d"]

    def at(seen: str, waited_s: float, *, is_cold: bool = False) -> Gate:
        expected = four if seen else []
        return gate(
            expected, seen, waited_s=waited_s, wait_s=60.0, quorum_percent=75, is_cold=is_cold
        )

    online, known = "nodes that were online", "known nodes"
    assert Gate(True, f"all 4 {online} have reported", (), False, 4) == at("dbcax", 1.0)
    assert Gate(False, f"2 of 4 {online} have reported, 75 % must", ("a", "c"), False, 4, 0.0) == (
        at("bd", 61.0)
    )
    assert Gate(
        False, f"3 of 4 {online} have reported; 1 s more for the others", ("b",), False, 4, 1.0
    ) == at("cad", 59.0)
    assert Gate(
        True, f"3 of 4 {known} have reported, and the others had their time", ("b",), True, 4
    ) == at("cad", 60.0, is_cold=True)
    assert Gate(False, "no node is known; 20 s more for those that come", (), True, 0, 20.0) == at(
        "", 40.0, is_cold=True
    )
    assert Gate(True, f"all 0 {known} have reported", (), True) == at("", 60.0, is_cold=True)


@pytest.mark.parametrize(
    ("known_count", "seen_count", "percent", "is_open"),
    [
        (100, 80, 80, True),
        (100, 79, 80, False),
        (200, 159, 80, False),
        (3, 2, 66, True),  # 66.7 %
        (3, 2, 67, False),
        (101, 100, 100, False),
        (2, 0, 0, True),
        (2, 0, 1, False),
    ],
)
def test_the_quorum_is_exact(
    known_count: int, seen_count: int, percent: int, is_open: bool
) -> None:
    """A node more or less decides, without rounding."""
    nodes = [f"dn{number}" for number in range(known_count)]

    answer = gate(nodes, nodes[:seen_count], waited_s=9.0, wait_s=9.0, quorum_percent=percent)

    assert is_open is answer.is_open


OPTIONS = ScmOptions(
    safemode_wait_ms=300_000, cold_start_wait_ms=1_200_000, safemode_quorum_percent=50
)
IN_TURN = (*"abcdefgh",)
"""One node of every state that was online, then dead ones and some that may be switched off."""

STANDINGS = [
    (OpState.IN_SERVICE, True),
    (OpState.DECOMMISSIONING, True),
    (OpState.ENTERING_MAINTENANCE, True),
    (OpState.IN_MAINTENANCE, True),
    (OpState.DECOMMISSIONED, True),
    (OpState.IN_SERVICE, False),
    (OpState.DECOMMISSIONING, False),
    (OpState.IN_MAINTENANCE, False),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a state with a node of every kind is, closed."""
    state = State.open(tmp_path, map_bytes=MAP_BYTES)
    node = Node("", "x:1", "/r", "0.1", 1, OpState.IN_SERVICE, 0, 1, 1)
    with state.change() as change:
        for name, (op_state, was_online) in zip(IN_TURN, STANDINGS, strict=True):
            made = replace(node, datanode_id=name, op_state=op_state, was_online=was_online)
            change.put(state.nodes, made)
    state.close()
    return tmp_path


class Start:
    """A start on a state, with a clock of its own."""

    def __init__(self, path: Path, *, is_cold: bool = False) -> None:
        """Open the state and begin to wait."""
        self.state = State.open(path, map_bytes=MAP_BYTES, is_cold=is_cold)
        self.clock = FakeClock()
        clock = Clock(self.clock.now_ms, self.clock.monotonic_s)
        self.mode = SafeMode(self.state, clock, OPTIONS)


@pytest.fixture
def warm(path: Path) -> Iterator[Start]:
    """Yield a start with the replica map read back."""
    start = Start(path)
    yield start
    start.state.close()


@pytest.fixture
def cold(path: Path) -> Iterator[Start]:
    """Yield a start with the replica map forgotten."""
    start = Start(path, is_cold=True)
    yield start
    start.state.close()


class TestWarmStart:
    def test_it_waits_for_those_that_were_online_and_may_not_be_off(self, warm: Start) -> None:
        """Not for the dead, nor for those in maintenance or decommissioned."""
        before = warm.mode.is_on
        answer = warm.mode.look(())

        assert (True, True) == (before, warm.mode.is_on)
        assert ("a", "b", "c") == answer.missing
        assert (False, 3, 300.0) == (answer.is_cold, answer.expected_count, answer.left_s)
        assert "0 of 3 nodes that were online have reported, 50 % must" == answer.reason

    def test_it_opens_when_the_last_of_them_has_named_its_replicas(self, warm: Start) -> None:
        """Once is enough, in whatever order; others do not count."""
        steps: list[tuple[str, ...]] = [("b",), ("d", "e", "f", "z"), ("c",), ("a",)]
        missing = [warm.mode.look(step).missing for step in steps]

        assert [("a", "c"), ("a", "c"), ("a",), ()] == missing
        assert not warm.mode.is_on

    @pytest.mark.parametrize(
        ("seen", "is_open"),
        [
            (("a", "b"), True),
            (("a",), False),
            ((), False),
            (("a", "f"), True),  # f was dead
            (("a", "d", "e", "h", "z"), False),  # that may be switched off, or are new
        ],
    )
    def test_after_its_time_a_quorum_will_do(
        self, warm: Start, seen: tuple[str, ...], is_open: bool
    ) -> None:
        """Two of three are more than 50 %, and two of four as many; to the last moment they wait
        for the others."""
        warm.mode.look(seen)
        warm.clock.advance_s(300 - 2**-8)
        early = warm.mode.look(())
        warm.clock.advance_s(2**-8)
        late = warm.mode.look(())

        assert (False, 2**-8) == (early.is_open, early.left_s)
        assert (is_open, 0.0) == (late.is_open, late.left_s)

    def test_once_open_it_stays_open(self, warm: Start) -> None:
        """As it was: nothing is counted any more."""
        opened = warm.mode.look(("a", "b", "c"))
        warm.clock.advance_s(1)

        assert opened is warm.mode.look(())
        assert opened is warm.mode.leave()
        assert "all 3 nodes that were online have reported" == opened.reason

    def test_a_person_can_open_it(self, warm: Start) -> None:
        """Who was missing can still be read; a look does not close it."""
        warm.mode.look(("b",))
        opened = warm.mode.leave()

        assert Gate(True, "opened by an operator", ("a", "c"), False, 3, 0.0) == opened
        assert not warm.mode.is_on
        assert opened is warm.mode.look(())

    def test_a_person_can_open_it_before_the_first_look(self, warm: Start) -> None:
        """Nothing is known yet, and nobody asked who is missing."""
        assert Gate(True, "opened by an operator", (), False, 0, 0.0) == warm.mode.leave()


class TestColdStart:
    def test_it_waits_for_all_that_may_be_up_and_longer(self, cold: Start) -> None:
        """Dead ones, too: they may have come back while nobody looked."""
        answer = cold.mode.look(("a",))

        assert ("b", "c", "f", "g") == answer.missing
        assert (True, 5, 1_200.0) == (answer.is_cold, answer.expected_count, answer.left_s)

    def test_after_its_longer_time_a_quorum_will_do(self, cold: Start) -> None:
        """Three of five, after 1,200 s and not a moment before."""
        cold.mode.look(("a", "b", "f"))
        seen = []
        for seconds in (300, 900 - 2**-8, 2**-8):
            cold.clock.advance_s(seconds)
            seen.append(cold.mode.look(()).is_open)

        assert [False, False, True] == seen
