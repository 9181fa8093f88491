"""Deletes a replica after another datanode has proved that it has the same data.

The other datanode is called a witness.

1. This datanode refuses to pin its own replica. Therefore, it cannot confirm the delete of another
replica of the container at the same time. 2. The witness reads its replica, proves the content, and
pins the replica for KEEP_S seconds. 3. This datanode deletes its replica.

If the command names no witnesses, the delete needs no proof. The SCM sends such a command if no
datanode needs a replica of the container any more, or if an operator forces the delete.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent.delete_pins import DeletePins
from agent.plan.actions import PeerId
from agent.reconcile.witnesses import ReplicaProof, ReplicaProofCollector
from agent.store.replica_store import ReplicaStore
from merkle.damaged_data import DamagedData
from merkle.replica import BlockId, ContainerId, ReplicaState
from merkle.tree import Tree
from merkle.tree_building import build_from_rows
from suture.errors import Code, RefusedError
from suture.runtime.clock import Clock
from suture.runtime.ports import Leases
from suture.wire.clients.peer import Peer

KEEP_S: Final = 30.0
"""Number of seconds for which another datanode keeps its replica after it has proved its content.

The local replica must be deleted within a third of this time after the proof. Otherwise, the local
replica is not deleted.
"""
EMPTY: Final = "none: it holds no block"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDeleter:
    """Deletes replicas of this datanode, after another datanode has proved that it has the same
    data.

    `confirmed` is a function that returns those of the given blocks that the control plane ordered
    to delete. The other datanode does not read its replica again if its last complete scan is at
    most `age_max_s` seconds old.
    """

    store: ReplicaStore
    leases: Leases
    pins: DeletePins
    clock: Clock
    confirmed: Callable[[ContainerId, Sequence[BlockId]], frozenset[BlockId]]
    age_max_s: float

    def delete(
        self,
        container_id: ContainerId,
        witnesses: Mapping[PeerId, Peer],
        *,
        force: bool,
        timeout_s: float,
    ) -> None:
        """Delete a replica after one of the `witnesses` has proved that it has the same data.

        If none of them gives a proof, raise RefusedError(NOT_PROVEN) and leave the replica
        unchanged. If `witnesses` is empty, no proof is needed. If an earlier delete was interrupted
        after its proof, the replica is already DELETED. The delete is then completed without
        another proof.
        """
        if self.store.replica(container_id).state is ReplicaState.DELETED:
            witnesses = {}
        with self.pins.deleting(container_id):
            generation = self.store.generation(container_id)
            proof = self._proof(container_id, witnesses, timeout_s) if witnesses else None
            with self.leases.hold(container_id):
                if proof is not None:
                    self._check_still(container_id, generation, proof)
                text = proof.text if proof is not None else ""
                self.store.delete_container(container_id, force=force, proof=text)

    def _proof(
        self, container_id: ContainerId, witnesses: Mapping[PeerId, Peer], timeout_s: float
    ) -> ReplicaProof:
        mine = self._tree(container_id)
        without_row = self._without_row(container_id)
        if not mine.block_count and not without_row:
            return ReplicaProof(EMPTY, self.clock.monotonic_s())
        return ReplicaProofCollector(
            self.store,
            container_id,
            mine,
            without_row,
            witnesses,
            self.confirmed,
            self.age_max_s,
            KEEP_S,
            timeout_s,
            self.clock,
        ).proof()

    def _without_row(self, container_id: ContainerId) -> frozenset[BlockId]:
        """Return the blocks that have local bytes but no row. They are not part of the replica's
        tree."""
        sizes = self.store.view(container_id).blocks_without_row()
        return frozenset(block_id for block_id, size_bytes in sizes.items() if size_bytes > 0)

    def _tree(self, container_id: ContainerId) -> Tree:
        """Return the tree of the replica. If the replica was never closed, build the tree from its
        rows."""
        try:
            return self.store.view(container_id).tree()
        except RefusedError as error:
            if error.code is not Code.UNCLOSED_CONTAINER_IO:
                raise
        try:
            rows = self.store.view(container_id).block_rows()
            return build_from_rows(rows, {}, algorithm=self.store.algorithm)
        except DamagedData as damage:
            raise RefusedError(
                Code.NOT_PROVEN, f"cannot delete the replica of container {container_id}: {damage}"
            ) from damage

    def _check_still(self, container_id: ContainerId, generation: int, proof: ReplicaProof) -> None:
        """Raise RefusedError if the replica has changed since the proof, or if the proof is too
        old."""
        if self.store.generation(container_id) != generation:
            raise RefusedError(
                Code.NOT_PROVEN, f"container {container_id} changed while it was being proven"
            )
        if self.clock.monotonic_s() - proof.kept_since_s > KEEP_S / 3:
            raise RefusedError(Code.NOT_PROVEN, f"container {container_id}: the proof is too old")
