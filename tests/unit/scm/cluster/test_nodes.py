"""Health by the age of the last heartbeat, who may join, and who can be relied on."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from merkle.replica import LAYOUT_VERSION
from scm.cluster.nodes import Registration, health_of
from scm.state.entities import Liveness, Node, NodeHealthState, OpState
from suture.errors import Code, RefusedError
from tests.support.control.lone_nodes import OPTIONS, Cluster, registration
from tests.support.control.scm_world import ScmWorld, confirm, replica, volume
from tests.support.heard import logged


class BrokenOffError(Exception):
    """Stands for whatever goes wrong before a change is durable."""


def register_in_vain(cluster: Cluster, datanode_id: str) -> None:
    """Register a datanode in a change that comes to nothing."""
    with cluster.state.change() as change:
        cluster.nodes.register(change, registration(datanode_id))
        raise BrokenOffError


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Yield nodes on a state of their own."""
    with Cluster.opened(tmp_path) as made:
        yield made


class TestHealth:
    @pytest.mark.parametrize(
        ("age_s", "has_called", "expected"),
        [
            (0.0, True, NodeHealthState.HEALTHY),
            (10.0, True, NodeHealthState.HEALTHY),
            (10.1, True, NodeHealthState.STALE),
            (60.0, True, NodeHealthState.STALE),
            (60.1, True, NodeHealthState.DEAD),
            (0.0, False, NodeHealthState.STALE),
            (60.0, False, NodeHealthState.STALE),
            (60.1, False, NodeHealthState.DEAD),
        ],
    )
    def test_age_decides(self, age_s: float, has_called: bool, expected: NodeHealthState) -> None:
        """The limits are exclusive, and one that never called is never HEALTHY."""
        assert expected is health_of(age_s, has_called=has_called, options=OPTIONS)

    def test_a_silent_node_becomes_stale_then_dead_and_comes_back(self, tmp_path: Path) -> None:
        """One heartbeat makes a dead node healthy again."""
        with ScmWorld(tmp_path, OPTIONS).running() as world:
            world.join("dn1")
            seen = []
            for seconds in (0, 11, 50):
                world.clock.advance_s(seconds)
                seen.append(world.control.queries.nodes()[0].health)
            world.keep_alive("dn1")
            seen.append(world.control.queries.nodes()[0].health)

        assert [
            NodeHealthState.HEALTHY,
            NodeHealthState.STALE,
            NodeHealthState.DEAD,
            NodeHealthState.HEALTHY,
        ] == seen

    def test_after_a_restart_nobody_is_healthy_or_dead_before_its_time(
        self, tmp_path: Path
    ) -> None:
        """A restarted SCM neither trusts a silent node nor declares it dead."""
        with ScmWorld(tmp_path, OPTIONS).running() as world:
            world.join("dn1")
            world.clock.advance_s(1_000)
            world.restart()
            first = world.control.queries.nodes()[0].health
            world.clock.advance_s(61)
            later = world.control.queries.nodes()[0].health

        assert (NodeHealthState.STALE, NodeHealthState.DEAD) == (first, later)


def at_one_address(datanode_id: str) -> Registration:
    """Return the registration of a datanode that advertises the address of others, too."""
    return Registration(datanode_id, "host:1", "/r", "0.1", "", 1, (volume(),))


class TestRegister:
    def test_another_clusters_datanode_is_refused(self, tmp_path: Path) -> None:
        """Its containers have the same ids as ours and are not ours."""
        with ScmWorld(tmp_path).running() as world:
            with pytest.raises(RefusedError) as caught:
                world.control.datanodes.register(
                    Registration("dn1", "dn1:1", "/r", "0.1", "CID-other", 1, (volume(),))
                )

            assert caught.value.code is Code.WRONG_CLUSTER
            assert [] == world.control.queries.nodes()

    def test_address_of_another_datanode_that_calls_is_refused(self, tmp_path: Path) -> None:
        """A write for one would go to the other, and be counted as a replica of each."""
        with ScmWorld(tmp_path, OPTIONS).running() as world:
            for _ in range(2):  # the one that has the address may register again
                world.control.datanodes.register(at_one_address("dn1"))
            with pytest.raises(RefusedError, match="datanode dn1 uses the same address") as caught:
                world.control.datanodes.register(at_one_address("dn2"))

            assert caught.value.code is Code.WRONG_DATANODE
            assert ["dn1"] == [view.node.datanode_id for view in world.control.queries.nodes()]
            assert "host:1" in " ".join(world.control.refused_parts.lines())

    @pytest.mark.parametrize("is_restarted", [False, True])
    def test_address_of_a_silent_datanode_is_free(self, tmp_path: Path, is_restarted: bool) -> None:
        """A host that was installed again has a new id; after a restart the first caller has it."""
        with ScmWorld(tmp_path, OPTIONS).running() as world:
            world.control.datanodes.register(at_one_address("dn1"))
            if is_restarted:
                world.restart()
            else:
                world.clock.advance_s(OPTIONS.stale_after_ms / 1000 + 1)
            world.control.datanodes.register(at_one_address("dn2"))
            with pytest.raises(RefusedError, match="datanode dn2 uses the same address"):
                world.control.datanodes.register(at_one_address("dn1"))

            names = {view.node.datanode_id for view in world.control.queries.nodes()}

        assert {"dn1", "dn2"} == names

    def test_returning_datanode_with_replicas_gets_its_address_back(self, tmp_path: Path) -> None:
        """Another datanode took the address meanwhile, and has no replicas."""
        with ScmWorld(tmp_path, OPTIONS).running() as world:
            world.control.datanodes.register(at_one_address("dn1"))
            world.join("dn2", "dn3")
            confirm(world, "dn1", "dn2", "dn3")
            world.made_closed()
            world.clock.advance_s(OPTIONS.stale_after_ms / 1000 + 1)
            world.control.datanodes.register(at_one_address("dn4"))
            world.control.datanodes.register(at_one_address("dn1"))
            with pytest.raises(RefusedError, match="datanode dn1 uses the same address"):
                world.control.datanodes.register(at_one_address("dn4"))

            health = {view.node.datanode_id: view.health for view in world.control.queries.nodes()}

        assert NodeHealthState.HEALTHY is health["dn1"]
        assert NodeHealthState.HEALTHY is not health["dn4"]

    def test_an_unknown_or_older_process_must_register(self, tmp_path: Path) -> None:
        """Reports of a process that did not register last are ignored."""
        with ScmWorld(tmp_path).running() as world:
            unknown = world.beat("dn1")
            world.join("dn1", boot_id=2)
            older = world.beat("dn1", boot_id=1)
            current = world.beat("dn1", boot_id=2)

        assert [False, False, True] == [unknown.is_known, older.is_known, current.is_known]

    def test_with_a_restarted_scm_everybody_registers_again(self, tmp_path: Path) -> None:
        """The SCM knows the process, and not its replicas. A registration brings the full
        report.
        """
        with ScmWorld(tmp_path).running() as world:
            world.join("dn1", boot_id=2)
            world.restart()
            before = world.beat("dn1", boot_id=2)
            world.join("dn1", boot_id=2)
            after = world.beat("dn1", boot_id=2)

        assert [False, True] == [before.is_known, after.is_known]

    @pytest.mark.parametrize(
        ("names_it", "is_ours", "is_refused"),
        [(False, False, False), (True, True, False), (True, False, True)],
    )
    def test_only_who_names_another_cluster_is_refused(
        self, cluster: Cluster, names_it: bool, is_ours: bool, is_refused: bool
    ) -> None:
        """A node that joined none yet names none."""
        named = (cluster.state.cluster_id if is_ours else "CID-other") if names_it else ""
        made = replace(registration("dn1"), cluster_id=named)

        if is_refused:
            with pytest.raises(RefusedError, match="it belongs to cluster CID-other"):
                cluster.register(made)
        else:
            cluster.register(made)

        assert is_refused is (cluster.state.nodes.get("dn1") is None)

    def test_a_new_node_is_recorded_as_it_says(self, cluster: Cluster) -> None:
        """Without a word about it, it is in service and without expiry."""
        is_another = cluster.register(registration("dn1", boot_id=7))

        expected = Node(
            datanode_id="dn1",
            address="dn1:1",
            rack="/r1",
            version="0.1",
            boot_id=7,
            op_state=OpState.IN_SERVICE,
            op_expiry_ms=0,
            registered_at_ms=1_000_000,
            last_heartbeat_at_ms=1_000_000,
            was_online=True,
            layout_version=LAYOUT_VERSION,
        )
        assert (True, expected) == (is_another, cluster.row())
        assert Liveness(100.0, 1_000_000, (volume(),), ()) == cluster.nodes.liveness("dn1")

    def test_operational_state_of_a_new_node_is_adopted(self, cluster: Cluster) -> None:
        """The SCM lost the state and the node still has it: a node in maintenance stays in it."""
        kept = OpState.IN_MAINTENANCE
        cluster.register(replace(registration("dn1"), op_state=kept, op_expiry_ms=9))

        assert (kept, 9) == (cluster.row().op_state, cluster.row().op_expiry_ms)

    def test_operational_state_of_a_known_node_is_kept(self, cluster: Cluster) -> None:
        """The operator's state and the first registration stay, and everything else is as the
        node reports it.
        """
        cluster.register(replace(registration("dn1"), op_state=OpState.DECOMMISSIONING))
        cluster.set_row(lambda node: replace(node, op_expiry_ms=5))
        cluster.clock.advance_s(3)
        told = replace(registration("dn1", boot_id=2, rack="/r2"), op_state=OpState.IN_SERVICE)
        is_another = cluster.register(replace(told, op_expiry_ms=8, version="0.2", address="x:2"))

        row = cluster.row()
        assert is_another
        assert (OpState.DECOMMISSIONING, 5, 1_000_000) == (
            row.op_state,
            row.op_expiry_ms,
            row.registered_at_ms,
        )
        assert ("x:2", "/r2", "0.2", 2, 1_003_000) == (
            row.address,
            row.rack,
            row.version,
            row.boot_id,
            row.last_heartbeat_at_ms,
        )

    def test_the_same_process_again_is_no_other(self, cluster: Cluster) -> None:
        """The answer decides whether commands sent to it are lost."""
        answers = [cluster.register(registration("dn1", boot_id=boot)) for boot in (1, 1, 2, 2)]

        assert [True, False, True, False] == answers

    def test_a_registration_that_came_to_nothing_counts_for_nothing(self, cluster: Cluster) -> None:
        """Its row is gone, and so is its right to call; an earlier registration stands."""
        cluster.join("old")
        for datanode_id in ("new", "old"):
            with pytest.raises(BrokenOffError):
                register_in_vain(cluster, datanode_id)
        with cluster.state.change() as change:  # the row alone, as after a restart
            change.put(cluster.state.nodes, replace(cluster.row("old"), datanode_id="new"))

        assert cluster.nodes.is_current("old", 1)
        assert not cluster.nodes.is_current("new", 1)

    def test_current_is_who_registered_last_and_with_us(self, cluster: Cluster) -> None:
        """An unknown node, an older process and one from before the start are not current."""
        cluster.register(registration("dn1", boot_id=4))
        known = [cluster.nodes.is_current("dn1", boot) for boot in (3, 4, 5)]
        unknown = cluster.nodes.is_current("dn2", 4)
        cluster.restart()
        later = cluster.nodes.is_current("dn1", 4)

        assert ([False, True, False], False, False) == (known, unknown, later)

    def test_the_log_says_who_came(self, cluster: Cluster) -> None:
        """New or not; and with a warning who is read-only, by both layouts."""
        layout = LAYOUT_VERSION + 1
        with logged() as said:
            cluster.join("dn1")
            cluster.register(replace(registration("dn1"), layout_version=layout))

        came = {"event": "node_registered", "log_level": "info", "datanode_id": "dn1"}
        came |= {"address": "dn1:1", "rack": "/r1"}
        warned = {"event": "node_read_only", "log_level": "warning", "datanode_id": "dn1"}
        warned |= {"layout_version": layout, "layout_version_here": LAYOUT_VERSION}
        assert [came | {"is_new": True}, came | {"is_new": False}, warned] == said


class TestStandings:
    """What a node may be used for, by its health, its state and its layout."""

    @pytest.mark.parametrize(
        ("op_state", "layout", "health", "takes_replicas", "takes_commands", "is_gone"),
        [
            (OpState.IN_SERVICE, LAYOUT_VERSION, NodeHealthState.HEALTHY, True, True, False),
            (OpState.IN_SERVICE, LAYOUT_VERSION, NodeHealthState.STALE, False, True, False),
            (OpState.IN_SERVICE, LAYOUT_VERSION, NodeHealthState.DEAD, False, True, True),
            (OpState.IN_SERVICE, LAYOUT_VERSION + 1, NodeHealthState.HEALTHY, False, False, False),
            (OpState.IN_SERVICE, LAYOUT_VERSION + 1, NodeHealthState.DEAD, False, False, True),
            (OpState.DECOMMISSIONING, LAYOUT_VERSION, NodeHealthState.HEALTHY, False, True, False),
            (OpState.DECOMMISSIONING, LAYOUT_VERSION, NodeHealthState.DEAD, False, True, True),
            (OpState.ENTERING_MAINTENANCE, LAYOUT_VERSION, NodeHealthState.DEAD, False, True, True),
            (OpState.IN_MAINTENANCE, LAYOUT_VERSION, NodeHealthState.HEALTHY, False, True, False),
            (OpState.IN_MAINTENANCE, LAYOUT_VERSION, NodeHealthState.DEAD, False, True, False),
        ],
    )
    def test_standing(
        self,
        cluster: Cluster,
        op_state: OpState,
        layout: int,
        health: NodeHealthState,
        takes_replicas: bool,
        takes_commands: bool,
        is_gone: bool,
    ) -> None:
        """Only a healthy node in service takes replicas. A node in maintenance is expected back."""
        cluster.join("dn1")
        cluster.set_row(lambda node: replace(node, op_state=op_state, layout_version=layout))
        cluster.silence(health)

        nodes = cluster.nodes
        assert health is nodes.health("dn1")
        assert [(cluster.row(), health)] == nodes.health_of(["dn1"])
        assert (health is NodeHealthState.HEALTHY) is nodes.is_reachable("dn1")
        assert takes_replicas is nodes.takes_replicas("dn1")
        assert takes_commands is nodes.takes_commands("dn1")
        assert is_gone is nodes.is_gone("dn1")

    def test_a_node_that_was_not_heard_since_the_start(self, cluster: Cluster) -> None:
        """Those who judge many at once judge it as who judges one."""
        cluster.join("dn1")
        cluster.restart()
        for seconds, health in ((0, NodeHealthState.STALE), (61, NodeHealthState.DEAD)):
            cluster.clock.advance_s(seconds)

            assert [(cluster.row(), health)] == cluster.nodes.health_of(["dn1"])
            assert health is cluster.nodes.health("dn1")

    def test_a_node_that_never_registered(self, cluster: Cluster) -> None:
        """The node is dead and gone, and on no rack. No rule forbids commands for it."""
        nodes = cluster.nodes

        assert (NodeHealthState.DEAD, True) == (nodes.health("dn9"), nodes.is_gone("dn9"))
        assert [(None, NodeHealthState.DEAD)] == nodes.health_of(["dn9"])
        assert (False, False) == (nodes.is_reachable("dn9"), nodes.takes_replicas("dn9"))
        assert (True, "") == (nodes.takes_commands("dn9"), nodes.rack("dn9"))
        assert (None, {}, 0.0) == (
            nodes.liveness("dn9"),
            nodes.reported_queues("dn9"),
            nodes.last_heartbeat_at_s("dn9"),
        )
        assert (False, False) == (nodes.is_avoided("dn9"), nodes.has_failed_lately("dn9"))

    def test_a_node_that_was_removed_is_as_one_that_never_was(self, cluster: Cluster) -> None:
        """The removed node is unknown even if writers had failed on it."""
        cluster.join("dn9")
        cluster.nodes.write_failed("dn9")

        cluster.nodes.forget("dn9")

        nodes = cluster.nodes
        assert (False, False) == (nodes.is_avoided("dn9"), nodes.has_failed_lately("dn9"))

    def test_only_dead_nodes_replicas_are_left_out(self, cluster: Cluster) -> None:
        """A stale node's word still holds."""
        cluster.join("dead", "stale")
        cluster.silence(NodeHealthState.DEAD)
        cluster.nodes.record_heartbeat("stale", (), ())
        cluster.silence(NodeHealthState.STALE)
        cluster.join("well")
        replicas = [replica(node) for node in ("well", "dead", "stale", "unknown")]

        assert (replicas[0], replicas[2]) == cluster.nodes.live_replicas(replicas)

    def test_heartbeat_replaces_the_previous_liveness(self, cluster: Cluster) -> None:
        """Volumes and queues are those of the last call."""
        cluster.join("dn1")
        cluster.clock.advance_s(2)
        said = volume(capacity_bytes=5, available_bytes=4)
        cluster.nodes.record_heartbeat("dn1", iter([said]), iter([("close", 3), ("delete", 1)]))

        nodes = cluster.nodes
        assert Liveness(102.0, 1_002_000, (said,), (("close", 3), ("delete", 1))) == (
            nodes.liveness("dn1")
        )
        assert {"close": 3, "delete": 1} == nodes.reported_queues("dn1")
        assert (102.0, "/r1") == (nodes.last_heartbeat_at_s("dn1"), nodes.rack("dn1"))
        assert (1_002_000, 1_000_000) == (
            nodes.heartbeat_at_ms(cluster.row()),
            cluster.row().last_heartbeat_at_ms,
        )

    def test_before_the_first_call_the_row_says_when_a_node_was_heard(
        self, cluster: Cluster
    ) -> None:
        """After a restart there is nothing better."""
        cluster.join("dn1")
        cluster.clock.advance_s(5)
        cluster.restart()

        assert 1_000_000 == cluster.nodes.heartbeat_at_ms(cluster.row())

    def test_a_node_not_heard_since_the_start_has_its_full_time(self, cluster: Cluster) -> None:
        """The time counts from the start of the SCM: after 60 s the node is stale, and a moment
        later dead.
        """
        cluster.join("dn1")
        cluster.clock.advance_s(500)
        cluster.restart()
        seen = []
        for seconds in (0, 60, 0.5):
            cluster.clock.advance_s(seconds)
            seen.append(cluster.nodes.health("dn1"))

        assert [NodeHealthState.STALE, NodeHealthState.STALE, NodeHealthState.DEAD] == seen
