"""Proofs by peers that their disk has certain data now.

A proof is required before local data is overwritten or deleted. To prove a chunk, the peer gets a
nonce (random bytes), reads the chunk past its page cache, and returns BLAKE2b(nonce; bytes). The
result must match the local bytes. To prove a replica, the peer reads the replica completely and
returns BLAKE2b(nonce; tree), which must match the tree of the peer. That tree must contain all
local data, and the peer must prove some random chunks as above.

A checksum, an earlier answer, or a cache in front of a dead disk is not enough to compute a proof.
docs/PROOFS.md describes the scope of a proof.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from random import Random
from typing import Final

import numpy as np
import structlog

from agent.plan.actions import PeerId
from agent.store.operations.repair import verifies
from agent.store.replica_store import ReplicaStore
from merkle.possession_proof import NONCE_BYTES, answer_of, tree_answer_of
from merkle.replica import BlockId, ChunkInfo, ContainerId
from merkle.tree import Tree
from merkle.tree_summary import TreeSummary
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.clock import Clock
from suture.wire.clients.message_groups import grouped
from suture.wire.clients.peer import Peer
from suture.wire.clients.replica_peer import ChunkProver
from suture.wire.v1 import datanode_pb2 as pb

SAMPLES: Final = 16  # chunks of a replica that the peer must prove separately
CLOCKS_S: Final = 1.0  # allowed difference between the clocks of two hosts

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ProofAnswer:
    """Answer of a peer to a request for a proof.

    `proof` is the proof as text for the journal. It is "" if there is none, and `why` is then the
    reason. `is_false` is True if the disk of the peer has other data, and `is_silent` if the peer
    did not answer.
    """

    proof: str = ""
    why: str = ""
    is_false: bool = False
    is_silent: bool = False


NO_WORD: Final = ProofAnswer()  # no peer was asked


def request_chunk_proofs(
    peer_id: PeerId,
    peer: ChunkProver,
    container_id: ContainerId,
    chunks: Sequence[tuple[BlockId, int, bytes]],
) -> list[ProofAnswer]:
    """Request proofs of several chunks from a peer in one call. Return one answer per chunk.

    Each chunk is given as (block id, offset, bytes).
    """
    asked = [(block, offset, secrets.token_bytes(NONCE_BYTES)) for block, offset, _ in chunks]
    answers: Sequence[bytes | SutureError]
    try:
        answers = peer.prove_chunks(container_id, asked)
    except SutureError as error:
        answers = [error] * len(chunks)
    words: list[ProofAnswer] = []
    for (block_id, offset, data), (_, _, nonce), answer in zip(chunks, asked, answers, strict=True):
        if isinstance(answer, SutureError):
            is_silent = not isinstance(answer, RefusedError)
            words.append(ProofAnswer(why=f"{answer.code}: {answer}", is_silent=is_silent))
        elif answer == answer_of(nonce, data):
            words.append(ProofAnswer(proof=f"{peer_id} {nonce.hex()} {answer.hex()}"))
        else:
            log.warning(
                "proof_failed",
                container_id=container_id,
                block_id=block_id,
                offset=offset,
                peer=peer_id,
            )
            words.append(ProofAnswer(why="its medium does not hold these bytes", is_false=True))
    return words


@dataclass(frozen=True, slots=True)
class ReplicaProof:
    """A proof that a peer has the data of a replica, as text for the journal.

    The peer keeps its replica for `keep_s` seconds (`ReplicaProofCollector`) after it gave the
    proof, which was at `kept_since_s` or later (monotonic clock, in seconds).
    """

    text: str
    kept_since_s: float


@dataclass(frozen=True, slots=True)
class ReplicaProofCollector:
    """Collects a proof that a peer has the data, before the local replica is deleted.

    `witnesses` are the peers. `mine` is the local tree. `without_row` has the blocks with local
    bytes but no row. `confirmed` returns which of the given blocks the control plane ordered to
    delete. `age_max_s` is the maximum age of the peer's last complete read, in seconds. The peer
    does not delete its replica for `keep_s` seconds after its last proof.
    """

    store: ReplicaStore
    container_id: ContainerId
    mine: Tree
    without_row: Set[BlockId]
    witnesses: Mapping[PeerId, Peer]
    confirmed: Callable[[ContainerId, Sequence[BlockId]], frozenset[BlockId]]
    age_max_s: float
    keep_s: float
    timeout_s: float
    clock: Clock

    def proof(self) -> ReplicaProof:
        """Return the proof of the first peer that gives one.

        If no peer does, raise RefusedError(NOT_PROVEN) with the reasons of all peers.
        """
        reasons: list[str] = []
        for peer_id, peer in self.witnesses.items():
            try:
                return self._request_proof(peer_id, peer)
            except SutureError as error:
                reasons.append(f"{peer_id}: {error.code}: {error}")
        why = "; ".join(reasons)
        log.warning("replica_delete_unproven", container_id=self.container_id, reasons=why[:500])
        raise RefusedError(
            Code.NOT_PROVEN,
            f"cannot delete the replica of container {self.container_id}: no peer proved that "
            f"it has the data: {why}",
            hint="scan and reconcile the other replicas first; see docs/PROOFS.md",
            container_id=self.container_id,
        )

    def _request_proof(self, peer_id: PeerId, peer: Peer) -> ReplicaProof:
        """Return the proof of one peer. Raise SutureError if the peer gives no proof.

        The first proof may need a long read of the replica. Therefore, request a second proof at
        the end, from which on the peer keeps its replica for `keep_s` seconds.
        """
        began_s = self.clock.monotonic_s()
        nonce, summary, proof = self._proven(peer, self.age_max_s)
        theirs = self.mine if _is_alike(self.mine, summary) else peer.tree(self.container_id)
        self._check_answer(theirs, nonce, proof)
        self._check_has_all(theirs)
        count = self._check_samples(theirs, peer_id, peer)
        kept_since_s = self.clock.monotonic_s()
        age_max_s = self.age_max_s + kept_since_s - began_s + CLOCKS_S
        nonce, _, proof = self._proven(peer, age_max_s)
        self._check_answer(theirs, nonce, proof)
        text = (
            f"{peer_id} {nonce.hex()} {proof.answer.hex()} root {theirs.root:016x} chunks {count}"
        )
        return ReplicaProof(text, kept_since_s)

    def _proven(self, peer: Peer, age_max_s: float) -> tuple[bytes, TreeSummary, pb.ReplicaProof]:
        nonce = secrets.token_bytes(NONCE_BYTES)
        request = pb.ProveReplicaRequest(
            container_id=self.container_id,
            nonce=nonce,
            age_max_ms=int(age_max_s * 1000),
            keep_ms=int(self.keep_s * 1000),
        )
        summary, proof = peer.prove_replica(request, self.timeout_s)
        return nonce, summary, proof

    def _check_answer(self, theirs: Tree, nonce: bytes, proof: pb.ReplicaProof) -> None:
        if proof.answer != tree_answer_of(nonce, self.container_id, theirs):
            raise RefusedError(Code.CHECKSUM_MISMATCH, "its response does not match its tree")

    def _check_has_all(self, theirs: Tree) -> None:
        """Raise RefusedError if the peer lacks a local chunk or block that is, or may be, healthy.

        The peer may lack blocks that the control plane ordered to delete.
        """
        buried: list[BlockId] = []
        for block_id, index in _lacking(self.mine, theirs):
            if index >= 0 and theirs.deleted[index]:
                buried.append(block_id)
            elif not _covers(self.mine, theirs, block_id):
                raise RefusedError(
                    Code.INELIGIBLE, f"it lacks parts of block {block_id} that are here"
                )
        for block_id in sorted(self.without_row):
            index = theirs.index_of(block_id)
            if index < 0:
                raise RefusedError(
                    Code.INELIGIBLE,
                    f"it has no data of block {block_id}, which has data but no row here",
                )
            if theirs.deleted[index]:
                buried.append(block_id)
        if buried and (left := set(buried) - self.confirmed(self.container_id, buried)):
            raise RefusedError(
                Code.INELIGIBLE,
                f"it deleted {len(left)} blocks without a command, the first is {min(left)}",
            )

    def _check_samples(self, theirs: Tree, peer_id: PeerId, peer: Peer) -> int:
        """Request proofs of random chunks whose bytes on the local disk match their rows.

        Return the number of proofs. Raise RefusedError if the peer cannot prove one of the chunks.
        """
        count = 0
        samples = self._samples(theirs)
        for group in grouped(samples, lambda sample: sample[1].length_bytes):
            asked = [(block_id, chunk.offset, data) for block_id, chunk, data in group]
            words = request_chunk_proofs(peer_id, peer, self.container_id, asked)
            for (block_id, offset, _), word in zip(asked, words, strict=True):
                if not word.proof:
                    raise RefusedError(
                        Code.CHECKSUM_MISMATCH, f"block {block_id} at {offset}: {word.why}"
                    )
                count += 1
        return count

    def _samples(self, theirs: Tree) -> Iterator[tuple[BlockId, ChunkInfo, bytes]]:
        chunk_count = len(theirs.chunk_spans)
        lot = Random(secrets.token_bytes(NONCE_BYTES))  # noqa: S311 - its seed is the secret
        drawn = np.array(lot.sample(range(chunk_count), min(SAMPLES, chunk_count)), np.int64)
        for place, index in zip(theirs.block_of(drawn).tolist(), drawn.tolist(), strict=True):
            block_id, offset = BlockId(int(theirs.block_ids[place])), theirs.leaf(index).offset
            try:
                found = self.store.view(self.container_id).readable(block_id)
                chunk = found.block.chunk_at(offset)
                if chunk is None:
                    continue
                data = self.store.view(self.container_id).read(
                    found, offset, chunk.length_bytes, past_cache=True
                )
            except SutureError:
                continue  # the local chunk is damaged: there is nothing to compare with
            if verifies(chunk, data):
                yield block_id, chunk, data


def _is_alike(mine: Tree, summary: TreeSummary) -> bool:
    """Return whether the tree of a peer equals the local tree, and all local chunks are healthy."""
    return (
        mine.algorithm == summary.algorithm
        and mine.root == summary.root
        and mine.tombstones_checksum == summary.tombstones_checksum
        and not mine.unhealthy_count
    )


def _lacking(mine: Tree, theirs: Tree) -> Iterator[tuple[BlockId, int]]:
    """Yield the local blocks that differ at the peer, each with its index in the peer's tree.

    Deleted local blocks are omitted. The index is -1 if the block is not in the peer's tree. Raise
    RefusedError if the trees use different algorithms.
    """
    if mine.algorithm != theirs.algorithm:
        raise RefusedError(
            Code.INELIGIBLE, f"its tree uses {theirs.algorithm}, the local tree {mine.algorithm}"
        )
    places = np.searchsorted(theirs.block_ids, mine.block_ids)
    for index in np.flatnonzero(~mine.deleted).tolist():
        block_id, place = BlockId(int(mine.block_ids[index])), int(places[index])
        if place == len(theirs.block_ids) or theirs.block_ids[place] != block_id:
            yield block_id, -1
        elif theirs.deleted[place] or theirs.block_checksums[place] != mine.block_checksums[index]:
            yield block_id, place


def _covers(mine: Tree, theirs: Tree, block_id: BlockId) -> bool:
    """Return whether each healthy chunk of a local block is also healthy at the peer."""
    leaves = mine.leaves(block_id)
    if not leaves:
        return theirs.index_of(block_id) >= 0
    there = {leaf.offset: leaf for leaf in theirs.leaves(block_id)}
    return all(there.get(leaf.offset) == leaf for leaf in leaves if leaf.healthy)
