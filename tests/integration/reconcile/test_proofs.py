"""Proofs between real datanodes: of a chunk, before it is written over others."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agent.reconcile.fetch import PeerSources
from agent.reconcile.witnesses import ProofAnswer, request_chunk_proofs
from merkle.checksum import Algorithm
from merkle.possession_proof import NONCE_BYTES
from merkle.replica import BlockId, ContainerId
from suture.errors import Code, RefusedError
from suture.wire.clients.peer import Peer
from suture.wire.v1 import datanode_pb2 as pb
from tests.support.storage.datanodes import Datanode, dialled
from tests.support.storage.stored_replica import CHUNK_BYTES, CONTAINER

BLOCK = BlockId(2)
WIRE_BYTES_MAX = 100
FRAME_BYTES = 5  # before each message of gRPC


@pytest.fixture
def datanode(tmp_path: Path) -> Iterator[Datanode]:
    """A datanode with a closed container of three blocks."""
    made = Datanode("dn1", tmp_path / "dn1")
    made.replica.create()
    made.serve()
    yield made
    made.close()


@pytest.fixture
def peer(datanode: Datanode) -> Iterator[Peer]:
    """The same as its peers call it."""
    with dialled([datanode]) as peers:
        yield peers["dn1"]


def good(datanode: Datanode) -> bytes:
    """Return the bytes of the first chunk."""
    return datanode.replica.file(BLOCK).read_bytes()[:CHUNK_BYTES]


def ask_for_chunk(peer: Peer, block_id: BlockId, data: bytes) -> ProofAnswer:
    """Have a peer prove the first chunk of one block."""
    [word] = request_chunk_proofs("dn1", peer, CONTAINER, [(block_id, 0, data)])
    return word


def test_peer_proves_a_chunk_that_it_has(datanode: Datanode, peer: Peer) -> None:
    """Each proof is different: it has the peer, the nonce and the answer."""
    data = good(datanode)

    words = [ask_for_chunk(peer, BLOCK, data) for _ in range(2)]

    assert all(word.proof.startswith("dn1 ") for word in words)
    assert words[0] != words[1]


def test_several_are_proven_each_with_its_own_nonce(datanode: Datanode, peer: Peer) -> None:
    """
    Chunks with the same bytes, too; one whose bytes are others has no proof.
    """
    data = good(datanode)

    words = request_chunk_proofs("dn1", peer, CONTAINER, [(BLOCK, 0, data), (BlockId(1), 0, data)])
    again = [ask_for_chunk(peer, BLOCK, data) for _ in range(2)]
    nonces = {word.proof.split()[1] for word in (words[0], *again)}

    assert words[1].is_false
    assert 3 == len(nonces)

    class Answering:
        def prove_chunks(
            self, _: ContainerId, asked: Sequence[tuple[BlockId, int, bytes]]
        ) -> list[bytes]:
            nonces.update(nonce.hex() for _, _, nonce in asked)
            return [b""] * len(asked)

    request_chunk_proofs(
        "dn2", Answering(), CONTAINER, [(BLOCK, 0, data), (BLOCK, CHUNK_BYTES, data)]
    )
    assert 5 == len(nonces)


def test_a_medium_that_has_other_bytes_is_told(datanode: Datanode, peer: Peer) -> None:
    """
    A bit is enough; and that its checksums are right makes no difference.
    """
    data = good(datanode)
    datanode.replica.flip(BLOCK, 17)

    word = ask_for_chunk(peer, BLOCK, data)

    assert ("", True) == (word.proof, word.is_false)


def test_peer_that_cannot_prove_its_own_chunk_requests_a_scan(datanode: Datanode) -> None:
    """A lost row or a truncated file is found sooner than in the regular scan."""
    data = good(datanode)
    datanode.stop_serving()
    datanode.replica.delete_row(BLOCK)
    os.truncate(datanode.replica.file(1), 0)
    datanode.serve()
    told = []
    with dialled([datanode]) as peers:
        for block_id in (9, 1, BLOCK):
            word = ask_for_chunk(peers["dn1"], BlockId(block_id), data)
            told.append((word.proof, list(set(datanode.doubts))))
            datanode.doubts.clear()

    assert [("", []), ("", [CONTAINER]), ("", [CONTAINER])] == told


def test_the_medium_is_read_and_not_the_cache(
    datanode: Datanode, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No part of an answer comes from a buffered read."""
    data = good(datanode)
    opened: list[int] = []
    real = os.open

    def open_(path: object, flags: int, *rest: int, **more: int) -> int:
        if str(path).endswith("2.block"):
            opened.append(flags)
        return real(path, flags, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", open_)
    assert ask_for_chunk(peer, BLOCK, data).proof

    assert opened
    assert all(flags & os.O_DIRECT for flags in opened)


def test_proof_of_one_chunk_fits_the_wire_budget() -> None:
    """The budget covers the question, the answer and gRPC's framing of both."""
    chunk = pb.ChunkChallenge(local_id=2**63 - 1, offset=5 * 1024**3, nonce=bytes(NONCE_BYTES))
    question = pb.ProveChunksRequest(container_id=2**63 - 1, chunks=[chunk])
    answer = pb.ProveChunksResponse(proofs=[pb.ChunkProof(answer=bytes(16))])

    assert question.ByteSize() + answer.ByteSize() + 2 * FRAME_BYTES <= WIRE_BYTES_MAX


@pytest.mark.parametrize("length_bytes", [0, 15, 17, 64])
def test_a_nonce_has_its_length(peer: Peer, length_bytes: int) -> None:
    """
    A short one could be tried out beforehand.
    """
    with pytest.raises(RefusedError, match="nonce") as caught:
        peer.prove_chunks(CONTAINER, [(BLOCK, 0, bytes(length_bytes))])

    assert Code.MALFORMED_REQUEST is caught.value.code


def test_another_peer_may_prove_it(tmp_path: Path, datanode: Datanode, peer: Peer) -> None:
    """The bytes are the same, whoever sent them. If no peer can prove them, the error names the
    peers.
    """
    data = good(datanode)
    other = Datanode("dn2", tmp_path / "dn2")
    other.replica.create()
    other.replica.flip(BLOCK, 3)
    other.serve()
    with dialled([other]) as others:
        peers = {"dn1": peer, **others}
        sources = PeerSources(peers, CONTAINER, Algorithm.CRC32C, provers=peers)
        word = sources.proven(["dn2", "dn1"], BLOCK, 0, data)
        alone = sources.proven(["dn2", "dn9"], BLOCK, 0, data)
    other.close()

    assert word.proof.startswith("dn1 ")
    assert ("", "dn2: its medium does not hold these bytes") == (alone.proof, alone.why)
