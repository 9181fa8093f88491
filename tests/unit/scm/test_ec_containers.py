"""Erasure-coded containers in the control plane: over data and parity nodes, never copied."""

from collections.abc import Iterator
from dataclasses import replace as facts_replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from agent.errors import Refused, Unavailable
from merkle.replica import ReplicaState
from scm.answers import heartbeat_response
from scm.coding import shortage
from scm.control import Endpoint, HeartbeatAnswer
from scm.counting import Placed
from scm.facts import ContainerState, Health, Kind, OpState, OutcomeState, Pending
from scm.options import ScmOptions
from scm.replication import Case
from tests.support.scm_world import ScmWorld, container, outcome, replica

MIB = 1024**2
SCHEME = "rs-3-2-1024k"
OPTIONS = ScmOptions(container_bytes_max=10 * MIB, check_interval_ms=1_000)
NODES = tuple(f"dn{number}" for number in range(1, 7))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Six nodes, containers of 10 MiB."""
    with ScmWorld(tmp_path, OPTIONS).running() as made:
        made.join(*NODES)
        yield made


def test_a_group_goes_to_as_many_nodes_as_it_has_shards(world: ScmWorld) -> None:
    """
    Five different nodes, in one order for all groups of the container: the order is the index.
    """
    blocks = world.control.allocate("a", [1, 2], scheme=SCHEME)

    nodes = [endpoint.datanode_id for endpoint in blocks[0].replicas]
    assert 5 == len(set(nodes))
    assert nodes == [endpoint.datanode_id for endpoint in blocks[1].replicas]
    assert blocks[0].container_id == blocks[1].container_id


def test_groups_and_whole_blocks_never_share_a_container(world: ScmWorld) -> None:
    """
    One session that writes both ways has two containers, and a released one is not adopted by
    the other kind.
    """
    whole = world.control.allocate("a", [1])[0]
    coded = world.control.allocate("a", [1], scheme=SCHEME)[0]
    world.control.commit("a", [], may_replace=False, failed=())

    assert whole.container_id != coded.container_id
    assert 3 == len(whole.replicas)


def test_a_container_holds_as_much_data_as_its_data_shards(world: ScmWorld) -> None:
    """
    Three shards of 10 MiB hold a group of 30 MiB, and no larger one.
    """
    world.control.allocate("a", [30 * MIB], scheme=SCHEME)

    with pytest.raises(Refused, match="does not fit"):
        world.control.allocate("a", [30 * MIB + 1], scheme=SCHEME)


def test_too_few_nodes_are_refused(world: ScmWorld) -> None:
    """
    A code with more shards than there are nodes cannot be allocated, and nothing is promised.
    """
    with pytest.raises(Unavailable, match="9 nodes"):
        world.control.allocate("a", [1], scheme="rs-6-3-1024k")


def test_the_code_survives_a_restart_and_is_exported(world: ScmWorld) -> None:
    """
    The snapshot calls it EC with its data and parity, after a restart, too.
    """
    world.control.allocate("a", [1], scheme=SCHEME)
    world.restart()

    exported = world.control.export_snapshot()

    [row] = pq.read_table(exported.path / "containers").to_pylist()
    assert ("EC", 5, 3, 2) == (
        row["replication_type"],
        row["replication_factor"],
        row["ec_data"],
        row["ec_parity"],
    )


class TestLostShards:
    def test_are_rebuilt_by_one_command_and_never_copied(self, world: ScmWorld) -> None:
        """
        Four of five shards: one command to the node that has none, naming four sources by index.
        """
        nodes, container_id = closed(world, lost=[2])
        [(command, named)] = orders(world)

        assert (2, command.datanode_id) == command.shards[0]
        assert {1, 3, 4, 5} == {index for index, _ in command.sources}
        assert all(nodes[index - 1] == node for index, node in command.sources)
        assert [node for _, node in command.shards + command.sources] == named
        kinds = {other.kind for other in world.state.commands.values()}
        assert {Kind.RECONSTRUCT} == kinds - {Kind.CLOSE}
        assert container_id == command.container_id

    def test_two_are_rebuilt_by_one_command(self, tmp_path: Path) -> None:
        """
        The command names both targets; its message says who makes which shard.
        """
        with ScmWorld(tmp_path, OPTIONS).running() as world:
            world.join(*NODES, "dn7")
            closed(world, lost=[1, 4])
            [(command, named)] = orders(world)

            endpoints = [Endpoint(node, f"{node}:9859") for node in named]
            answer = HeartbeatAnswer(is_known=True, commands=((command, tuple(endpoints)),))
            [message] = heartbeat_response(answer, 1).commands

            assert [1, 4] == [shard.replica_index for shard in message.reconstruct.targets]
            assert [2, 3, 5] == [shard.replica_index for shard in message.reconstruct.sources]
            assert ("rs", 3, 2, MIB) == (
                message.reconstruct.scheme.codec,
                message.reconstruct.scheme.data,
                message.reconstruct.scheme.parity,
                message.reconstruct.scheme.cell_bytes,
            )

    def test_more_than_the_parity_are_not_ordered(self, world: ScmWorld) -> None:
        """
        With two of three needed shards left nothing can be computed, and nothing is ordered.
        """
        closed(world, lost=[1, 2, 3])

        assert [] == orders(world)

    def test_are_ordered_once(self, world: ScmWorld) -> None:
        """
        While a command is under way no second one is made.
        """
        closed(world, lost=[5])
        first = orders(world)

        assert 1 == len(first)
        assert [] == orders(world)


class TestShortage:
    """Ozone's table of index sets, S1.33 to S1.38: H healthy, U unhealthy, - absent."""

    @pytest.mark.parametrize(
        ("replicas", "lost", "is_repairable"),
        [
            ("1H 2H 3H 4U 5U", (4, 5), True),
            ("1H 2H 3H", (4, 5), True),
            ("1H 2H 3U", (3, 4, 5), False),
            ("1H 2H", (3, 4, 5), False),
            ("1H 2H 2U", (3, 4, 5), False),
            ("1H 2H 2U 3H", (4, 5), True),
            ("1H 2H 3H 4H 5H", (), True),
        ],
    )
    def test_by_index(self, replicas: str, lost: tuple[int, ...], is_repairable: bool) -> None:
        """
        What is lost, and whether enough is left, is told by index; unhealthy shards are no source.
        """
        placed = [
            Placed(
                replica(
                    f"dn{number}",
                    ReplicaState.CLOSED if word[1] == "H" else ReplicaState.UNHEALTHY,
                    replica_index=int(word[0]),
                ),
                Health.HEALTHY,
                OpState.IN_SERVICE,
                "/r1",
            )
            for number, word in enumerate(replicas.split())
        ]
        coded = facts_replace(container(), scheme=SCHEME, replication_factor=5)

        found = shortage(Case(coded, tuple(placed)))

        assert (lost, is_repairable) == (found.lost, found.is_repairable)


def closed(world: ScmWorld, *, lost: list[int]) -> tuple[list[str], int]:
    """Make a closed container whose shards `lost` were never reported; return its nodes."""
    [block] = world.control.allocate("a", [1], scheme=SCHEME)
    nodes = [endpoint.datanode_id for endpoint in block.replicas]
    world.control.finish("a", close=True)
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


def orders(world: ScmWorld) -> list[tuple[Pending, list[str]]]:
    """Let time pass, and all nodes call; return the reconstructions that they are sent."""
    sent = []
    for _ in range(5):
        world.clock.advance_s(1)
        world.control.tick()
        for node in NODES:
            for command, named in world.call(node).commands:
                if command.kind is Kind.RECONSTRUCT:
                    sent.append((command, [endpoint.datanode_id for endpoint in named]))
    return sent
