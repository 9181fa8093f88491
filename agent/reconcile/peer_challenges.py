"""Questions to peers at random: prove that your medium has this chunk, now.

    a replica here, by lot ─► a chunk of it, past the cache ─► another holder, by lot ─► its proof

A scan proves what a datanode has to itself, a week apart. A peer with a stale or a forged tree, or
with a cache in front of a dead disk, says the same as before; this question it cannot answer. One
chunk is read on either side and at most a hundred bytes are sent: some a day, not a scan. What is
wrong is told and counted here; the peer has its replica scanned (`agent.rpc.datanode.proving`).
Shards are left to the parity: nobody else has the same one.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from agent.errors import SutureError
from agent.reconcile.witnesses import ask_for_chunks
from agent.rpc.calls.peer import NodeAddress, Peer
from agent.rpc.v1 import container_pb2, datanode_pb2, scm_pb2
from agent.runtime.clock import Clock
from agent.runtime.loop import Step, Throttled
from agent.store.operations.repair import verifies
from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockId, ChunkInfo, ContainerId, ReplicaState

PROVEN: Final = "proven"
FAILED: Final = "failed"  # its medium has other bytes than ours, which fit our row
UNANSWERED: Final = "unanswered"
OWN: Final = "own"  # it is our medium that has not what our row says
RESULTS: Final = (PROVEN, FAILED, UNANSWERED, OWN)
STATES: Final = frozenset({ReplicaState.CLOSED, ReplicaState.QUASI_CLOSED})
IDLE_S: Final = 60.0


class Challenges:
    """The worker."""

    name = "challenges"

    def __init__(
        self,
        store: ReplicaStore,
        datanode_id: str,
        interval_s: float,
        *,
        info: Callable[[ContainerId], scm_pb2.ContainerInfo],
        dial: Callable[[NodeAddress], Peer],
        ask_scan: Callable[[ContainerId, str], None],
        count: Callable[[str], None],
        clock: Clock,
    ) -> None:
        """`info` asks the control plane, and raises SutureError; `ask_scan` has a replica here
        read; `count` is told each result. `interval_s` 0: nobody is asked."""
        self._store = store
        self._datanode_id = datanode_id
        self._interval_s = interval_s
        self._info = info
        self._dial = dial
        self._ask_scan = ask_scan
        self._count = count
        self._clock = clock
        self._due_at_s = clock.monotonic_s() + self._pause_s()
        self._counts: Counter[str] = Counter()
        self._asked_at_ms = 0

    def status(self) -> datanode_pb2.Challenges:
        """Return what came of those that were asked so far."""
        return datanode_pb2.Challenges(
            interval_ms=int(self._interval_s * 1000),
            asked_at_ms=self._asked_at_ms,
            proven_count=self._counts[PROVEN],
            failed_count=self._counts[FAILED],
            unanswered_count=self._counts[UNANSWERED],
            own_count=self._counts[OWN],
        )

    def step(self) -> Step:
        """Ask one question, if it is time."""
        if not self._interval_s:
            return Throttled(IDLE_S)
        left_s = self._due_at_s - self._clock.monotonic_s()
        if left_s > 0:
            return Throttled(min(left_s, IDLE_S))
        self._due_at_s = self._clock.monotonic_s() + self._pause_s()
        try:
            result = self._challenge()
        except SutureError:  # no control plane, or the replica has gone meanwhile: another time
            return Throttled(IDLE_S)
        if result:
            self._counts[result] += 1
            self._asked_at_ms = self._clock.now_ms()
            self._count(result)
        return Throttled(0.0)

    def _pause_s(self) -> float:
        """Return how long until the next one: around the interval, so that no two keep in step."""
        return self._interval_s * random.uniform(0.5, 1.5)  # noqa: S311 - no secret

    def _challenge(self) -> str:
        """Ask one peer about one chunk; return the result, "" where there is nothing to ask."""
        found = self._drawn()
        if found is None:
            return ""
        container_id, block_id, chunk = found
        holders = self._holders(container_id)
        if not holders:
            return ""
        readable = self._store.readable(container_id, block_id)
        try:
            data = self._store.read_medium(container_id, readable, chunk.offset, chunk.length_bytes)
        except SutureError:
            return self._own(found, "a chunk cannot be read")
        if not verifies(chunk, data):
            return self._own(found, "a chunk is not what its row says")
        asked = random.choice(holders)  # noqa: S311 - no secret
        peer, wanted = self._dial(asked), [(block_id, chunk.offset, data)]
        [word] = ask_for_chunks(asked.datanode_id, peer, container_id, wanted)
        return PROVEN if word.proof else FAILED if word.is_false else UNANSWERED

    def _own(self, found: tuple[ContainerId, BlockId, ChunkInfo], why: str) -> str:
        """Have a replica here read; "" if what could not be read was deleted meanwhile. Raises
        SutureError where the replica was, or its block."""
        container_id, block_id, chunk = found
        if chunk not in self._store.block(container_id, block_id).chunks:
            return ""
        self._ask_scan(container_id, why)
        return OWN

    def _drawn(self) -> tuple[ContainerId, BlockId, ChunkInfo] | None:
        """Draw a replica, a block of it and a chunk of that."""
        ids = self._store.replica_ids()
        container_id = random.choice(ids) if ids else None  # noqa: S311 - no secret
        if container_id is None or self._store.replica(container_id).state not in STATES:
            return None
        tree = self._store.tree(container_id)
        live = tree.block_ids[~tree.deleted]
        if not len(live):
            return None
        block_id = BlockId(int(random.choice(live)))  # noqa: S311 - no secret
        chunks = self._store.block(container_id, block_id).chunks
        return (container_id, block_id, random.choice(chunks)) if chunks else None  # noqa: S311

    def _holders(self, container_id: ContainerId) -> Sequence[container_pb2.DatanodeEndpoint]:
        """Return the others that have a healthy replica of it, as the control plane knows."""
        info = self._info(container_id)
        if info.scheme:
            return ()
        return [
            one.datanode
            for one in info.replicas
            if one.datanode.datanode_id != self._datanode_id
            and one.replica.state in {container_pb2.CLOSED, container_pb2.QUASI_CLOSED}
        ]
