"""Files are read whole though no replica, and no shard, is whole any more."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from agent.client import Client
from agent.ec.scheme import CodecName, Scheme
from agent.ecreader import GroupReader
from agent.errors import Unavailable
from agent.rpc.v1 import container_pb2, scm_pb2
from merkle.replica import BlockId
from tests.integration.test_reconstruct import flip
from tests.support.datanodes import Datanode
from tests.support.ec_cluster import CONTAINER as CODED
from tests.support.ec_cluster import EcCluster, altered, ec_cluster, groups_of, write_shard
from tests.support.stored_replica import CHUNK_BYTES, CONTAINER, noise

CHUNK_COUNT = 4
BLOCK = 9
RS_3_2 = Scheme(CodecName.RS, 3, 2, 4096)
STRIPE_BYTES = 3 * 4096


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Datanode]]:
    """Serve three replicas of a block of four chunks."""
    nodes = [Datanode(f"dn{number}", tmp_path / f"dn{number}") for number in (1, 2, 3)]
    for node in nodes:
        node.replica.store.create_container(CONTAINER)
        node.replica.put(BLOCK, *[CHUNK_BYTES] * CHUNK_COUNT)
        node.replica.store.close_container(CONTAINER, bcsid=0, force=True)
        node.serve()
    yield nodes
    for node in nodes:
        node.close()


def found_at(nodes: list[Datanode]) -> scm_pb2.LookupKeyResponse:
    """Return what the control plane says of a key that is this block."""
    block = container_pb2.BlockId(container_id=CONTAINER, local_id=BLOCK)
    length_bytes = CHUNK_COUNT * CHUNK_BYTES
    location = scm_pb2.BlockLocation(block_id=block, length=length_bytes)
    places = [
        container_pb2.DatanodeEndpoint(datanode_id=node.datanode_id, address=node.address)
        for node in nodes
    ]
    return scm_pb2.LookupKeyResponse(
        key=scm_pb2.KeyInfo(key="a/key", size=length_bytes, blocks=[location]),
        containers=[scm_pb2.ContainerReplicas(container_id=CONTAINER, replicas=places)],
    )


def content() -> bytes:
    """Return what the block holds."""
    return b"".join(
        noise(CHUNK_BYTES, BLOCK * 1_000 + number * CHUNK_BYTES) for number in range(CHUNK_COUNT)
    )


def read(nodes: list[Datanode]) -> bytes:
    """Read the key as a client does."""
    with Client("127.0.0.1:9") as client:
        return b"".join(client.read(found_at(nodes)))


def test_each_replica_has_another_bad_chunk(three: list[Datanode]) -> None:
    """
    The client goes back to replicas that failed before: every chunk is healthy somewhere.
    """
    for node, numbers in zip(three, ((0, 3), (1,), (2, 3)), strict=True):
        for number in numbers:
            node.replica.flip(BLOCK, number * CHUNK_BYTES + 77)

    assert content() == read(three)


def test_what_nobody_has_is_named(three: list[Datanode]) -> None:
    """
    Block, key and offset, and of each replica why it does not give the chunk.
    """
    three[0].replica.flip(BLOCK, CHUNK_BYTES + 5)
    three[1].replica.file(BLOCK).unlink()
    nodes = found_at(three)
    three[2].stop_serving()

    with Client("127.0.0.1:9") as client, pytest.raises(Unavailable) as caught:
        list(client.read(nodes))

    said = str(caught.value)
    assert (
        f"block {BLOCK} of container {CONTAINER} for a/key, chunk at offset {CHUNK_BYTES}" in said
    )
    assert "dn1: chunk at 100000: the bytes do not have the checksums" in said
    assert "dn2: " in said
    assert "dn3: " in said


class TestShards:
    """The same for what is erasure-coded: cell by cell."""

    def test_every_shard_is_damaged_in_other_stripes(self, tmp_path: Path) -> None:
        """
        Four bad cells in each of five shards, one a stripe: each stripe has enough good ones, so
        the file comes whole. A shard is not given up for its bad cells.
        """
        with ec_cluster(tmp_path, RS_3_2, [20 * STRIPE_BYTES]) as cluster:
            for stripe in range(20):
                flip(cluster.nodes[stripe % 5 + 1], 1, stripe * 4096 + 7)
            cluster.serve()

            assert cluster.groups[1].data == read_group(cluster, range(1, 6))

    def test_a_lost_shard_is_rebuilt_from_others_that_are_all_damaged(self, tmp_path: Path) -> None:
        """
        Reconstruction reads in the same way.
        """
        with ec_cluster(tmp_path, RS_3_2, [20 * STRIPE_BYTES]) as cluster:
            for stripe in range(20):
                flip(cluster.nodes[stripe % 4 + 2], 1, stripe * 4096 + 7)
            cluster.serve()

            cluster.reconstruct(cluster.order([1]))

            cluster.assert_shard(6, 1)

    def test_two_datanodes_have_the_same_shard_each_with_its_damage(self, tmp_path: Path) -> None:
        """
        With no parity at hand, each cell comes from whichever of the two has it.
        """
        with ec_cluster(tmp_path, RS_3_2, [4 * STRIPE_BYTES]) as cluster:
            write_shard(cluster.nodes[6].store, 1, cluster.groups)
            flip(cluster.nodes[1], 1, 1 * 4096)
            flip(cluster.nodes[6], 1, 2 * 4096)
            cluster.serve()

            assert cluster.groups[1].data == read_group(cluster, (1, 2, 3, 6))

    @pytest.mark.parametrize("nodes", [(1, 2, 3, 4, 5), (1, 2, 3, 5)], ids=str)
    def test_a_shard_that_lies_consistently_is_not_believed(
        self, tmp_path: Path, nodes: tuple[int, ...]
    ) -> None:
        """
        Its bytes fit its own row, but not what the writer recorded of the stripe; with a shard
        of parity down, too.
        """
        liar = {1: altered(groups_of(RS_3_2, [3 * STRIPE_BYTES])[1], 1, 2)}
        with ec_cluster(tmp_path, RS_3_2, [3 * STRIPE_BYTES], instead={2: liar}) as cluster:
            cluster.serve()

            assert cluster.groups[1].data == read_group(cluster, nodes)


def read_group(cluster: EcCluster, nodes: Iterable[int]) -> bytes:
    """Read the first block group as a client does."""
    places = [(cluster.nodes[n].datanode_id, cluster.nodes[n].address) for n in nodes]
    reader = GroupReader(CODED, cluster.scheme, places, cluster.peer, cluster.executor)
    return b"".join(reader.read(BlockId(1), len(cluster.groups[1].data)))
