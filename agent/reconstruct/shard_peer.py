"""A datanode as a reconstruction sees it, whatever it speaks: a shard to read, a shard to fill."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

from agent.ec.rebuild_task import Shard
from agent.rpc.calls.filling import WholeBlock
from agent.rpc.calls.peer import Meter
from agent.rpc.v1 import container_pb2
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId, ReplicaState


class ShardSource(Protocol):
    """One shard that can be read (`agent.rpc.calls.peer.Peer`). Each method raises SutureError."""

    @property
    def address(self) -> str:
        """Where it is."""
        ...

    def replica(self, container_id: ContainerId) -> container_pb2.ReplicaReport:
        """Return what it reports about its replica: state, index, the commit id it claims."""
        ...

    def each_block(self, container_id: ContainerId) -> Iterator[BlockData]:
        """Yield the metadata of all blocks, by id, however long who draws them takes."""
        ...

    def block(self, container_id: ContainerId, block_id: BlockId) -> BlockData:
        """Return the metadata of one committed block."""
        ...

    def read_chunk(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        offset: int,
        meter: Meter | None = None,
    ) -> tuple[ChunkInfo, bytes]:
        """Return one chunk and its bytes, which have the window checksums it came with."""
        ...


class ShardPeer(ShardSource, Protocol):
    """One that can be filled as well (`agent.rpc.calls.filling.Filling`)."""

    def create_shard(self, container_id: ContainerId, index: int) -> None:
        """Create a shard, RECOVERING. Raise Refused where there is a replica of this container."""
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
        """Write a cell, and commit its block if that is whole with it."""
        ...

    def write_blocks(
        self, container_id: ContainerId, index: int, blocks: Sequence[WholeBlock]
    ) -> None:
        """Write and commit whole small blocks, of which nothing is there."""
        ...

    def close_shard(self, container_id: ContainerId, bcsid: int) -> ReplicaState:
        """Close a shard, so that it counts as a replica from here on; return what it is then."""
        ...

    def delete_shard(self, container_id: ContainerId) -> None:
        """Delete a shard that was given up."""
        ...


DialShard: TypeAlias = Callable[[Shard], ShardPeer]
"""Returns a datanode of a reconstruction by its address."""
