"""The methods of a datanode that a reconstruction needs, whatever protocol it speaks."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

from agent.ec.rebuild_task import ShardLocation
from agent.rpc.calls.filling import WholeBlock
from agent.rpc.calls.peer import TransferCost
from agent.rpc.v1 import container_pb2
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId, ReplicaState


class ShardSource(Protocol):
    """A shard that can be read (`agent.rpc.calls.peer.Peer`). Each method raises SutureError."""

    @property
    def address(self) -> str:
        """Address of its datanode."""
        ...

    def replica(self, container_id: ContainerId) -> container_pb2.ReplicaReport:
        """Return the report of its replica: state, index, and the commit id that it claims."""
        ...

    def each_block(self, container_id: ContainerId) -> Iterator[BlockData]:
        """Yield the metadata of all blocks, by id, however slowly the caller draws them."""
        ...

    def block(self, container_id: ContainerId, block_id: BlockId) -> BlockData:
        """Return the metadata of one committed block."""
        ...

    def read_chunk(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        offset: int,
        meter: TransferCost | None = None,
    ) -> tuple[ChunkInfo, bytes]:
        """Return one chunk and its bytes, verified against the window checksums it came with."""
        ...


class ShardPeer(ShardSource, Protocol):
    """A shard that can also be written (`agent.rpc.calls.filling.ShardWriter`)."""

    def create_shard(self, container_id: ContainerId, index: int) -> None:
        """Create a shard, RECOVERING. Raise RefusedError if there is a replica of this
        container.
        """
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
        """Write a cell, and commit its block if it is then complete."""
        ...

    def write_blocks(
        self, container_id: ContainerId, index: int, blocks: Sequence[WholeBlock]
    ) -> None:
        """Write and commit complete small blocks of which nothing exists there."""
        ...

    def close_shard(self, container_id: ContainerId, bcsid: int) -> ReplicaState:
        """Close a shard, which then counts as a replica; return its state."""
        ...

    def delete_shard(self, container_id: ContainerId) -> None:
        """Delete an abandoned shard."""
        ...


DialShard: TypeAlias = Callable[[ShardLocation], ShardPeer]
"""Returns a datanode of a reconstruction by its address."""
