"""What an operator may set of the control plane, and what datanodes then notice of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from scm.edge.calls import Heartbeat
from scm.state.facts import Container, Kind, Pending
from scm.state.options import ScmOptions
from tests.support.coded_world import NODES as CODED_NODES
from tests.support.coded_world import OPTIONS as CODED_OPTIONS
from tests.support.coded_world import closed, orders
from tests.support.scm_world import ScmWorld, confirm, pass_time, pending, replica, volume

NODES = ("dn1", "dn2", "dn3", "dn4")


@contextmanager
def cluster(path: Path, options: ScmOptions, *nodes: str) -> Iterator[ScmWorld]:
    """Serve nodes that have named all they hold."""
    with ScmWorld(path, options).running() as world:
        world.join(*(nodes or NODES))
        confirm(world, *(nodes or NODES))
        yield world


def lose(world: ScmWorld, count: int) -> list[Container]:
    """Make containers, each of which then lacks the replica of its first holder."""
    made = [world.made_closed() for _ in range(count)]
    for one in made:
        node = world.state.replicas.of(one.container_id)[0].datanode_id
        left = [world.state.replicas.get((n, node)) for n in world.state.replicas.on(node)]
        kept = [r for r in left if r is not None and r.container_id != one.container_id]
        world.beat(node, *kept, full=True)
    return made


def of_kind(world: ScmWorld, kind: Kind) -> list[Pending]:
    """Return the commands of a kind."""
    return [command for command in world.state.commands.values() if command.kind is kind]


def call_with_volumes(world: ScmWorld, node: str, count: int, *, failed: int = 0) -> None:
    """Let a node call that has so many volumes, some of them failed."""
    working = tuple(volume() for _ in range(count))
    broken = tuple(replace(volume(), failed=True) for _ in range(failed))
    world.control.heartbeat(Heartbeat(node, 1, working + broken, (), (), ()))


def test_limits_follow_the_volumes_that_work(tmp_path: Path) -> None:
    """A heartbeat says how many there are; the limit of the whole cluster follows."""
    options = ScmOptions(volume_replication_limit=4, inflight_factor_percent=100)
    with cluster(tmp_path, options, "dn1", "dn2") as world:
        seen = []
        for count, failed in ((1, 0), (5, 0), (12, 0), (12, 3), (40, 0)):
            call_with_volumes(world, "dn1", count, failed=failed)
            queues = world.control.queues()
            seen.append((queues.nodes[0].replication_limit, queues.pending_add_limit))

    assert [(20, 40), (20, 40), (48, 68), (48, 68), (128, 148)] == seen


@pytest.mark.parametrize(("weight", "sent"), [(3, 4), (10, 1), (1, 10)])
def test_a_reconstruction_counts_for_what_it_is_set_to(
    tmp_path: Path, weight: int, sent: int
) -> None:
    """Of the room for ten copies, the last one may exceed it."""
    options = ScmOptions(replication_limit=10, reconstruct_weight=weight)
    with cluster(tmp_path, options) as world, world.state.change() as change:
        for number in range(1, 15):
            change.put(world.state.commands, pending(number, Kind.RECONSTRUCT))

        left = world.control._commands.drain(change, "dn1", lambda _commands: {})

        assert sent == len(left)
        assert 14 * weight == world.control._commands.replication_load("dn1")


@pytest.mark.parametrize(("bytes_per_s", "patience_s"), [(0, 10), (200, 20)])
def test_a_large_copy_has_more_time_than_a_small_one(
    tmp_path: Path, bytes_per_s: int, patience_s: int
) -> None:
    """A replica of 1,000 bytes is read and written at 200 bytes a second; the datanode is told."""
    options = ScmOptions(
        command_deadline_ms=10_000,
        datanode_deadline_margin_ms=4_000,
        deadline_bytes_per_s=bytes_per_s,
        check_interval_ms=1_000,
    )
    with cluster(tmp_path, options) as world:
        lose(world, 1)
        world.control.tick()
        [copy] = of_kind(world, Kind.REPLICATE)
        [(sent, _named)] = world.call(copy.datanode_id).commands
        world.queues[copy.datanode_id] = (("replicate", 1),)

        pass_time(world, patience_s, *NODES)
        in_time = [c.command_id for c in of_kind(world, Kind.REPLICATE)]
        pass_time(world, 2, *NODES)
        late = [c.command_id for c in of_kind(world, Kind.REPLICATE)]

    assert (patience_s - 4) * 1_000 == sent.lifetime_ms
    assert [copy.command_id] == in_time
    assert [copy.command_id] != late


def test_who_takes_part_in_enough_is_no_target(tmp_path: Path) -> None:
    """Whether it sends or gets: of three free nodes the one that is in no copy is chosen."""
    options = ScmOptions(part_limit=1, check_interval_ms=1_000)
    with cluster(tmp_path, options, *NODES, "dn5", "dn6") as world:
        made = world.made_closed()
        held = {r.datanode_id for r in world.state.replicas.of(made.container_id)}
        sender, receiver, idle = sorted({*NODES, "dn5", "dn6"} - held)
        sent = replace(pending(900, Kind.REPLICATE, node=sender), target_id=receiver)
        case = world.control._cases.case(made)
        before = world.control._manager.targets(case, 5)
        with world.state.change() as change:
            change.put(world.state.commands, sent)

        chosen = world.control._manager.targets(case, 5)

    assert {sender, receiver, idle} == set(before)
    assert [idle] == chosen


def test_who_takes_part_in_enough_is_not_read_for_a_rebuild(tmp_path: Path) -> None:
    """While as many shards can be read elsewhere as are needed: three of the four that are left."""
    options = replace(CODED_OPTIONS, part_limit=1)
    read = []
    for is_busy in (False, True):
        with ScmWorld(tmp_path / str(is_busy), options).running() as world:
            world.join(*CODED_NODES)
            nodes, _container_id = closed(world, lost=[2])
            if is_busy:
                now_s = world.clock.monotonic_s()
                sent = pending(900, Kind.REPLICATE, node=nodes[0], sent_at_s=now_s)
                with world.state.change() as change:
                    change.put(world.state.commands, sent)
            [(command, _named)] = orders(world)
            read.append({index for index, _node in command.sources})
            parts = world.control._cases._parts()
            assert {parts[node] for _index, node in command.sources} == {1}

    assert [{1, 3, 4, 5}, {3, 4, 5}] == read


def test_while_copies_wait_datanodes_get_more_and_are_told_to_work_more(tmp_path: Path) -> None:
    """Only so long: when nothing lacks any more, clients have the disks again."""
    options = ScmOptions(repair_boost_percent=300, check_interval_ms=1_000)
    with cluster(tmp_path, options) as world:
        told = [world.call("dn1").task_percent]
        [made] = lose(world, 1)
        missing = world.state.replicas.of(made.container_id)
        spare = min(set(NODES) - {r.datanode_id for r in missing})
        limits = []
        for node in NODES:
            world.queues[node] = (("replicate", 100),)
            world.call(node)
        world.control.tick()
        told.append(world.call("dn1").task_percent)
        limits.append(world.control.queues().nodes[0].replication_limit)
        for r in missing:
            world.beat(r.datanode_id, r)
        world.beat(spare, replica(spare, bcsid=made.sequence_id, container_id=made.container_id))
        pass_time(world, 2, *NODES)
        told.append(world.call("dn1").task_percent)
        limits.append(world.control.queues().nodes[0].replication_limit)

    assert [100, 300, 100] == told
    assert [60, 20] == limits
