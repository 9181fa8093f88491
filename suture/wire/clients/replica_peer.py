"""The methods of a datanode that its peers need, independent of the datanode's protocol.

Suture's datanodes (`suture.wire.clients.peer.Peer`) have all of them. Ozone's datanodes
(`ozone.clients.peer.OzonePeer`) have no calls for several items. Each method raises SutureError if
the call fails.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from merkle.checksum_columns import U64s
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId, ReplicaState
from merkle.tree import Tree
from merkle.tree_descent import BlockRange
from merkle.tree_summary import TreeSummary
from suture.ec.rebuild_task import ShardLocation
from suture.errors import SutureError
from suture.wire.clients.block_peer import TransferCost
from suture.wire.clients.shard_writer import WholeBlock
from suture.wire.mapping.tree_pages import BlockRows
from suture.wire.v1 import container_pb2


class ReplicaPeer(Protocol):
    """A datanode with a readable replica, or with a readable shard of one."""

    @property
    def address(self) -> str:
        """HOST:PORT of the datanode."""
        ...

    def summary(self, container_id: ContainerId, meter: TransferCost | None = None) -> TreeSummary:
        """Return the summary of the replica's tree."""
        ...

    def ranges(
        self, container_id: ContainerId, starts: U64s, meter: TransferCost | None = None
    ) -> tuple[TreeSummary, U64s]:
        """Return the summary, and the checksum of each range that begins at one of `starts`."""
        ...

    def blocks(
        self,
        container_id: ContainerId,
        ranges: Sequence[BlockRange] = (),
        meter: TransferCost | None = None,
    ) -> BlockRows:
        """Return a row per block and tombstone in `ranges`; without `ranges`, all rows."""
        ...

    def chunks(
        self, container_id: ContainerId, block_ids: U64s, meter: TransferCost | None = None
    ) -> tuple[TreeSummary, Tree]:
        """Return the summary, and the tree of the blocks `block_ids`."""
        ...

    def tree(self, container_id: ContainerId, meter: TransferCost | None = None) -> Tree:
        """Return the complete tree of the replica."""
        ...

    def block(
        self, container_id: ContainerId, block_id: BlockId, meter: TransferCost | None = None
    ) -> BlockData:
        """Return the metadata of one committed block."""
        ...

    def each_block(self, container_id: ContainerId) -> Iterator[BlockData]:
        """Yield the metadata of all blocks in the order of their ids. The caller may take any
        time."""
        ...

    def read_chunk(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        offset: int,
        meter: TransferCost | None = None,
    ) -> tuple[ChunkInfo, bytes]:
        """Return one chunk and its bytes, verified against the window checksums in the answer."""
        ...

    def replica(self, container_id: ContainerId) -> container_pb2.ReplicaReport:
        """Return the datanode's report of its replica: state, index, and the commit id that it
        claims."""
        ...


@runtime_checkable
class BatchReplicaPeer(Protocol):
    """A datanode that serves several blocks or chunks in one call."""

    def named_blocks(
        self, container_id: ContainerId, block_ids: Sequence[BlockId]
    ) -> Mapping[BlockId, BlockData]:
        """Return metadata for as many of the blocks `block_ids` as the peer can return in one
        call."""
        ...

    def read_chunks(
        self, container_id: ContainerId, keys: Sequence[tuple[BlockId, int]]
    ) -> Mapping[tuple[BlockId, int], tuple[ChunkInfo, bytes]]:
        """Return as many of the chunks as the peer can return in one call, by block and offset.
        Their bytes are verified against the window checksums in the answer."""
        ...


class ShardPeer(ReplicaPeer, Protocol):
    """A datanode that also accepts writes of a shard."""

    def create_shard(self, container_id: ContainerId, index: int) -> None:
        """Create a shard in state RECOVERING. Raise RefusedError if the datanode has a replica of
        this container."""
        ...

    def write_cell(
        self,
        container_id: ContainerId,
        index: int,
        block_id: BlockId,
        chunk: ChunkInfo,
        data: memoryview,
        commit: BlockData | None,
    ) -> None:
        """Write a cell; commit its block if the cell completes it."""
        ...

    def write_blocks(
        self, container_id: ContainerId, index: int, blocks: Sequence[WholeBlock]
    ) -> None:
        """Write and commit complete small blocks. The shard must have none of them."""
        ...

    def close_shard(self, container_id: ContainerId, bcsid: int) -> ReplicaState:
        """Close a shard, which makes it a replica; return its state."""
        ...

    def delete_shard(self, container_id: ContainerId) -> None:
        """Delete an abandoned shard."""
        ...


DialShard: TypeAlias = Callable[[ShardLocation], ShardPeer]
"""Function that returns the connection to the datanode of a shard, for a reconstruction."""


@runtime_checkable
class ChunkProver(Protocol):
    """A peer that proves, with a keyed hash of the bytes, that it has a chunk."""

    def prove_chunks(
        self, container_id: ContainerId, asked: Sequence[tuple[BlockId, int, bytes]]
    ) -> list[bytes | SutureError]:
        """Return the keyed hash, or the error, of each (block, offset, nonce). The hash covers the
        chunk and the nonce. Raise SutureError if the call fails."""
        ...
