"""Replicas are kept at their number: copied when they lack, removed when that is safe."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scm.administration.decommission import OpStateRequest
from scm.state.entities import CommandKind, Container, OpState, OutcomeState, PendingCommand
from scm.state.options import ScmOptions
from tests.support.control.scm_world import ScmWorld, confirm, outcome, pass_time, replica

OPTIONS = ScmOptions(
    command_deadline_ms=100_000,
    stale_after_ms=30_000,
    dead_after_ms=60_000,
    repair_grace_ms=600_000,
    check_interval_ms=1_000,
)
NODES = ("dn1", "dn2", "dn3", "dn4")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Four nodes on two racks."""
    with ScmWorld(tmp_path, OPTIONS).running() as made:
        made.join(*NODES, racks=("/r1", "/r2"))
        yield made


@pytest.fixture
def rarely_looking(tmp_path: Path) -> Iterator[ScmWorld]:
    """The same, but rounds are slow: one container a second is looked at unasked, in order."""
    options = OPTIONS.model_copy(update={"check_interval_ms": 86_400_000})
    with ScmWorld(tmp_path, options).running() as made:
        made.join(*NODES, racks=("/r1", "/r2"))
        yield made


def add_others(world: ScmWorld) -> None:
    """Make more containers than rounds get to while a test lasts."""
    for _ in range(8):
        world.made_closed()
    confirm(world, *NODES)


def holders(world: ScmWorld, made: Container) -> list[str]:
    """Return the nodes with a replica."""
    return [r.datanode_id for r in world.state.replicas.of(made.container_id)]


def spare(world: ScmWorld, made: Container) -> str:
    """Return the node without one."""
    (node,) = set(NODES) - set(holders(world, made))
    return node


def queued(world: ScmWorld, kind: CommandKind) -> list[PendingCommand]:
    """Return the commands of a kind."""
    return [c for c in world.state.commands.values() if c.kind is kind]


class TestCopies:
    def test_a_dead_nodes_replicas_are_copied_at_once(self, world: ScmWorld) -> None:
        """Once, from a node that has one to the node that has none; the address is of now."""
        made = world.made_closed()
        _dead, *alive = holders(world, made)
        target = spare(world, made)

        pass_time(world, 60, *alive, target)
        before = queued(world, CommandKind.REPLICATE)
        pass_time(world, 1, *alive, target)
        (command,) = queued(world, CommandKind.REPLICATE)
        pass_time(world, 30, *alive, target)

        assert [] == before
        assert command.target_id == target
        assert command.datanode_id in alive
        assert command.size_bytes == 2 * 1_000
        assert [command.command_id] == [c.command_id for c in queued(world, CommandKind.REPLICATE)]

    def test_w53_the_command_names_target_and_deadline(self, world: ScmWorld) -> None:
        """The datanode's own deadline is earlier than ours."""
        self.lost_one(world)
        world.control.tick()
        (pending,) = queued(world, CommandKind.REPLICATE)

        ((command, named),) = world.call(pending.datanode_id).commands

        target = pending.target_id
        assert [(target, f"{target}:9859")] == [(e.datanode_id, e.address) for e in named]
        assert 50_000 == command.lifetime_ms

    def test_a_third_replica_that_never_was_is_made(self, world: ScmWorld) -> None:
        """The writer left it behind; the container closes with two."""
        (block,) = world.control.clients.allocate("a", [10])
        nodes = sorted(e.datanode_id for e in block.replicas)
        world.control.clients.commit("a", [], may_replace=False, failed=[(1, nodes[0])])
        world.control.clients.finish("a", close=True)
        for node in nodes[1:]:
            world.execute(node, world.beat(node, replica(node, container_id=1, bcsid=1)))
        answer = world.call(nodes[0])
        lost = outcome(answer.commands[0][0], OutcomeState.FAILED, code="CONTAINER_NOT_FOUND")
        world.beat(nodes[0], outcomes=(lost,))
        world.control.tick()

        (command,) = queued(world, CommandKind.REPLICATE)

        assert command.datanode_id in nodes[1:]

    def test_an_add_is_pending_until_a_report_shows_the_replica(self, world: ScmWorld) -> None:
        """The source's word is an outcome; the target's report is the proof."""
        made, _lost = self.lost_one(world)
        world.control.tick()
        (command,) = queued(world, CommandKind.REPLICATE)
        answer = world.call(command.datanode_id)
        world.execute(command.datanode_id, answer)
        pass_time(world, 3, *NODES)
        waiting = queued(world, CommandKind.REPLICATE)

        world.beat(command.target_id, replica(command.target_id, bcsid=made.sequence_id))
        pass_time(world, 3, *NODES)

        assert [command.command_id] == [c.command_id for c in waiting]
        assert [] == queued(world, CommandKind.REPLICATE)
        found, pending = world.control.queries.outcomes([command.command_id], 1)
        assert [OutcomeState.EXECUTED] == [o.state for o in found]
        assert [] == pending

    def test_a_failed_copy_is_ordered_again_after_growing_pauses(self, world: ScmWorld) -> None:
        """A source that cannot do it is not asked every second for ever."""
        self.lost_one(world)
        failed_at = []
        for second in range(20):
            world.control.tick()
            for node in NODES:
                answer = world.call(node)
                failed = tuple(
                    outcome(c, OutcomeState.FAILED, code="BUSY") for c, _named in answer.commands
                )
                failed_at += [second] * len(failed)
                world.beat(node, outcomes=failed)
            world.clock.advance_s(1)

        assert [0, 1, 3, 7, 15] == failed_at

    def test_w49_an_expired_add_is_given_up(self, world: ScmWorld) -> None:
        """The add is ordered again while it is needed."""
        self.lost_one(world)
        world.control.tick()
        (command,) = queued(world, CommandKind.REPLICATE)
        world.queues[command.datanode_id] = (("replicate", 1),)
        pass_time(world, 102, *NODES)

        (again,) = queued(world, CommandKind.REPLICATE)

        assert again.command_id > command.command_id

    def test_w35_without_a_target_it_waits_less_urgent_each_time(self, tmp_path: Path) -> None:
        """An impossible copy does not delay the possible ones."""
        with ScmWorld(tmp_path / "three", OPTIONS).running() as world:
            world.join("dn1", "dn2", "dn3")
            made = world.made_closed()
            world.beat("dn1", replica("dn1", load_error="no such directory", root=None))
            world.control.tick()
            weight, repeat = world.control.manager.under[made.container_id]
            world.control.tick()

            assert [] == queued(world, CommandKind.REPLICATE) + queued(world, CommandKind.DELETE)
            assert (weight, repeat + 1) == world.control.manager.under[made.container_id]

    def test_in_flight_copies_of_the_whole_cluster_are_limited(self, tmp_path: Path) -> None:
        """Factor 0.75 of 20 for each of six healthy nodes, however many containers lack."""
        nodes = [f"dn{i}" for i in range(6)]
        with ScmWorld(tmp_path / "many", OPTIONS).running() as world:
            world.join(*nodes)
            confirm(world, *nodes)
            for i in range(110):
                made = world.made_closed()
                victim = holders(world, made)[i % 3]
                gone = [r for r in world.state.replicas.values() if r.datanode_id == victim]
                world.beat(
                    victim, *[r for r in gone if r.container_id != made.container_id], full=True
                )
            world.control.tick()

            assert 90 == world.state.commands.add_count == len(queued(world, CommandKind.REPLICATE))
            for node in nodes:
                assert world.control.commands.loads.replication_load(node) <= 20
                assert len(world.call(node).commands) <= 20

    def test_w41_a_source_is_given_no_more_than_its_limit(self, world: ScmWorld) -> None:
        """All lacking containers have their last replica on one node. It gets 20 copies, and the
        rest waits.
        """
        confirm(world, *NODES)
        for _ in range(30):
            world.made_closed()
        for node in ("dn2", "dn3", "dn4"):
            world.beat(node, full=True)
        last = len(world.state.replicas.on("dn1"))

        world.control.tick()

        assert last > 20
        assert 20 == len(queued(world, CommandKind.REPLICATE)) == len(world.call("dn1").commands)
        assert {"dn1"} == {c.datanode_id for c in queued(world, CommandKind.REPLICATE)}

    def test_copy_that_waits_for_a_busy_source_is_ordered_when_it_is_free(
        self, rarely_looking: ScmWorld
    ) -> None:
        """No event in between triggers it, and the postponed copy is not forgotten."""
        world = rarely_looking
        made, _victim = self.lost_one(world)
        add_others(world)
        for node in holders(world, made):
            world.queues[node] = (("replicate", 20),)
        pass_time(world, 3, *NODES)
        while_busy = queued(world, CommandKind.REPLICATE)

        world.queues[holders(world, made)[1]] = (("replicate", 19),)
        pass_time(world, 1, *NODES)
        (command,) = queued(world, CommandKind.REPLICATE)

        assert [] == while_busy
        assert holders(world, made)[1] == command.datanode_id

    @staticmethod
    def lost_one(world: ScmWorld) -> tuple[Container, str]:
        """Make a container and let one of its nodes report that the replica is gone."""
        made = world.made_closed()
        confirm(world, *NODES)
        victim = holders(world, made)[0]
        world.beat(victim, full=True)
        return made, victim


class TestDeletes:
    def over(self, world: ScmWorld) -> Container:
        """Make a container with four whole replicas, all confirmed."""
        made = world.made_closed()
        node = spare(world, made)
        world.beat(node, replica(node, bcsid=made.sequence_id))
        confirm(world, *NODES)
        return made

    def test_surplus_replica_is_removed_by_force_and_only_one(self, world: ScmWorld) -> None:
        """The command stays until a report shows that the replica is gone."""
        self.over(world)
        pass_time(world, 5, *NODES)
        (command,) = queued(world, CommandKind.DELETE)
        world.beat(command.datanode_id, outcomes=(outcome(command),))
        pass_time(world, 5, *NODES)
        still = queued(world, CommandKind.DELETE)

        world.beat(command.datanode_id, full=True)
        pass_time(world, 5, *NODES)

        assert (True, 3) == (command.force, command.keep_count)
        assert [command.command_id] == [c.command_id for c in still]
        assert [] == queued(world, CommandKind.DELETE)
        assert [] == queued(world, CommandKind.REPLICATE)

    def test_delete_that_waits_for_a_busy_node_is_ordered_when_it_is_free(
        self, rarely_looking: ScmWorld
    ) -> None:
        """The load decides when the replica is deleted, and not which one."""
        world = rarely_looking
        made = self.over(world)
        add_others(world)
        for node in holders(world, made):
            world.queues[node] = (("delete", 40),)
        pass_time(world, 3, *NODES)
        while_busy = queued(world, CommandKind.DELETE)

        world.queues.clear()
        pass_time(world, 2, *NODES)

        assert [] == while_busy
        assert 1 == len(queued(world, CommandKind.DELETE))

    def test_w49_an_expired_delete_is_sent_again(self, world: ScmWorld) -> None:
        """The same command gets a new deadline, because it is unknown whether it will still be
        executed.
        """
        self.over(world)
        world.control.tick()
        (command,) = queued(world, CommandKind.DELETE)
        world.queues[command.datanode_id] = (("delete", 1),)
        sent = []
        for second in range(230):
            world.clock.advance_s(1)
            for node in NODES:
                answer = world.call(node)
                sent += [(second, c.command_id) for c, _named in answer.commands]
            world.control.tick()

        assert {command.command_id} == {number for _second, number in sent}
        assert 2 <= len(sent)

    def test_before_it_leaves_the_world_is_looked_at_again(self, world: ScmWorld) -> None:
        """Another replica was lost meanwhile. The delete is dropped, with the reason."""
        made = self.over(world)
        world.control.tick()
        (command,) = queued(world, CommandKind.DELETE)
        other = next(n for n in holders(world, made) if n != command.datanode_id)
        world.beat(other, full=True)

        answer = world.call(command.datanode_id)

        assert () == answer.commands
        found, _pending = world.control.queries.outcomes([command.command_id], 1)
        assert ["fewer than 3 whole replicas would stay"] == [o.message for o in found]

    @pytest.mark.parametrize("silent", ["dn1", "dn2", "dn3", "dn4"])
    def test_unconfirmed_replicas_delete_nothing(self, world: ScmWorld, silent: str) -> None:
        """One of the four has not reported since its node registered again. Only three count, so
        none is surplus.
        """
        self.over(world)
        world.join(silent, boot_id=2)
        for second in range(5):
            world.clock.advance_s(1)
            for node in NODES:
                world.call(node, boot_id=2 if node == silent else 1)
            world.control.tick()
            assert [] == queued(world, CommandKind.DELETE), second

    def test_delete_sent_to_a_node_that_died_causes_no_copies(self, world: ScmWorld) -> None:
        """The outcome of the delete is unknown. Three replicas are there, so no copy is needed."""
        made, victim = sent_to_the_surplus(world)
        others = [node for node in NODES if node != victim]

        pass_time(world, OPTIONS.dead_after_ms // 1_000 + 60, *others)

        [delete] = queued(world, CommandKind.DELETE)
        assert (victim, []) == (delete.datanode_id, queued(world, CommandKind.REPLICATE))
        assert "HEALTHY" == world.control.manager.states().of(made.container_id)

    @pytest.mark.parametrize("told", [OpState.ENTERING_MAINTENANCE, OpState.DECOMMISSIONING])
    def test_delete_on_a_leaving_node_causes_no_copies(
        self, world: ScmWorld, told: OpState
    ) -> None:
        """The delete waits in the queue of its datanode, and the three other replicas are as
        many as before.
        """
        made, victim = sent_to_the_surplus(world)
        world.control.departure_requests.submit(OpStateRequest((victim,), told, is_forced=True))
        world.kept[victim] = (told, 0)
        world.queues[victim] = ((CommandKind.DELETE.value, 1),)
        before = world.state.counters["next_command_id"]

        pass_time(world, 60, *NODES)

        later = [c for c in world.state.commands.values() if c.command_id > before]
        assert [] == [
            c.kind for c in later if c.kind in {CommandKind.REPLICATE, CommandKind.DELETE}
        ]
        assert [victim] == [c.datanode_id for c in queued(world, CommandKind.DELETE)]
        assert "HEALTHY" == world.control.manager.states().of(made.container_id)


def sent_to_the_surplus(world: ScmWorld) -> tuple[Container, str]:
    """Have all four nodes hold a container, and the delete of one replica sent."""
    made = world.made_closed()
    node = spare(world, made)
    world.beat(node, replica(node, bcsid=made.sequence_id))
    confirm(world, *NODES)
    pass_time(world, 3, *NODES)
    [delete] = queued(world, CommandKind.DELETE)
    assert delete.sent_at_s is not None
    return made, delete.datanode_id


class TestStart:
    def test_after_a_restart_nothing_is_ordered_until_enough_hosts_report(
        self, world: ScmWorld
    ) -> None:
        """One host is not enough, however long the others are away."""
        made = world.made_closed()
        confirm(world, *NODES)
        world.control.tick()
        world.restart()
        first, *away = holders(world, made)
        other = spare(world, made)
        world.join(first)
        confirm(world, first)

        pass_time(world, 200, first)

        assert [] == queued(world, CommandKind.REPLICATE)
        assert {other, *away} <= set(world.control.safe_mode.status().missing)
        world.join(other)
        confirm(world, other)
        world.control.tick()
        assert 1 == len(queued(world, CommandKind.REPLICATE))
