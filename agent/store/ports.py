"""Interfaces of a store, in groups by caller.

`agent.store.replica_store.ReplicaStore` implements all. Callers that change a replica hold its
lease.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

from agent.store.files.layout import ReplicaPaths
from agent.store.files.writebehind import Submit
from agent.store.index.facts import ReplicaFacts, Unloadable
from agent.store.index.replica_history import Changes, HistoryEntry
from agent.store.operations.arrival import Announced, Arrival, Received
from agent.store.operations.batch_repair import Offer
from agent.store.operations.deleting import Deleted
from agent.store.operations.newblocks import NewBlocks
from agent.store.operations.reading import Readable
from agent.store.operations.repair import Repair
from agent.store.replica.packs import PackIndex
from agent.store.trouble import Trouble
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId
from merkle.tree import Tree
from scanner.finding import Finding

BlockIds: TypeAlias = Collection[BlockId]


class WritableReplicas(Protocol):
    """Replicas to create, fill, close and delete. Every call raises SutureError."""

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
        """Write a chunk durably; with `commit`, also commit its block."""
        ...

    def put_block(self, container_id: ContainerId, block: BlockData, /) -> int:
        """Commit a block whose chunks are written; return its length in bytes."""
        ...

    def begin_blocks(self, container_id: ContainerId, submit: Submit | None = ..., /) -> NewBlocks:
        """Begin to take whole new blocks of a container; no lease is needed."""
        ...

    def close_container(
        self, container_id: ContainerId, *, bcsid: int = ..., force: bool = ...
    ) -> ReplicaFacts:
        """Close a replica: CLOSED if it has reached `bcsid` or is forced, else QUASI_CLOSED."""
        ...

    def delete_container(
        self, container_id: ContainerId, *, force: bool = ..., proof: str = ...
    ) -> None:
        """Delete a replica; an open or non-empty one only with force."""
        ...


class ReadableReplicas(Protocol):
    """Replicas to describe and read. Every call raises SutureError."""

    def replica(self, container_id: ContainerId) -> ReplicaFacts:
        """Return the facts of one replica."""
        ...

    def replicas(self, start: int = ..., count: int | None = ...) -> list[ReplicaFacts]:
        """Return replicas from container `start` on, by ascending id, at most `count`."""
        ...

    def unloadable(self) -> tuple[Unloadable, ...]:
        """Return the replicas whose files exist and cannot be served."""
        ...

    def block(self, container_id: ContainerId, block_id: BlockId, /) -> BlockData:
        """Return a committed block."""
        ...

    def blocks(
        self, container_id: ContainerId, /, *, start: int = ..., count: int = ...
    ) -> list[BlockData]:
        """Return committed blocks from `start` on, at most `count`."""
        ...

    def readable(self, container_id: ContainerId, block_id: BlockId, /) -> Readable:
        """Return a committed block with its place."""
        ...

    def read(
        self,
        container_id: ContainerId,
        block: BlockId | Readable,
        offset: int,
        length_bytes: int,
        /,
    ) -> bytes:
        """Return bytes of a block from the disk; the reader verifies them."""
        ...

    def read_medium(
        self, container_id: ContainerId, block: Readable, offset: int, length_bytes: int, /
    ) -> bytes:
        """Return the same from the medium, past the page cache."""
        ...

    def tree(self, container_id: ContainerId, /) -> Tree:
        """Return the replica's tree."""
        ...

    def history(self, container_id: ContainerId) -> list[HistoryEntry]:
        """Return the replica's history with reasons, oldest first."""
        ...

    def changes(self, since_ms: int, *, count: int) -> Changes:
        """Return the newest changes of all replicas since a time."""
        ...

    def findings(
        self, container_id: ContainerId | None = ..., *, start: int = ..., count: int = ...
    ) -> list[Finding]:
        """Return unresolved findings: of one container, or of all from container `start` on."""
        ...


class RepairableReplicas(Protocol):
    """Replicas to repair. Every call raises SutureError."""

    @property
    def on_change(self) -> Callable[[ContainerId], None]:
        """Callback for changes that a report shows."""
        ...

    @property
    def on_trouble(self) -> Callable[[Trouble], None]:
        """Callback for failures of a disk."""
        ...

    def replica(self, container_id: ContainerId) -> ReplicaFacts:
        """Return the facts of one replica."""
        ...

    def generation(self, container_id: ContainerId, /) -> int:
        """Return the number of changes of the tree's contents."""
        ...

    def block(self, container_id: ContainerId, block_id: BlockId, /) -> BlockData:
        """Return a committed block."""
        ...

    def tree(self, container_id: ContainerId, /) -> Tree:
        """Return the replica's tree."""
        ...

    def findings(self, container_id: ContainerId | None = ...) -> list[Finding]:
        """Return unresolved findings of one container."""
        ...

    def repair(self, container_id: ContainerId) -> Repair:
        """Return the repair of one replica; its lease is held until done with it."""
        ...

    def install_chunks(self, container_id: ContainerId, offers: Sequence[Offer]) -> frozenset[int]:
        """Install peers' chunks together; return the positions of the installed ones. The others
        are unchanged, and must be installed one by one."""
        ...

    def keep_evidence(self, container_id: ContainerId, pieces: Mapping[str, bytes]) -> None:
        """Keep evidence about a replica in its volume's quarantine, each piece under its
        description."""
        ...


class ErasableBlocks(Protocol):
    """Replicas with blocks to delete."""

    def free_blocks(self, container_id: ContainerId, ids: BlockIds, kept: BlockIds = ()) -> Deleted:
        """Delete blocks of a closed replica; those `kept` go to quarantine. Raise SutureError."""
        ...


class ArrivingReplicas(Protocol):
    """Replicas to import from another datanode."""

    def begin_arrival(self, announced: Announced, submit: Submit | None = ...) -> Arrival:
        """Reserve room; the caller ends the import with `finish_arrival` and `discard`."""
        ...

    def finish_arrival(self, arrival: Arrival, received: Received) -> ReplicaFacts:
        """Put an imported replica in place: durable, and served from then on."""
        ...


class SentReplicas(Protocol):
    """Replicas to export to another datanode. Every call raises SutureError."""

    def replica(self, container_id: ContainerId) -> ReplicaFacts:
        """Return the facts of one replica."""
        ...

    def generation(self, container_id: ContainerId) -> int:
        """Return the replica's generation, which grows with every change of a row."""
        ...

    def paths(self, container_id: ContainerId) -> ReplicaPaths:
        """Return the paths of the replica's files."""
        ...

    def pack(self, container_id: ContainerId) -> PackIndex:
        """Return the index of the replica's pack."""
        ...

    def tree(self, container_id: ContainerId, /) -> Tree:
        """Return the replica's tree."""
        ...

    def findings(self, container_id: ContainerId | None = ...) -> list[Finding]:
        """Return unresolved findings of one container."""
        ...

    def block_rows(self, container_id: ContainerId) -> Iterator[tuple[BlockId, bytes]]:
        """Yield all raw block rows by ascending id."""
        ...

    def block_row(self, container_id: ContainerId, block_id: BlockId) -> bytes | None:
        """Return the raw row of a block; None if it has none."""
        ...

    def blocks_without_row(self, container_id: ContainerId) -> Mapping[BlockId, int]:
        """Return the blocks whose rows are lost or damaged, and the sizes of their files."""
        ...

    def tombstones(self, container_id: ContainerId) -> Mapping[BlockId, int]:
        """Return the checksums of deleted blocks."""
        ...
