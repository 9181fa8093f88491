"""Files are read whole though no replica, and no shard, is whole any more."""

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId, ReplicaState
from suture.client.cluster_client import ClusterClient
from suture.client.ecreader import GroupReader
from suture.client.replica_ranking import ANSWERS_MIN
from suture.client.stripes.stripe_sources import SILENT_COUNT_MAX, PendingStripe, RebuildSources
from suture.ec.blockgroup import RebuildableGroup, resolve_group
from suture.ec.rebuild_task import RebuildStats
from suture.ec.scheme import CodecName, Scheme
from suture.errors import Code, RefusedError, UnavailableError
from suture.runtime.ports import Executor, Future
from suture.wire.clients.block_peer import TransferCost
from suture.wire.clients.channel import DatanodesSilent
from suture.wire.clients.peer import Peer
from suture.wire.v1 import container_pb2, scm_pb2
from tests.integration.reconstruct.test_reconstruct import flip
from tests.support.storage.datanodes import Datanode
from tests.support.storage.ec_cluster import CONTAINER as CODED
from tests.support.storage.ec_cluster import EcCluster, altered, ec_cluster, groups_of, write_shard
from tests.support.storage.stored_replica import CHUNK_BYTES, CONTAINER, noise

CHUNK_COUNT = 4
HOST = "127.0.0.1"
BLOCK = 9
RS_3_2 = Scheme(CodecName.RS, 3, 2, 4096)
STRIPE_BYTES = 3 * 4096
ASKED_MAX = 200  # more than any of these tests needs


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
    with ClusterClient("127.0.0.1:9") as client:
        return b"".join(client.read(found_at(nodes)))


def test_read_combines_replicas_with_different_bad_chunks(three: list[Datanode]) -> None:
    """The client returns to replicas that failed before, because every chunk is healthy in one
    of them.
    """
    for node, numbers in zip(three, ((0, 3), (1,), (2, 3)), strict=True):
        for number in numbers:
            node.replica.flip(BLOCK, number * CHUNK_BYTES + 77)

    assert content() == read(three)


def test_unhealthy_replicas_are_read_where_their_chunks_are_whole(
    three: list[Datanode],
) -> None:
    """All three replicas are marked unhealthy by their scans. The file reads whole, because each
    is bad at another chunk.
    """
    for number, node in enumerate(three):
        node.replica.flip(BLOCK, number * CHUNK_BYTES + 77)
        node.scan()

    states = {node.replica.store.replica(CONTAINER).state for node in three}

    assert {ReplicaState.UNHEALTHY} == states
    assert content() == read(three)


def test_replica_with_a_bad_block_is_tried_last_for_the_next_block(three: list[Datanode]) -> None:
    """A client remembers failed replicas from block to block, so a bad disk is not tried first
    for each block.
    """
    three[0].replica.flip(BLOCK, 77)
    with ClusterClient("127.0.0.1:9") as client:
        first = b"".join(client.read(found_at(three)))
        asked = len(three[0].reads)
        second = b"".join(client.read(found_at(three)))

    assert content() == first == second
    assert 1 == asked == len(three[0].reads)


def test_a_datanode_that_hangs_costs_a_moment_and_not_a_deadline(three: list[Datanode]) -> None:
    """
    Once it is known what a usual answer takes, another is asked when one takes longer.
    """
    three[0].stop_serving()
    with socket.create_server((HOST, 0)) as silent, ClusterClient(f"{HOST}:9") as client:
        answer = found_at(three)
        answer.containers[0].replicas[0].address = f"{HOST}:{silent.getsockname()[1]}"
        for _ in range(ANSWERS_MIN):
            client._conduct.record_latency("dn2", 0.001)

        read = b"".join(client.read(answer))

        assert content() == read
        assert 0 == client._conduct.fault_count("dn1")  # a deadline that passes is a fault


def test_unreadable_chunk_error_names_block_key_offset_and_causes(three: list[Datanode]) -> None:
    """The error has the block, the key and the offset, and for each replica the reason why it
    cannot serve the chunk.
    """
    three[0].replica.flip(BLOCK, CHUNK_BYTES + 5)
    three[1].replica.file(BLOCK).unlink()
    nodes = found_at(three)
    three[2].stop_serving()

    with ClusterClient("127.0.0.1:9") as client, pytest.raises(UnavailableError) as caught:
        list(client.read(nodes))

    said = str(caught.value)
    assert (
        f"no good copy of block {BLOCK} of container {CONTAINER}, chunk at offset {CHUNK_BYTES}"
        in said
    )
    assert "dn1: chunk at 100000: the data does not match the checksums" in said
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

    def test_a_shard_with_many_bad_cells_in_a_row_is_not_given_up(self, tmp_path: Path) -> None:
        """Each of four shards has lost five consecutive stripes, and every stripe needs the
        other three.
        """
        with ec_cluster(tmp_path, RS_3_2, [20 * STRIPE_BYTES]) as cluster:
            for stripe in range(20):
                flip(cluster.nodes[stripe // 5 + 1], 1, stripe * 4096 + 7)
            cluster.serve()

            assert cluster.groups[1].data == read_group(cluster, range(1, 5))

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

    def test_too_few_cells_ask_each_datanode_once(self, tmp_path: Path) -> None:
        """If one cell too few can be read, each datanode is asked once, and the error says how
        many cells can be read.
        """
        with ec_cluster(tmp_path, RS_3_2, [STRIPE_BYTES]) as cluster:
            flip(cluster.nodes[1], 1, 7)
            cluster.serve()
            sources, agreed, asked = opened(cluster, (1, 2, 3))

            with pytest.raises(UnavailableError, match="2 of 3 cells can be read"):
                sources.finish(sources.begin(agreed, 0))

            assert sorted(cluster.nodes[node].address for node in (1, 2, 3)) == sorted(asked)

    def test_stopped_datanodes_may_return(self, tmp_path: Path) -> None:
        """The error is the one after which a client calls them again."""
        with ec_cluster(tmp_path, RS_3_2, [STRIPE_BYTES]) as cluster:
            cluster.serve()
            for node in (1, 2, 3):
                cluster.nodes[node].stop_serving()

            with pytest.raises(DatanodesSilent, match="2 of the 3 sources"):
                read_group(cluster, (1, 2, 3, 4, 5))

    def test_readable_cells_are_fetched_from_any_holder(self, tmp_path: Path) -> None:
        """Locating a corrupt shard needs every cell, also one whose first holder lost it."""
        with ec_cluster(tmp_path, RS_3_2, [STRIPE_BYTES]) as cluster:
            write_shard(cluster.nodes[6].store, 1, cluster.groups)
            flip(cluster.nodes[1], 1, 7)
            cluster.serve()
            sources, agreed, _ = opened(cluster, range(1, 7))

            reading = sources.begin(agreed, 0, count=RS_3_2.shard_count)

            assert cluster.groups[1].stripes[0] == sources.finish_all(reading)

    def test_a_shard_is_asked_of_one_datanode_at_a_time(self, tmp_path: Path) -> None:
        """
        Two that have the same shard are not both read for the same cell.
        """
        with ec_cluster(tmp_path, RS_3_2, [STRIPE_BYTES]) as cluster:
            write_shard(cluster.nodes[6].store, 1, cluster.groups)
            cluster.serve()
            sources, agreed, asked = opened(cluster, range(1, 7))

            reading = sources.begin(agreed, 0, count=6)

            assert [1, 2, 3, 4, 5] == sorted(one.shard.index for one in reading.pending.values())
            assert 5 == len(asked)

    def test_no_shard_is_asked_of_anybody_whose_cell_is_here(self, tmp_path: Path) -> None:
        """The holder is not asked although it was not asked before and would be the first
        choice.
        """
        with ec_cluster(tmp_path, RS_3_2, [STRIPE_BYTES]) as cluster:
            cluster.serve()
            sources, agreed, asked = opened(cluster, range(1, 6))
            cells = cluster.groups[1].stripes[0]

            read = sources.finish(PendingStripe(agreed, 0, {1: cells[1]}, wanted_count=3))

            assert {index: cells[index] for index in (1, 2, 3)} == read
            assert [cluster.nodes[node].address for node in (2, 3)] == asked

    def test_datanode_that_answers_between_silences_stays_in_use(self, tmp_path: Path) -> None:
        """Every second stripe needs the shard of the slow datanode. Each of its answers, to a
        list or for a cell, resets the count of silences.
        """
        with ec_cluster(tmp_path, RS_3_2, [24 * STRIPE_BYTES, *[1] * 7]) as cluster:
            for stripe in range(1, 24, 2):
                flip(cluster.nodes[4], 1, stripe * 4096 + 7)
            cluster.serve()
            address = cluster.nodes[1].address
            with Unsteady(address) as unsteady:
                dial = {address: unsteady}
                sources, agreed, _ = opened(cluster, (1, 2, 3, 4), dial)
                for stripe, cells in sources.stripes(agreed, range(24)):
                    read = {index: cells[index] for index in cells if index != 4}
                    assert read.items() <= cluster.groups[1].stripes[stripe].items()
                for block in range(1, 9):
                    sources.block(BlockId(block))

                assert 1 in sources.live_sources
                assert unsteady.silences > 2 * SILENT_COUNT_MAX

    def test_a_cell_that_is_not_the_listed_one_is_not_taken(self, tmp_path: Path) -> None:
        """The cell may fit its own row, which is not the row by which the stripe was agreed
        upon.
        """
        liar = {1: altered(groups_of(RS_3_2, [STRIPE_BYTES])[1], 0, 2)}
        with ec_cluster(tmp_path, RS_3_2, [STRIPE_BYTES], instead={2: liar}) as cluster:
            write_shard(cluster.nodes[6].store, 2, cluster.groups)
            cluster.serve()
            address = cluster.nodes[2].address
            with Outdated(address, cluster.peer(cluster.nodes[6])) as outdated:
                sources, agreed, _ = opened(cluster, range(1, 6), {address: outdated})

                cells = sources.finish(sources.begin(agreed, 0))

            assert 2 not in cells
            assert cells.items() <= cluster.groups[1].stripes[0].items()

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


@dataclass(slots=True)
class Questions:
    """An executor that notes who is asked for cells; who is asked for ever ends the test."""

    executor: Executor
    asked: list[str]

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future:
        """Begin the work."""
        if work.__name__ == "read_cells":
            self.asked.append(arguments[0].address)
            assert len(self.asked) < ASKED_MAX, "they are asked over and over"
        return self.executor.submit(work, *arguments)


class Unsteady(Peer):
    """A datanode that leaves every second stripe, and every second list, without an answer; it
    does not know how to give several cells at once."""

    silences = 0

    def read_chunks(
        self, container_id: ContainerId, keys: Sequence[tuple[BlockId, int]]
    ) -> dict[tuple[BlockId, int], tuple[ChunkInfo, bytes]]:
        """Refuse."""
        del container_id, keys
        raise RefusedError(Code.MALFORMED_REQUEST, "no such method")

    def block(
        self, container_id: ContainerId, block_id: BlockId, meter: TransferCost | None = None
    ) -> BlockData:
        """Answer for odd blocks."""
        self._fall_silent(is_due=block_id % 2 == 0)
        return super().block(container_id, block_id, meter)

    def read_chunk(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        offset: int,
        meter: TransferCost | None = None,
    ) -> tuple[ChunkInfo, bytes]:
        """Answer for odd stripes."""
        self._fall_silent(is_due=offset // 4096 % 2 == 0)
        return super().read_chunk(container_id, block_id, offset, meter)

    def _fall_silent(self, *, is_due: bool) -> None:
        if is_due:
            self.silences += 1
            raise UnavailableError(Code.UNAVAILABLE, "nobody answers")


class Outdated(Peer):
    """A datanode whose row was another one when it was asked for it."""

    def __init__(self, address: str, before: Peer) -> None:
        super().__init__(address)
        self._before = before

    def block(
        self, container_id: ContainerId, block_id: BlockId, meter: TransferCost | None = None
    ) -> BlockData:
        """Return the row as it was."""
        return self._before.block(container_id, block_id, meter)


def opened(
    cluster: EcCluster, nodes: Iterable[int], dialled: Mapping[str, Peer] = MappingProxyType({})
) -> tuple[RebuildSources, RebuildableGroup, list[str]]:
    """Return these datanodes as sources, the first group as they know it, and who is asked.

    `dialled`: connections, by address, in place of ordinary ones.
    """
    questions = Questions(cluster.executor, [])
    sources = RebuildSources(CODED, cluster.scheme, questions, RebuildStats())
    sources.open(
        [cluster.shard(node, 0) for node in nodes],
        lambda shard: dialled.get(shard.address) or cluster.peer(shard),
    )
    agreed = resolve_group(cluster.scheme, BlockId(1), sources.block(BlockId(1)))
    assert isinstance(agreed, RebuildableGroup)
    return sources, agreed, questions.asked


def read_group(cluster: EcCluster, nodes: Iterable[int]) -> bytes:
    """Read the first block group as a client does."""
    places = [cluster.nodes[n] for n in nodes]
    reader = GroupReader(CODED, cluster.scheme, places, cluster.peer, cluster.executor)
    return b"".join(reader.read(BlockId(1), len(cluster.groups[1].data)))
