"""Several blocks or chunks in one call: served, and proven, as each would be alone; or left out."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.services import chunk_keys, read_handlers
from agent.services.chunk_keys import BYTES_MAX
from agent.services.read_handlers import ReadHandlers
from merkle.replica import BlockId, ContainerId
from suture.errors import Code, RefusedError, SutureError
from suture.wire.clients.peer import Peer
from suture.wire.mapping import codec
from suture.wire.v1 import datanode_pb2 as pb
from tests.support.storage.datanodes import LIMITS, Datanode, dialled
from tests.support.storage.stored_replica import CHUNK_BYTES, CONTAINER

BLOCK = BlockId(2)
KEYS = [(BLOCK, 0), (BlockId(1), CHUNK_BYTES), (BLOCK, CHUNK_BYTES)]


@pytest.fixture
def datanode(tmp_path: Path) -> Iterator[Datanode]:
    """A datanode with a closed container of twelve blocks of two chunks."""
    made = Datanode("dn1", tmp_path / "dn1")
    made.replica.create(blocks=12)
    made.serve(lambda one: ReadHandlers(one.replica.store, limits=LIMITS))
    yield made
    made.close()


@pytest.fixture
def peer(datanode: Datanode) -> Iterator[Peer]:
    """The same as its peers call it."""
    with dialled([datanode]) as peers:
        yield peers["dn1"]


def on_disk(datanode: Datanode, block_id: int, offset: int) -> bytes:
    """Return what the block's file holds of the chunk."""
    data = datanode.replica.file(block_id).read_bytes()
    return data[offset : CHUNK_BYTES if offset == 0 else len(data)]


def proof(nonce: bytes, data: bytes) -> bytes:
    """Return what proves, by RFC 7693, that one has these bytes."""
    return hashlib.blake2b(data, key=nonce, digest_size=16).digest()


def codes(answer: bytes | SutureError) -> Code | None:
    """Return why a chunk was not proven; None if it was."""
    return answer.code if isinstance(answer, SutureError) else None


def test_chunks_read_together_equal_chunks_read_alone(datanode: Datanode, peer: Peer) -> None:
    """The description and the bytes are the same, and the bytes are those on the disk."""
    served = peer.read_chunks(CONTAINER, KEYS)

    assert KEYS == list(served)
    for (block_id, offset), found in served.items():
        assert peer.read_chunk(CONTAINER, block_id, offset) == found
        assert on_disk(datanode, block_id, offset) == found[1]


def test_missing_chunk_read_alone_is_refused_by_its_code(peer: Peer) -> None:
    """The datanode finds this out before its first message."""
    with pytest.raises(RefusedError, match="block 99") as refusal:
        peer.read_chunk(CONTAINER, BlockId(99), 0)
    assert Code.NO_SUCH_BLOCK is refusal.value.code


def test_blocks_listed_together_equal_blocks_listed_alone(peer: Peer) -> None:
    """Missing blocks are left out."""
    served = peer.named_blocks(CONTAINER, [BlockId(4), BlockId(99), BLOCK])

    assert [4, 2] == list(served)
    assert [peer.block(CONTAINER, block_id) for block_id in served] == list(served.values())
    assert {} == peer.named_blocks(ContainerId(9), [BLOCK])
    with pytest.raises(RefusedError, match="block 99"):
        peer.block(CONTAINER, BlockId(99))


def test_a_message_has_room_for_so_many_blocks(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Those after the last that has room in it do not come.
    """
    ids = [BlockId(number) for number in range(1, 13)]
    size_bytes = codec.block_message(CONTAINER, peer.block(CONTAINER, ids[0])).ByteSize()
    monkeypatch.setattr(read_handlers, "BLOCKS_PAGE_BYTES_MAX", 3 * size_bytes + 2)

    assert ids[:3] == list(peer.named_blocks(CONTAINER, ids))


def test_a_block_that_was_not_asked_for_is_not_taken(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block of this container or of another one is refused if it was not asked for."""
    block = peer.block(CONTAINER, BLOCK)
    others = [(CONTAINER, replace(block, block_id=BlockId(7))), (ContainerId(9), block)]
    blocks = [codec.block_message(owner, other) for owner, other in others]
    for block_message in blocks:
        answer = pb.GetBlocksResponse(results=[pb.BlockResult(block=block_message)])
        monkeypatch.setattr(peer.stub, "GetBlocks", lambda *_, answer=answer, **__: answer)
        with pytest.raises(RefusedError, match="not the block asked for"):
            peer.named_blocks(CONTAINER, [BLOCK])


@pytest.mark.parametrize(
    "missing", [(BlockId(99), 0), (BLOCK, 5), (BLOCK, 2**63)], ids=["block", "offset", "beyond"]
)
def test_missing_chunk_is_left_out_of_a_batch(peer: Peer, missing: tuple[BlockId, int]) -> None:
    """The other chunks are served, and proven."""
    served = peer.read_chunks(CONTAINER, [KEYS[0], missing, KEYS[1]])
    answers = peer.prove_chunks(CONTAINER, [(*key, bytes(16)) for key in (missing, KEYS[0])])

    assert KEYS[:2] == list(served)
    assert [True, False] == ["block" in str(answer) for answer in answers]


def test_chunks_of_a_missing_container_are_not_served(peer: Peer) -> None:
    """The proof of each chunk is answered with the reason."""
    assert {} == peer.read_chunks(ContainerId(9), KEYS)
    answers = peer.prove_chunks(ContainerId(9), [(*key, bytes(16)) for key in KEYS[:2]])
    assert [Code.CONTAINER_NOT_FOUND] * 2 == [codes(answer) for answer in answers]


def test_unreadable_or_damaged_chunk_is_left_out_of_a_batch(datanode: Datanode, peer: Peer) -> None:
    """One file is missing, and one bit of another is flipped."""
    datanode.replica.file(1).unlink()
    datanode.replica.flip(BLOCK, CHUNK_BYTES + 7)

    served = peer.read_chunks(CONTAINER, KEYS)
    answers = peer.prove_chunks(CONTAINER, [(*key, bytes(16)) for key in KEYS])

    assert KEYS[:1] == list(served)
    assert proof(bytes(16), on_disk(datanode, BLOCK, 0)) == answers[0]
    assert Code.UNAVAILABLE is codes(answers[1])
    assert [CONTAINER, CONTAINER] == datanode.doubts  # of each: what is not as its row says


def test_a_message_has_room_for_so_many_bytes(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The first that have room in it come, of 24 that were asked for: ten of 100,000 bytes.
    """
    monkeypatch.setattr(chunk_keys, "BYTES_MAX", 1024**2)
    keys = [(BlockId(number), offset) for number in range(1, 13) for offset in (0, CHUNK_BYTES)]

    served = peer.read_chunks(CONTAINER, keys)
    answers = peer.prove_chunks(CONTAINER, [(*key, bytes(16)) for key in keys])

    assert keys[:10] == list(served)
    assert [None] * 10 + [Code.BUSY] * 14 == [codes(answer) for answer in answers]


def test_chunk_larger_than_a_message_is_proven_alone(datanode: Datanode, peer: Peer) -> None:
    """
    Its bytes are not in the answer; beside others it is left for a call of its own.
    """
    large = ContainerId(2)
    datanode.replica.store.create_container(large)
    datanode.replica.put(1, BYTES_MAX + 1, container_id=large)
    datanode.replica.store.close_container(large, bcsid=0, force=True)
    key = (BlockId(1), 0, bytes(16))

    alone = peer.prove_chunks(large, [key])
    beside = peer.prove_chunks(large, [key, (BlockId(99), 0, bytes(16))])

    assert [proof(bytes(16), datanode.replica.file(1, large).read_bytes())] == alone
    assert [Code.BUSY, Code.NO_SUCH_BLOCK] == [codes(answer) for answer in beside]
    assert {} == peer.read_chunks(large, [key[:2]])


def test_chunk_proofs_use_one_nonce_each(datanode: Datanode, peer: Peer) -> None:
    """The test computes the expected answers from the disk, so one read cannot answer for two
    chunks.
    """
    nonces = [bytes([number]) * 16 for number in (1, 2, 3)]

    answers = peer.prove_chunks(
        CONTAINER, [(*key, nonce) for key, nonce in zip(KEYS, nonces, strict=True)]
    )

    expected = [
        proof(nonce, on_disk(datanode, *key)) for key, nonce in zip(KEYS, nonces, strict=True)
    ]
    assert expected == answers


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ([(BLOCK, 0)] * 2, "names one twice"),
        ([(BlockId(number), 0) for number in range(1, 258)], "257 of them, at most 256"),
        ([(BlockId(0), 0)], "local_id"),
    ],
    ids=["twice", "many", "no id"],
)
def test_malformed_batch_request_is_refused(
    peer: Peer, keys: list[tuple[BlockId, int]], what: str
) -> None:
    """The error names the problem."""
    for ask in (
        lambda: peer.read_chunks(CONTAINER, keys),
        lambda: peer.prove_chunks(CONTAINER, [(*key, bytes(16)) for key in keys]),
        lambda: peer.named_blocks(CONTAINER, [block_id for block_id, _ in keys]),
    ):
        with pytest.raises(RefusedError, match=what) as caught:
            ask()
        assert Code.MALFORMED_REQUEST is caught.value.code


def test_nonces_of_the_wrong_length_are_refused(peer: Peer) -> None:
    """A short nonce could be tried out beforehand, whichever of the batch it is."""
    with pytest.raises(RefusedError, match="nonce"):
        peer.prove_chunks(CONTAINER, [(*KEYS[0], bytes(16)), (*KEYS[1], bytes(15))])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_wrong_number_of_answers_is_refused(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Otherwise an answer could not be matched to its question."""
    answers = pb.ProveChunksResponse(proofs=[pb.ChunkProof(answer=bytes(16))] * count)
    monkeypatch.setattr(peer.stub, "ProveChunks", lambda *_, **__: answers)

    with pytest.raises(RefusedError, match=f"{count} of 2"):
        peer.prove_chunks(CONTAINER, [(*key, bytes(16)) for key in KEYS[:2]])
