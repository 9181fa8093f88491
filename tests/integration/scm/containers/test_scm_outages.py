"""Writing while one of three nodes is away: a container an outage, and not one a block."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.api.call_values import AllocatedBlockInfo
from scm.state.entities import Container, ContainerState
from scm.state.options import ScmOptions
from tests.support.control.scm_world import ScmWorld, confirm, key, replica

NODES = ("dn1", "dn2", "dn3")
AWAY = "dn2"
OPTIONS = ScmOptions(heartbeat_interval_ms=1_000, stale_after_ms=60_000, dead_after_ms=120_000)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Three nodes, as many as a container has replicas."""
    with ScmWorld(tmp_path, OPTIONS).running() as made:
        made.join(*NODES)
        yield made


def put(world: ScmWorld, name: str, *, away: Sequence[str] = ()) -> AllocatedBlockInfo:
    """Store one key in a session of its own; nodes that are `away` take no write."""
    (block,) = world.control.clients.allocate(name, [10])
    asked = [endpoint.datanode_id for endpoint in block.replicas]
    for node in asked:
        if node not in away:
            report = replica(
                node,
                ReplicaState.OPEN,
                container_id=block.container_id,
                bcsid=block.bcsid,
                root=None,
            )
            world.beat(node, report)
    failed = [(block.container_id, node) for node in asked if node in away]
    world.control.clients.commit(name, [key(name, [block], [10])], may_replace=False, failed=failed)
    world.control.clients.finish(name, close=False)
    return block


def made(world: ScmWorld) -> list[Container]:
    """Return all containers."""
    return world.state.containers.values()


def test_forty_puts_in_an_outage_do_not_make_forty_containers(world: ScmWorld) -> None:
    """Each would be closed, copied to the third node and mended there when that is back."""
    for i in range(40):
        put(world, f"away{i}", away=[AWAY])
        world.clock.advance_s(0.1)

    assert len(made(world)) <= 3


def test_a_node_that_is_back_takes_part_at_once(world: ScmWorld) -> None:
    """In a new container; the one that went on without it closes, and is caught up."""
    first = put(world, "away", away=[AWAY])
    world.join(AWAY, boot_id=2)
    world.beat(AWAY, full=True, boot_id=2)

    block = put(world, "back")
    world.control.tick()

    assert set(NODES) == {endpoint.datanode_id for endpoint in block.replicas}
    states = {c.container_id: c.state for c in made(world)}
    assert ContainerState.CLOSING is states[first.container_id]
    assert ContainerState.OPEN is states[block.container_id]


def test_replica_left_behind_gets_no_later_blocks(world: ScmWorld) -> None:
    """Its commit id would cover blocks that it missed, also after a restart in between."""
    first = put(world, "away", away=[AWAY])
    world.restart()
    world.join(*NODES, boot_id=1)
    confirm(world, *NODES)
    second = put(world, "later")

    later = {e.datanode_id for e in second.replicas}
    assert AWAY not in later or first.container_id != second.container_id


def test_a_node_that_never_takes_a_write_is_tried_ever_more_rarely(world: ScmWorld) -> None:
    """The node sends heartbeats and its disk is broken. The number of containers does not grow
    with that of blocks.
    """
    for i in range(120):
        put(world, f"broken{i}", away=[AWAY])
        world.clock.advance_s(0.5)
        world.keep_alive(*NODES)

    assert len(made(world)) <= 8


def test_block_write_needs_two_of_three_replicas(world: ScmWorld) -> None:
    """With one more node away the container is not continued, and no block is promised on one
    node alone.
    """
    put(world, "away", away=[AWAY])
    (block,) = world.control.clients.allocate("b", [10])
    left = [endpoint.datanode_id for endpoint in block.replicas]
    world.control.clients.commit("b", [], may_replace=False, failed=[(block.container_id, left[0])])

    (again,) = world.control.clients.allocate("b", [10])

    assert 2 == len(left)
    assert again.container_id != block.container_id
    assert 3 == len(again.replicas)


def test_with_a_fourth_node_the_container_is_left_at_once(world: ScmWorld) -> None:
    """Then three that take writes can be had."""
    world.join("dn4")
    (block,) = world.control.clients.allocate("a", [10])
    away = block.replicas[0].datanode_id
    world.control.clients.commit("a", [], may_replace=False, failed=[(block.container_id, away)])

    (again,) = world.control.clients.allocate("a", [10])

    assert 3 == len(again.replicas)
    assert away not in {endpoint.datanode_id for endpoint in again.replicas}
