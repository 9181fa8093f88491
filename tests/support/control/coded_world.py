"""An erasure-coded container in a control plane without a server: lost shards, damage, and
commands.
"""

from typing import Final

from merkle.replica import ReplicaState
from scm.state.entities import CommandKind, ContainerState, OutcomeState, PendingCommand
from scm.state.options import ScmOptions
from tests.support.control.scm_world import ScmWorld, outcome, replica

MIB: Final = 1024**2
SCHEME: Final = "rs-3-2-1024k"
OPTIONS: Final = ScmOptions(container_bytes_max=10 * MIB, check_interval_ms=1_000)
NODES: Final = tuple(f"dn{number}" for number in range(1, 7))


def closed(world: ScmWorld, *, lost: list[int]) -> tuple[list[str], int]:
    """Create a closed container whose shards `lost` were never reported. Return its nodes in the
    order of the shards, and its id."""
    [block] = world.control.clients.allocate("a", [1], scheme=SCHEME)
    nodes = [endpoint.datanode_id for endpoint in block.replicas]
    world.control.clients.finish("a", close=True)
    for index, node in enumerate(nodes, start=1):
        if index in lost:
            answer = world.call(node)
            gone = [
                outcome(command, OutcomeState.FAILED, code="CONTAINER_NOT_FOUND")
                for command, _ in answer.commands
            ]
            world.beat(node, outcomes=tuple(gone), full=True)
            continue
        shard = replica(
            node, ReplicaState.CLOSED, container_id=block.container_id, bcsid=1, replica_index=index
        )
        world.execute(node, world.beat(node, shard, full=True))
    made = world.state.containers.get(block.container_id)
    assert made is not None
    assert ContainerState.CLOSED is made.state
    return nodes, block.container_id


def spoil(world: ScmWorld, node: str, container_id: int, *, index: int) -> None:
    """Make a node report that its shard is damaged and cannot be repaired in place."""
    bad = replica(
        node,
        ReplicaState.UNHEALTHY,
        container_id=container_id,
        bcsid=1,
        root=None,
        replica_index=index,
    )
    world.beat(node, bad, full=True)


def orders(
    world: ScmWorld, kind: CommandKind = CommandKind.RECONSTRUCT
) -> list[tuple[PendingCommand, list[str]]]:
    """Run five seconds of simulated time with heartbeats of all nodes. Return the commands of one
    kind that the nodes get, each with the datanodes that it names."""
    sent = []
    for _ in range(5):
        world.clock.advance_s(1)
        world.control.tick()
        for node in sorted(node.datanode_id for node in world.state.nodes.values()):
            for command, named in world.call(node).commands:
                if command.kind is kind:
                    sent.append((command, [endpoint.datanode_id for endpoint in named]))
    return sent
