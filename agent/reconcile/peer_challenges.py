"""Random challenges to peers to prove that their disk has a chunk now.

The worker draws a local replica and a chunk, reads the chunk past the page cache, and asks a random
other datanode with a replica for a proof.

A scan verifies the data of a datanode only locally, and once a week. A peer with a stale or forged
tree, or with a cache in front of a dead disk, answers other requests correctly, but fails this
challenge. Each side reads one chunk, and at most 100 bytes are sent, a few times a day. The
challenger logs and counts a failure. The peer scans its replica (`agent.services.proof_handlers`).

Erasure-coded containers are excluded, because no other datanode has the same shard. The parity
scrub verifies their shards.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from agent.reconcile.witnesses import request_chunk_proofs
from agent.store.operations.repair import verifies
from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockId, ChunkInfo, ContainerId, ReplicaState
from suture.errors import SutureError
from suture.runtime.clock import Clock
from suture.runtime.loop import RetryAfter, Step
from suture.wire.clients.block_peer import NodeAddress
from suture.wire.clients.peer import Peer
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2

PROVEN: Final = "proven"
FAILED: Final = "failed"  # the peer's disk differs from local bytes that match the local row
UNANSWERED: Final = "unanswered"
OWN: Final = "own"  # the bytes on the local disk do not match the local row
RESULTS: Final = (PROVEN, FAILED, UNANSWERED, OWN)
STATES: Final = frozenset({ReplicaState.CLOSED, ReplicaState.QUASI_CLOSED})
IDLE_S: Final = 60.0


@dataclass(eq=False)
class ChallengeWorker:
    """Worker that challenges peers: it asks them for proofs that their disk has a chunk.

    `info` returns the control plane's record of a container, or raises SutureError. `request_scan`
    requests a scan of a local replica. `count` gets each result. `interval_s` is the mean time in
    seconds between two challenges. 0 disables the challenges.
    """

    name = "challenges"

    store: ReplicaStore
    datanode_id: str
    interval_s: float
    _: KW_ONLY
    info: Callable[[ContainerId], scm_pb2.ContainerInfo]
    dial: Callable[[NodeAddress], Peer]
    request_scan: Callable[[ContainerId, str], None]
    count: Callable[[str], None]
    clock: Clock

    def __post_init__(self) -> None:
        self._due_at_s = self.clock.monotonic_s() + self._pause_s()
        self._counts: Counter[str] = Counter()
        self._asked_at_ms = 0

    def status(self) -> datanode_pb2.Challenges:
        """Return the number of challenges with each result so far."""
        return datanode_pb2.Challenges(
            interval_ms=int(self.interval_s * 1000),
            asked_at_ms=self._asked_at_ms,
            proven_count=self._counts[PROVEN],
            failed_count=self._counts[FAILED],
            unanswered_count=self._counts[UNANSWERED],
            own_count=self._counts[OWN],
        )

    def step(self) -> Step:
        """Ask one peer for a proof that its disk has a chunk, if the interval has passed."""
        if not self.interval_s:
            return RetryAfter(IDLE_S)
        left_s = self._due_at_s - self.clock.monotonic_s()
        if left_s > 0:
            return RetryAfter(min(left_s, IDLE_S))
        self._due_at_s = self.clock.monotonic_s() + self._pause_s()
        try:
            result = self._challenge()
        except SutureError:  # no control plane, or the replica was deleted: try later
            return RetryAfter(IDLE_S)
        if result:
            self._counts[result] += 1
            self._asked_at_ms = self.clock.now_ms()
            self.count(result)
        return RetryAfter(0.0)

    def _pause_s(self) -> float:
        """Return a random pause of 0.5 to 1.5 intervals, in seconds.

        Because of the random length, datanodes do not challenge at the same time.
        """
        return self.interval_s * random.uniform(0.5, 1.5)  # noqa: S311 - no secret

    def _challenge(self) -> str:
        """Ask one peer for a proof that its disk has a chunk. Return PROVEN, FAILED or UNANSWERED.

        Return OWN if the local chunk is damaged. Return "" if there is no local chunk, or no other
        datanode with a replica.
        """
        found = self._drawn()
        if found is None:
            return ""
        container_id, block_id, chunk = found
        holders = self._holders(container_id)
        if not holders:
            return ""
        readable = self.store.view(container_id).readable(block_id)
        try:
            data = self.store.view(container_id).read(
                readable, chunk.offset, chunk.length_bytes, past_cache=True
            )
        except SutureError:
            return self._own(found, "a chunk cannot be read")
        if not verifies(chunk, data):
            return self._own(found, "a chunk is not what its row says")
        asked = random.choice(holders)  # noqa: S311 - no secret
        peer, wanted = self.dial(asked), [(block_id, chunk.offset, data)]
        [word] = request_chunk_proofs(asked.datanode_id, peer, container_id, wanted)
        return PROVEN if word.proof else FAILED if word.is_false else UNANSWERED

    def _own(self, found: tuple[ContainerId, BlockId, ChunkInfo], why: str) -> str:
        """Request a scan of a local replica with a damaged chunk, and return OWN.

        Return "" if the chunk was replaced in the meantime. Raise SutureError if the replica or the
        block was deleted.
        """
        container_id, block_id, chunk = found
        if chunk not in self.store.view(container_id).block(block_id).chunks:
            return ""
        self.request_scan(container_id, why)
        return OWN

    def _drawn(self) -> tuple[ContainerId, BlockId, ChunkInfo] | None:
        """Return a random local chunk as (container id, block id, chunk).

        Return None if the drawn replica is not closed, or if it has no chunk.
        """
        ids = self.store.replica_ids()
        container_id = random.choice(ids) if ids else None  # noqa: S311 - no secret
        if container_id is None or self.store.replica(container_id).state not in STATES:
            return None
        tree = self.store.view(container_id).tree()
        live = tree.block_ids[~tree.deleted]
        if not len(live):
            return None
        block_id = BlockId(int(random.choice(live)))  # noqa: S311 - no secret
        chunks = self.store.view(container_id).block(block_id).chunks
        return (container_id, block_id, random.choice(chunks)) if chunks else None  # noqa: S311

    def _holders(self, container_id: ContainerId) -> Sequence[container_pb2.DatanodeEndpoint]:
        """Return the other datanodes with a closed replica, according to the control plane.

        Return an empty sequence for an erasure-coded container.
        """
        info = self.info(container_id)
        if info.scheme:
            return ()
        return [
            one.datanode
            for one in info.replicas
            if one.datanode.datanode_id != self.datanode_id
            and one.replica.state in {container_pb2.CLOSED, container_pb2.QUASI_CLOSED}
        ]
