"""Concurrent fetch of chunks from peers with healthy copies.

Small chunks are fetched together. At most `bytes_max` bytes are in flight, and results are returned
in the order of the requests.

A fetched chunk is verified twice: against the window checksums in the response, and against the
leaf in the peer's tree. A peer that supports proofs also proves that its disk has the chunk
(`agent.reconcile.witnesses`). If a source fails, the next one is tried. A peer that is unreachable,
or whose data repeatedly does not match its tree, is not used again in this reconcile.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from agent.plan.actions import PeerId, RepairBlock, Trim, WantedChunk
from agent.reconcile.witnesses import (
    NO_WORD,
    ProofAnswer,
    request_chunk_proofs,
)
from agent.store.operations.repair import verifies
from agent.store.replica_store import ReplicaStore
from merkle.checksum import Algorithm, leaf_checksum
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId
from merkle.tree import Leaf
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.runtime.ports import Executor, Future
from suture.wire.clients.block_peer import TransferCost
from suture.wire.clients.replica_peer import BatchReplicaPeer, ChunkProver, ReplicaPeer

BAD_CHUNKS_MAX: Final = 2  # mismatches after which a peer is not used again

Job = TypeVar("Job")
T = TypeVar("T")
Wanted = tuple[BlockId, WantedChunk]


@dataclass(frozen=True, slots=True)
class FetchFailure:
    """A peer from which a fetch failed, with the error."""

    peer_id: PeerId
    error: SutureError


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Result of a fetch that tries several peers, one after the other.

    The result has the data of the first peer that succeeded, the failures of the peers before it,
    and the costs of all calls. `is_here` is True if the local bytes already match the chunk to
    fetch. No peer is then called.
    """

    peer_id: PeerId = ""
    block: BlockData | None = None
    chunk: ChunkInfo | None = None
    data: bytes = b""
    word: ProofAnswer = NO_WORD  # the peer's proof that its disk has these bytes
    is_here: bool = False
    seen: bytes = b""  # checksum of the bytes on the local disk in that range
    failures: tuple[FetchFailure, ...] = ()
    costs: tuple[tuple[PeerId, TransferCost], ...] = ()


@dataclass(slots=True)
class PeerSources:
    """The peers from which one reconcile fetches chunks. Thread-safe.

    Shared state is changed only by single assignments, without a lock. The worst effect of a race
    is one more call to a peer that is no longer used.
    """

    peers: Mapping[PeerId, ReplicaPeer]
    container_id: ContainerId
    algorithm: Algorithm
    provers: Mapping[PeerId, ChunkProver] = field(default_factory=dict)  # peers that support proofs
    dropped: dict[PeerId, SutureError] = field(default_factory=dict)
    bad_chunks: dict[PeerId, int] = field(default_factory=dict)
    pace: Callable[[int], None] = lambda _length_bytes: None  # called with the bytes of each read

    def describe(self, action: RepairBlock) -> FetchResult:
        """Return the metadata of a block from the first peer that returns it."""

        def ask(peer: ReplicaPeer, meter: TransferCost) -> FetchResult:
            return FetchResult(block=peer.block(self.container_id, action.block_id, meter))

        return self._first(action.metadata_sources, ask)

    def describe_together(self, actions: Sequence[RepairBlock]) -> list[FetchResult]:
        """Return the metadata of several blocks, in the order of `actions`.

        Blocks with the same first source are requested in one call. Blocks that these calls did not
        return are then requested one by one.
        """

        def lent(
            peer_id: PeerId, peer: BatchReplicaPeer, some: Sequence[RepairBlock]
        ) -> list[FetchResult]:
            blocks = peer.named_blocks(self.container_id, [one.block_id for one in some])
            return [FetchResult(peer_id, block=blocks.get(one.block_id)) for one in some]

        return self._together(actions, lambda one: one.metadata_sources, lent, self.describe)

    def fetch(self, block_id: BlockId, wanted: WantedChunk) -> FetchResult:
        """Return a chunk from the first peer whose bytes match its tree.

        If any peer supports proofs, also request a proof that the disk of a source has these bytes.
        """

        def ask(peer: ReplicaPeer, meter: TransferCost) -> FetchResult:
            chunk, data = peer.read_chunk(self.container_id, block_id, wanted.leaf.offset, meter)
            self.pace(len(data))
            if not is_leaf(self.algorithm, chunk, wanted.leaf):
                raise RefusedError(
                    Code.CHECKSUM_MISMATCH,
                    f"block {block_id}, chunk at {chunk.offset}: the data does not match the "
                    "tree of the peer",
                )
            return FetchResult(chunk=chunk, data=data)

        answer = self._first(wanted.sources, ask)
        if not self.provers or answer.chunk is None:
            return answer
        others = [one for one in wanted.sources if one not in {answer.peer_id, *self.dropped}]
        word = self.proven([answer.peer_id, *others], block_id, answer.chunk.offset, answer.data)
        return replace(answer, word=word)

    def fetch_together(self, wanted: Sequence[Wanted]) -> list[FetchResult]:
        """Return several small chunks, in the order of `wanted`.

        Chunks with the same first source are fetched in one call, and their proofs in a second
        call. Chunks that these calls did not return are then fetched one by one. The results
        include the costs of all these calls.
        """
        return self._together(
            wanted, lambda one: one[1].sources, self._lent, lambda one: self.fetch(*one)
        )

    def _together(
        self,
        items: Sequence[T],
        sources_of: Callable[[T], tuple[PeerId, ...]],
        lent: Callable[[PeerId, BatchReplicaPeer, Sequence[T]], list[FetchResult]],
        alone: Callable[[T], FetchResult],
    ) -> list[FetchResult]:
        """Return a result for each item.

        Call `lent` once for all items with the same first source, which makes one RPC. Then call
        `alone` for each item that still has neither a block nor a chunk.
        """
        by_source: dict[PeerId, list[int]] = defaultdict(list)
        for index, item in enumerate(items):
            asked = (one for one in sources_of(item) if one not in self.dropped)
            by_source[next(asked, "")].append(index)
        answers = [FetchResult()] * len(items)
        for peer_id, indexes in by_source.items():
            peer = self.peers.get(peer_id)
            if len(indexes) < 2 or not isinstance(peer, BatchReplicaPeer):
                continue
            try:
                found = lent(peer_id, peer, [items[index] for index in indexes])
            except SutureError as error:
                self._judge(peer_id, error)
                continue
            for index, answer in zip(indexes, found, strict=True):
                answers[index] = answer
        for index, (item, answer) in enumerate(zip(items, answers, strict=True)):
            if answer.block is None and answer.chunk is None:
                served = alone(item)
                answers[index] = replace(served, costs=answer.costs + served.costs)
        return answers

    def _lent(
        self, peer_id: PeerId, peer: BatchReplicaPeer, wanted: Sequence[Wanted]
    ) -> list[FetchResult]:
        """Fetch chunks from one peer in one call. Return a result for each chunk.

        A result is empty if the peer did not return the chunk, if the chunk does not match the
        peer's tree, or if a required proof is missing. Raise SutureError if the call fails.
        """
        keys = [(block_id, chunk.leaf.offset) for block_id, chunk in wanted]
        served = peer.read_chunks(self.container_id, keys)
        self.pace(sum(len(data) for _chunk, data in served.values()))
        answers = [
            FetchResult(costs=((peer_id, TransferCost(data_bytes=len(served[key][1]))),))
            if key in served
            else FetchResult()
            for key in keys
        ]
        right = [
            at
            for at, (key, (_, chunk)) in enumerate(zip(keys, wanted, strict=True))
            if key in served and is_leaf(self.algorithm, served[key][0], chunk.leaf)
        ]
        words = [NO_WORD] * len(right)
        if peer_id in self.provers:
            chunks = [(*keys[at], served[keys[at]][1]) for at in right]
            words = request_chunk_proofs(peer_id, self.provers[peer_id], self.container_id, chunks)
        for at, word in zip(right, words, strict=True):
            if word.proof or not self.provers:
                chunk, data = served[keys[at]]
                answers[at] = replace(
                    answers[at], peer_id=peer_id, chunk=chunk, data=data, word=word
                )
        return answers

    def proven(
        self, asked: Iterable[PeerId], block_id: BlockId, offset: int, data: bytes
    ) -> ProofAnswer:
        """Return the first proof by one of the peers `asked` that its disk has `data`.

        The proof is for the bytes at this offset of the block. If no peer gives a proof, return an
        answer with the reasons of all peers.
        """
        words: list[tuple[PeerId, ProofAnswer]] = []
        for peer_id in asked:
            prover = self.provers.get(peer_id)
            if prover is None:
                continue
            [word] = request_chunk_proofs(
                peer_id, prover, self.container_id, [(block_id, offset, data)]
            )
            if word.proof:
                return word
            words.append((peer_id, word))
        why = "; ".join(f"{peer_id}: {word.why}" for peer_id, word in words)
        is_silent = any(word.is_silent for _, word in words)
        return ProofAnswer(why=why or "nobody could be asked", is_silent=is_silent)

    def proven_end(self, store: ReplicaStore, action: Trim, block: BlockData | None) -> ProofAnswer:
        """Return a peer's proof that its disk has the last chunk of a block.

        The proof is required before the local bytes after that chunk are truncated. A block without
        chunks needs no proof. If the local chunk does not match its row, do not call the peer, and
        return an answer without a proof.
        """
        if block is None or not block.chunks:
            return ProofAnswer(proof="none: no chunk is recorded")
        chunk = block.chunks[-1]
        data = store.repair(self.container_id).read_medium(action.block_id, chunk)
        if not verifies(chunk, data):
            why = f"what was read here of the chunk at {chunk.offset} is not what its row says"
            return ProofAnswer(why=why, is_silent=True)
        return self.proven([action.equal_to], action.block_id, chunk.offset, data)

    def _first(
        self, peer_ids: tuple[PeerId, ...], ask: Callable[[ReplicaPeer, TransferCost], FetchResult]
    ) -> FetchResult:
        failures: list[FetchFailure] = []
        costs: list[tuple[PeerId, TransferCost]] = []
        for peer_id in peer_ids:
            if peer_id in self.dropped:
                failures.append(FetchFailure(peer_id, self.dropped[peer_id]))
                continue
            meter = TransferCost()
            costs.append((peer_id, meter))
            try:
                answer = ask(self.peers[peer_id], meter)
            except SutureError as error:
                failures.append(FetchFailure(peer_id, error))
                self._judge(peer_id, error)
                continue
            return replace(answer, peer_id=peer_id, failures=tuple(failures), costs=tuple(costs))
        return FetchResult(failures=tuple(failures), costs=tuple(costs))

    def _judge(self, peer_id: PeerId, error: SutureError) -> None:
        if isinstance(error, UnavailableError):
            self.dropped[peer_id] = error
        elif error.code in {Code.CHECKSUM_MISMATCH, Code.MALFORMED_REQUEST}:
            self.bad_chunks[peer_id] = self.bad_chunks.get(peer_id, 0) + 1
            if self.bad_chunks[peer_id] >= BAD_CHUNKS_MAX:
                self.dropped[peer_id] = error


def is_leaf(algorithm: Algorithm, chunk: ChunkInfo, leaf: Leaf) -> bool:
    """Return whether a chunk record has the same offset, length and checksum as a tree's leaf.

    A leaf is the entry of one chunk in a tree.
    """
    return (chunk.offset, chunk.length_bytes) == (leaf.offset, leaf.length_bytes) and (
        leaf_checksum(algorithm, chunk.offset, chunk.length_bytes, chunk.window_checksums)
        == leaf.checksum
    )


def in_order(
    executor: Executor,
    jobs: Iterator[Job],
    work: Callable[[Job], Any],
    size_bytes: Callable[[Job], int],
    *,
    bytes_max: int,
    count_max: int,
) -> Iterator[tuple[Job, Any]]:
    """Run `work` for every job, with several jobs in flight.

    Yield (job, result) in the order of the jobs. At most `count_max` jobs with a total of
    `bytes_max` bytes are in flight. A larger job runs alone. Only one more job is taken from
    `jobs`, so that later jobs may depend on earlier results. If the caller stops early, jobs that
    have not started are cancelled.
    """
    pending: deque[tuple[Job, Future, int]] = deque()
    pending_bytes = 0
    drawn = next(jobs, None)
    try:
        while drawn is not None or pending:
            while drawn is not None and (
                not pending
                or (len(pending) < count_max and pending_bytes + size_bytes(drawn) <= bytes_max)
            ):
                pending.append((drawn, executor.submit(work, drawn), size_bytes(drawn)))
                pending_bytes += size_bytes(drawn)
                drawn = next(jobs, None)
            job, future, size = pending.popleft()
            pending_bytes -= size
            yield job, future.result()
    finally:
        for _, future, _ in pending:
            future.cancel()
