"""Erasure-coded containers in the control plane: over data and parity nodes, never copied."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from agent.errors import Refused, Unavailable
from merkle.replica import ReplicaState
from scm.facts import ContainerState, Kind
from scm.options import ScmOptions
from tests.support.scm_world import ScmWorld, replica

MIB = 1024**2
SCHEME = "rs-3-2-1024k"
NODES = tuple(f"dn{number}" for number in range(1, 7))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Six nodes, containers of 10 MiB."""
    options = ScmOptions(container_bytes_max=10 * MIB, check_interval_ms=1_000)
    with ScmWorld(tmp_path, options).running() as made:
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


def test_a_lost_shard_is_not_made_by_a_copy(world: ScmWorld) -> None:
    """
    Four of five shards: no replicate is ordered, and none of the four is called surplus.
    """
    [block] = world.control.allocate("a", [1], scheme=SCHEME)
    container_id = block.container_id
    world.control.finish("a", close=True)
    for index, endpoint in enumerate(block.replicas[:4], start=1):
        node = endpoint.datanode_id
        shard = replica(
            node, ReplicaState.CLOSED, container_id=container_id, bcsid=1, replica_index=index
        )
        world.execute(node, world.beat(node, shard))
    last = block.replicas[4].datanode_id
    world.execute(last, world.call(last))
    for _ in range(5):
        world.clock.advance_s(1)
        world.keep_alive(*NODES)
        world.control.tick()

    kinds = {command.kind for command in world.state.commands.values()}

    made = world.state.containers.get(container_id)
    assert made is not None
    assert ContainerState.CLOSED is made.state
    assert kinds <= {Kind.CLOSE, Kind.RECONCILE}
