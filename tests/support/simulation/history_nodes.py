"""Simulated datanodes that know the blocks of their replicas, in addition to the states.

The blocks determine the effect of a close, a delete, a copy or a reconcile on a replica, and its
root. `tests/support/simulation/histories.py` scripts the events.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from suture.wire.v1 import container_pb2, scm_pb2
from tests.support.simulation.simulated_nodes import SimulatedNode, Task
from tests.support.simulation.simulated_world import replica_report

BLOCK_BYTES: Final = 10**6
TREE_STATES: Final = {
    container_pb2.CLOSED,
    container_pb2.QUASI_CLOSED,
    container_pb2.UNHEALTHY,
}
_Done = tuple["scm_pb2.CommandStatus.State", str]


@dataclass
class Held:
    """A replica: its blocks, and the state that its datanode reports."""

    state: container_pb2.ReplicaState
    index: int = 0
    bcsid: int = 0
    live: dict[int, int] = field(default_factory=dict)  # block -> bcsid of its commit
    deleted: set[int] = field(default_factory=set)

    def copy(self, *, index: int | None = None) -> "Held":
        """Return a copy of the replica. With another `index`, it is the shard of this index."""
        index = self.index if index is None else index
        return Held(self.state, index, self.bcsid, dict(self.live), set(self.deleted))

    def report(self, container_id: int) -> container_pb2.ReplicaReport:
        """Return the report of the replica."""
        is_bad = self.state == container_pb2.UNHEALTHY
        made = replica_report(
            container_id,
            state=self.state,
            index=self.index,
            used_bytes=BLOCK_BYTES * len(self.live),
            bcsid=self.bcsid,
        )
        made.block_count = len(self.live)
        made.is_empty = not self.live and self.state in TREE_STATES
        made.finding_count = int(is_bad)
        if made.HasField("tree"):
            made.tree.root = _sum([self.index, int(is_bad), *self.live, *self.deleted])
            made.tree.block_count = len(self.live) + len(self.deleted)
            made.tree.tombstone_count = len(self.deleted)
            made.tree.tombstones_checksum = _sum(self.deleted) if self.deleted else 0
        return made


def _sum(numbers: Iterable[int]) -> int:
    return zlib.crc32(repr(sorted(numbers)).encode()) + 1


class HistoryNode(SimulatedNode):
    """A datanode that knows the blocks of its replicas."""

    def held(self, container_id: int) -> Held | None:
        """Return the datanode's replica of a container; None if it has none."""
        return self._held.get(container_id)

    @property
    def _held(self) -> dict[int, Held]:
        held: dict[int, Held] = self.__dict__.setdefault("held_by_id", {})
        return held

    def hold(self, container_id: int, held: Held) -> None:
        """Store and report a replica. It replaces an existing replica of the same container."""
        self._held[container_id] = held
        self.put(held.report(container_id))

    def drop(self, container_id: int) -> None:
        """Remove a replica."""
        self._held.pop(container_id, None)
        super().drop(container_id)

    def write(self, container_id: int, local_id: int, bcsid: int, *, index: int) -> None:
        """Store a block of an open container."""
        held = self._held.get(container_id) or Held(container_pb2.OPEN, index)
        if held.state != container_pb2.OPEN:
            return
        held.live[local_id] = bcsid
        held.bcsid = max(held.bcsid, bcsid)
        self.hold(container_id, held)

    def _execute(self, task: Task) -> _Done:
        held = self._held.get(task.container_id)
        match task.kind:
            case "reconcile":
                if held is None:
                    return self._failed("CONTAINER_NOT_FOUND")
                self._reconcile(held, task.command.reconcile)
            case "delete" if held is not None and held.live and not task.command.delete.force:
                return self._failed("DELETE_ON_NON_EMPTY_CONTAINER")
            case "delete_blocks":
                for transaction in task.command.delete_blocks.transactions:
                    self._delete_blocks(transaction)
            case _:
                return super()._execute(task)
        return scm_pb2.CommandStatus.EXECUTED, ""

    def _end(self, task: Task, state: "scm_pb2.CommandStatus.State", code: str) -> None:
        super()._end(task, state, code)
        if task.kind == "delete_blocks" and state == scm_pb2.CommandStatus.EXECUTED:
            results = self.statuses[-1].delete_blocks.transactions
            for transaction in task.command.delete_blocks.transactions:
                held = self._held.get(transaction.container_id)
                results.add(
                    transaction_id=transaction.transaction_id,
                    container_id=transaction.container_id,
                    done=held is not None and held.state in TREE_STATES,
                )

    def _close(self, command: scm_pb2.CloseCommand) -> bool:
        held = self._held.get(command.container_id)
        if held is None:
            return False
        if held.state != container_pb2.UNHEALTHY:
            is_whole = command.force or held.bcsid >= command.bcsid
            held.state = container_pb2.CLOSED if is_whole else container_pb2.QUASI_CLOSED
            self.hold(command.container_id, held)
        return True

    def _copy(self, command: scm_pb2.ReplicateCommand) -> bool:
        target = self.world.nodes.get(command.target.datanode_id)
        held = self._held.get(command.container_id)
        if held is None or target is None or not target.is_alive:
            return False
        if command.container_id in target.replicas or held.state not in TREE_STATES:
            return False
        assert isinstance(target, HistoryNode)
        target.hold(command.container_id, held.copy())
        return True

    def _reconstruct(self, command: scm_pb2.ReconstructCommand) -> bool:
        sources = [
            held
            for shard in command.sources
            for held in [replica_at(self, shard.datanode.datanode_id, command.container_id)]
            if held is not None and held.state == container_pb2.CLOSED
        ]
        targets = [self.world.nodes[shard.datanode.datanode_id] for shard in command.targets]
        if len(sources) < command.scheme.data or any(
            not node.is_alive or command.container_id in node.replicas for node in targets
        ):
            return False
        for node, shard in zip(targets, command.targets, strict=True):
            assert isinstance(node, HistoryNode)
            node.hold(command.container_id, sources[0].copy(index=shard.replica_index))
        return True

    def _delete_blocks(self, transaction: scm_pb2.DeleteTransaction) -> None:
        held = self._held.get(transaction.container_id)
        if held is None or held.state not in TREE_STATES:
            return
        for local_id in transaction.local_ids:
            held.live.pop(local_id, None)
            held.deleted.add(local_id)
        self.hold(transaction.container_id, held)

    def _reconcile(self, held: Held, command: scm_pb2.ReconcileCommand) -> None:
        """Add the blocks and tombstones of peers to a replica, and heal a damaged replica if a peer
        has an undamaged one."""
        for peer in command.peers:
            theirs = replica_at(self, peer.datanode_id, command.container_id)
            if theirs is None or theirs.state not in TREE_STATES:
                continue
            held.deleted |= theirs.deleted
            held.live |= {} if command.scheme else theirs.live
            if theirs.state != container_pb2.UNHEALTHY:
                held.bcsid = max(held.bcsid, theirs.bcsid)
                if held.state == container_pb2.UNHEALTHY:
                    held.state = theirs.state
        for local_id in held.deleted:
            held.live.pop(local_id, None)
        self.hold(command.container_id, held)


def replica_at(node: SimulatedNode, datanode_id: str, container_id: int) -> Held | None:
    """Return the replica of a container on the datanode `datanode_id`, for the requesting datanode
    `node`; None if the datanode does not answer or has no replica."""
    other = node.world.nodes.get(datanode_id)
    if not isinstance(other, HistoryNode) or not other.is_alive:
        return None
    return other.held(container_id)
