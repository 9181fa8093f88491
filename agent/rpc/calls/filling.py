"""Shards at a datanode as who reconstructs them fills them: RECOVERING, cell by cell, then closed.

Nothing here is asked twice: a write whose answer was lost is the business of who coordinates.
"""

from typing import Final

from agent.rpc.calls.channel import call
from agent.rpc.v1 import container_pb2, datanode_pb2, datanode_pb2_grpc
from agent.rpc.wire import codec
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId, ReplicaState

WRITE_TIMEOUT_S: Final = 60.0
CLOSE_TIMEOUT_S: Final = 300.0  # a tree of half a million blocks is built before the answer


class Filling:
    """The part of a peer that writes shards; `stub` is its service."""

    stub: datanode_pb2_grpc.DatanodeStub

    def create_shard(self, container_id: ContainerId, index: int) -> None:
        """Create a shard, RECOVERING. Raises Refused when there is a replica of this container."""
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
        """Write a cell, and commit its block if that is whole with it."""
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

    def commit_block(self, container_id: ContainerId, index: int, block: BlockData) -> None:
        """Commit a block whose cells are there, or one that has none."""
        del index  # the datanode knows which shard it has
        message = codec.block_message(container_id, block)
        request = datanode_pb2.PutBlockRequest(block=message)
        call(self.stub.PutBlock, request, timeout_s=WRITE_TIMEOUT_S)

    def close_shard(self, container_id: ContainerId, bcsid: int) -> ReplicaState:
        """Close a shard, so that it counts as a replica from here on; return what it is then."""
        request = datanode_pb2.CloseContainerRequest(
            container_id=container_id, bcsid=bcsid, force=True
        )
        answer = call(self.stub.CloseContainer, request, timeout_s=CLOSE_TIMEOUT_S)
        return codec.parse_state(answer.replica.state, "answer.replica.state")

    def delete_shard(self, container_id: ContainerId) -> None:
        """Delete a shard that was given up."""
        request = datanode_pb2.DeleteContainerRequest(container_id=container_id, force=True)
        call(self.stub.DeleteContainer, request, timeout_s=WRITE_TIMEOUT_S)
