"""What is remembered of nodes: racks, failed writes, changes of health; until one is removed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scm.state.entities import NodeHealthState
from tests.support.control.lone_nodes import Cluster, registration
from tests.support.heard import logged


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Yield nodes on a state of their own."""
    with Cluster.opened(tmp_path) as made:
        yield made


class TestForget:
    def test_forgotten_node_has_no_remaining_notes(self, cluster: Cluster) -> None:
        """Only the row is left, which the caller removes."""
        cluster.join("dn1")
        cluster.silence(NodeHealthState.DEAD)
        cluster.note()
        cluster.nodes.write_failed("dn1")
        was_dead = set(cluster.nodes.dead)
        cluster.nodes.forget("dn1")

        nodes = cluster.nodes
        assert ({"dn1"}, set()) == (was_dead, nodes.dead)
        assert not nodes.is_current("dn1", 1)
        assert not nodes.has_failed_lately("dn1")
        assert nodes.liveness("dn1") is None
        assert ["dn1"] == nodes.nodes_with_changed_health()

    def test_a_node_nobody_heard_of_can_be_forgotten(self, cluster: Cluster) -> None:
        """The node may have failed to register. Other nodes are not affected."""
        cluster.join("dn1")
        cluster.nodes.write_failed("dn1")
        cluster.nodes.forget("dn9")

        assert cluster.nodes.is_current("dn1", 1)
        assert cluster.nodes.has_failed_lately("dn1")


class TestRacks:
    def test_racks_are_counted_once_and_with_nodes_only(self, cluster: Cluster) -> None:
        """Two nodes of one rack are one rack; without nodes there is none."""
        before = cluster.nodes.rack_count()
        counts = []
        for datanode_id, rack in [("a", "/r1"), ("b", "/r1"), ("c", "/r2")]:
            cluster.register(registration(datanode_id, rack=rack))
            counts.append(cluster.nodes.rack_count())

        assert (0, [1, 1, 2]) == (before, counts)

    def test_a_rack_of_dead_nodes_counts_from_note_to_call(self, cluster: Cluster) -> None:
        """Looked at once in a while; who comes back is counted at once."""
        cluster.register(registration("a", rack="/r1"))
        cluster.register(registration("b", rack="/r2"))
        counts = [cluster.nodes.rack_count()]
        cluster.silence(NodeHealthState.DEAD)
        cluster.nodes.record_heartbeat("a", (), ())
        counts.append(cluster.nodes.rack_count())  # b is dead
        cluster.nodes.record_heartbeat("b", (), ())
        counts.append(cluster.nodes.rack_count())
        cluster.silence(NodeHealthState.DEAD)
        counts.append(cluster.nodes.rack_count())  # nobody has looked
        cluster.note()
        counts.append(cluster.nodes.rack_count())

        assert [2, 1, 2, 2, 0] == counts

    def test_a_stale_nodes_rack_counts(self, cluster: Cluster) -> None:
        """The node is still there."""
        cluster.join("dn1")
        cluster.silence(NodeHealthState.STALE)

        assert 1 == cluster.nodes.rack_count()

    def test_a_removed_nodes_rack_does_not_count(self, cluster: Cluster) -> None:
        """Neither the rack of a removed node nor a rack that a node has left counts."""
        cluster.register(registration("a", rack="/r1"))
        cluster.register(registration("b", rack="/r2"))
        counts = [cluster.nodes.rack_count()]
        with cluster.state.change() as change:
            change.remove(cluster.state.nodes, "b")
        cluster.nodes.forget("b")
        counts.append(cluster.nodes.rack_count())

        assert [2, 1] == counts


class TestFailedWrites:
    @pytest.mark.parametrize(
        ("failures", "pause_s"),
        [(1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0), (7, 64.0), (8, 64.0)],
    )
    def test_the_pause_doubles_with_every_failure(
        self, cluster: Cluster, failures: int, pause_s: float
    ) -> None:
        """Two heartbeats of 500 ms at first, 64 times that at most; it ends on the dot."""
        cluster.join("dn1")
        for _ in range(failures):
            cluster.nodes.write_failed("dn1")
            cluster.clock.advance_s(0.25)
        cluster.clock.advance_s(pause_s - 0.25 - 2**-12)
        before = cluster.nodes.is_avoided("dn1")
        cluster.clock.advance_s(2**-12)

        assert (True, False) == (before, cluster.nodes.is_avoided("dn1"))

    def test_node_that_never_failed_or_stored_since_is_not_avoided(self, cluster: Cluster) -> None:
        """After a success, the pauses begin with the shortest again."""
        cluster.join("dn1")
        nodes = cluster.nodes
        seen = [nodes.is_avoided("dn1")]
        nodes.write_succeeded("dn1")
        nodes.write_failed("dn1")
        nodes.write_failed("dn1")
        seen.append(nodes.is_avoided("dn1"))
        nodes.write_succeeded("dn1")
        seen.append(nodes.is_avoided("dn1"))
        nodes.write_failed("dn1")
        cluster.clock.advance_s(1)
        seen.append(nodes.is_avoided("dn1"))

        assert [False, True, False, False] == seen

    def test_a_registration_ends_the_pause_of_this_node_only(self, cluster: Cluster) -> None:
        """The registration is probably that of another process. The recent failure is still
        recorded.
        """
        cluster.join("dn1", "dn2")
        cluster.nodes.write_failed("dn1")
        cluster.nodes.write_failed("dn2")
        cluster.join("dn1")

        nodes = cluster.nodes
        assert [False, True] == [nodes.is_avoided(node) for node in ("dn1", "dn2")]
        assert nodes.has_failed_lately("dn1")

    def test_lately_is_the_time_that_makes_a_node_stale(self, cluster: Cluster) -> None:
        """From the last failure on, and exclusive."""
        cluster.join("dn1")
        cluster.nodes.write_failed("dn1")
        cluster.clock.advance_s(9)
        cluster.nodes.write_failed("dn1")
        seen = []
        for seconds in (0, 10 - 2**-8, 2**-8):
            cluster.clock.advance_s(seconds)
            seen.append(cluster.nodes.has_failed_lately("dn1"))

        assert [True, True, False] == seen


class TestNoteHealth:
    def test_every_change_is_noted_once(self, cluster: Cluster) -> None:
        """Joined, silent, silent for long, back; in between nothing is new."""
        cluster.join("dn1")
        seen = []
        for health in (NodeHealthState.HEALTHY, NodeHealthState.STALE, NodeHealthState.DEAD):
            cluster.silence(health)
            seen.append(
                (cluster.nodes.nodes_with_changed_health(), cluster.note(), set(cluster.nodes.dead))
            )
            assert ([], []) == (cluster.nodes.nodes_with_changed_health(), cluster.note())
        cluster.nodes.record_heartbeat("dn1", (), ())
        is_dead = set(cluster.nodes.dead)
        seen.append((cluster.nodes.nodes_with_changed_health(), cluster.note(), is_dead))

        new = ["dn1"]
        assert [(new, new, set()), (new, new, set()), (new, new, {"dn1"}), (new, new, set())] == (
            seen
        )

    def test_only_those_that_changed_are_noted(self, cluster: Cluster) -> None:
        """One of three nodes has stayed healthy."""
        cluster.join("a", "b", "c")
        cluster.note()
        cluster.silence(NodeHealthState.STALE)
        cluster.nodes.record_heartbeat("a", (), ())

        assert (["b", "c"], ["b", "c"]) == (
            cluster.nodes.nodes_with_changed_health(),
            cluster.note(),
        )

    def test_health_of_many_nodes_is_checked_twice_at_most(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A hundred nodes die at once, and each call takes one."""
        names = [f"dn{number:02}" for number in range(100)]
        cluster.join(*names)
        cluster.note()
        cluster.silence(NodeHealthState.DEAD)
        asked: list[str] = []
        health = cluster.nodes.health

        def counted(node: str) -> NodeHealthState:
            asked.append(node)
            return health(node)

        monkeypatch.setattr(cluster.nodes, "health", counted)

        taken: list[str] = []
        while found := cluster.note(count_max=1):
            taken += found

        assert names == taken
        assert len(asked) <= 2 * len(names)

    def test_after_a_restart_only_what_is_new_is_a_change(self, cluster: Cluster) -> None:
        """A node that has not called yet is no change. One that has called, or missed its time,
        is.
        """
        cluster.join("calls", "silent")
        cluster.restart()
        first = cluster.note()
        cluster.nodes.record_heartbeat("calls", (), ())
        second = cluster.note()
        cluster.silence(NodeHealthState.DEAD)
        cluster.nodes.record_heartbeat("calls", (), ())
        third = cluster.note()

        assert ([], ["calls"], ["silent"]) == (first, second, third)
        assert {"silent"} == cluster.nodes.dead

    def test_dead_at_the_first_look_is_a_change(self, cluster: Cluster) -> None:
        """No check happened before its time was over."""
        cluster.join("dn1")
        cluster.restart()
        cluster.silence(NodeHealthState.DEAD)

        assert (["dn1"], {"dn1"}) == (cluster.note(), cluster.nodes.dead)

    def test_a_dead_node_seen_stale_next_is_not_dead(self, cluster: Cluster) -> None:
        """The node called and fell silent again between two checks, and was never seen online."""
        cluster.join("dn1")
        seen = []
        for health, calls in [
            (NodeHealthState.HEALTHY, False),
            (NodeHealthState.STALE, False),
            (NodeHealthState.DEAD, False),
            (NodeHealthState.STALE, True),
            (NodeHealthState.HEALTHY, True),
        ]:
            if calls:
                cluster.nodes.record_heartbeat("dn1", (), ())
            cluster.silence(health)
            cluster.note()
            seen.append((cluster.row().was_online, "dn1" in cluster.nodes.dead))

        assert [(True, False), (True, False), (False, True), (False, False), (True, False)] == seen

    def test_the_row_keeps_when_a_node_was_heard_last(self, cluster: Cluster) -> None:
        """A restart then shows a time that is about right."""
        cluster.join("dn1")
        cluster.note()
        cluster.clock.advance_s(4)
        cluster.nodes.record_heartbeat("dn1", (), ())
        cluster.silence(NodeHealthState.STALE)
        cluster.note()

        assert 1_004_000 == cluster.row().last_heartbeat_at_ms

    def test_the_log_warns_of_everything_but_good_news(self, cluster: Cluster) -> None:
        """There is one line for each change."""
        cluster.join("dn1")
        with logged() as said:
            for health in (NodeHealthState.HEALTHY, NodeHealthState.STALE, NodeHealthState.DEAD):
                cluster.silence(health)
                cluster.note()

        line = {"event": "node_health_changed", "datanode_id": "dn1"}
        assert [
            line | {"health": NodeHealthState.HEALTHY, "log_level": "info"},
            line | {"health": NodeHealthState.STALE, "log_level": "warning"},
            line | {"health": NodeHealthState.DEAD, "log_level": "warning"},
        ] == said


class TestNotesInVain:
    def test_note_of_a_failed_change_is_repeated(self, cluster: Cluster) -> None:
        """All consequences of a death are in that change. If it counted as noted, the commands
        and containers of a dead node would wait until the node returns.
        """
        cluster.join("dn1", "dn2")
        cluster.note()
        cluster.silence(NodeHealthState.DEAD)
        cluster.nodes.record_heartbeat("dn2", (), ())
        cluster.note_in_vain()
        dead, due = set(cluster.nodes.dead), cluster.nodes.nodes_with_changed_health()

        assert (set(), ["dn1"]) == (dead, due)
        assert ["dn1"] == cluster.note()
        assert {"dn1"} == cluster.nodes.dead

    def test_the_next_call_begins_with_all_of_them(self, cluster: Cluster) -> None:
        """A failed note is repeated before the nodes behind it."""
        cluster.join("dn1", "dn2")
        cluster.note()
        cluster.silence(NodeHealthState.DEAD)
        cluster.nodes.record_heartbeat("dn2", (), ())
        cluster.note_in_vain(count_max=1)

        assert ["dn1"] == cluster.note(count_max=1)

    def test_return_of_a_node_is_noted_again_after_a_failed_change(self, cluster: Cluster) -> None:
        """The node was seen dead and has called since, so it is alive, and its return is yet to
        be noted.
        """
        cluster.join("dn1")
        cluster.silence(NodeHealthState.DEAD)
        cluster.note()
        cluster.nodes.record_heartbeat("dn1", (), ())
        cluster.note_in_vain()

        assert (set(), ["dn1"]) == (cluster.nodes.dead, cluster.nodes.nodes_with_changed_health())
        assert ["dn1"] == cluster.note()

    def test_a_first_note_that_failed_was_none(self, cluster: Cluster) -> None:
        """No node was noted before, and none is after."""
        cluster.join("dn1")
        cluster.note_in_vain()

        assert ["dn1"] == cluster.nodes.nodes_with_changed_health()

    def test_failed_note_logs_no_health_change(self, cluster: Cluster) -> None:
        """The next note logs it, once."""
        cluster.join("dn1")
        in_vain = cluster.note_in_vain()
        with logged() as logs:
            cluster.note()

        assert ["state_write_failed"] == in_vain
        assert ["node_health_changed"] == [line["event"] for line in logs]
