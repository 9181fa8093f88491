"""What of the control plane's state the judge is told."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from health.remaining import without
from health.words import OPS, HealthState
from scm.replication.health.live_judge import as_if_told
from scm.state.entities import CommandKind, Container, OpState
from scm.state.options import ScmOptions
from tests.support.control.scm_world import ScmWorld, replica

NODES = ("dn1", "dn2", "dn3", "dn4")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Four nodes and no healing."""
    options = ScmOptions(heal=False, stale_after_ms=1_000_000, dead_after_ms=2_000_000)
    with ScmWorld(tmp_path, options).running() as made:
        made.join(*NODES)
        yield made


@pytest.fixture
def made(world: ScmWorld) -> Container:
    """A closed container on three of the nodes."""
    box = world.made_closed()
    for node in NODES:
        held = [r for r in world.state.replicas.of(box.container_id) if r.datanode_id == node]
        world.beat(node, *held, full=True)
    return box


def pending(world: ScmWorld, kind: CommandKind, node: str, **details: str) -> None:
    """Queue a command about container 1, as if it had been ordered before."""
    with world.state.change() as change:
        world.control.commands.queue(change, kind, 1, node, why="a test", **details)


def ops(world: ScmWorld) -> list[tuple[str, str]]:
    """Return what the judge is told is pending for container 1: word and datanode."""
    batch = world.control.batches.of([1])
    names = batch.nodes.names
    return [
        (OPS[kind], names[node] if node >= 0 else "")
        for kind, node in zip(batch.ops.kind.tolist(), batch.ops.node.tolist(), strict=True)
    ]


def outside(world: ScmWorld) -> str:
    """Return the node that has no replica of container 1."""
    [node] = set(NODES) - {r.datanode_id for r in world.state.replicas.of(1)}
    return node


def test_a_delete_that_a_report_shows_done_makes_nothing_lack(
    world: ScmWorld, made: Container
) -> None:
    """The answer to the command may come with a later heartbeat than the report."""
    spare = outside(world)
    world.beat(spare, replica(spare, bcsid=made.sequence_id))
    pending(world, CommandKind.DELETE, spare, force=True)  # type: ignore[arg-type]
    before = ops(world)

    world.beat(spare, full=True)
    world.control.tick()

    assert [("DELETE", spare)] == before
    assert [] == ops(world)
    assert HealthState.HEALTHY.name == world.control.manager.states().of(1)
    assert not [c for c in world.state.commands.values() if c.kind is CommandKind.REPLICATE]


def test_a_copy_counts_until_it_is_there(world: ScmWorld, made: Container) -> None:
    """Once by its command, then by its replica."""
    source, target = holders(world)[0], outside(world)
    pending(world, CommandKind.REPLICATE, source, target_id=target)
    before = ops(world)

    world.beat(target, replica(target, bcsid=made.sequence_id))

    assert [("ADD", target)] == before
    assert [] == ops(world)


@pytest.mark.usefixtures("made")
def test_a_copy_to_a_node_that_is_to_leave_counts_for_nothing(world: ScmWorld) -> None:
    """The copy is ordered elsewhere."""
    target = outside(world)
    pending(world, CommandKind.REPLICATE, holders(world)[0], target_id=target)
    node = world.state.nodes.get(target)
    assert node is not None
    with world.state.change() as change:
        change.put(world.state.nodes, replace(node, op_state=OpState.DECOMMISSIONING))

    assert [] == ops(world)


def holders(world: ScmWorld) -> list[str]:
    """Return the nodes that have container 1."""
    return [r.datanode_id for r in world.state.replicas.of(1)]


def test_the_delete_of_what_died_with_its_node_holds_no_other_back(
    world: ScmWorld, made: Container
) -> None:
    """No report will ever confirm it, so the judge does not count it and no guard waits for it."""
    first, *others = holders(world)
    pending(world, CommandKind.DELETE, first, force=True)  # type: ignore[arg-type]
    [command] = [c for c in world.state.commands.values() if c.kind is CommandKind.DELETE]
    with world.state.change() as change:
        change.set_volatile(
            world.state.commands, replace(command, sent_at_s=world.clock.monotonic_s())
        )
    cases = world.control.cases
    before = cases.case(made).deletes

    world.clock.advance_s(2_100)
    world.keep_alive(*others, outside(world))
    world.control.tick()

    assert [first] == [
        c.datanode_id for c in world.state.commands.values() if c.kind is CommandKind.DELETE
    ]
    assert ((first,), ()) == (before, cases.case(made).deletes)


@pytest.mark.usefixtures("made")
class TestAsIf:
    """Questions about a world that is not."""

    def test_a_command_were_not_pending(self, world: ScmWorld) -> None:
        """Is it still right, now that its turn has come?"""
        pending(world, CommandKind.DELETE, holders(world)[0], force=True)  # type: ignore[arg-type]
        [command] = [c for c in world.state.commands.values() if c.kind is CommandKind.DELETE]

        batch = world.control.batches.of([1], without=[command.command_id])

        assert 0 == len(batch.ops.kind)

    def test_a_replica_were_gone(self, world: ScmWorld) -> None:
        """Is the container well without it?"""
        first, *others = holders(world)

        plain = world.control.batches.of([1])
        batch = without(plain, plain.nodes.among([first])[plain.replicas.node])

        assert others == [batch.nodes.names[node] for node in batch.replicas.node]

    def test_a_node_were_leaving(self, world: ScmWorld) -> None:
        """The question is what its containers would need."""
        first, *_ = holders(world)

        plain = world.control.batches.of([1])
        asked = as_if_told(plain, {first}, OpState.DECOMMISSIONING)

        assert [0, 0, 0] == plain.nodes.service.tolist()
        assert [1, 0, 0] == asked.nodes.service.tolist()
