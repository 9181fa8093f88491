"""A lost shard is rebuilt by one datanode at a time, whatever happens to those that have part."""

from collections.abc import Iterator
from dataclasses import replace as facts_replace
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.administration.decommission import OpStateRequest
from scm.api.call_values import Heartbeat
from scm.state.entities import CommandKind, OpState, OutcomeState, PendingCommand
from tests.support.control.coded_world import NODES, OPTIONS, closed, orders
from tests.support.control.scm_world import ScmWorld, outcome, replica, volume

LOST = (1, 4)
SPARE = ("dn7", "dn8", "dn9")
MARGIN_S = OPTIONS.command_deadline_ms // 1000 // 2
LIFETIME_S = OPTIONS.command_deadline_ms // 1000 - MARGIN_S


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Nine nodes for five shards."""
    with ScmWorld(tmp_path, OPTIONS).running() as made:
        made.join(*NODES, *SPARE)
        yield made


@pytest.mark.parametrize("busy", [0, 1])
def test_are_rebuilt_by_the_target_with_the_least_to_do(tmp_path: Path, busy: int) -> None:
    """One of the two targets coordinates, and not a source, which would have nothing to do."""
    with ScmWorld(tmp_path, OPTIONS).running() as world:
        world.join(*NODES[:5])
        nodes, container_id = closed(world, lost=[1, 4])
        spare = nodes[0], nodes[3]
        beat = Heartbeat(spare[busy], 1, (volume(),), (), (), (("replicate", 5),), None, 0)
        world.control.datanodes.heartbeat(beat)
        world.clock.advance_s(1)
        world.control.tick()

        commands = world.state.commands.of_container(container_id)
        [order] = [command for command in commands if command.kind is CommandKind.RECONSTRUCT]
        assert {*spare} == {node for _, node in order.shards}
        assert spare[1 - busy] == order.datanode_id


def test_rebuilt_shard_is_not_ordered_again_before_its_report(world: ScmWorld) -> None:
    """The coordinator answers with its heartbeat, and the other target's heartbeat may come much
    later.
    """
    command = ordered(world)
    (first, _other), (index, other) = command.shards
    made(world, command, first)
    answer(world, command)

    before = [*orders(world), *orders(world), *orders(world)]
    is_pending = [CommandKind.RECONSTRUCT] == kinds(world, command)
    made(world, command, index)

    assert [] == before
    assert is_pending
    assert [] == kinds(world, command)
    assert other in {r.datanode_id for r in world.state.replicas.of(command.container_id)}


def test_rebuilt_shard_on_a_node_that_died_is_ordered_again(world: ScmWorld) -> None:
    """A dead node sends no report."""
    command = ordered(world)
    (first, _node), (index, other) = command.shards
    made(world, command, first)
    answer(world, command)

    [again] = wait(world, OPTIONS.dead_after_ms // 1000 + 60, command, silent=other)

    assert [index] == [index for index, _node in again.shards]


def test_a_rebuild_that_failed_goes_to_other_datanodes_the_next_time(world: ScmWorld) -> None:
    """Nine nodes for five shards: three spare and the two that lost theirs, and two have failed."""
    command = ordered(world)
    answer(world, command, OutcomeState.FAILED)

    [again] = wait(world, 120, command)

    failed, next_ones = ({node for _index, node in c.shards} for c in (command, again))
    assert (2, 2) == (len(failed), len(next_ones))
    assert not failed & next_ones


class TestATargetThatIsToLeave:
    def test_ends_nothing_that_runs(self, world: ScmWorld) -> None:
        """The shard it gets is copied from there, which reads one shard and not three."""
        command = ordered(world)
        (first, _node), (index, other) = command.shards
        leave(world, other)

        meanwhile = [*orders(world), *orders(world), *orders(world)]
        made(world, command, first)
        made(world, command, index)
        answer(world, command)
        copies = orders(world, CommandKind.REPLICATE)

        assert [] == meanwhile
        assert [other] == [copy.datanode_id for copy, _named in copies]
        assert [] == orders(world)

    def test_unreported_shard_on_a_leaving_target_is_not_ordered_again(
        self, world: ScmWorld
    ) -> None:
        """Its next heartbeat shows the shard."""
        command = ordered(world)
        (first, _node), (_index, other) = command.shards
        made(world, command, first)
        answer(world, command)
        leave(world, other)

        assert [] == [*orders(world), *orders(world), *orders(world)]

    def test_gets_nothing_that_has_not_left_yet(self, world: ScmWorld) -> None:
        """A command that has not been sent is ordered elsewhere at once."""
        closed(world, lost=list(LOST))
        world.clock.advance_s(1)
        world.control.tick()
        [command] = [c for c in world.state.commands.values() if c.kind is CommandKind.RECONSTRUCT]
        leave(world, command.shards[1][1])
        world.clock.advance_s(11)

        [(again, _named)] = orders(world)

        assert command.command_id != again.command_id
        assert command.shards[1][1] not in {node for _index, node in again.shards}

    def test_is_none_once_the_coordinator_failed(self, world: ScmWorld) -> None:
        """Then the shards are rebuilt elsewhere."""
        command = ordered(world)
        leave(world, command.shards[1][1])
        answer(world, command, OutcomeState.FAILED)

        [again] = wait(world, 120, command)

        assert command.shards[1][1] not in {node for _index, node in again.shards}


def test_a_target_that_dies_does_not_free_the_other_shards_while_they_are_made(
    tmp_path: Path,
) -> None:
    """Until the datanode that rebuilds them must have stopped."""
    options = OPTIONS.model_copy(update={"stale_after_ms": 30_000, "dead_after_ms": 60_000})
    with ScmWorld(tmp_path, options).running() as world:
        world.join(*NODES, *SPARE)
        command = ordered(world)
        dead = command.shards[1][1]

        meanwhile = wait(world, LIFETIME_S - 30, command, silent=dead)
        [again] = wait(world, MARGIN_S + 60, command, silent=dead)

        assert [] == meanwhile
        assert set(LOST) == {index for index, _node in again.shards}


def test_a_restart_does_not_forget_that_something_may_run(world: ScmWorld) -> None:
    """A datanode continues its earlier command, so its work is not ordered elsewhere."""
    command = ordered(world)
    world.restart()
    world.join(*NODES, *SPARE)
    for node in (*NODES, *SPARE):
        held = [r for r in world.state.replicas.of(command.container_id) if r.datanode_id == node]
        world.beat(node, *held, full=True)
    leave(world, command.shards[1][1])

    meanwhile = wait(world, LIFETIME_S - 30, command)
    [again] = wait(world, 120, command)

    assert [] == meanwhile
    assert command.shards[1][1] not in {node for _index, node in again.shards}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_rebuild_of_many_small_blocks_has_the_time_that_they_take(
    world: ScmWorld, is_restarted: bool
) -> None:
    """By its bytes it would be cut off, and begin again at the first block; for as long nothing
    else rebuilds its shards."""
    command = ordered(world, block_count=100_000)
    assert 3_600_000 < command.lifetime_ms
    if is_restarted:
        world.restart()
        world.join(*NODES, *SPARE)
        for node in (*NODES, *SPARE):
            known = world.state.replicas.of(command.container_id)
            world.beat(node, *[r for r in known if r.datanode_id == node], full=True)
    leave(world, command.shards[1][1])

    assert [] == wait(world, LIFETIME_S + 600, command)


def ordered(world: ScmWorld, *, block_count: int = 1) -> PendingCommand:
    """Lose two shards of a container; return the one order to rebuild them."""
    _, container_id = closed(world, lost=list(LOST))
    for shard in list(world.state.replicas.of(container_id)):
        world.beat(shard.datanode_id, facts_replace(shard, block_count=block_count))
    [(command, _named)] = orders(world)
    assert set(LOST) == {index for index, _node in command.shards}
    world.queues[command.datanode_id] = (("reconstruct", 1),)
    return command


def answer(
    world: ScmWorld, command: PendingCommand, state: OutcomeState = OutcomeState.EXECUTED
) -> None:
    """Let the coordinator say how it went; it has nothing to do then."""
    del world.queues[command.datanode_id]
    code = "" if state is OutcomeState.EXECUTED else "UNAVAILABLE"
    world.beat(command.datanode_id, outcomes=(outcome(command, state, code=code),))


def made(world: ScmWorld, command: PendingCommand, index: int) -> None:
    """Have the target of a shard report it whole."""
    node = dict(command.shards)[index]
    shard = replica(
        node,
        ReplicaState.CLOSED,
        container_id=command.container_id,
        bcsid=1,
        replica_index=index,
    )
    world.beat(node, shard)


def leave(world: ScmWorld, node: str) -> None:
    """Tell a node to leave."""
    world.control.departure_requests.submit(
        OpStateRequest((node,), OpState.DECOMMISSIONING, is_forced=True)
    )


def kinds(world: ScmWorld, command: PendingCommand) -> list[CommandKind]:
    """Return what is pending about the container of a command, but deletes and closes."""
    found = world.state.commands.of_container(command.container_id)
    return [
        other.kind
        for other in found
        if other.kind in {CommandKind.RECONSTRUCT, CommandKind.REPLICATE}
    ]


def wait(
    world: ScmWorld, seconds: int, first: PendingCommand, *, silent: str = ""
) -> list[PendingCommand]:
    """Let time pass while all but one node call; return the orders to rebuild after the first."""
    sent: list[PendingCommand] = []
    for _ in range(seconds // 10):
        world.clock.advance_s(10)
        world.control.tick()
        for node in (*NODES, *SPARE):
            if node != silent:
                sent += [c for c, _named in world.call(node).commands]
    later = {
        command.command_id: command for command in sent if command.kind is CommandKind.RECONSTRUCT
    }
    later.pop(first.command_id, None)  # it may be sent again as it was
    return list(later.values())
