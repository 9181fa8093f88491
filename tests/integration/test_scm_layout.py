"""A datanode of another layout is read-only: it gets no new replicas, and serves what it has."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from merkle.replica import LAYOUT_VERSION
from scm.facts import Container, Kind
from scm.options import ScmOptions
from tests.support.scm_world import ScmWorld

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


def test_nothing_new_is_written_there(world: ScmWorld) -> None:
    """Not even what was begun: an open container with a replica there is closed."""
    world.control.allocate("before", [10])
    (opened,) = world.state.containers.open_all()
    upgrade(world, opened.pipeline[0])
    closing = world.state.containers.get(opened.container_id)
    blocks = world.control.allocate("after", [10] * 4)

    assert closing is not None
    assert ("CLOSING", "one of its nodes is read-only") == (closing.state, closing.close_reason)
    assert opened.pipeline[0] not in {e.datanode_id for b in blocks for e in b.replicas}


def test_it_is_a_source_and_no_target(world: ScmWorld) -> None:
    """The only holder that lives is read-only, and so is one of the two that have no replica."""
    made = world.made_closed()
    source = holders(world, made)[0]
    no_target, target = sorted(set(NODES) - set(holders(world, made)))
    upgrade(world, source, no_target)
    for _ in range(63):
        world.clock.advance_s(1)
        world.call(target)
        for node in (source, no_target):
            world.call(node, boot_id=2)
        world.control.tick()

    copies = [c for c in world.state.commands.values() if c.kind is Kind.REPLICATE]
    (refused,) = world.control.replicate_containers(
        [made.container_id], target_id=no_target, worlds=(), dry_run=True
    )

    assert [(source, target)] == [(c.datanode_id, c.target_id) for c in copies]
    assert "INELIGIBLE" == refused.code


def test_a_copy_that_was_ordered_before_is_not_sent(world: ScmWorld) -> None:
    """Its target came back with another layout before the source fetched the command."""
    made = world.made_closed()
    target = sorted(set(NODES) - set(holders(world, made)))[0]
    (ordered,) = world.control.replicate_containers(
        [made.container_id], target_id=target, worlds=(), dry_run=False
    )
    upgrade(world, target)
    (command,) = [c for c in world.state.commands.values() if c.kind is Kind.REPLICATE]
    answer = world.call(command.datanode_id)
    found, _pending = world.control.outcomes(ordered.command_ids, 1)

    assert () == answer.commands
    assert [f"{target} cannot be reached, or is read-only"] == [o.message for o in found]


def test_it_may_be_written_to_again_after_it_is_one_layout(world: ScmWorld) -> None:
    """And a restart of the control plane forgets neither."""
    upgrade(world, *NODES[2:])
    world.restart()
    kept = {node.datanode_id for node in world.state.nodes.values() if node.is_read_only}
    world.join(*NODES, boot_id=3)

    assert set(NODES[2:]) == kept
    assert not any(node.is_read_only for node in world.state.nodes.values())
