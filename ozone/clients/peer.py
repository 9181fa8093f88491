"""A datanode of Ozone as a peer of an agent, to read blocks and chunks, and to write shards.

The client fetches the complete tree of the peer, and answers the calls of a reconcile from this
tree. Ozone's scanner omits data that it does not read. Therefore, a block that is missing in the
tree of a peer may exist. The client verifies every chunk against the row of the datanode, and
verifies computed cells against Ozone's stripe checksums. The client creates a new shard in state
RECOVERING, fills it with rows in the format of Ozone's clients, and closes it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from merkle.checksum import Algorithm, crc32c, fits
from merkle.checksum_columns import U64s
from merkle.damaged_data import DamagedData
from merkle.diff import in_scope
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId, ReplicaState
from merkle.tree import Leaf, Tree
from merkle.tree_building import TreeBuilder
from merkle.tree_descent import BlockRange, range_checksums
from merkle.tree_summary import TreeSummary
from ozone.clients.datanode import Datanode
from ozone.clients.datanode_messages import RECOVERING, DatanodeCommand
from ozone.disk.encoding import encode_chunk, encode_row, stripes_of
from ozone.disk.messages import CHECKSUM_INFO, parse
from ozone.disk.treefile import decode_tree
from suture.ec.blockgroup import STRIPE_CHECKSUMS_KEY, stripe_metadata
from suture.errors import Code, RefusedError
from suture.wire.clients.block_peer import TransferCost
from suture.wire.clients.shard_writer import WholeBlock
from suture.wire.mapping.tree_pages import BlockRows
from suture.wire.v1 import container_pb2

ROWS_KEPT_MAX: Final = 256  # rows kept; chunks of a few blocks are fetched at a time
PAGE_BLOCKS: Final = 32  # rows of one shard at a time, of up to 64 KiB each
CLOSE_WAIT_S: Final = 270.0  # the datanode answers after building a tree of 500,000 blocks


class OzonePeer:
    """A datanode of Ozone with one replica. Thread-safe after `summary` has fetched the tree."""

    def __init__(self, datanode: Datanode, index: int = 0) -> None:
        """Create a peer for `datanode`, which must have been created for the same replica index.

        The index is 0 for a replicated container.
        """
        self.address = datanode.address
        self._datanode = datanode
        self._index = index
        self._tree: Tree | None = None
        self._rows: dict[BlockId, BlockData] = {}

    # The replica's tree.

    def summary(self, container_id: ContainerId, meter: TransferCost | None = None) -> TreeSummary:
        """Fetch the tree of the replica from the datanode. Return the summary of the tree."""
        self._tree = self._fetch_tree(container_id, meter)
        return self._tree.summary()

    def ranges(
        self, container_id: ContainerId, starts: U64s, meter: TransferCost | None = None
    ) -> tuple[TreeSummary, U64s]:
        """Return the summary of the tree, and the checksum of each range of block ids.

        `starts` has the first block id of each range.
        """
        tree = self.tree(container_id, meter)
        return tree.summary(), range_checksums(tree, starts)

    def blocks(
        self,
        container_id: ContainerId,
        ranges: Sequence[BlockRange] = (),
        meter: TransferCost | None = None,
    ) -> BlockRows:
        """Return a row for each block and tombstone in `ranges`, or in the complete tree."""
        tree = self.tree(container_id, meter)
        chosen = in_scope(tree.block_ids, ranges or None)
        return BlockRows(
            tree.summary(),
            tree.block_ids[chosen],
            tree.block_checksums[chosen],
            tree.deleted[chosen],
        )

    def chunks(
        self, container_id: ContainerId, block_ids: U64s, meter: TransferCost | None = None
    ) -> tuple[TreeSummary, Tree]:
        """Return the summary of the tree, and the part of the tree with the blocks `block_ids`."""
        tree = self.tree(container_id, meter)
        return tree.summary(), tree.select(block_ids)

    def tree(self, container_id: ContainerId, meter: TransferCost | None = None) -> Tree:
        """Return the complete tree that the last call of `summary` fetched."""
        if self._tree is None:
            self.summary(container_id, meter)
        assert self._tree is not None
        return self._tree

    def _fetch_tree(self, container_id: ContainerId, meter: TransferCost | None) -> Tree:
        return tree_of(self._checksum_info(container_id, meter), container_id)

    def _checksum_info(self, container_id: ContainerId, meter: TransferCost | None) -> bytes:
        data = self._datanode.checksum_info(container_id)
        if meter is not None:
            meter.tree_bytes += len(data)
        return data

    # Blocks and their data.

    def replica(self, container_id: ContainerId) -> container_pb2.ReplicaReport:
        """Return the facts of the shard.

        Ozone does not report the index of a shard, so the report has the expected index. The
        datanode rejects requests for blocks of another shard. Raise RefusedError for a replicated
        container, because Suture cannot use the commit ids of Ozone's replicas.
        """
        if not self._index:
            raise RefusedError(
                Code.INELIGIBLE,
                f"container {container_id}: claims of Ozone datanodes are not used",
            )
        state = self._datanode.container(container_id).state
        if state not in ReplicaState.__members__:
            raise RefusedError(
                Code.INELIGIBLE, f"datanode {self.address}: its replica is {state or 'of no state'}"
            )
        return container_pb2.ReplicaReport(
            container_id=container_id,
            state=state,
            replica_index=self._index,
        )

    def each_block(self, container_id: ContainerId) -> Iterator[BlockData]:
        """Yield the metadata of all blocks by ascending id.

        Ozone lists the blocks in the order of the decimal text of their ids. Rows are fetched page
        by page, because a stream would time out while the caller computes.
        """
        ids = sorted(self._datanode.block_ids(container_id))
        for start in range(0, len(ids), PAGE_BLOCKS):
            page = self._datanode.blocks(container_id, ids[start : start + PAGE_BLOCKS])
            for _, found in list(page):
                if isinstance(found, BlockData):
                    yield self._cached_block(found)  # its chunks are likely to be read soon
                elif found.code is not Code.NO_SUCH_BLOCK:  # deleted after the listing
                    raise found

    def block(
        self, container_id: ContainerId, block_id: BlockId, meter: TransferCost | None = None
    ) -> BlockData:
        """Return the metadata of one committed block."""
        del meter
        row = self._rows.get(block_id)
        return row or self._cached_block(self._datanode.block(container_id, block_id))

    def _cached_block(self, block: BlockData) -> BlockData:
        row = _recorded(block) if self._index else block
        if len(self._rows) >= ROWS_KEPT_MAX:
            self._rows = {}  # threads that still fill the old dictionary request rows again
        self._rows[block.block_id] = row
        return row

    def read_chunk(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        offset: int,
        meter: TransferCost | None = None,
    ) -> tuple[ChunkInfo, bytes]:
        """Return one chunk and its bytes, after verifying them.

        The bytes must match the checksums in the row of the datanode. Raise
        RefusedError(UNABLE_TO_FIND_CHUNK) if there is no such chunk, and
        RefusedError(CHECKSUM_MISMATCH) if the bytes do not match. A chunk of type NONE matches any
        bytes.
        """
        chunk = self.block(container_id, block_id, meter).chunk_at(offset)
        if chunk is None:
            raise RefusedError(
                Code.UNABLE_TO_FIND_CHUNK,
                f"datanode {self.address}: block {block_id} has no chunk at {offset}",
            )
        data = self._datanode.read(container_id, block_id, chunk)
        if meter is not None:
            meter.data_bytes += len(data)
        if not fits(chunk, data):
            raise RefusedError(
                Code.CHECKSUM_MISMATCH,
                f"datanode {self.address}: block {block_id}, chunk at {offset}: the data does "
                "not match its checksums",
            )
        return chunk, data

    # Writing a shard.

    def create_shard(self, container_id: ContainerId, index: int) -> None:
        """Create a shard in state RECOVERING.

        Raise RefusedError if the datanode already has a replica of this container.
        """
        wish = {"replica_index": index, "state": RECOVERING}
        self._datanode.execute(
            DatanodeCommand.CREATE_CONTAINER, container_id, create_container=wish
        )

    def write_cell(
        self,
        container_id: ContainerId,
        index: int,
        block_id: BlockId,
        chunk: ChunkInfo,
        data: memoryview,
        commit: BlockData | None,
    ) -> None:
        """Write a cell of an erasure-coded block.

        If `commit` is given, this is the last cell, and the block is committed.
        """
        wish = {
            "block_id": self._datanode.key(container_id, block_id),
            "chunk": encode_chunk(block_id, chunk),
            "data": bytes(data),
        }
        self._datanode.execute(
            DatanodeCommand.WRITE_CHUNK, container_id, data_bytes=len(data), write_chunk=wish
        )
        if commit is not None:
            self._commit_block(container_id, index, commit)

    def write_blocks(
        self, container_id: ContainerId, index: int, blocks: Sequence[WholeBlock]
    ) -> None:
        """Write and commit complete small blocks one by one, because Ozone has no batch call."""
        for block, data in blocks:
            for chunk in block.chunks:
                cell = memoryview(data)[chunk.offset : chunk.end]
                commit = block if chunk is block.chunks[-1] else None
                self.write_cell(container_id, index, block.block_id, chunk, cell, commit)
            if not block.chunks:
                self._commit_block(container_id, index, block)

    def _commit_block(self, container_id: ContainerId, index: int, block: BlockData) -> None:
        row = encode_row(container_id, _as_written(block), index)
        self._datanode.execute(DatanodeCommand.PUT_BLOCK, container_id, put_block={"block": row})

    def close_shard(self, container_id: ContainerId, bcsid: int) -> ReplicaState:
        """Close a shard. Return its state.

        The shard gets no commit id, because Ratis does not order the commits of shards.
        """
        del bcsid
        self._datanode.execute(
            DatanodeCommand.CLOSE_CONTAINER, container_id, wait_s=CLOSE_WAIT_S, close_container={}
        )
        return ReplicaState(self._datanode.container(container_id).state)

    def delete_shard(self, container_id: ContainerId) -> None:
        """Delete a shard whose reconstruction was abandoned."""
        wish = {"force": True}
        self._datanode.execute(
            DatanodeCommand.DELETE_CONTAINER, container_id, delete_container=wish
        )


def _recorded(block: BlockData) -> BlockData:
    """Return a block with stripe checksums in Suture's format, if Ozone's are complete.

    Ozone stores the window checksums of all cells of a stripe. Suture stores the CRC of these
    checksums.
    """
    stripes = stripes_of(dict(block.metadata))
    if any(chunk.offset not in stripes for chunk in block.chunks):
        return block
    folds = [crc32c(stripes[chunk.offset]) for chunk in block.chunks]
    return replace(block, metadata=block.metadata + stripe_metadata(folds))


def _as_written(block: BlockData) -> BlockData:
    """Return a copy of a block without Suture's stripe checksums.

    Ozone's clients write no such metadata.
    """
    prefix = f"{STRIPE_CHECKSUMS_KEY}."
    kept = tuple(pair for pair in block.metadata if not pair[0].startswith(prefix))
    return replace(block, metadata=kept)


def tree_of(data: bytes, container_id: ContainerId) -> Tree:
    """Return the tree in an answer of an Ozone datanode.

    Raise DamagedData if the tree is damaged, and RefusedError(UNCLOSED_CONTAINER_IO) if the
    datanode has not built the tree yet.
    """
    told = decode_tree(data, container_id)
    if told.root is None:
        raise RefusedError(
            Code.UNCLOSED_CONTAINER_IO, f"container {container_id} has no tree there"
        )
    builder = TreeBuilder(Algorithm.CRC32C)
    try:
        for block in parse(CHECKSUM_INFO, data).tree.blocks:
            if block.deleted:
                builder.add_tombstone(block.block_id, block.checksum)
                continue
            builder.add_block(block.block_id)
            for chunk in block.chunks:
                leaf = Leaf(chunk.offset, chunk.length, chunk.checksum, healthy=chunk.matches)
                builder.add_leaf(leaf)
    except ValueError as error:
        raise DamagedData(f"tree of container {container_id}: {error}") from error
    return builder.build()
