"""May these be stopped, and what if they never came back: known clusters, answers by hand."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.administration.impact_analysis import StopAnswer
from scm.administration.shutdown_impact import StopImpact, StopQuery
from scm.state.entities import CommandKind, Container, ContainerState, OpState
from scm.state.options import ScmOptions
from suture.errors import Code, RefusedError
from tests.support.control.scm_world import ScmWorld, confirm, container, pending, replica

NODES = ("dn1", "dn2", "dn3", "dn4", "dn5")
OPTIONS = ScmOptions(stale_after_ms=10_000, dead_after_ms=60_000)
CLOSED, OPEN = ReplicaState.CLOSED, ReplicaState.OPEN


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Five datanodes that have reported that they have nothing."""
    with ScmWorld(tmp_path, options=OPTIONS).running() as made:
        made.join(*NODES)
        confirm(made, *NODES)
        made.control.tick()
        yield made


def hold(world: ScmWorld, number: int, *nodes: str) -> None:
    """Put a closed container with whole replicas on these datanodes."""
    keep(world, container(container_id=number))
    for node in nodes:
        world.beat(node, replica(node, container_id=number))


def keep(world: ScmWorld, row: Container) -> None:
    """Put a row into the control plane's table of containers."""
    with world.state.change() as change:
        change.put(world.state.containers, row)


def may_stop(world: ScmWorld, *nodes: str, keep_count: int = 1) -> StopImpact:
    """Ask whether these datanodes may be off together."""
    return world.control.impacts.analyze(StopQuery(nodes, keep_count=keep_count))


def if_lost(world: ScmWorld, *nodes: str) -> StopImpact:
    """Ask what would be if these datanodes never came back."""
    return world.control.impacts.analyze(StopQuery(nodes, is_for_good=True))


class TestMayStop:
    def test_stop_of_one_of_three_holders_is_permitted(self, world: ScmWorld) -> None:
        """Two copies stay, so nothing becomes unreadable. Each container lacks one replica,
        which is copied elsewhere when the datanode counts as dead.
        """
        hold(world, 1, "dn1", "dn2", "dn3")
        hold(world, 2, "dn1", "dn2", "dn4")
        hold(world, 3, "dn2", "dn3", "dn4")

        found = may_stop(world, "dn1")

        assert StopAnswer.YES is found.answer
        assert 2 == found.outlook.container_count
        assert {1: 2} == dict(found.outlook.missing_replicas)
        assert 0 == found.outlook.last_copy_count
        assert 2_000 == found.outlook.rebuild_bytes
        assert 60_000 == found.wait_ms
        assert 4 == found.stays_count

    def test_two_of_three_leave_last_copies(self, world: ScmWorld) -> None:
        """The two are judged together. The third copy is the last, which is reported. With
        --keep 2 the answer is no.
        """
        hold(world, 1, "dn1", "dn2", "dn3")
        hold(world, 2, "dn1", "dn4", "dn5")

        together = may_stop(world, "dn1", "dn2")
        strict = may_stop(world, "dn1", "dn2", keep_count=2)

        assert StopAnswer.YES is together.answer
        assert 1 == together.outlook.last_copy_count
        assert {1: 1, 2: 1} == dict(together.outlook.missing_replicas)
        assert StopAnswer.NO is strict.answer
        assert ("1 containers would have fewer than 2 copies",) == strict.reasons

    def test_stop_of_all_holders_together_is_refused(self, world: ScmWorld) -> None:
        """Each alone may be off, and all together may not. The container is named."""
        hold(world, 7, "dn1", "dn2", "dn3")

        assert {StopAnswer.YES} == {may_stop(world, node).answer for node in NODES}
        found = may_stop(world, "dn1", "dn2", "dn3")

        assert StopAnswer.NO is found.answer
        assert [7] == found.outlook.unreadable_ids

    @pytest.mark.parametrize(
        ("off", "answer", "last"),
        [
            (("dn1",), StopAnswer.YES, 0),
            (("dn1", "dn2"), StopAnswer.YES, 1),
            (("dn1", "dn2", "dn3"), StopAnswer.NO, 0),
        ],
    )
    def test_shards_are_counted_by_index(
        self, world: ScmWorld, off: tuple[str, ...], answer: StopAnswer, last: int
    ) -> None:
        """Two shards of rs-3-2 may go, and one more may not."""
        keep(world, replace(container(), scheme="rs-3-2-1024k", replication_factor=5))
        for index, node in enumerate(NODES, start=1):
            world.beat(node, replica(node, replica_index=index))

        found = may_stop(world, *off)

        assert answer is found.answer
        assert last == found.outlook.last_copy_count

    def test_two_replicas_of_one_shard_are_one(self, world: ScmWorld) -> None:
        """
        With shards 1, 2, 2 and 4 of rs-3-2 the datanode of shard 1 is needed.
        """
        keep(world, replace(container(), scheme="rs-3-2-1024k", replication_factor=5))
        for index, node in zip((1, 2, 2, 4), NODES, strict=False):
            world.beat(node, replica(node, replica_index=index))

        assert StopAnswer.NO is may_stop(world, "dn1").answer
        assert StopAnswer.YES is may_stop(world, "dn2").answer

    def test_a_dead_datanode_counts_as_dead(self, world: ScmWorld) -> None:
        """
        With one of three dead and another stopped one copy is left; the third is a no.
        """
        hold(world, 1, "dn1", "dn2", "dn3")
        silence(world, "dn3", 61)

        assert 1 == may_stop(world, "dn1").outlook.last_copy_count
        assert StopAnswer.NO is may_stop(world, "dn1", "dn2").answer
        assert StopAnswer.YES is may_stop(world, "dn3").answer

    def test_a_silent_datanode_is_not_relied_on(self, world: ScmWorld) -> None:
        """A datanode that has been silent for some seconds may not serve any more, so the answer
        is unknown without it.
        """
        hold(world, 1, "dn1", "dn2", "dn3")
        silence(world, "dn3", 15)

        assert StopAnswer.YES is may_stop(world, "dn1").answer
        found = may_stop(world, "dn1", "dn2")

        assert StopAnswer.UNKNOWN is found.answer
        assert [1] == found.outlook.doubtful_ids
        assert StopAnswer.NO is may_stop(world, "dn1", "dn2", "dn3").answer

    def test_stop_of_a_node_in_maintenance_makes_no_replica_lacking(self, world: ScmWorld) -> None:
        """The node is expected back, so stopping it makes no copies."""
        hold(world, 1, "dn1", "dn2", "dn3")
        row = world.state.nodes.get("dn1")
        assert row is not None
        with world.state.change() as change:
            change.put(world.state.nodes, replace(row, op_state=OpState.IN_MAINTENANCE))

        found = may_stop(world, "dn1")

        assert StopAnswer.YES is found.answer
        assert 0 == found.outlook.missing_replica_count
        assert 0 == found.wait_ms

    def test_a_replica_in_doubt_is_not_relied_on(self, world: ScmWorld) -> None:
        """If a remaining replica is damaged or differs, the answer is unknown."""
        hold(world, 1, "dn1")
        world.beat("dn2", replica("dn2", finding_count=1))
        hold(world, 2, "dn1")
        world.beat("dn2", replica("dn2", container_id=2, root=8))
        hold(world, 3, "dn1")
        world.beat("dn2", replica("dn2", ReplicaState.UNHEALTHY, container_id=3))

        found = may_stop(world, "dn1")

        assert StopAnswer.UNKNOWN is found.answer
        assert [1, 2, 3] == found.outlook.doubtful_ids

    def test_safe_mode_is_no_time_for_a_yes(self, world: ScmWorld) -> None:
        """After a restart no datanode has reported, so there is no answer. When all have
        reported, there is one.
        """
        hold(world, 1, "dn1", "dn2", "dn3")
        world.restart()

        found = may_stop(world, "dn1")

        assert StopAnswer.UNKNOWN is found.answer
        assert "the control plane is in safe mode" in found.reasons
        world.join(*NODES, boot_id=2)
        for node in NODES:
            mine = [r for r in world.state.replicas.values() if r.datanode_id == node]
            world.beat(node, *mine, full=True, boot_id=2)
        world.control.tick()
        assert StopAnswer.YES is may_stop(world, "dn1").answer

    def test_stop_does_not_rely_on_unreported_replicas(self, world: ScmWorld) -> None:
        """Safe mode was left, and two of three holders have not reported: their replicas may be
        gone.
        """
        hold(world, 1, "dn1", "dn2", "dn3")
        world.restart()
        world.join(*NODES, boot_id=2)
        world.beat("dn1", replica("dn1"), full=True, boot_id=2)
        world.control.safe_mode.leave()

        found = may_stop(world, "dn1")

        assert StopAnswer.UNKNOWN is found.answer
        assert [1] == found.outlook.doubtful_ids

    def test_an_open_replica_must_have_all_commits(self, world: ScmWorld) -> None:
        """While a container is written, only a replica with the last commit counts. Open
        containers and their writers are reported.
        """
        [block] = world.write("writer", "key", 10)
        first, *others = sorted(endpoint.datanode_id for endpoint in block.replicas)

        assert StopAnswer.YES is may_stop(world, first).answer
        for node in others:
            behind = replica(
                node, OPEN, container_id=block.container_id, bcsid=block.bcsid - 1, root=None
            )
            world.beat(node, behind)
        found = may_stop(world, first)

        assert StopAnswer.UNKNOWN is found.answer
        assert 1 == found.open_count
        assert 1 == found.writer_count

    def test_an_open_container_without_a_commit_holds_nobody(self, world: ScmWorld) -> None:
        """
        There is nothing in it to be read.
        """
        [block] = world.control.clients.allocate("writer", [10])
        nodes = [endpoint.datanode_id for endpoint in block.replicas]

        assert StopAnswer.YES is may_stop(world, *nodes).answer

    def test_stop_does_not_rely_on_deleting_or_pending_replicas(self, world: ScmWorld) -> None:
        """A replica under deletion may be gone or stay, and a pending copy is not there."""
        hold(world, 1, "dn1", "dn2")
        copy = replace(
            pending(2, CommandKind.REPLICATE, container_id=1, node="dn1"), target_id="dn3"
        )
        with world.state.change() as change:
            change.put(
                world.state.commands, pending(1, CommandKind.DELETE, container_id=1, node="dn2")
            )
            change.put(world.state.commands, copy)

        assert StopAnswer.UNKNOWN is may_stop(world, "dn1").answer
        assert StopAnswer.NO is may_stop(world, "dn1", "dn2").answer

    def test_container_unreadable_already_is_counted_apart(self, world: ScmWorld) -> None:
        """A container whose holders are all dead is no reason against a stop."""
        hold(world, 1, "dn1", "dn2")
        silence(world, "dn1", 61)
        silence(world, "dn2", 61)

        found = may_stop(world, "dn1")

        assert StopAnswer.YES is found.answer
        assert 1 == found.outlook.already_count

    def test_an_unknown_datanode_is_refused(self, world: ScmWorld) -> None:
        """
        By its name, and nothing is guessed.
        """
        with pytest.raises(RefusedError, match="dn9") as caught:
            may_stop(world, "dn9")

        assert Code.WRONG_DATANODE is caught.value.code


class TestVolumes:
    def test_only_what_lies_on_the_volume_counts(self, world: ScmWorld) -> None:
        """A volume takes its replicas with it at once, and the other volumes of the datanode
        stay.
        """
        keep(world, container(container_id=1))
        keep(world, container(container_id=2))
        world.beat("dn1", replica("dn1"))
        other = replace(replica("dn1", container_id=2), volume_id="volume-2")
        world.beat("dn1", other)
        world.beat("dn2", replica("dn2", container_id=2))

        first = world.control.impacts.analyze(StopQuery((), (("dn1", "volume-1"),)))
        second = world.control.impacts.analyze(StopQuery((), (("dn1", "volume-2"),)))

        assert [1] == first.outlook.unreadable_ids
        assert StopAnswer.YES is second.answer
        assert 1 == second.outlook.last_copy_count
        assert 0 == second.wait_ms

    def test_a_replica_on_no_known_volume_is_no_yes(self, world: ScmWorld) -> None:
        """
        An agent that does not say where a replica is leaves the question open.
        """
        hold(world, 1, "dn2", "dn3")
        world.beat("dn1", replace(replica("dn1"), volume_id=""))

        found = world.control.impacts.analyze(StopQuery((), (("dn1", "volume-1"),)))

        assert StopAnswer.UNKNOWN is found.answer

    def test_an_unknown_volume_is_refused(self, world: ScmWorld) -> None:
        """
        By its id.
        """
        with pytest.raises(RefusedError, match="volume-9"):
            world.control.impacts.analyze(StopQuery((), (("dn1", "volume-9"),)))


class TestWhatIf:
    def test_containers_held_only_by_the_lost_nodes_are_lost(self, world: ScmWorld) -> None:
        """The lost containers are listed by their states, and containers with other holders are
        copied again.
        """
        hold(world, 1, "dn1", "dn2")
        hold(world, 2, "dn1", "dn2", "dn3")
        keep(world, container(ContainerState.QUASI_CLOSED, container_id=3))
        world.beat("dn2", replica("dn2", ReplicaState.QUASI_CLOSED, container_id=3, bcsid=4))

        found = if_lost(world, "dn1", "dn2")

        assert [1, 3] == found.outlook.lost_ids
        assert {"CLOSED": 1, "QUASI_CLOSED": 1} == dict(found.outlook.lost_states)
        assert 2_000 == found.outlook.rebuild_bytes
        assert (
            2
            == found.outlook.healths["MISSING"]
            + found.outlook.healths["QUASI_CLOSED_STUCK_MISSING"]
        )

    def test_loss_of_a_dead_node_counts_its_last_copies(self, world: ScmWorld) -> None:
        """A dead datanode that may return has copies that would be lost without it. Another dead
        one that may return keeps its copies.
        """
        hold(world, 1, "dn1")
        hold(world, 2, "dn1", "dn2")
        hold(world, 3, "dn1", "dn3")
        silence(world, "dn1", 61)
        silence(world, "dn2", 61)

        found = if_lost(world, "dn1")

        assert [1] == found.outlook.lost_ids
        assert [1, 2] == if_lost(world, "dn1", "dn2").outlook.lost_ids
        assert 0 == found.wait_ms

    def test_maintenance_is_no_promise_any_more(self, world: ScmWorld) -> None:
        """A node in maintenance that never returns lacks like any other."""
        hold(world, 1, "dn1", "dn2", "dn3")
        row = world.state.nodes.get("dn1")
        assert row is not None
        with world.state.change() as change:
            change.put(world.state.nodes, replace(row, op_state=OpState.IN_MAINTENANCE))

        assert {1: 1} == dict(if_lost(world, "dn1").outlook.missing_replicas)

    def test_too_few_datanodes_are_no_room(self, world: ScmWorld) -> None:
        """
        With two left three replicas cannot be had again.
        """
        hold(world, 1, "dn1", "dn2", "dn3")

        found = if_lost(world, "dn1", "dn4", "dn5")

        assert not found.has_room
        assert "3 datanodes are needed" in " ".join(found.reasons)

    def test_loss_question_changes_nothing(self, world: ScmWorld) -> None:
        """No command is sent, and no row changes."""
        hold(world, 1, "dn1", "dn2", "dn3")
        before = list(world.state.replicas.values())

        if_lost(world, "dn1", "dn2", "dn3")

        assert [] == list(world.state.commands.values())
        assert before == list(world.state.replicas.values())


def silence(world: ScmWorld, silent: str, seconds: int) -> None:
    """Let a datanode be silent for so long, while the others call."""
    heard = {node for node in NODES if node != silent and world.control.nodes.is_reachable(node)}
    for _ in range(seconds):
        world.clock.advance_s(1)
        world.keep_alive(*sorted(heard))
