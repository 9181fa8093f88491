"""WriteBlocks over loopback: what is answered is committed, and what is refused is not."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from merkle.checksum import window_checksums
from merkle.replica import BlockId, ChecksumType, ChunkInfo, ContainerId
from suture.errors import UnavailableError
from suture.wire.clients.peer import Peer
from suture.wire.mapping import new_blocks_message
from suture.wire.mapping.errors import error_from
from suture.wire.v1 import container_pb2
from suture.wire.v1 import datanode_pb2 as pb
from tests.support.storage.datanodes import Datanode
from tests.support.storage.stored_replica import noise

OPEN, OTHER = ContainerId(2), ContainerId(3)
SMALL_BYTES, LARGE_BYTES = 1_000, 300_000
CALL_S = 10.0


@pytest.fixture
def datanode(tmp_path: Path) -> Iterator[Datanode]:
    """A datanode with two open containers, serving."""
    made = Datanode("dn1", tmp_path)
    for container_id in (OPEN, OTHER):
        made.replica.store.create_container(container_id)
    made.serve()
    yield made
    made.close()


@pytest.fixture
def peer(datanode: Datanode) -> Iterator[Peer]:
    """A client of it."""
    with Peer(datanode.address) as made:
        yield made


def message(
    block_id: int,
    data: bytes,
    offset: int = 0,
    *,
    is_whole: bool = True,
    container_id: ContainerId = OPEN,
) -> bytes:
    """Return a message that brings one chunk of one block."""
    checksums = window_checksums(ChecksumType.CRC32C, 16_384, data)
    chunk = ChunkInfo(offset, len(data), ChecksumType.CRC32C, 16_384, checksums)
    key = container_pb2.BlockId(container_id=container_id, local_id=block_id, bcsid=block_id)
    block = new_blocks_message.new_block_message(key, [chunk], is_whole=is_whole, metadata=[])
    return new_blocks_message.encode([block], [data])


def refusal(peer: Peer, *messages: bytes) -> str:
    """Return the code with which a stream is refused."""
    with pytest.raises(grpc.RpcError) as refused:
        peer.begin_blocks(iter(messages), CALL_S).result()
    return error_from(refused.value).code.value


def test_written_blocks_are_read_back(peer: Peer) -> None:
    """The blocks are small, and one comes in several messages."""
    first, last = noise(LARGE_BYTES, 1), noise(SMALL_BYTES, 2)

    answer = peer.begin_blocks(
        iter(
            [
                message(1, noise(SMALL_BYTES, 3)),
                message(2, first, is_whole=False),
                message(2, last, LARGE_BYTES),
                message(3, noise(SMALL_BYTES, 4)),
            ]
        ),
        CALL_S,
    ).result()

    assert 3 == answer.block_count == peer.replica(OPEN).bcsid == peer.replica(OPEN).block_count
    assert noise(SMALL_BYTES, 3) == peer.read_chunk(OPEN, BlockId(1), 0)[1]
    assert first == peer.read_chunk(OPEN, BlockId(2), 0)[1]
    assert last == peer.read_chunk(OPEN, BlockId(2), LARGE_BYTES)[1]


def test_block_keeps_its_metadata_and_closes_behind_a_missing_commit(
    datanode: Datanode, peer: Peer
) -> None:
    """A replica that lacks the last commit is QUASI_CLOSED. A proof of another one is kept, and a
    tree has only the blocks that are asked for.
    """
    checksums = window_checksums(ChecksumType.CRC32C, 16_384, b"abc")
    chunk = ChunkInfo(0, 3, ChecksumType.CRC32C, 16_384, checksums)
    blocks = [
        new_blocks_message.new_block_message(
            container_pb2.BlockId(container_id=OPEN, local_id=number, bcsid=number),
            [chunk],
            is_whole=True,
            metadata=[("key", f"name {number}")],
        )
        for number in (1, 2)
    ]
    stream = iter([new_blocks_message.encode(blocks, [b"abc", b"abc"])])
    peer.begin_blocks(stream, CALL_S).result()
    found = list(peer.blocks_of(OPEN))
    quasi = peer.stub.CloseContainer(pb.CloseContainerRequest(container_id=OPEN, bcsid=3))
    closed = peer.stub.CloseContainer(
        pb.CloseContainerRequest(container_id=OPEN, bcsid=3, force=True)
    )
    _, tree = peer.chunks(OPEN, np.array([2], np.uint64))
    asked = pb.ProveReplicaRequest(container_id=OPEN, nonce=bytes(16), keep_ms=60_000)
    peer.prove_replica(asked, CALL_S)

    assert [(("key", "name 1"),), (("key", "name 2"),)] == [tuple(b.metadata) for b in found]
    assert (container_pb2.QUASI_CLOSED, container_pb2.CLOSED) == (
        quasi.replica.state,
        closed.replica.state,
    )
    assert [2] == tree.block_ids.tolist()
    with pytest.raises(UnavailableError, match="relies on this one"), datanode.pins.deleting(OPEN):
        pass


def test_an_ordinary_message_does_as_well(peer: Peer) -> None:
    """A message written by any protobuf library is accepted, whatever the order of its fields."""
    plain = pb.NewBlocks.FromString(message(1, noise(SMALL_BYTES, 1)))
    rest = pb.NewBlocks(blocks=plain.blocks).SerializeToString()
    data = pb.NewBlocks(data=plain.data).SerializeToString()

    assert 1 == peer.begin_blocks(iter([rest + data]), CALL_S).result().block_count
    assert noise(SMALL_BYTES, 1) == peer.read_chunk(OPEN, BlockId(1), 0)[1]


def test_a_stream_that_ends_early_leaves_what_was_whole(peer: Peer, datanode: Datanode) -> None:
    """
    Nothing of the block that was cut off.
    """
    whole, part = message(1, b"x"), message(2, noise(LARGE_BYTES, 1), is_whole=False)

    assert "MALFORMED_REQUEST" == refusal(peer, whole, part)

    store = datanode.replica.store
    assert [1] == [block.block_id for block in store.view(OPEN).blocks()]
    assert ["1.block"] == [path.name for path in store.paths(OPEN).chunks.iterdir()]
    assert [] == list(store.volume_set.working[0].layout.importing.iterdir())


def test_a_stream_is_of_one_container(peer: Peer) -> None:
    """
    The lease that is held is that of the first.
    """
    messages = [message(1, b"x"), message(2, b"y", container_id=OTHER)]

    assert "MALFORMED_REQUEST" == refusal(peer, *messages)
    assert 0 == peer.replica(OTHER).block_count


def test_blocks_wait_for_the_container_lease(peer: Peer, datanode: Datanode) -> None:
    """Blocks are committed under the lease of the container only."""
    with datanode.replica.leases.hold(OPEN):
        assert "BUSY" == refusal(peer, message(1, b"x"))

    assert 0 == peer.replica(OPEN).block_count


@pytest.mark.parametrize("container_id", [ContainerId(999), ContainerId(2)])
def test_a_container_that_takes_no_writes_says_so(
    peer: Peer, datanode: Datanode, container_id: ContainerId
) -> None:
    """
    Before its data is taken.
    """
    datanode.replica.store.close_container(OPEN, force=True)

    code = refusal(peer, message(1, b"x", container_id=container_id))

    assert code == ("CONTAINER_NOT_FOUND" if container_id == 999 else "CONTAINER_NOT_OPEN")


def test_stream_without_blocks_commits_nothing(peer: Peer) -> None:
    """The answer counts no block."""
    assert 0 == peer.begin_blocks(iter([]), CALL_S).result().block_count
