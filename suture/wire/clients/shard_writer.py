"""The calls with which a reconstruction writes a shard to a datanode.

The coordinator of the reconstruction creates the shard in the state RECOVERING, writes its cells,
and closes it. No call in this module is retried, because the coordinator handles writes whose
responses were lost.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId, ReplicaState
from suture.wire.clients.channel import call
from suture.wire.mapping import codec, new_blocks_message
from suture.wire.mapping.rpc_services import Stub
from suture.wire.v1 import container_pb2, datanode_pb2

WRITE_TIMEOUT_S: Final = 60.0
CLOSE_TIMEOUT_S: Final = 300.0  # a tree of half a million blocks is built before the answer

WholeBlock: TypeAlias = tuple[BlockData, bytes]
"""A block, and the concatenated data of all its chunks."""


class ShardWriter:
    """The calls of a datanode's client that write shards. `stub` must be the datanode's service,
    whose `WriteBlocks` accepts encoded messages."""

    stub: Stub

    def create_shard(self, container_id: ContainerId, index: int) -> None:
        """Create a shard in the state RECOVERING. Raise RefusedError if the datanode already has a
        replica of the container."""
        request = datanode_pb2.CreateContainerRequest(
            container_id=container_id, replica_index=index, state=container_pb2.RECOVERING
        )
        call(self.stub.CreateContainer, request, timeout_s=WRITE_TIMEOUT_S)

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
        request = datanode_pb2.WriteChunkRequest(
            block_id=container_pb2.BlockId(
                container_id=container_id, local_id=block_id, replica_index=index
            ),
            chunk=codec.chunk_message(chunk),
            data=bytes(data),
        )
        if commit is not None:
            request.commit.CopyFrom(codec.block_message(container_id, commit))
        call(self.stub.WriteChunk, request, timeout_s=WRITE_TIMEOUT_S)

    def write_blocks(
        self, container_id: ContainerId, index: int, blocks: Sequence[WholeBlock]
    ) -> None:
        """Write and commit complete small blocks. The shard must not have any of them."""
        new = [
            new_blocks_message.new_block_message(
                container_pb2.BlockId(
                    container_id=container_id,
                    local_id=block.block_id,
                    bcsid=block.bcsid,
                    replica_index=index,
                ),
                block.chunks,
                is_whole=True,
                metadata=block.metadata,
            )
            for block, _ in blocks
        ]
        message = new_blocks_message.encode(new, [data for _, data in blocks])
        call(self.stub.WriteBlocks, iter([message]), timeout_s=WRITE_TIMEOUT_S)

    def close_shard(self, container_id: ContainerId, bcsid: int) -> ReplicaState:
        """Close a shard, which makes it a replica. Return its state."""
        request = datanode_pb2.CloseContainerRequest(
            container_id=container_id, bcsid=bcsid, force=True
        )
        answer = call(self.stub.CloseContainer, request, timeout_s=CLOSE_TIMEOUT_S)
        return codec.parse_state(answer.replica.state, "answer.replica.state")

    def delete_shard(self, container_id: ContainerId) -> None:
        """Delete a shard whose reconstruction was abandoned."""
        request = datanode_pb2.DeleteContainerRequest(container_id=container_id, force=True)
        call(self.stub.DeleteContainer, request, timeout_s=WRITE_TIMEOUT_S)
