"""A datanode of Ozone in one reconstruction (`agent.reconstruct.shard_peer.ShardPeer`).

The source shards are as their clients wrote them. Every chunk is verified by the datanode's own
row, and Ozone's record of a stripe proves what is computed, as our own record does. The target is a
container of Ozone's: RECOVERING, filled with rows as its clients write them, then closed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from agent.ec.blockgroup import STRIPE_CHECKSUMS_KEY, stripe_metadata
from agent.errors import Code, RefusedError
from agent.rpc.calls.filling import WholeBlock, write_singly
from agent.rpc.calls.peer import TransferCost
from agent.rpc.v1 import container_pb2
from agent.rpc.wire import codec
from merkle.checksum import crc32c
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId, ReplicaState
from ozone.disk.encoding import encode_chunk, encode_row, stripes_of
from ozone.leading.chunks import Chunks
from ozone.wire.datanode import Datanode
from ozone.wire.datanode_messages import RECOVERING, DatanodeCommand

PAGE_BLOCKS: Final = 32  # rows of one shard at a time, of up to 64 KiB each
CLOSE_WAIT_S: Final = 270.0  # a tree of half a million blocks is built before it answers


class OzoneShard:
    """The shard of one index at one datanode. Thread-safe."""

    def __init__(self, datanode: Datanode, index: int) -> None:
        """`datanode` must have been created for the shard of this index."""
        self.address = datanode.address
        self._datanode = datanode
        self._index = index
        self._chunks = Chunks(datanode)

    # reading

    def replica(self, container_id: ContainerId) -> container_pb2.ReplicaReport:
        """Return the facts of its replica. Ozone does not report the shard index here: it rejects
        requests for blocks of another one.
        """
        state = self._datanode.container(container_id).state
        if state not in ReplicaState.__members__:
            raise RefusedError(
                Code.INELIGIBLE, f"datanode {self.address}: its replica is {state or 'of no state'}"
            )
        return container_pb2.ReplicaReport(
            container_id=container_id,
            state=codec.state_number(ReplicaState(state)),
            replica_index=self._index,
        )

    def each_block(self, container_id: ContainerId) -> Iterator[BlockData]:
        """Yield the metadata of all blocks, by id; Ozone lists them in text order.

        Rows come page by page, because a conversation would time out while the caller computes.
        """
        ids = sorted(self._datanode.block_ids(container_id))
        for start in range(0, len(ids), PAGE_BLOCKS):
            page = self._datanode.blocks(container_id, ids[start : start + PAGE_BLOCKS])
            for _, found in list(page):
                if isinstance(found, BlockData):
                    block = _recorded(found)
                    self._chunks.keep(block)
                    yield block
                elif found.code is not Code.NO_SUCH_BLOCK:  # deleted since it was listed
                    raise found

    def block(self, container_id: ContainerId, block_id: BlockId) -> BlockData:
        """Return the metadata of one committed block."""
        return _recorded(self._chunks.block(container_id, block_id))

    def read_chunk(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        offset: int,
        meter: TransferCost | None = None,
    ) -> tuple[ChunkInfo, bytes]:
        """Return one chunk and its bytes, verified by the checksums of the datanode's row."""
        return self._chunks.read(container_id, block_id, offset, meter)

    # filling

    def create_shard(self, container_id: ContainerId, index: int) -> None:
        """Create a shard, RECOVERING. Raise RefusedError if there is a replica of this
        container.
        """
        wish = {"replica_index": index, "state": RECOVERING}
        self._datanode.tell(DatanodeCommand.CREATE_CONTAINER, container_id, create_container=wish)

    def write_cell(
        self,
        container_id: ContainerId,
        index: int,
        block_id: BlockId,
        chunk: ChunkInfo,
        data: memoryview,
        commit: BlockData | None,
    ) -> None:
        """Write a cell, and commit its block if this completes it."""
        wish = {
            "block_id": self._datanode.key(container_id, block_id),
            "chunk": encode_chunk(block_id, chunk),
            "data": bytes(data),
        }
        self._datanode.tell(
            DatanodeCommand.WRITE_CHUNK, container_id, data_bytes=len(data), write_chunk=wish
        )
        if commit is not None:
            self._commit_block(container_id, index, commit)

    def write_blocks(
        self, container_id: ContainerId, index: int, blocks: Sequence[WholeBlock]
    ) -> None:
        """Write and commit whole small blocks one by one: Ozone has no batch call."""
        write_singly(
            blocks,
            partial(self.write_cell, container_id, index),
            partial(self._commit_block, container_id, index),
        )

    def _commit_block(self, container_id: ContainerId, index: int, block: BlockData) -> None:
        row = encode_row(container_id, _as_written(block), index)
        self._datanode.tell(DatanodeCommand.PUT_BLOCK, container_id, put_block={"block": row})

    def close_shard(self, container_id: ContainerId, bcsid: int) -> ReplicaState:
        """Close a shard. Shards have no commit id, because no Ratis ordered their commits."""
        del bcsid
        self._datanode.tell(
            DatanodeCommand.CLOSE_CONTAINER, container_id, wait_s=CLOSE_WAIT_S, close_container={}
        )
        return ReplicaState(self._datanode.container(container_id).state)

    def delete_shard(self, container_id: ContainerId) -> None:
        """Delete an abandoned shard."""
        wish = {"force": True}
        self._datanode.tell(DatanodeCommand.DELETE_CONTAINER, container_id, delete_container=wish)


def _recorded(block: BlockData) -> BlockData:
    """Return a block with Ozone's stripe checksums in the form of our own record, if it has all.
    Ozone stores the checksums of a stripe's cells; our record is their fold.
    """
    stripes = stripes_of(dict(block.metadata))
    if any(chunk.offset not in stripes for chunk in block.chunks):
        return block
    folds = [crc32c(stripes[chunk.offset]) for chunk in block.chunks]
    return replace(block, metadata=block.metadata + stripe_metadata(folds))


def _as_written(block: BlockData) -> BlockData:
    """Return a block without our record, which Ozone's clients do not write."""
    prefix = f"{STRIPE_CHECKSUMS_KEY}."
    kept = tuple(pair for pair in block.metadata if not pair[0].startswith(prefix))
    return replace(block, metadata=kept)
