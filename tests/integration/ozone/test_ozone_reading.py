"""What Ozone's clients read of an agent: over a real socket, in Ozone's own messages."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ContainerId
from ozone.disk.messages import CHECKSUM_INFO
from tests.support.ozone.ozone_agent import OzoneAgent, OzoneClient, block_id, served
from tests.support.ozone.ozone_wire import RESULTS
from tests.support.storage.stored_replica import CHUNK_BYTES, WINDOW_BYTES, noise

EC = ContainerId(7)
EMPTY, CRC32_BLOCK, NONE_BLOCK, PADDING = 11, 12, 13, 14
OPEN, CLOSED = 1, 4


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[tuple[OzoneAgent, OzoneClient]]:
    """Container 1 closed with three blocks; 2 open; shard 3 of container 7, closed, with blocks of
    CRC32, of no checksums, and of nothing."""
    with served(tmp_path) as (made, client):
        replica = made.replica
        replica.create()
        replica.store.create_container(ContainerId(2))
        replica.put(9, 100, container_id=ContainerId(2))
        replica.store.create_container(EC, replica_index=3)
        replica.put(CRC32_BLOCK, 40_000, 5, container_id=EC, checksum_type=ChecksumType.CRC32)
        replica.put(NONE_BLOCK, 30_000, container_id=EC, checksum_type=ChecksumType.NONE)
        notes = (("blockGroupLen", "5"),)
        replica.store.writer(EC).put_block(BlockData(BlockId(PADDING), Bcsid(0), (), notes))
        replica.store.close_container(EC, force=True)
        yield made, client


def data_of(number: int) -> bytes:
    """Return what a block of container 1 holds."""
    first = noise(CHUNK_BYTES, number * 1_000)
    return first + noise(CHUNK_BYTES + number, number * 1_000 + CHUNK_BYTES)


def pieces(client: OzoneClient, container_id: int, **wish: Any) -> list[Any]:
    """Return the messages of a stream."""
    answers = client.send(client.request("readBlock", container_id, **wish))
    assert {1} == {answer.result for answer in answers}
    return [answer.readBlock for answer in answers]


def test_a_container_is_told(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """State, size and number of blocks, as Ozone numbers them."""
    _, client = agent

    told = client.ask("readContainer").readContainer.containerData
    listed = client.ask("listContainer", 2, count=10).listContainer.containerData

    assert (1, CLOSED, 3, 6 * CHUNK_BYTES + 6) == (
        told.containerID,
        told.state,
        told.blockCount,
        told.bytesUsed,
    )
    assert [(2, OPEN), (EC, CLOSED)] == [(one.containerID, one.state) for one in listed]
    (first,) = client.ask("listContainer", 0, count=1).listContainer.containerData
    assert 1 == first.containerID


def test_a_block_is_told(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """Its chunks with their checksums, its commit id and size; a shard's with its index."""
    _, client = agent

    block = client.ask("getBlock", blockID=block_id(2, bcsid=2)).getBlock.blockData
    shard = client.ask(
        "getBlock", EC, blockID=block_id(CRC32_BLOCK, EC, replicaIndex=3)
    ).getBlock.blockData
    padding = client.ask("getBlock", EC, blockID=block_id(PADDING, EC)).getBlock.blockData

    assert (2, 2, 2 * CHUNK_BYTES + 2) == (block.blockID.localID, block.blockID.bcsid, block.size)
    assert [(0, CHUNK_BYTES), (CHUNK_BYTES, CHUNK_BYTES + 2)] == [
        (chunk.offset, chunk.len) for chunk in block.chunks
    ]
    (first, second) = shard.chunks
    sums = [
        zlib.crc32(noise(40_000, CRC32_BLOCK * 1_000)[at : at + WINDOW_BYTES]).to_bytes(4)
        for at in range(0, 40_000, WINDOW_BYTES)
    ]
    assert (2, WINDOW_BYTES, sums) == (
        first.checksumData.type,
        first.checksumData.bytesPerChecksum,
        list(first.checksumData.checksums),
    )
    assert (40_000, 5, 3) == (second.offset, second.len, shard.blockID.replicaIndex)
    assert (0, 0, "blockGroupLen") == (
        len(padding.chunks),
        padding.size,
        padding.metadata[0].key,
    )


def test_the_length_of_a_block_is_told(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """The length is that of the committed block."""
    _, client = agent

    answer = client.ask("getCommittedBlockLength", blockID=block_id(3)).getCommittedBlockLength

    assert (3, 2 * CHUNK_BYTES + 3) == (answer.blockID.localID, answer.blockLength)


@pytest.mark.parametrize(
    ("start", "count", "wanted"),
    [(None, 2**31 - 1, [1, 2, 3]), (2, 9, [2, 3]), (2, 1, [2]), (4, 9, []), (-5, 2, [1, 2])],
)
def test_blocks_are_listed(
    agent: tuple[OzoneAgent, OzoneClient], start: int | None, count: int, wanted: list[int]
) -> None:
    """By ascending id from a start on, which need not be one."""
    _, client = agent
    wish = {"count": count} | ({} if start is None else {"startLocalID": start})

    found = client.ask("listBlock", **wish).listBlock.blockData

    assert wanted == [block.blockID.localID for block in found]


def test_a_list_of_blocks_is_whole_or_refused(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """A reconstruction takes a block that is not listed for a deleted one."""
    made, _ = agent
    made.replica.damage_row(2)
    made.door.server.stop(0).wait()
    made.replica.close()

    with served(made.replica.path) as (_, client):
        result = client.result("listBlock", count=10)

    assert "IO_EXCEPTION" == result


@pytest.mark.parametrize(
    ("offset", "length_bytes"), [(0, 5), (99_990, 20), (100_000, 100_001), (7, 1)]
)
def test_any_range_is_read(
    agent: tuple[OzoneAgent, OzoneClient], offset: int, length_bytes: int
) -> None:
    """Across chunks too, in one buffer or in buffers of a window each."""
    _, client = agent
    sums = {"type": 3, "bytesPerChecksum": WINDOW_BYTES}
    chunk = {"chunkName": "any", "offset": offset, "len": length_bytes, "checksumData": sums}

    single = client.ask("readChunk", blockID=block_id(1), chunkData=chunk).readChunk
    split = client.ask("readChunk", blockID=block_id(1), chunkData=chunk, readChunkVersion=1)

    wanted = data_of(1)[offset : offset + length_bytes]
    assert wanted == single.data
    assert ("any", offset, length_bytes) == (
        single.chunkData.chunkName,
        single.chunkData.offset,
        single.chunkData.len,
    )
    buffers = list(split.readChunk.dataBuffers.buffers)
    assert wanted == b"".join(buffers)
    assert all(len(buffer) == WINDOW_BYTES for buffer in buffers[:-1])


@pytest.mark.parametrize(
    ("offset", "length_bytes", "begin"),
    [(0, 0, 0), (5, 10, 0), (120_000, 50_000, 100_000 + WINDOW_BYTES), (99_999, 2, 98_304)],
)
def test_a_block_streams(
    agent: tuple[OzoneAgent, OzoneClient], offset: int, length_bytes: int, begin: int
) -> None:
    """From the window on in which the range begins, each message with the checksums of its bytes;
    they are those that were written with it."""
    _, client = agent

    found = pieces(client, 1, blockID=block_id(1), offset=offset, length=length_bytes)

    data, at = data_of(1), begin
    for piece in found:
        assert at == piece.offset
        assert data[at : at + len(piece.data)] == piece.data
        at += len(piece.data)
        windows = -(-len(piece.data) // WINDOW_BYTES)
        assert (3, WINDOW_BYTES, windows) == (
            piece.checksumData.type,
            piece.checksumData.bytesPerChecksum,
            len(piece.checksumData.checksums),
        )
    assert at >= min(offset + (length_bytes or len(data)), len(data))


def test_the_checksums_of_a_stream_fit_its_bytes(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """The checksums fit for every message size, since a client verifies each message by itself."""
    _, client = agent
    wish = {"blockID": block_id(CRC32_BLOCK, EC), "offset": 20_000, "length": 19_000}

    found = pieces(client, EC, **wish, responseDataSize=1)

    assert [16_384, 32_768] == [piece.offset for piece in found]
    for piece in found:
        (window,) = piece.checksumData.checksums
        assert zlib.crc32(piece.data).to_bytes(4) == window


def test_a_block_without_checksums_streams(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """From the very byte that is asked for, with none."""
    _, client = agent

    (piece,) = pieces(client, EC, blockID=block_id(NONE_BLOCK, EC), offset=100, length=200)

    assert noise(30_000, NONE_BLOCK * 1_000)[100:300] == piece.data
    assert (1, 0) == (piece.checksumData.type, len(piece.checksumData.checksums))


def test_behind_a_block_nothing_streams(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """The stream ends with gRPC's status, as in Ozone."""
    _, client = agent

    with pytest.raises(grpc.RpcError) as caught:
        pieces(client, 1, blockID=block_id(1), offset=2 * CHUNK_BYTES + 1, length=1)

    assert grpc.StatusCode.OUT_OF_RANGE is caught.value.code()


def chunk_at(offset: int, length_bytes: int) -> dict[str, Any]:
    """Return how a range is asked for."""
    sums = {"type": 3, "bytesPerChecksum": WINDOW_BYTES}
    return {"chunkName": "c", "offset": offset, "len": length_bytes, "checksumData": sums}


@pytest.mark.parametrize(
    ("wanted", "command", "container_id", "body"),
    [
        ("CONTAINER_NOT_FOUND", "readContainer", 99, {}),
        ("CONTAINER_NOT_FOUND", "getBlock", 99, {"blockID": block_id(1, 99)}),
        ("CONTAINER_NOT_FOUND", "listBlock", 99, {"count": 1}),
        ("CONTAINER_NOT_FOUND", "getBlock", EC, {"blockID": block_id(12, EC, replicaIndex=2)}),
        ("NO_SUCH_BLOCK", "getBlock", 1, {"blockID": block_id(99)}),
        ("NO_SUCH_BLOCK", "getCommittedBlockLength", 1, {"blockID": block_id(99)}),
        ("NO_SUCH_BLOCK", "readBlock", 1, {"blockID": block_id(99), "offset": 0}),
        ("UNKNOWN_BCSID", "getBlock", 1, {"blockID": block_id(1, bcsid=4)}),
        ("BCSID_MISMATCH", "getBlock", 1, {"blockID": block_id(1, bcsid=3)}),
        ("UNCLOSED_CONTAINER_IO", "getContainerChecksumInfo", 2, {"containerID": 2}),
        ("MALFORMED_REQUEST", "getBlock", 1, {"blockID": block_id(1, 2)}),
        ("MALFORMED_REQUEST", "getBlock", 1, {"blockID": block_id(0)}),
        ("MALFORMED_REQUEST", "listBlock", 1, {}),
        (
            "UNABLE_TO_FIND_CHUNK",
            "readChunk",
            1,
            {"blockID": block_id(1), "chunkData": chunk_at(2 * CHUNK_BYTES, 2)},
        ),
        (
            "UNSUPPORTED_REQUEST",
            "readChunk",
            1,
            {"blockID": block_id(1), "chunkData": chunk_at(0, 32 * 1024**2 + 1)},
        ),
        (
            "MALFORMED_REQUEST",
            "readChunk",
            1,
            {"blockID": block_id(1), "chunkData": chunk_at(0, 0)},
        ),
        ("UNSUPPORTED_REQUEST", "putSmallFile", 1, {}),
        ("UNSUPPORTED_REQUEST", "finalizeBlock", 1, {}),
        ("UNSUPPORTED_REQUEST", "updateContainer", 1, {}),
        ("UNSUPPORTED_REQUEST", "streamInit", 1, {}),
    ],
)
def test_failed_request_has_ozones_result_code(
    agent: tuple[OzoneAgent, OzoneClient],
    wanted: str,
    command: str,
    container_id: int,
    body: dict[str, Any],
) -> None:
    """The answer has the result code that Ozone gives, and a message with details."""
    _, client = agent

    answer = client.ask(command, container_id, **body)

    assert wanted == RESULTS[answer.result], answer.message
    assert answer.message


def test_a_conversation_goes_on_after_a_failure(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """Many requests on one stream, answered in their order."""
    _, client = agent
    wishes = [client.request("getBlock", 1, blockID=block_id(one)) for one in (1, 99, 2)]

    found = client.send(*wishes)

    assert ["SUCCESS", "NO_SUCH_BLOCK", "SUCCESS"] == [RESULTS[one.result] for one in found]


def test_a_shard_is_given_to_who_means_this_datanode(
    agent: tuple[OzoneAgent, OzoneClient],
) -> None:
    """Another datanode has another shard of it; whole replicas are all alike."""
    made, _ = agent

    with OzoneClient(made.address, "another") as client:
        shard = client.result("getBlock", EC, blockID=block_id(CRC32_BLOCK, EC))
        whole = client.result("getBlock", blockID=block_id(1))

    assert ("INVALID_ARGUMENT", "SUCCESS") == (shard, whole)


def test_a_tree_is_told(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """In CRC-32C, whatever the store folds by."""
    _, client = agent

    answer = client.ask("getContainerChecksumInfo", containerID=1).getContainerChecksumInfo

    info = CHECKSUM_INFO.FromString(answer.containerChecksumInfo)
    assert (1, [1, 2, 3]) == (info.container_id, [block.block_id for block in info.tree.blocks])
    assert 0 < info.tree.checksum < 2**32
