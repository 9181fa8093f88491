"""The calls of a datanode that its peers need, for Suture's datanodes and for those of Ozone.

Suture's datanodes (`suture.wire.clients.peer.Peer`) have all of them. Ozone's datanodes
(`ozone.clients.peer.OzonePeer`) have no calls for several items at a time. Each method raises
SutureError if the call fails.
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
    """A datanode with a replica or a shard that can be read."""

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
        """Return the summary of the tree, and the checksum of each range of block ids. `starts` has
        the first id of each range."""
        ...

    def blocks(
        self,
        container_id: ContainerId,
        ranges: Sequence[BlockRange] = (),
        meter: TransferCost | None = None,
    ) -> BlockRows:
        """Return the id and the checksum of each block in `ranges`, and whether the block is
        deleted. If `ranges` is empty, return those of all blocks."""
        ...

    def chunks(
        self, container_id: ContainerId, block_ids: U64s, meter: TransferCost | None = None
    ) -> tuple[TreeSummary, Tree]:
        """Return the summary of the tree, and a tree with only the blocks `block_ids`."""
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
        """Yield the metadata of all blocks of a container, in the order of their ids. The caller
        may take any time between two items."""
        ...

    def read_chunk(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        offset: int,
        meter: TransferCost | None = None,
    ) -> tuple[ChunkInfo, bytes]:
        """Return one chunk and its data, which was compared with the window checksums in the
        response."""
        ...

    def replica(self, container_id: ContainerId) -> container_pb2.ReplicaReport:
        """Return the datanode's report about its replica: the state, the index and the commit
        id."""
        ...


@runtime_checkable
class BatchReplicaPeer(Protocol):
    """A datanode that returns several blocks or chunks in one call."""

    def named_blocks(
        self, container_id: ContainerId, block_ids: Sequence[BlockId]
    ) -> Mapping[BlockId, BlockData]:
        """Return the metadata of the blocks `block_ids`, by id. Blocks that do not fit into one
        response are missing in the result."""
        ...

    def read_chunks(
        self, container_id: ContainerId, keys: Sequence[tuple[BlockId, int]]
    ) -> Mapping[tuple[BlockId, int], tuple[ChunkInfo, bytes]]:
        """Return chunks with their verified data, by (block id, offset). Chunks that do not fit
        into one response, or do not match their checksums, are missing in the result."""
        ...


class ShardPeer(ReplicaPeer, Protocol):
    """A datanode to which a shard can be written."""

    def create_shard(self, container_id: ContainerId, index: int) -> None:
        """Create a shard in the state RECOVERING. Raise RefusedError if the datanode already has a
        replica of the container."""
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
        """Write a cell. If it is the last cell of its block, `commit` is the block to commit;
        otherwise None."""
        ...

    def write_blocks(
        self, container_id: ContainerId, index: int, blocks: Sequence[WholeBlock]
    ) -> None:
        """Write and commit complete small blocks. The shard must not have any of them."""
        ...

    def close_shard(self, container_id: ContainerId, bcsid: int) -> ReplicaState:
        """Close a shard, which makes it a replica. Return its state."""
        ...

    def delete_shard(self, container_id: ContainerId) -> None:
        """Delete a shard whose reconstruction was abandoned."""
        ...


DialShard: TypeAlias = Callable[[ShardLocation], ShardPeer]
"""A function that returns a client for the datanode of a shard."""


@runtime_checkable
class ChunkProver(Protocol):
    """A datanode that can prove with a keyed hash that it has the data of a chunk."""

    def prove_chunks(
        self, container_id: ContainerId, asked: Sequence[tuple[BlockId, int, bytes]]
    ) -> list[bytes | SutureError]:
        """Request a proof for each (block id, offset, nonce) in `asked`: the hash of the chunk with
        the nonce as key. Return the hash of each chunk, or its error. Raise SutureError if the call
        fails."""
        ...
