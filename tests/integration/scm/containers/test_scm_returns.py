"""A replica of a deleted container comes back open: it goes as all others went."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.containers.block_deletion import UNEVEN_S
from scm.state.entities import CommandKind, Container, ContainerState, PendingCommand
from scm.state.options import ScmOptions
from tests.support.control.scm_world import ScmWorld, outcome, replica

LATE = "dn3"
OTHERS = ("dn1", "dn2")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Three nodes that stay healthy without calling."""
    options = ScmOptions(stale_after_ms=1_000_000, dead_after_ms=2_000_000, check_interval_ms=1_000)
    with ScmWorld(tmp_path, options).running() as made:
        made.join(*OTHERS, LATE)
        yield made


def emptied(world: ScmWorld) -> Container:
    """Delete all that is in a container of which one node's replica is in no books."""
    made = world.made_closed()
    world.beat(LATE, full=True)
    world.control.deletions.delete_keys([world.state.keys.values()[0].name], dry_run=False)
    for node in OTHERS:
        [(command, _named)] = world.call(node).commands
        acknowledged = tuple((t.container_id, t.transaction_id) for t in command.transactions)
        empty = replace(replica(node, bcsid=made.sequence_id), is_empty=True)
        world.beat(node, empty, outcomes=(replace(outcome(command), acknowledged=acknowledged),))
    assert ContainerState.DELETING is state_of(world, made)
    return made


def state_of(world: ScmWorld, made: Container) -> ContainerState:
    """Return a container's state now."""
    now = world.state.containers.get(made.container_id)
    assert now is not None
    return now.state


def told(
    world: ScmWorld, kind: CommandKind, state: ReplicaState, bcsid: int
) -> list[PendingCommand]:
    """Let the late node report its replica, in which the blocks still are; return what it is told
    to do of a kind."""
    commands = [*world.beat(LATE, replica(LATE, state, bcsid=bcsid)).commands]
    world.control.tick()
    commands += world.call(LATE).commands
    return [command for command, _ in commands if command.kind is kind]


def go(world: ScmWorld) -> None:
    """Let the other nodes do what they are told: delete their replicas."""
    for command in world.state.commands.values():
        world.beat(command.datanode_id, full=True, outcomes=(outcome(command),))


@pytest.mark.parametrize("bcsid", [0, 1])
def test_returned_open_replica_is_closed_and_deleted(world: ScmWorld, bcsid: int) -> None:
    """Its blocks are unknown, so its container would be QUASI_CLOSED for ever."""
    made = emptied(world)
    go(world)
    assert ContainerState.DELETED is state_of(world, made)

    (close,) = told(world, CommandKind.CLOSE, ReplicaState.OPEN, bcsid)
    (delete,) = told(world, CommandKind.DELETE, ReplicaState.QUASI_CLOSED, bcsid)
    world.beat(LATE, full=True, outcomes=(outcome(delete),))

    assert (made.sequence_id, False) == (close.bcsid, close.force)
    assert delete.force
    assert ContainerState.DELETED is state_of(world, made)
    assert () == world.state.replicas.of(made.container_id)


def test_returned_replica_with_later_writes_restores_its_container(world: ScmWorld) -> None:
    """Blocks that were not deleted are not destroyed."""
    made = emptied(world)
    go(world)

    (_close,) = told(world, CommandKind.CLOSE, ReplicaState.OPEN, made.sequence_id)
    deletes = told(world, CommandKind.DELETE, ReplicaState.CLOSED, made.sequence_id + 1)

    assert [] == deletes
    assert ContainerState.CLOSED is state_of(world, made)


def test_replica_returned_during_the_deletes_gets_their_transactions(
    world: ScmWorld,
) -> None:
    """The container comes back with it, and its deletes are not over."""
    made = emptied(world)

    (_close,) = told(world, CommandKind.CLOSE, ReplicaState.OPEN, made.sequence_id)
    assert ContainerState.DELETING is not state_of(world, made)
    (command,) = told(world, CommandKind.DELETE_BLOCKS, ReplicaState.CLOSED, made.sequence_id)

    assert [(1,)] == [one.local_ids for one in command.transactions]


@pytest.mark.parametrize("is_needed", [False, True])
def test_last_remaining_replica_gets_the_acknowledged_deletes(
    world: ScmWorld, *, is_needed: bool
) -> None:
    """All others acknowledged the deletes and were lost. No reconcile can bring them, so the
    replica would stay behind for ever.
    """
    made = world.made_closed()
    [key] = world.state.keys.values()
    world.beat(LATE, full=True)
    with world.state.change() as change:
        behind = replace(made, state=ContainerState.QUASI_CLOSED, sequence_id=2)
        change.put(world.state.containers, behind)
    world.control.deletions.delete_keys([key.name], dry_run=False)
    for node in OTHERS:
        [(command, _named)] = world.call(node).commands
        acknowledged = tuple((t.container_id, t.transaction_id) for t in command.transactions)
        world.beat(node, outcomes=(replace(outcome(command), acknowledged=acknowledged),))
    for node in OTHERS:
        world.beat(node, full=True)
    if is_needed:
        with world.state.change() as change:
            change.put(world.state.keys, key)

    soon = told(world, CommandKind.DELETE_BLOCKS, ReplicaState.QUASI_CLOSED, made.sequence_id)
    world.clock.advance_s(UNEVEN_S)
    later = told(world, CommandKind.DELETE_BLOCKS, ReplicaState.QUASI_CLOSED, made.sequence_id)

    assert [] == soon
    blocks = [one.local_ids for command in later for one in command.transactions]
    assert ([] if is_needed else [(1,)]) == blocks
