"""A datanode of Ozone as a peer of one reconcile (`agent.reconcile.lenders.ReplicaPeer`).

Its whole tree is fetched once and evaluated here as the calls of a reconcile descend. Ozone's scan
omits data that it does not read, so an absence in a peer's tree proves nothing. Every chunk is
verified by the peer's row and by the leaf in its tree, as with our own peers.
"""

from collections.abc import Sequence

from agent.errors import Code, RefusedError
from agent.reconcile.lenders import answer_about_blocks, answer_about_chunks
from agent.rpc.calls.peer import TransferCost
from agent.rpc.v1 import container_pb2
from agent.rpc.wire.hashes import BlockRows
from merkle.checksum import Algorithm, U64s
from merkle.damaged import DamagedData
from merkle.descent import BlockRange, range_checksums
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId
from merkle.tree import Leaf, Tree, TreeSummary
from merkle.tree_building import TreeBuilder
from ozone.disk.messages import CHECKSUM_INFO, parse
from ozone.disk.treefile import decode_tree
from ozone.leading.chunks import Chunks
from ozone.wire.datanode import Datanode


class OzoneReplicaPeer:
    """A datanode in one reconcile of one container. Thread-safe once its summary was fetched."""

    def __init__(self, datanode: Datanode) -> None:
        self._datanode = datanode
        self._tree: Tree | None = None
        self._chunks = Chunks(datanode)

    # what it has

    def summary(self, container_id: ContainerId, meter: TransferCost | None = None) -> TreeSummary:
        """Fetch its tree and return the tree's summary."""
        data = self._datanode.checksum_info(container_id)
        if meter is not None:
            meter.tree_bytes += len(data)
        self._tree = tree_of(data, container_id)
        return self._tree.summary()

    def ranges(
        self, container_id: ContainerId, starts: U64s, meter: TransferCost | None = None
    ) -> tuple[TreeSummary, U64s]:
        """Return the summary, and the checksum of each range that begins at `starts`."""
        tree = self.tree(container_id, meter)
        return tree.summary(), range_checksums(tree, starts)

    def blocks(
        self,
        container_id: ContainerId,
        ranges: Sequence[BlockRange] = (),
        meter: TransferCost | None = None,
    ) -> BlockRows:
        """Return a row per block and tombstone in `ranges`, or of all."""
        return answer_about_blocks(self.tree(container_id, meter), ranges)

    def chunks(
        self, container_id: ContainerId, block_ids: U64s, meter: TransferCost | None = None
    ) -> tuple[TreeSummary, Tree]:
        """Return the summary, and the tree of the named blocks."""
        return answer_about_chunks(self.tree(container_id, meter), block_ids)

    def tree(self, container_id: ContainerId, meter: TransferCost | None = None) -> Tree:
        """Return its whole tree as of the last `summary`."""
        if self._tree is None:
            self.summary(container_id, meter)
        assert self._tree is not None
        return self._tree

    def replica(self, container_id: ContainerId) -> container_pb2.ReplicaReport:
        """Raise RefusedError: the commit ids of an Ozone replica have no meaning here."""
        raise RefusedError(
            Code.INELIGIBLE, f"container {container_id}: what datanodes of Ozone claim is not used"
        )

    # blocks and bytes

    def block(
        self, container_id: ContainerId, block_id: BlockId, meter: TransferCost | None = None
    ) -> BlockData:
        """Return the metadata of one committed block."""
        del meter
        return self._chunks.block(container_id, block_id)

    def read_chunk(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        offset: int,
        meter: TransferCost | None = None,
    ) -> tuple[ChunkInfo, bytes]:
        """Return one chunk and its bytes, verified by the checksums of the peer's row."""
        return self._chunks.read(container_id, block_id, offset, meter)


def tree_of(data: bytes, container_id: ContainerId) -> Tree:
    """Return the tree in an answer of a datanode of Ozone.

    Raise DamagedData, or RefusedError(UNCLOSED_CONTAINER_IO) if there is none yet.
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
