"""A command about shards is looked at again when its turn has come: the world has gone on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scm.administration.decommission import OpStateRequest
from scm.state.entities import CommandKind, OpState, PendingCommand
from tests.support.control.coded_world import NODES, OPTIONS, closed
from tests.support.control.scm_world import ScmWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Nine nodes for five shards."""
    with ScmWorld(tmp_path, OPTIONS).running() as made:
        made.join(*NODES, "dn7", "dn8", "dn9")
        for node in ("dn6", "dn7", "dn8", "dn9"):
            made.beat(node, full=True)
        yield made


def waiting(world: ScmWorld, kind: CommandKind) -> list[PendingCommand]:
    """Return the commands of a kind that have not left."""
    found = [c for c in world.state.commands.values() if c.kind is kind and c.sent_at_s is None]
    return sorted(found, key=lambda command: command.command_id)


def sent_to(world: ScmWorld, command: PendingCommand) -> list[int]:
    """Let a command's datanode call; return the ids of what it is sent of that kind."""
    answer = world.call(command.datanode_id)
    return [c.command_id for c, _named in answer.commands if c.kind is command.kind]


def test_a_shard_that_came_back_is_not_rebuilt_though_another_is_lost(world: ScmWorld) -> None:
    """Its datanode was silent, and calls again. The lost shard is now another one than that of
    the command.
    """
    nodes, _container_id = closed(world, lost=[])
    for _ in range(OPTIONS.dead_after_ms // 60_000 + 2):
        world.clock.advance_s(60)
        for node in {n.datanode_id for n in world.state.nodes.values()} - {nodes[0]}:
            world.call(node)
    world.control.tick()
    [command] = waiting(world, CommandKind.RECONSTRUCT)
    world.call(nodes[0])
    world.beat(nodes[1], full=True)

    assert (1,) == tuple(index for index, _node in command.shards)
    assert [] == sent_to(world, command)


def test_a_shard_whose_node_stays_after_all_is_not_copied(world: ScmWorld) -> None:
    """Another one still is."""
    nodes, _container_id = closed(world, lost=[])
    leaving = (nodes[3], nodes[4])
    for node in leaving:
        world.kept[node] = (OpState.DECOMMISSIONING, 0)
    world.control.departure_requests.submit(
        OpStateRequest(leaving, OpState.DECOMMISSIONING, is_forced=True)
    )
    world.control.tick()
    copies = waiting(world, CommandKind.REPLICATE)
    world.control.departure_requests.submit(
        OpStateRequest(leaving[:1], OpState.IN_SERVICE, is_forced=True)
    )
    also = OpStateRequest((nodes[2],), OpState.DECOMMISSIONING, is_forced=True)
    world.control.departure_requests.submit(also)  # its shard is to be copied, and was not yet

    by_source = {copy.datanode_id: copy for copy in copies}
    assert set(leaving) == set(by_source)
    assert [] == sent_to(world, by_source[leaving[0]])
    assert [by_source[leaving[1]].command_id] == sent_to(world, by_source[leaving[1]])
