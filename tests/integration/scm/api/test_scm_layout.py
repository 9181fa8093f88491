"""A datanode of another layout is read-only: it serves what it has, and is ordered nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from merkle.replica import LAYOUT_VERSION
from scm.state.entities import CommandKind, Container
from scm.state.options import ScmOptions
from tests.support.control.scm_world import ScmWorld, replica

NODES = ("dn1", "dn2", "dn3", "dn4", "dn5")
OPTIONS = ScmOptions(stale_after_ms=30_000, dead_after_ms=60_000, check_interval_ms=1_000)
OTHER = LAYOUT_VERSION + 1


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Five nodes."""
    with ScmWorld(tmp_path, OPTIONS).running() as made:
        made.join(*NODES)
        yield made


def holders(world: ScmWorld, made: Container) -> list[str]:
    """Return the nodes with a replica."""
    return [r.datanode_id for r in world.state.replicas.of(made.container_id)]


def upgrade(world: ScmWorld, *nodes: str) -> None:
    """Let nodes come back with another layout, and report what they had."""
    world.join(*nodes, boot_id=2, layout_version=OTHER)
    for node in nodes:
        mine = [r for r in world.state.replicas.values() if r.datanode_id == node]
        world.beat(node, *mine, full=True, boot_id=2)


def test_read_only_node_gets_no_new_blocks(world: ScmWorld) -> None:
    """An open container with a replica there is closed."""
    world.control.clients.allocate("before", [10])
    (opened,) = world.state.containers.open_all()
    upgrade(world, opened.pipeline[0])
    closing = world.state.containers.get(opened.container_id)
    blocks = world.control.clients.allocate("after", [10] * 4)

    assert closing is not None
    assert ("CLOSING", "one of its nodes is read-only") == (closing.state, closing.close_reason)
    assert opened.pipeline[0] not in {e.datanode_id for b in blocks for e in b.replicas}


def run(world: ScmWorld, seconds: int, strange: list[str], *others: str) -> None:
    """Let time pass; `strange` are those that came back with another layout."""
    for _ in range(seconds):
        world.clock.advance_s(1)
        for node in others:
            world.call(node)
        for node in strange:
            world.call(node, boot_id=2)
        world.control.tick()


def test_read_only_node_is_neither_source_nor_target_of_copies(world: ScmWorld) -> None:
    """One of two live holders is read-only. The other one is copied, to a node whose layout is
    supported.
    """
    made = world.made_closed()
    strange, source, _lost = holders(world, made)
    no_target, target = sorted(set(NODES) - set(holders(world, made)))
    upgrade(world, strange, no_target)
    run(world, 63, [strange, no_target], source, target)

    copies = [c for c in world.state.commands.values() if c.kind is CommandKind.REPLICATE]
    (refused,) = world.control.admin.replicate(
        [made.container_id], target_id=no_target, worlds=(), dry_run=True
    )

    assert [(source, target)] == [(c.datanode_id, c.target_id) for c in copies]
    assert "INELIGIBLE" == refused.code


def test_read_only_node_gets_no_replica_commands(world: ScmWorld) -> None:
    """Commands from before its return and commands that become due meanwhile are not sent."""
    made = world.made_closed()
    strange = holders(world, made)[0]
    world.beat(strange, replica(strange, bcsid=made.sequence_id, root=8))
    world.control.admin.reconcile([made.container_id])
    world.write("open", "key", 1)
    upgrade(world, strange)
    world.control.admin.command_nodes([strange], CommandKind.REFRESH_VOLUME_USAGE)

    sent = {c.kind for _ in range(3) for c, _ in world.call(strange, boot_id=2).commands}
    (given,) = world.control.admin.reconcile([made.container_id])
    run(world, 30, [strange], *(node for node in NODES if node != strange))
    late = {c.kind for c, _ in world.call(strange, boot_id=2).commands}

    assert sent <= {CommandKind.REFRESH_VOLUME_USAGE, CommandKind.SET_OPERATIONAL_STATE}
    assert CommandKind.REFRESH_VOLUME_USAGE in sent
    assert set() == late - {CommandKind.REREGISTER}
    told = {world.state.commands.get(i).datanode_id for i in given.command_ids}  # type: ignore[union-attr]
    assert strange not in told


def test_a_copy_that_was_ordered_before_is_not_sent(world: ScmWorld) -> None:
    """Its target came back with another layout before the source fetched the command."""
    made = world.made_closed()
    target = sorted(set(NODES) - set(holders(world, made)))[0]
    (ordered,) = world.control.admin.replicate(
        [made.container_id], target_id=target, worlds=(), dry_run=False
    )
    upgrade(world, target)
    (command,) = [c for c in world.state.commands.values() if c.kind is CommandKind.REPLICATE]
    answer = world.call(command.datanode_id)
    found, _pending = world.control.queries.outcomes(ordered.command_ids, 1)

    assert () == answer.commands
    assert [f"{target} cannot be reached, is to leave, or is read-only"] == [
        o.message for o in found
    ]


def test_upgraded_node_becomes_writable_again(world: ScmWorld) -> None:
    """A restart of the control plane keeps both states."""
    upgrade(world, *NODES[2:])
    world.restart()
    kept = {node.datanode_id for node in world.state.nodes.values() if node.is_read_only}
    world.join(*NODES, boot_id=3)

    assert set(NODES[2:]) == kept
    assert not any(node.is_read_only for node in world.state.nodes.values())
