"""Handlers of the RPCs that prove to a peer which data is on the local disks.

The data is read from the disks past all caches.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from grpc import ServicerContext as Context

from agent.delete_pins import DeletePins
from agent.services.chunk_keys import Found, Key, parse_keys, several_chunks
from agent.services.service_protocols import Scan, ScanMode
from agent.store.index.facts import ReplicaFacts
from agent.store.operations.repair import verifies
from agent.store.replica_store import ReplicaStore
from merkle.possession_proof import NONCE_BYTES, answer_of, tree_answer_of
from merkle.replica import ID_MAX, BlockId, ContainerId, ReplicaState
from merkle.tree import Tree
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.clock import Clock
from suture.wire.mapping import codec
from suture.wire.v1 import datanode_pb2 as pb

KEEP_MS_MAX: Final = 3_600_000
PROVING_STATES: Final = frozenset({ReplicaState.CLOSED, ReplicaState.QUASI_CLOSED})


@dataclass(eq=False)
class ProofHandlers:
    """Handlers of ProveChunks, ProveReplica.

    If data on the disk does not match its rows in the index, `on_damage` is called with the
    container id and a reason.
    """

    store: ReplicaStore
    scan: Scan
    pins: DeletePins
    clock: Clock
    on_damage: Callable[[ContainerId, str], None] = lambda *_: None

    def ProveChunks(self, request: pb.ProveChunksRequest) -> pb.ProveChunksResponse:
        """Read chunks from the disk, and return a hash of each chunk and the caller's nonce.

        The caller computes the same hashes from its own data. If a chunk is unreadable, has lost
        its row or does not match its row, the damage is reported to `on_damage`, so that the
        replica is scanned.
        """
        container_id = codec.parse_container_id(request.container_id)
        keys = parse_keys(request.chunks)
        nonces = [_nonce(asked.nonce) for asked in request.chunks]
        chosen = several_chunks(self.store, container_id, keys)
        answer = pb.ProveChunksResponse()
        for key, nonce in zip(keys, nonces, strict=True):
            proof = answer.proofs.add()
            try:
                proof.answer = self._answer(container_id, key, chosen[key], nonce)
            except SutureError as error:
                proof.code, proof.message = error.code, str(error)
        return answer

    def _answer(
        self, container_id: ContainerId, key: Key, chosen: Found | SutureError, nonce: bytes
    ) -> bytes:
        if isinstance(chosen, SutureError):
            if chosen.code is Code.NO_SUCH_BLOCK and self._is_in_tree(container_id, key[0]):
                self.on_damage(container_id, "a peer asked, and a block has no row any more")
            raise chosen
        found, chunk = chosen
        try:
            data = self.store.view(container_id).read(
                found, chunk.offset, chunk.length_bytes, past_cache=True
            )
        except SutureError:
            self.on_damage(container_id, "a peer asked, and a chunk cannot be read")
            raise
        if not verifies(chunk, data):
            self.on_damage(container_id, "a peer asked, and a chunk is not what its row says")
        return answer_of(nonce, data)

    def ProveReplica(
        self, request: pb.ProveReplicaRequest, context: Context
    ) -> Iterator[pb.ProveReplicaResponse]:
        """Prove that the local replica of a container is intact.

        The replica is pinned, so that it is not deleted while the caller relies on it. The complete
        replica is scanned, unless its last scan is recent enough. Then the summary of its tree is
        returned, with a hash of the tree and the caller's nonce.
        """
        container_id = codec.parse_container_id(request.container_id)
        nonce = _nonce(request.nonce)
        age_max_ms = codec.parse_int(request.age_max_ms, "age_max_ms", low=0, high=ID_MAX)
        keep_s = codec.parse_int(request.keep_ms, "keep_ms", low=0, high=KEEP_MS_MAX) / 1000
        self.pins.pin(container_id, keep_s)
        age_ms = self.clock.now_ms() - self._whole(container_id).data_scan_at_ms
        if not 0 <= age_ms <= age_max_ms or not age_max_ms:
            for _ in self.scan(container_id, lambda: not context.is_active(), ScanMode.WAIT):
                yield pb.ProveReplicaResponse()
        facts = self._whole(container_id)
        tree = self._current(container_id, facts)
        self.pins.pin(container_id, keep_s)
        yield pb.ProveReplicaResponse(
            proof=pb.ReplicaProof(
                tree=codec.summary_message(tree.summary()),
                answer=tree_answer_of(nonce, container_id, tree),
            )
        )

    def _is_in_tree(self, container_id: ContainerId, block_id: BlockId) -> bool:
        """Return whether the replica's tree contains the block as a live block."""
        tree = self.store.view(container_id).tree()
        return bool((tree.block_ids[~tree.deleted] == block_id).any())

    def _whole(self, container_id: ContainerId) -> ReplicaFacts:
        """Return the facts of the replica if it is closed and has no findings. Otherwise, raise
        RefusedError(INELIGIBLE), because such a replica proves nothing."""
        facts = self.store.replica(container_id)
        if facts.state in PROVING_STATES and not facts.finding_count:
            return facts
        raise RefusedError(
            Code.INELIGIBLE,
            f"container {container_id} is {facts.state} here, with {facts.finding_count} "
            "findings: it cannot serve as proof",
            container_id=container_id,
        )

    def _current(self, container_id: ContainerId, facts: ReplicaFacts) -> Tree:
        tree = self.store.view(container_id).tree()
        if facts.tree is None or tree.root != facts.tree.root:
            raise RefusedError(
                Code.INELIGIBLE,
                f"container {container_id} changed since it was last read",
                container_id=container_id,
            )
        return tree


def _nonce(value: bytes) -> bytes:
    if len(value) != NONCE_BYTES:
        raise codec.malformed("nonce", f"{len(value)} bytes are not {NONCE_BYTES}")
    return value
