"""What the balancer moves: whole replicas of healthy containers, with nothing against them."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from scm.api.call_values import Heartbeat
from scm.state.entities import CommandKind, CommandPriority, OutcomeState
from scm.state.options import ScmOptions
from suture.errors import Code, RefusedError, UnavailableError
from tests.support.control.scm_world import ScmWorld, outcome, replica, volume
from tests.support.control.unwritable import unwritable
from tests.support.heard import logged

FULL, EMPTY = ("dn1", "dn2", "dn3"), ("dn4", "dn5")
CAPACITY = 100_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Three full nodes; the empty ones come when their replicas are there."""
    options = ScmOptions(heal=False, stale_after_ms=1_000_000, dead_after_ms=2_000_000)
    with ScmWorld(tmp_path, options).running() as made:
        made.join(*FULL)
        yield made


def moves(world: ScmWorld) -> set[tuple[int, str]]:
    """Return container and source of what a run would move, once the empty nodes are there."""
    world.join(*EMPTY)
    beats(world)
    shown = world.control.balancer.start(10.0, 10, dry_run=True)
    return {(move.container_id, move.source_id) for move in shown.moves}


def beats(world: ScmWorld, *, copying_count: int = 0) -> None:
    """Let all nodes say how full they are, and how much they are at."""
    for node in (*FULL, *EMPTY):
        used = 0 if node in EMPTY else CAPACITY * 9 // 10
        disk = volume(capacity_bytes=CAPACITY, available_bytes=CAPACITY - used)
        disk = replace(disk, used_bytes=used)
        queues = (("replicate", copying_count),)
        world.control.datanodes.heartbeat(Heartbeat(node, 1, (disk,), (), (), queues, None, 0))


def closed(world: ScmWorld, *roots: int) -> int:
    """Make a closed container on the full nodes, all of which name what they hold."""
    made = world.made_closed(roots=roots)
    for node in FULL:
        held = [r for r in world.state.replicas.values() if r.datanode_id == node]
        world.beat(node, *held, full=True)
    return made.container_id


def test_a_whole_replica_is_moved_off_a_full_node(world: ScmWorld) -> None:
    """The replica is moved off the full node, whichever of the three it is."""
    number = closed(world, 7, 7, 7)

    assert {number} == {container_id for container_id, _source in moves(world)}


def test_replicas_that_differ_are_not_moved(world: ScmWorld) -> None:
    """The right one is unknown, although the number of replicas is healthy."""
    closed(world, 7, 8, 9)

    assert set() == moves(world)


def test_the_one_that_is_outvoted_stays_where_it_is(world: ScmWorld) -> None:
    """The two that agree may be moved."""
    number = closed(world, 7, 7, 9)
    [odd] = [r.datanode_id for r in world.state.replicas.of(number) if r.tree and r.tree.root == 9]

    found = moves(world)

    assert odd not in {source for _number, source in found}
    assert found


def test_a_container_that_lacks_a_replica_is_not_moved(world: ScmWorld) -> None:
    """First it is made whole."""
    number = closed(world, 7, 7, 7)
    world.beat("dn1", full=True)

    assert number not in {container_id for container_id, _source in moves(world)}


def test_a_replica_with_findings_is_not_moved(world: ScmWorld) -> None:
    """The replica is repaired in its place."""
    number = closed(world, 7, 7, 7)
    for node in FULL:
        world.beat(node, replica(node, container_id=number, bcsid=1, finding_count=1))

    assert set() == moves(world)


def test_a_move_is_given_longer_than_a_copy_that_somebody_needs(world: ScmWorld) -> None:
    """Four times: it is the last that a datanode does. Then it is left to itself."""
    closed(world, 7, 7, 7)
    assert moves(world), "there is something to move"
    world.control.balancer.start(10.0, 1, dry_run=False)
    world.control.tick()
    beats(world)

    copying = []
    for minutes in (1, 45, 5):
        for _ in range(minutes):
            world.clock.advance_s(60)
            beats(world, copying_count=1)
            world.control.tick()
        copying.append(len(world.control.balancer.status().moves))

    assert [1, 1, 0] == copying
    assert 45 * 60_000 > 3 * ScmOptions().command_deadline_ms


def test_second_balancing_is_refused_for_good(world: ScmWorld) -> None:
    """It is not BUSY, for which commands wait: a balancing takes hours, and --stop ends it."""
    closed(world, 7, 7, 7)
    world.control.balancer.start(10.0, 1, dry_run=False)

    with pytest.raises(RefusedError, match="another balancing is running") as refused:
        world.control.balancer.start(10.0, 1, dry_run=False)

    assert Code.INELIGIBLE is refused.value.code


def test_the_delete_of_a_move_has_no_priority(world: ScmWorld) -> None:
    """The delete counts among those of its datanode, like one of the replication manager."""
    number = closed(world, 7, 7, 7)
    world.join(*EMPTY)
    beats(world)
    world.control.balancer.start(10.0, 1, dry_run=False)
    world.control.tick()
    [copy] = world.state.commands.of_container(number)
    world.call(copy.datanode_id)
    made = replica(copy.target_id, container_id=number, bcsid=1, root=7)
    world.beat(copy.target_id, made)
    world.beat(copy.datanode_id, outcomes=(outcome(copy),))
    beats(world)

    world.control.tick()

    [delete] = world.state.commands.of_container(number)
    loads = {q.node.datanode_id: q.delete_load for q in world.control.queries.queues().nodes}
    assert (CommandKind.DELETE, copy.datanode_id) == (delete.kind, delete.datanode_id)
    assert (CommandPriority.LOW, CommandPriority.NORMAL) == (copy.priority, delete.priority)
    assert 1 == loads[copy.datanode_id]


def test_a_move_that_failed_ends_no_tick(world: ScmWorld) -> None:
    """The next iteration pauses, and the judge is not asked."""
    number = closed(world, 7, 7, 7)
    world.join(*EMPTY)
    beats(world)
    world.control.balancer.start(10.0, 10, dry_run=False)
    world.clock.advance_s(1)
    world.control.tick()
    [copy] = list(world.state.commands.of_container(number))
    world.call(copy.datanode_id)
    failed = outcome(copy, OutcomeState.FAILED, code="UNAVAILABLE")
    world.beat(copy.datanode_id, outcomes=(failed,))
    beats(world)

    world.control.tick()

    shown = world.control.balancer.status()
    assert (False, 0) == (shown.is_running, shown.moved_count)
    assert () == world.control.balancer.start(10.0, 10, dry_run=True).moves


def test_a_move_that_could_not_be_noted_is_not_under_way(world: ScmWorld) -> None:
    """The disk of the state is full, so no copy is ordered. With room again the iteration starts
    from the beginning.
    """
    number = closed(world, 7, 7, 7)
    world.join(*EMPTY)
    beats(world)
    world.control.tick()  # what else there is to write
    world.control.balancer.start(10.0, 1, dry_run=False)

    with logged(), unwritable(), pytest.raises(UnavailableError):
        world.control.tick()
    in_vain = world.control.balancer.status()
    world.control.tick()
    begun = world.control.balancer.status()

    assert (True, 0, ()) == (in_vain.is_running, in_vain.iteration, in_vain.moves)
    assert (1, [number]) == (begun.iteration, [move.container_id for move in begun.moves])


def test_a_run_whose_end_could_not_be_noted_ends_once(world: ScmWorld) -> None:
    """The end is written with the rest of the tick, and logged when it is durable."""
    closed(world, 7, 7, 7)
    world.control.balancer.start(10.0, 1, dry_run=False)
    with logged() as said:
        with suppress(RuntimeError), world.state.change() as change:
            world.control.balancer.advance(change)
            raise RuntimeError("nothing of it is kept")
        in_vain = world.control.balancer.status()
        world.control.tick()

    assert in_vain.is_running
    assert not world.control.balancer.status().is_running
    assert 1 == [line["event"] for line in said].count("balance_ended")
