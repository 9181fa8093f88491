"""What is ordered deleted is let go when its turn comes: the judge and the guards say the same."""

from dataclasses import replace
from pathlib import Path

from merkle.replica import ReplicaState
from scm.state.entities import ASKED, CommandKind, Container, ContainerState, Hold, OpState, Replica
from tests.support.control.obeying_nodes import OPTIONS, Cluster, cluster
from tests.support.control.scm_world import ScmWorld, container, replica
from tests.support.heard import logged

CLOSED, QUASI, BAD = ReplicaState.CLOSED, ReplicaState.QUASI_CLOSED, ReplicaState.UNHEALTHY


def of_origin(origin: str, *held: Replica) -> list[Replica]:
    """Return replicas of writes that one datanode took."""
    return [replace(one, origin_datanode_id=origin) for one in held]


def shard(node: str, index: int, state: ReplicaState = CLOSED, *, bcsid: int = 5) -> Replica:
    """Build a shard; those of one index hold the same."""
    return replica(node, state, replica_index=index, root=100 + index, bcsid=bcsid)


CODED = replace(container(replication_factor=5), scheme="rs-3-2-1024k")
STUCK = container(ContainerState.QUASI_CLOSED, sequence_id=6)


class TestQuasiClosed:
    def test_a_damaged_one_gives_way_where_its_origin_has_all_it_had(self, tmp_path: Path) -> None:
        """Three datanodes, and one of three replicas is damaged: it is replaced in its place."""
        held = of_origin(
            "dn1",
            replica("dn1", QUASI),
            replica("dn2", QUASI),
            replica("dn3", BAD, bcsid=4),
        )

        with cluster(tmp_path, STUCK, *held, node_count=3, acknowledged_bcsid=6) as made:
            made.pass_time(120)

            assert [] == made.refused()
            assert [QUASI] * 3 == [made.held[node].state for node in ("dn1", "dn2", "dn3")]

    def test_a_damaged_one_stays_where_nobody_else_has_its_origin(self, tmp_path: Path) -> None:
        """Its blocks may be all that is left of its origin, so no delete is tried."""
        held = of_origin("dn1", replica("dn1", QUASI), replica("dn2", QUASI))
        alone = of_origin("dn3", replica("dn3", BAD, bcsid=4))

        with cluster(tmp_path, STUCK, *held, *alone, node_count=3, acknowledged_bcsid=6) as made:
            made.pass_time(120)

            assert ([], BAD) == (made.refused(), made.held["dn3"].state)
            assert not [one for one in made.ended if one.kind == CommandKind.DELETE]

    def test_a_damaged_one_too_many_goes(self, tmp_path: Path) -> None:
        """Three whole ones of the same origin stay, each with all that it had."""
        held = of_origin(
            "dn1", *(replica(node, QUASI) for node in ("dn1", "dn2", "dn3")), replica("dn4", BAD)
        )

        with cluster(tmp_path, STUCK, *held, node_count=6, acknowledged_bcsid=6) as made:
            made.pass_time(60)

            assert [] == made.refused()
            assert {"dn1", "dn2", "dn3"} == set(made.held)


class TestClosed:
    def test_a_damaged_one_stays_while_the_others_differ(self, tmp_path: Path) -> None:
        """The right one is unknown, and the damaged one may help to decide."""
        held = [replica("dn1", root=7), replica("dn2", root=8), replica("dn3", BAD)]

        with cluster(tmp_path, container(), *held, node_count=3) as made:
            made.pass_time(60)

            assert ([], BAD) == (made.refused(), made.held["dn3"].state)


class TestShards:
    def test_a_damaged_one_goes_whose_twin_has_as_many_commits(self, tmp_path: Path) -> None:
        """All have one more than their container was closed with: its writer gave up."""
        held = [shard(f"dn{index}", index, bcsid=6) for index in range(1, 6)]

        with cluster(tmp_path, CODED, *held, shard("dn6", 1, BAD, bcsid=6), node_count=8) as made:
            made.pass_time(60)

            assert ([], 5) == (made.refused(), len(made.held))
            assert "dn6" not in made.held


class TestPause:
    def test_refused_delete_is_ordered_again_with_growing_pauses(self, tmp_path: Path) -> None:
        """Each attempt costs a command, an outcome and audit lines."""
        held = [replica(f"dn{number}") for number in range(1, 4)]

        with cluster(tmp_path, container(), *held, node_count=3) as made:
            ordered = 0
            for _ in range(120):
                ordered += self._try_to_remove(made)
                made.pass_time(1)

            assert 3 <= ordered <= 8
            assert ordered == len(made.refused())

    @staticmethod
    def _try_to_remove(made: Cluster) -> bool:
        """Order a replica deleted that is needed, as a rule would that the guards do not share."""
        removals = made.world.control.removals
        with made.world.state.change() as change:
            return removals.delete(change, container(), "dn1", why="a test", keep_count=3)


class TestExcluded:
    def test_unmanaged_rack_gets_no_commands(self, tmp_path: Path) -> None:
        """A damaged replica there takes the place of a good one, as the operator configured."""
        options = OPTIONS.model_copy(update={"managed_racks": "/a"})
        held = [replica("dn1"), replica("dn2"), replica("dn3", BAD)]

        with cluster(
            tmp_path, container(), *held, node_count=3, options=options, racks=("/a", "/a", "/b")
        ) as made:
            made.pass_time(60)

            assert [] == list(made.world.state.commands.of_node("dn3"))

    def test_excluded_replica_is_not_logged_as_making_room(self, tmp_path: Path) -> None:
        """A false warning each second hides the true ones."""
        held = [replica("dn1"), replica("dn2"), replica("dn3", BAD)]

        with cluster(tmp_path, container(), *held, node_count=3) as made:
            exclude(made, "dn3")
            with logged() as logs:
                made.pass_time(30)

            assert [] == [
                line for line in logs if line["event"] == "unhealthy_replica_delete_ordered"
            ]
            assert "dn3" in made.held

    def test_a_shard_that_a_person_keeps_is_no_reason_to_wait(self, tmp_path: Path) -> None:
        """Another one makes room, if possible, and the log does not claim that the excluded one
        does.
        """
        held = [shard(f"dn{index}", index) for index in range(1, 5)]
        bad = [shard("dn5", 5, BAD), shard("dn6", 4)]

        with cluster(tmp_path, CODED, *held, *bad, node_count=6) as made:
            exclude(made, "dn5", "dn6")
            with logged() as logs:
                made.pass_time(60)

            told = {line["datanode_id"] for line in logs if line["event"] == "shard_delete_ordered"}
            assert {"dn4"} == told
            assert {"dn5", "dn6"} <= set(made.held)


def exclude(made: Cluster, *nodes: str) -> None:
    """Have a person keep replicas of container 1 out of orders."""
    with made.world.state.change() as change:
        for node in nodes:
            change.put(made.world.state.holds, Hold(1, node, 1, ASKED))


class TestLeaving:
    def test_the_last_of_a_rack_in_service_stays_while_another_there_leaves(
        self, tmp_path: Path
    ) -> None:
        """The leaving one will be gone, and all the remaining ones would be on one rack."""
        for number in range(1, 9):
            box = container(container_id=number)
            self._drain(tmp_path / str(number), box)

    @staticmethod
    def _drain(path: Path, box: Container) -> None:
        path.mkdir()
        with ScmWorld(path, OPTIONS).running() as world:
            nodes = {"dn1": "/a", "dn2": "/a", "dn3": "/a", "dn4": "/b", "dn5": "/b"}
            for node, rack in nodes.items():
                world.join(node, racks=(rack,))
            with world.state.change() as change:
                change.put(world.state.containers, box)
            for node in nodes:
                world.beat(node, replica(node, container_id=box.container_id), full=True)
            node_5 = world.state.nodes.get("dn5")
            assert node_5 is not None
            with world.state.change() as change:
                change.put(world.state.nodes, replace(node_5, op_state=OpState.DECOMMISSIONING))

            world.control.manager.enqueue([box.container_id])
            for _ in range(3):
                world.control.tick()

            deletes = [c for c in world.state.commands.values() if c.kind is CommandKind.DELETE]
            assert [True] == [c.datanode_id in {"dn1", "dn2", "dn3"} for c in deletes]
