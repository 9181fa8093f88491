"""What an operator may set of the control plane, and what datanodes then notice of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.administration.decommission import LEAVING, RESTING, OpStateRequest
from scm.api.call_values import Heartbeat
from scm.api.responses import node_message
from scm.state.entities import CommandKind, Container, OpState, PendingCommand
from scm.state.options import ScmOptions
from tests.support.control.scm_world import (
    ScmWorld,
    confirm,
    pass_time,
    pending,
    replica,
    volume,
)

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


def of_kind(world: ScmWorld, kind: CommandKind) -> list[PendingCommand]:
    """Return the commands of a kind."""
    return [command for command in world.state.commands.values() if command.kind is kind]


def call_with_volumes(world: ScmWorld, node: str, count: int, *, failed: int = 0) -> None:
    """Let a node call that has so many volumes, some of them failed."""
    working = tuple(volume() for _ in range(count))
    broken = tuple(replace(volume(), failed=True) for _ in range(failed))
    world.control.datanodes.heartbeat(Heartbeat(node, 1, working + broken, (), (), ()))


def test_limits_follow_the_volumes_that_work(tmp_path: Path) -> None:
    """A heartbeat has the number of volumes, and the cluster-wide limit follows."""
    options = ScmOptions(inflight_factor_percent=100)
    with cluster(tmp_path, options, "dn1", "dn2") as world:
        seen = []
        for count, failed in ((1, 0), (10, 0), (24, 0), (24, 6), (80, 0)):
            call_with_volumes(world, "dn1", count, failed=failed)
            queues = world.control.queries.queues()
            seen.append((queues.nodes[0].replication_limit, queues.pending_add_limit))

    assert [(20, 40), (20, 40), (48, 68), (48, 68), (128, 148)] == seen


def test_a_reconstruction_counts_for_three_copies(tmp_path: Path) -> None:
    """With room for ten copies, the last reconstruction may exceed it."""
    options = ScmOptions(replication_limit=10)
    with cluster(tmp_path, options) as world, world.state.change() as change:
        for number in range(1, 15):
            change.put(world.state.commands, pending(number, CommandKind.RECONSTRUCT))

        left = world.control.commands.drain(change, "dn1", lambda _commands: {})

        assert 4 == len(left)
        assert 14 * 3 == world.control.commands.loads.replication_load("dn1")


@pytest.mark.parametrize(("bytes_per_s", "patience_s"), [(0, 10), (200, 20)])
def test_a_large_copy_has_more_time_than_a_small_one(
    tmp_path: Path, bytes_per_s: int, patience_s: int
) -> None:
    """A replica of 1,000 bytes is copied at 200 bytes a second, and the datanode gets the
    deadline.
    """
    options = ScmOptions(
        command_deadline_ms=10_000,
        deadline_bytes_per_s=bytes_per_s,
        check_interval_ms=1_000,
    )
    with cluster(tmp_path, options) as world:
        lose(world, 1)
        world.control.tick()
        [copy] = of_kind(world, CommandKind.REPLICATE)
        [(sent, _named)] = world.call(copy.datanode_id).commands
        world.queues[copy.datanode_id] = (("replicate", 1),)

        pass_time(world, patience_s, *NODES)
        in_time = [c.command_id for c in of_kind(world, CommandKind.REPLICATE)]
        pass_time(world, 2, *NODES)
        late = [c.command_id for c in of_kind(world, CommandKind.REPLICATE)]

    assert (patience_s - 5) * 1_000 == sent.lifetime_ms
    assert [copy.command_id] == in_time
    assert [copy.command_id] != late


class TestDepartures:
    def test_a_datanode_leaves_when_enough_others_have_what_it_has(self, tmp_path: Path) -> None:
        """If the operator configures it, two of three replicas are enough without a fourth node."""
        ready = {}
        for enough in (0, 2):
            options = ScmOptions(decommission_replica_min=enough, check_interval_ms=1_000)
            with cluster(tmp_path / str(enough), options, "dn1", "dn2", "dn3") as world:
                world.made_closed()
                request = OpStateRequest(("dn1",), OpState.DECOMMISSIONING)
                [answer] = world.control.departure_requests.submit(request)
                for _ in range(4):
                    world.kept["dn1"] = (OpState.DECOMMISSIONING, 0)
                    pass_time(world, 1, "dn1", "dn2", "dn3")
                node = world.state.nodes.get("dn1")
                assert node is not None
                ready[enough] = answer.code, node.op_state

        assert ("PRECHECK_FAILED", OpState.IN_SERVICE) == ready[0]
        assert ("OK", OpState.DECOMMISSIONED) == ready[2]

    def test_resting_replicas_do_not_count_for_who_leaves(self, tmp_path: Path) -> None:
        """A replica on a node in maintenance is not in service, so only one would stay."""
        options = ScmOptions(decommission_replica_min=1, check_interval_ms=1_000)
        with cluster(tmp_path, options, "dn1", "dn2", "dn3") as world:
            made = world.made_closed()
            states = {"dn1": OpState.DECOMMISSIONING, "dn2": OpState.ENTERING_MAINTENANCE}
            with world.state.change() as change:
                for name, op_state in states.items():
                    node = world.state.nodes.get(name)
                    assert node is not None
                    change.put(world.state.nodes, replace(node, op_state=op_state))

            obstacles = world.control.judge.obstacles([made.container_id])

        assert {made.container_id: "too_few"} == obstacles

    def test_containers_locked_by_leaving_and_resting_nodes_count_apart(
        self, tmp_path: Path
    ) -> None:
        """Two of three holders leave and one is in maintenance. The container counts if all
        three leave, or if both groups are off together.
        """
        options = ScmOptions(check_interval_ms=1_000)
        with cluster(tmp_path, options, *NODES, "dn5", "dn6") as world:
            names = {
                r.datanode_id for r in world.state.replicas.of(world.made_closed().container_id)
            }
            first, second, third = sorted(names)
            locked, together = [], world.control.departures.locked_together
            for leaving in ((first,), (first, second), (first, second, third)):
                request = OpStateRequest(leaving, OpState.DECOMMISSIONING, is_forced=True)
                world.control.departure_requests.submit(request)
                pass_time(world, 1, *NODES, "dn5", "dn6")
                locked.append([together(states) for states in (LEAVING, RESTING)])
            rest = OpStateRequest(
                (first, second, third), OpState.ENTERING_MAINTENANCE, is_forced=True
            )
            world.control.departure_requests.submit(rest)
            pass_time(world, 1, *NODES, "dn5", "dn6")
            locked.append([together(states) for states in (LEAVING, RESTING)])

        assert [[0, 0], [0, 0], [1, 0], [0, 1]] == locked


def test_only_datanodes_of_managed_racks_are_used(tmp_path: Path) -> None:
    """Replicas on other racks count and stay: they get no new container, copy, delete or
    balancing.
    """
    options = ScmOptions(managed_racks="/r1, /r3", check_interval_ms=1_000)
    with ScmWorld(tmp_path, options).running() as world:
        world.join("dn1", "dn2", "dn3", "dn4", "dn5", racks=("/r1", "/r1", "/r3", "/r1", "/r2"))
        confirm(world, "dn1", "dn2", "dn3", "dn4", "dn5")
        made = world.made_closed()
        written = {r.datanode_id for r in world.state.replicas.of(made.container_id)}
        world.beat("dn5", replica("dn5", bcsid=made.sequence_id, container_id=made.container_id))
        lost = min(written)
        world.beat(lost, full=True)
        pass_time(world, 2, "dn1", "dn2", "dn3", "dn4", "dn5")
        while_it_counts = of_kind(world, CommandKind.REPLICATE)
        world.beat("dn5", full=True)
        pass_time(world, 2, "dn1", "dn2", "dn3", "dn4", "dn5")
        copies = of_kind(world, CommandKind.REPLICATE)
        shares = {name for name, _share in world.control.balancer.status().shares}
        told = [
            n.datanode_id for n in map(node_message, world.control.queries.nodes()) if n.unmanaged
        ]

    assert ["dn5"] == told
    assert "dn5" not in written
    assert [] == while_it_counts
    assert [("dn5" not in (c.datanode_id, c.target_id)) for c in copies] == [True]
    assert {"dn1", "dn2", "dn3", "dn4"} == shares


def test_the_report_counts_shards_that_are_being_made(tmp_path: Path) -> None:
    """Until they are whole or gone; also of a control plane that was restarted meanwhile."""
    with cluster(tmp_path, ScmOptions()) as world:
        counts = []
        for index in (1, 2):
            made = replica("dn1", ReplicaState.RECOVERING, container_id=index, replica_index=index)
            world.beat("dn1", made)
            counts.append(world.control.queries.report().recovering_count)
        world.restart()
        counts.append(world.control.queries.report().recovering_count)
        world.join("dn1")
        world.beat("dn1", replica("dn1", container_id=1, replica_index=1), full=True)
        counts.append(world.control.queries.report().recovering_count)

    assert [1, 2, 2, 0] == counts
