"""Asking datanodes of Ozone: what comes of answers, refusals, lies and lost connections."""

import json
import zlib
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from merkle.replica import BlockId, ChecksumType, ChunkInfo, ContainerId
from ozone.clients import datanode as wire
from ozone.clients.datanode import ContainerFacts, Datanode
from ozone.clients.datanode_messages import DatanodeCommand
from ozone.disk.messages import BLOCK_DATA
from ozone.disk.treefile import decode_tree
from suture.errors import Code, RefusedError, UnavailableError
from tests.support.ozone.ozone_datanode import (
    FIRST,
    IO_EXCEPTION,
    OzoneDatanode,
    ReplayedDatanode,
    Served,
    golden_peers,
    original,
)
from tests.support.ozone.ozone_volumes import ROOT, chunk_message, golden

ONE = ContainerId(1)
HANGS_S = 5.0
CHUNK_BYTES = 9 * 1024**2  # three pieces


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """A whole replica that Ozone wrote."""
    return golden_peers(golden(tmp_path_factory.mktemp("golden")))[0][1]


@pytest.fixture
def server(replica: Served) -> Iterator[OzoneDatanode]:
    """A datanode that has it."""
    with OzoneDatanode({1: replica}) as running:
        yield running


@pytest.fixture
def datanode(server: OzoneDatanode) -> Iterator[Datanode]:
    """Its client."""
    with Datanode(server.address) as client:
        yield client


def made_row(container_id: int, block_id: int, *parts: bytes) -> bytes:
    """Return the row of a block of these chunks."""
    offset, chunks = 0, []
    for part in parts:
        chunks.append(chunk_message(part, offset))
        offset += len(part)
    message = BLOCK_DATA(
        block_id={"container_id": container_id, "local_id": block_id}, chunks=chunks, size=offset
    )
    data: bytes = message.SerializeToString()
    return data


def test_no_proxy_is_used(server: OzoneDatanode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in the environment is for outgoing traffic. Requests to Ozone's managers do not
    use it either.
    """
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("no_grpc_proxy", raising=False)

    with Datanode(server.address) as client:
        assert "CLOSED" == client.container(ONE).state


def test_datanode_client_reads_state_blocks_tree_and_bytes(
    datanode: Datanode, replica: Served
) -> None:
    """All come as Ozone has them, including a last chunk that was only synced."""
    facts = datanode.container(ONE)
    tree = decode_tree(datanode.checksum_info(ONE), ONE)
    blocks = dict(datanode.blocks(ONE, sorted(map(BlockId, replica.rows))))

    expected_bytes = sum(len(data) for data in replica.data.values())
    assert ContainerFacts("CLOSED", expected_bytes, len(replica.rows)) == facts
    assert 689883159 == tree.root
    for block_id, block in blocks.items():
        assert not isinstance(block, RefusedError)
        for chunk in block.chunks:
            data = datanode.read(ONE, block_id, chunk)
            assert original(block_id, block.length_bytes)[chunk.offset : chunk.end] == data
    assert {FIRST + 29: 41110}.items() <= {
        block_id: block.length_bytes for block_id, block in blocks.items()
        if not isinstance(block, RefusedError)
    }.items()  # fmt: skip


def test_many_questions_are_one_stream(server: OzoneDatanode, datanode: Datanode) -> None:
    """
    Blocks are asked for ahead of their answers: a stream for each would cost six times as much.
    """
    found = dict(datanode.blocks(ONE, [BlockId(FIRST + 1)] * 200))

    assert {FIRST + 1} == set(found)
    assert 200 == len(server.asked)
    assert 1 == server.stream_count


def test_a_large_chunk_is_read_in_pieces() -> None:
    """
    A chunk that no message would hold with what describes it comes whole, in order.
    """
    data = bytes(range(251)) * (CHUNK_BYTES // 251)
    chunk = ChunkInfo(0, len(data), ChecksumType.NONE, 0, b"")
    served = Served({5: made_row(1, 5, data)}, {5: data}, b"")
    with OzoneDatanode({1: served}) as server, Datanode(server.address) as client:
        assert data == client.read(ONE, BlockId(5), chunk)

        assert [DatanodeCommand.READ_CHUNK] * 3 == server.commands()
        assert 1 == server.stream_count


def test_blocks_are_listed_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A page begins with the last block of the one before, which comes once; all come, in the order
    of their text.
    """
    monkeypatch.setattr(wire, "PAGE_BLOCKS", 4)
    ids = [1, 2, 9, 10, 11, 99, 100, 101, 1000]
    served = Served({one: made_row(1, one) for one in ids}, {}, b"")
    with OzoneDatanode({1: served}) as server, Datanode(server.address) as client:
        assert sorted(ids, key=str) == list(client.block_ids(ONE))


def test_refusal_of_a_datanode_is_reported_and_not_retried(
    server: OzoneDatanode, datanode: Datanode
) -> None:
    """Each refusal makes Ozone read the container, so the client asks once. The message has the
    datanode and its answer on one line.
    """
    with pytest.raises(
        RefusedError, match=f"{server.address}: CONTAINER_NOT_FOUND: no such thing$"
    ):
        datanode.checksum_info(ContainerId(7))
    with pytest.raises(RefusedError, match="NO_SUCH_BLOCK") as refused:
        datanode.block(ONE, BlockId(1))

    assert Code.NO_SUCH_BLOCK is refused.value.code
    assert 2 == len(server.asked)


def test_refused_block_does_not_end_the_other_reads(datanode: Datanode) -> None:
    """The read is for three blocks. The missing one is refused, and the others are returned."""
    found = list(datanode.blocks(ONE, [BlockId(FIRST + 1), BlockId(1), BlockId(FIRST + 3)]))

    assert [False, True, False] == [isinstance(block, RefusedError) for _, block in found]


def test_fewer_bytes_than_asked_are_refused(datanode: Datanode) -> None:
    """Bytes of a truncated file are not taken for the chunk."""
    chunk = ChunkInfo(0, 6, ChecksumType.NONE, 0, b"")

    with pytest.raises(RefusedError, match="has 5 of 6 bytes at 0"):
        datanode.read(ONE, BlockId(FIRST + 1), chunk)


def test_an_answer_to_another_question_is_refused(replica: Served) -> None:
    """
    A row that names another block is no answer.
    """
    other = dict(replica.rows) | {FIRST + 1: replica.rows[FIRST + 3]}
    served = Served(other, replica.data, replica.tree)
    other_id = f"it names container 1, block {FIRST + 3}"
    with (
        OzoneDatanode({1: served}) as server,
        Datanode(server.address) as client,
        pytest.raises(RefusedError, match=other_id),
    ):
        client.block(ONE, BlockId(FIRST + 1))


def test_a_datanode_that_is_down_is_unavailable() -> None:
    """The error has the address."""
    with (
        Datanode("127.0.0.1:1") as client,
        pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"),
    ):
        client.container(ONE)


def test_a_stream_that_breaks_is_unavailable(server: OzoneDatanode, datanode: Datanode) -> None:
    """Blocks received before are returned, and the missing ones are not invented."""

    def breaks_at_third(_: Any) -> int:
        return -1 if len(server.asked) > 2 else 0

    server.before = breaks_at_third
    came = []
    with pytest.raises(UnavailableError, match=server.address):
        came.extend(found for found in datanode.blocks(ONE, [BlockId(FIRST + 1)] * 9))
    assert len(came) <= 2


def test_a_datanode_that_does_not_answer_is_given_up(server: OzoneDatanode) -> None:
    """
    A deadline ends every conversation.
    """
    go_on = Event()

    def hangs(_: Any) -> int:
        go_on.wait(HANGS_S)
        return 0

    server.before = hangs
    with (
        Datanode(server.address, answer_s=0.3) as client,
        pytest.raises(UnavailableError, match="did not answer in time"),
    ):
        client.container(ONE)
    go_on.set()


def test_a_failing_disk_of_the_peer_is_its_refusal(
    server: OzoneDatanode, datanode: Datanode
) -> None:
    """
    The name of Ozone's result is the code.
    """
    server.before = lambda _: IO_EXCEPTION

    with pytest.raises(RefusedError) as refused:
        datanode.container(ONE)

    assert Code.IO_EXCEPTION is refused.value.code


def test_a_real_datanode_was_asked_just_so() -> None:
    """
    Requests are byte for byte those that Ozone 2.2.0 answered, and its answers are understood.
    """
    kept = json.loads((ROOT / "tests" / "golden" / "ozone" / "answers.json").read_text())
    answers = {bytes.fromhex(one["request"]): bytes.fromhex(one["answer"]) for one in kept}
    two, small = ContainerId(2), BlockId(FIRST + 6)
    with (
        ReplayedDatanode({}, answers=answers) as server,
        Datanode(server.address) as client,
    ):
        assert ContainerFacts("CLOSED", 867089, 12) == client.container(two)
        tree = decode_tree(client.checksum_info(two), two)
        ids = list(client.block_ids(two))
        (chunk,) = client.block(two, small).chunks
        data = client.read(two, small, chunk)
        with pytest.raises(RefusedError, match="NO_SUCH_BLOCK: Unable to find the block"):
            client.block(two, BlockId(1))
        with pytest.raises(RefusedError, match="ContainerID 99 does not exist"):
            client.container(ContainerId(99))
        with pytest.raises(RefusedError, match="expected: 1782, actual: 1777"):
            client.read(two, small, ChunkInfo(0, 1782, ChecksumType.NONE, 0, b""))

    assert 12 == len(ids)
    assert set(tree.live) <= set(ids)
    windows = [data[at : at + 16384] for at in range(0, len(data), 16384)]
    assert chunk.window_checksums == b"".join(zlib.crc32(one).to_bytes(4) for one in windows)
