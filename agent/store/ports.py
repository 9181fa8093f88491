"""What callers need of a store, in groups: each takes the one that it needs.

`agent.store.replica_store.ReplicaStore` is all of them. Who changes a replica holds its lease.
"""

from typing import Protocol

from agent.store.index.facts import ReplicaFacts, Unloadable
from agent.store.index.history import HistoryEntry
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId
from merkle.tree import Tree
from scanner.finding import Finding


class WritableReplicas(Protocol):
    """Replicas that are made, filled, closed and deleted. Every call raises SutureError."""

    def create_container(
        self, container_id: ContainerId, *, replica_index: int = ...
    ) -> ReplicaFacts:
        """Create an empty, open replica; repeating it is harmless while it is open."""
        ...

    def write_chunk(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        chunk: ChunkInfo,
        data: bytes,
        /,
        *,
        commit: BlockData | None = ...,
    ) -> ChunkInfo:
        """Write a chunk durably; with `commit`, commit its block too."""
        ...

    def put_block(self, container_id: ContainerId, block: BlockData, /) -> int:
        """Commit a block whose chunks are written; return its length in bytes."""
        ...

    def close_container(
        self, container_id: ContainerId, *, bcsid: int = ..., force: bool = ...
    ) -> ReplicaFacts:
        """Close a replica: CLOSED if it has reached `bcsid` or is forced, else QUASI_CLOSED."""
        ...

    def delete_container(self, container_id: ContainerId, *, force: bool = ...) -> None:
        """Delete a replica; an open or non-empty one only by force."""
        ...


class ReadableReplicas(Protocol):
    """Replicas as they are told of and read. Every call raises SutureError."""

    def replica(self, container_id: ContainerId) -> ReplicaFacts:
        """Return the facts of one replica."""
        ...

    def replicas(self, start: int = ..., count: int | None = ...) -> list[ReplicaFacts]:
        """Return replicas from container `start` on, by ascending id, at most `count`."""
        ...

    def unloadable(self) -> tuple[Unloadable, ...]:
        """Return the replicas whose files are here and cannot be served."""
        ...

    def block(self, container_id: ContainerId, block_id: BlockId, /) -> BlockData:
        """Return a committed block."""
        ...

    def blocks(
        self, container_id: ContainerId, /, *, start: int = ..., count: int = ...
    ) -> list[BlockData]:
        """Return committed blocks from `start` on, at most `count`."""
        ...

    def read(
        self, container_id: ContainerId, block_id: BlockId, offset: int, length_bytes: int, /
    ) -> bytes:
        """Return bytes of a block as the disk has them: the reader verifies."""
        ...

    def tree(self, container_id: ContainerId, /) -> Tree:
        """Return the replica's tree."""
        ...

    def history(self, container_id: ContainerId) -> list[HistoryEntry]:
        """Return what the replica was, the oldest first, and why it changed."""
        ...

    def findings(
        self, container_id: ContainerId | None = ..., *, start: int = ..., count: int = ...
    ) -> list[Finding]:
        """Return unresolved findings: of one container, or of all from container `start` on."""
        ...
