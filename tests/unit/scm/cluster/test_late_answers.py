"""What datanodes answer late, twice, or after they were given up: the last word is the truth."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scm.cluster.commands.command_limits import QUEUED_AGE_S_MAX
from scm.cluster.commands.loads import DELETE_LIMIT
from scm.state.entities import CommandKind, OutcomeState, PendingCommand
from scm.state.options import ScmOptions
from tests.support.control.scm_world import ScmWorld, confirm, outcome, pass_time, replica

OPTIONS = ScmOptions(
    command_deadline_ms=100_000,
    stale_after_ms=30_000,
    dead_after_ms=60_000,
    check_interval_ms=1_000,
    exclude_failure_count=0,
)
NODES = ("dn1", "dn2", "dn3", "dn4")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Four nodes."""
    with ScmWorld(tmp_path, OPTIONS).running() as made:
        made.join(*NODES)
        confirm(made, *NODES)
        yield made


def queued(world: ScmWorld, kind: CommandKind) -> list[PendingCommand]:
    """Return the commands of a kind."""
    return [c for c in world.state.commands.values() if c.kind is kind]


def copying(world: ScmWorld) -> PendingCommand:
    """Have a container copied because a replica is lost; return the order, which was sent."""
    made = world.made_closed()
    lost, *_others = [r.datanode_id for r in world.state.replicas.of(made.container_id)]
    world.beat(lost, full=True)
    pass_time(world, 3, *NODES)
    [command] = queued(world, CommandKind.REPLICATE)
    assert command.sent_at_s is not None
    return command


def result(world: ScmWorld, command: PendingCommand) -> tuple[str, str]:
    """Return how a command ended."""
    [found], pending = world.control.queries.outcomes([command.command_id], 10)
    assert command.command_id not in pending
    return found.state, found.code


def stay_silent(world: ScmWorld, node: str) -> None:
    """Let one node be dead, while the others go on."""
    pass_time(world, 62, *(other for other in NODES if other != node))


def grow_old(world: ScmWorld) -> None:
    """Let more time pass, in large steps, than an order may wait to be sent."""
    for _ in range(QUEUED_AGE_S_MAX // 20 + 10):
        world.clock.advance_s(20)
        world.keep_alive(*NODES)
        world.control.tick()


def remove(world: ScmWorld, node: str) -> None:
    """Remove a node that is dead."""
    stay_silent(world, node)
    [decision] = world.control.parting.remove_nodes([node], is_forced=True, is_dry_run=False)
    assert "OK" == decision.code


@pytest.mark.parametrize("give_up", [stay_silent, remove])
def test_late_answer_replaces_the_failure_of_a_lost_datanode(
    world: ScmWorld, give_up: Callable[[ScmWorld, str], None]
) -> None:
    """The datanode was cut off and not dead, and answers when it is back. A repeated answer
    changes nothing.
    """
    command = copying(world)
    give_up(world, command.datanode_id)
    before = result(world, command)
    world.join(command.datanode_id)

    for state in (OutcomeState.EXECUTED, OutcomeState.EXECUTED, OutcomeState.SKIPPED):
        world.beat(command.datanode_id, outcomes=(outcome(command, state),))

    assert ("FAILED", "UNAVAILABLE") == before
    assert ("EXECUTED", "") == result(world, command)


def test_executed_command_stays_executed_when_its_container_is_forgotten(world: ScmWorld) -> None:
    """The copy was made, and lost with all others before a report showed it."""
    command = copying(world)
    world.beat(command.datanode_id, outcomes=(outcome(command),))
    for node in NODES:
        world.beat(node, full=True)
    waiting = [one.is_answered for one in queued(world, CommandKind.REPLICATE)]

    [fate] = world.control.forgetting.forget([command.container_id], worlds=(), is_dry_run=False)

    assert ([True], "OK") == (waiting, fate.code)
    assert [] == queued(world, CommandKind.REPLICATE)
    assert ("EXECUTED", "") == result(world, command)


def deleting(world: ScmWorld) -> PendingCommand:
    """Have one replica too many deleted; return the order, which was sent."""
    made = world.made_closed()
    [spare] = set(NODES) - {r.datanode_id for r in world.state.replicas.of(made.container_id)}
    world.beat(spare, replica(spare, bcsid=made.sequence_id))
    confirm(world, *NODES)
    pass_time(world, 3, *NODES)
    [command] = queued(world, CommandKind.DELETE)
    assert command.sent_at_s is not None
    return command


def test_a_delete_that_was_sent_is_not_given_up_for_its_age(world: ScmWorld) -> None:
    """The delete may be stuck on a hanging disk. If it were forgotten, another replica could be
    deleted before this one.
    """
    command = deleting(world)
    world.queues[command.datanode_id] = (("delete", DELETE_LIMIT),)
    grow_old(world)
    [still] = queued(world, CommandKind.DELETE)
    world.beat(command.datanode_id, outcomes=(outcome(command),), full=True)

    assert command.command_id == still.command_id
    assert [] == queued(world, CommandKind.DELETE)
    assert 3 == len(world.state.replicas.of(command.container_id))


def test_executed_delete_survives_the_silence_of_its_datanode(world: ScmWorld) -> None:
    """The command waits to be sent again. A datanode that is cut off for a while may execute a
    received command at any time.
    """
    command = deleting(world)
    world.queues[command.datanode_id] = (("delete", DELETE_LIMIT),)
    pass_time(world, 101, *NODES)
    [again] = queued(world, CommandKind.DELETE)
    stay_silent(world, command.datanode_id)
    [kept] = queued(world, CommandKind.DELETE)
    world.join(command.datanode_id)
    world.beat(command.datanode_id, outcomes=(outcome(command),), full=True)

    assert again.sent_at_s is None
    assert command.command_id == kept.command_id
    assert ("EXECUTED", "") == result(world, command)


def test_delete_ends_when_no_report_has_the_replica(world: ScmWorld) -> None:
    """The delete ends without an answer, because its purpose is achieved."""
    command = deleting(world)
    world.queues[command.datanode_id] = (("delete", DELETE_LIMIT),)
    pass_time(world, 200, *NODES)
    world.beat(command.datanode_id, full=True)
    grow_old(world)

    assert [] == queued(world, CommandKind.DELETE)


def test_an_old_one_that_is_answered_waits_for_the_report(world: ScmWorld) -> None:
    """The delete was executed, and is neither sent again nor failed before the report shows it."""
    command = deleting(world)
    world.queues[command.datanode_id] = (("delete", DELETE_LIMIT),)
    grow_old(world)
    world.queues.clear()
    world.beat(command.datanode_id, outcomes=(outcome(command),))
    world.control.tick()
    sent = world.call(command.datanode_id).commands
    world.beat(command.datanode_id, full=True)
    world.control.tick()

    assert () == sent
    assert [] == queued(world, CommandKind.DELETE)
    assert ("EXECUTED", "") == result(world, command)
