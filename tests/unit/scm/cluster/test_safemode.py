"""Safe mode: nothing is decided before the cluster is known again."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.api.calls.control import ControlPlane
from scm.cluster.safemode import ReportedCount, SafeModeStatus, evaluate
from scm.state.clock import ScmClock
from scm.state.database import StateDatabase
from scm.state.entities import ContainerState, Key, KeyBlock, Node, OpState
from scm.state.options import ScmOptions
from tests.support.clock import FakeClock
from tests.support.control.scm_world import MAP_BYTES, container, replica

EIGHT = [f"dn{i}" for i in range(8)]


def all_reported() -> ReportedCount:
    return ReportedCount(100, 100)


judged = partial(evaluate, hosts_needed=2, containers=all_reported, percent=99)


@pytest.mark.parametrize(
    ("seen_count", "waited_s", "is_open"),
    [(8, 0.0, True), (7, 299.0, False), (7, 300.0, True), (2, 300.0, True), (1, 9_999.0, False)],
)
def test_gate_opens_at_once_for_all_nodes_or_later_for_enough_hosts(
    seen_count: int, waited_s: float, is_open: bool
) -> None:
    answer = judged(EIGHT, EIGHT[:seen_count], waited_s=waited_s, wait_s=300.0)

    assert is_open is answer.is_open
    assert tuple(EIGHT[seen_count:]) == answer.missing
    assert str(seen_count) in answer.reason


@pytest.mark.parametrize(
    ("away", "is_open"), [(EIGHT[6:], True), (EIGHT[5:], True), (EIGHT[7:], False), ([], False)]
)
def test_gate_does_not_wait_for_nodes_that_are_away(away: list[str], is_open: bool) -> None:
    answer = judged(EIGHT, EIGHT[:6], away=away, waited_s=16.0, wait_s=300.0)

    assert is_open is answer.is_open
    assert ("dn6", "dn7") == answer.missing


@pytest.mark.parametrize(
    ("reported", "needed", "percent", "is_open"),
    [
        (0, 0, 99, True),
        (99, 100, 99, True),
        (98, 100, 99, False),
        (197, 199, 99, False),
        (9, 10, 99, False),
        (100, 101, 100, False),
        (0, 5, 0, True),
    ],
)
def test_gate_opens_without_some_nodes_if_containers_are_reported(
    reported: int, needed: int, percent: int, is_open: bool
) -> None:
    """The share is exact, without rounding."""
    answer = evaluate(
        EIGHT,
        EIGHT[:7],
        away=EIGHT[7:],
        hosts_needed=2,
        containers=lambda: ReportedCount(reported, needed),
        percent=percent,
        waited_s=16.0,
        wait_s=300.0,
    )

    assert is_open is answer.is_open
    assert f"{reported} of {needed} closed containers" in answer.reason
    assert is_open is ("--leave" not in answer.reason)


def test_a_node_that_was_dead_and_reported_counts_as_a_host() -> None:
    expected = ["dn0", "dn1", "dn2"]

    def at(*seen: str) -> SafeModeStatus:
        return judged(expected, seen, waited_s=300.0, wait_s=300.0)

    assert not at("dn0").is_open
    assert at("dn0", "dn3").is_open
    assert (
        "1 of 3 nodes that were online have reported, and 1 more, with" in at("dn0", "dn3").reason
    )


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
    """Without known nodes the whole time is waited for, otherwise the known nodes."""
    answer = judged(
        expected, seen, away=expected[7:], waited_s=waited_s, wait_s=1_200.0, is_cold=True
    )

    assert (is_open, True) == (answer.is_open, answer.is_cold)


def test_a_new_cluster_is_open() -> None:
    """No node is to be awaited and no data can be lost."""
    assert evaluate(
        [],
        ["dn1"],
        hosts_needed=0,
        containers=all_reported,
        percent=99,
        waited_s=0.0,
        wait_s=300.0,
    ).is_open


def test_reason_of_each_answer() -> None:
    four = ["a", "b", "c", "d"]
    online, known = "nodes that were online", "known nodes"
    leave = "suture scm safemode --leave ends it without them"

    def at(
        seen: str,
        waited_s: float,
        *,
        is_cold: bool = False,
        away: str = "",
        found: Callable[[], ReportedCount] = all_reported,
    ) -> SafeModeStatus:
        return evaluate(
            four if seen else [],
            seen,
            away=away,
            hosts_needed=2,
            containers=found,
            percent=99,
            waited_s=waited_s,
            wait_s=60.0,
            is_cold=is_cold,
        )

    assert SafeModeStatus(True, f"all 4 {online} have reported", (), False, 4) == at("dbcax", 1.0)
    assert SafeModeStatus(
        False,
        f"3 of 4 {online} have reported; at most 1 s more for the others",
        ("b",),
        False,
        4,
        1,
    ) == at("cad", 59.0)
    assert SafeModeStatus(
        False,
        f"1 of 4 {online} have reported, and a write needs 2; {leave}",
        ("a", "b", "c"),
        False,
        4,
        44,
    ) == at("d", 16.0, away="abc")
    assert SafeModeStatus(
        False,
        f"3 of 4 {online} have reported, with 7 of 8 closed containers, and 99 % must be; {leave}",
        ("b",),
        False,
        4,
    ) == at("cad", 60.0, found=lambda: ReportedCount(7, 8))
    assert SafeModeStatus(
        True,
        f"3 of 4 {known} have reported, with 100 of 100 closed containers; the others are away",
        ("b",),
        True,
        4,
    ) == at("cad", 60.0, is_cold=True)
    assert SafeModeStatus(
        False, "no node is known; 20 s more for those that come", (), True, 0, 20.0
    ) == at("", 40.0, is_cold=True)
    assert SafeModeStatus(True, f"all 0 {known} have reported", (), True) == at(
        "", 60.0, is_cold=True
    )


OPTIONS = ScmOptions()
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
    state = StateDatabase.open(tmp_path, map_bytes=MAP_BYTES)
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
        self.state = StateDatabase.open(path, map_bytes=MAP_BYTES, is_cold=is_cold)
        self.clock = FakeClock()
        clock = ScmClock(self.clock.now_ms, self.clock.monotonic_s)
        control = ControlPlane(
            self.state, clock=clock, options=OPTIONS, snapshots_path=path / "snapshots"
        )
        self.nodes, self.mode = control.nodes, control.safe_mode
        self._confirmed = control.reports.confirmed

    def look(self, confirmed: Collection[str]) -> SafeModeStatus:
        """Evaluate safe mode when these nodes have reported all their replicas."""
        self._confirmed.clear()
        self._confirmed.update(confirmed)
        return self.mode.reevaluate()


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
    def test_warm_start_waits_for_nodes_that_were_online(self, warm: Start) -> None:
        """The start does not wait for dead nodes, nor for those in maintenance or
        decommissioned.
        """
        before = warm.mode.is_on
        answer = warm.look(())

        assert (True, True) == (before, warm.mode.is_on)
        assert ("a", "b", "c") == answer.missing
        assert (False, 3, 300.0) == (answer.is_cold, answer.expected_count, answer.left_s)
        assert "0 of 3 nodes that were online have reported; at most 300 s more for the others" == (
            answer.reason
        )

    def test_warm_start_opens_when_the_last_node_has_reported(self, warm: Start) -> None:
        """One report of each node is enough, in any order. Other nodes do not count."""
        steps: list[tuple[str, ...]] = [("b",), ("d", "e", "f", "z"), ("c",), ("a",)]
        missing = [warm.look(step).missing for step in steps]

        assert [("a", "c"), ("a", "c"), ("a",), ()] == missing
        assert not warm.mode.is_on

    @pytest.mark.parametrize(
        ("seen", "is_open"),
        [
            (("a", "b"), True),
            (("a",), False),
            ((), False),
            (("a", "f"), True),  # f was dead
            (("a", "d", "e", "h", "z"), False),  # that may be switched off, or are not registered
        ],
    )
    def test_warm_start_opens_without_silent_nodes_when_they_are_stale(
        self, warm: Start, seen: tuple[str, ...], is_open: bool
    ) -> None:
        """Two hosts are enough for a write of three replicas."""
        warm.look(seen)
        warm.clock.advance_s(OPTIONS.stale_after_ms / 1000)
        early = warm.look(())
        warm.clock.advance_s(2**-8)
        late = warm.look(())

        assert (False, is_open) == (early.is_open, late.is_open)

    def test_warm_start_waits_for_a_calling_node_until_the_deadline(self, warm: Start) -> None:
        warm.look(("a", "b"))
        warm.clock.advance_s(299)
        warm.nodes.record_heartbeat("c", (), ())
        early = warm.look(())
        warm.clock.advance_s(1)

        assert (False, True) == (early.is_open, warm.look(()).is_open)

    @pytest.mark.parametrize("op_state", [OpState.IN_MAINTENANCE, OpState.DECOMMISSIONED, None])
    def test_a_node_that_is_taken_out_meanwhile_is_not_waited_for(
        self, warm: Start, op_state: OpState | None
    ) -> None:
        """None: it is removed."""
        before = warm.look(("a", "b"))
        node = warm.state.nodes.get("c")
        assert node is not None
        with warm.state.change() as change:
            if op_state is None:
                change.remove(warm.state.nodes, "c")
            else:
                change.put(warm.state.nodes, replace(node, op_state=op_state))

        assert ((False, 3), (True, 2)) == (
            (before.is_open, before.expected_count),
            (warm.look(()).is_open, warm.look(()).expected_count),
        )

    def test_once_open_it_stays_open(self, warm: Start) -> None:
        """Safe mode stays open, and nothing is counted any more."""
        opened = warm.look(("a", "b", "c"))
        warm.clock.advance_s(1)

        assert opened is warm.look(())
        assert opened is warm.mode.leave()
        assert "all 3 nodes that were online have reported" == opened.reason

    def test_a_person_can_open_it(self, warm: Start) -> None:
        """The missing nodes can still be listed, and a later check does not close it."""
        warm.look(("b",))
        opened = warm.mode.leave()

        assert SafeModeStatus(True, "opened by an operator", ("a", "c"), False, 3, 0.0) == opened
        assert not warm.mode.is_on
        assert opened is warm.look(())

    def test_a_person_can_open_it_before_the_first_look(self, warm: Start) -> None:
        """Nothing is known yet, and the missing nodes were not listed."""
        assert SafeModeStatus(True, "opened by an operator", (), False, 0, 0.0) == warm.mode.leave()


class TestColdStart:
    def test_cold_start_waits_longer_and_for_dead_nodes(self, cold: Start) -> None:
        """Dead nodes may have come back while the SCM was down."""
        answer = cold.look(("a",))

        assert ("b", "c", "f", "g") == answer.missing
        assert (True, 5, 1_200.0) == (answer.is_cold, answer.expected_count, answer.left_s)

    def test_silent_nodes_are_let_go_after_its_longer_time(self, cold: Start) -> None:
        """After 1,200 s and not a moment before: nothing is known of what they hold."""
        cold.look(("a", "b", "f"))
        seen = []
        for seconds in (300, 900 - 2**-8, 2**-8):
            cold.clock.advance_s(seconds)
            seen.append(cold.look(()).is_open)

        assert [False, False, True] == seen


def opens_with(
    path: Path,
    seen: str,
    *replicas: tuple[int, str],
    is_cold: bool = False,
    scheme: str = "",
    container_state: ContainerState = ContainerState.CLOSED,
) -> bool:
    """Return whether a start opens after all its time, with containers 1 to 3 in a state.

    `replicas` are on datanodes before the start; those on `seen` are reported after it.
    """
    state = StateDatabase.open(path, map_bytes=MAP_BYTES)
    with state.change() as change:
        for number in (1, 2, 3):
            made = replace(container(container_id=number, state=container_state), scheme=scheme)
            change.put(state.containers, made)
            block = KeyBlock(number, number, 1, 5)
            change.put(state.keys, Key(f"key{number}", 5, 1, (block,)))
        for place, (number, node) in enumerate(replicas):
            index = place + 1 if scheme else 0
            change.put(state.replicas, replica(node, container_id=number, replica_index=index))
    state.close()
    start = Start(path, is_cold=is_cold)
    if is_cold:
        with start.state.change() as change:
            for number, node in replicas:
                if node in seen:
                    change.put(start.state.replicas, replica(node, container_id=number))
    start.clock.advance_s(1_200)
    answer = start.look(seen)
    start.state.close()
    return answer.is_open


class TestContainers:
    """Nodes a, b and c were online; f was not."""

    @pytest.mark.parametrize(
        ("replicas", "is_open"),
        [
            ([(1, "a"), (2, "b"), (3, "a"), (3, "c")], True),
            ([(1, "a"), (2, "b"), (3, "c")], False),
            ([(1, "a"), (2, "b"), (3, "f")], True),  # it could not be read before the start either
            ([(1, "a"), (2, "b")], True),
            ([], True),
        ],
    )
    def test_containers_readable_before_must_be_reported(
        self, path: Path, replicas: list[tuple[int, str]], is_open: bool
    ) -> None:
        assert is_open is opens_with(path, "ab", *replicas)

    def test_a_cold_start_must_find_each_container(self, path: Path) -> None:
        assert not opens_with(path, "ab", (1, "a"), (2, "b"), is_cold=True)

    def test_a_cold_start_opens_with_all_containers(self, path: Path) -> None:
        assert opens_with(path, "ab", (1, "a"), (2, "b"), (3, "a"), is_cold=True)

    @pytest.mark.parametrize(
        ("nodes", "is_open"), [("abf", True), ("cbaf", True), ("abc", False), ("cfb", False)]
    )
    def test_shards_reported_must_be_enough_to_read(
        self, path: Path, nodes: str, is_open: bool
    ) -> None:
        """Three of five are needed. Container 1 has one shard on each of `nodes`."""
        replicas = [(1, node) for node in nodes]

        assert is_open is opens_with(path, "abf", *replicas, scheme="rs-3-2-1024k")

    @pytest.mark.parametrize("state", [ContainerState.OPEN, ContainerState.DELETED])
    def test_containers_that_are_not_closed_are_not_waited_for(
        self, path: Path, state: ContainerState
    ) -> None:
        assert opens_with(path, "ab", (1, "c"), container_state=state)

    def test_a_damaged_replica_is_not_one_to_read_from(self, path: Path) -> None:
        state = StateDatabase.open(path, map_bytes=MAP_BYTES)
        with state.change() as change:
            bad = replica("a", container_id=1, state=ReplicaState.UNHEALTHY)
            change.put(state.replicas, bad)
        state.close()

        assert not opens_with(path, "ab", (1, "c"))
