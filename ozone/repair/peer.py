"""A datanode of Ozone as a peer of one damaged replica (`agent.reconcile.lenders.ReplicaPeer`).

It is queried about the damaged blocks only: for its tree, which shows its own damage, and for their
rows, which show what was written. Ozone's tree omits what its scanner does not read (chunks without
checksums, last chunks of files that were synced and never closed); for these there is only a peer's
row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent.errors import Code, RefusedError
from agent.reconcile.lenders import answer_about_blocks, answer_about_chunks
from agent.rpc.calls.peer import TransferCost
from agent.rpc.v1 import container_pb2
from agent.rpc.wire.hashes import BlockRows
from merkle.checksum import Algorithm, U64s, leaf_checksum
from merkle.damaged import DamagedData
from merkle.descent import BlockRange, range_checksums
from merkle.replica import BlockData, BlockId, ChecksumType, ChunkInfo, ContainerId
from merkle.tree import Leaf, Tree, TreeSummary
from merkle.tree_building import TreeBuilder
from ozone.disk.blockrow import StoredBlock
from ozone.disk.treefile import Leaves, OzoneTree, decode_leaves, decode_tree
from ozone.repair.windows import fits_twice
from ozone.wire.checked import read_checked
from ozone.wire.datanode import Datanode

ALGORITHM: Final = Algorithm.CRC32C  # Ozone's


@dataclass(frozen=True, slots=True)
class _PeerBlocks:
    """A peer's data on the damaged blocks."""

    tree: Tree
    rows: Mapping[BlockId, BlockData]


class OzonePeer:
    """A datanode and its data on the damaged blocks. Thread-safe once its summary was fetched."""

    def __init__(
        self,
        datanode: Datanode,
        container_id: ContainerId,
        damaged: Mapping[BlockId, StoredBlock],
    ) -> None:
        self._datanode = datanode
        self._container_id = container_id
        self._damaged = damaged
        self._known: _PeerBlocks | None = None
        self.remark = ""  # why it takes part without its tree

    # what it has

    def summary(self, container_id: ContainerId, meter: TransferCost | None = None) -> TreeSummary:
        """Return the summary of its data on the damaged blocks."""
        del container_id
        return self._learnt(meter).tree.summary()

    def ranges(
        self, container_id: ContainerId, starts: U64s, meter: TransferCost | None = None
    ) -> tuple[TreeSummary, U64s]:
        """Return the summary, and the checksum of each range that begins at `starts`."""
        del container_id
        tree = self._learnt(meter).tree
        return tree.summary(), range_checksums(tree, starts)

    def blocks(
        self,
        container_id: ContainerId,
        ranges: Sequence[BlockRange] = (),
        meter: TransferCost | None = None,
    ) -> BlockRows:
        """Return a row for each block in `ranges`, or for all."""
        del container_id
        return answer_about_blocks(self._learnt(meter).tree, ranges)

    def chunks(
        self, container_id: ContainerId, block_ids: U64s, meter: TransferCost | None = None
    ) -> tuple[TreeSummary, Tree]:
        """Return the summary, and the tree of the named blocks."""
        del container_id
        return answer_about_chunks(self._learnt(meter).tree, block_ids)

    def tree(self, container_id: ContainerId, meter: TransferCost | None = None) -> Tree:
        """Return the tree of the damaged blocks."""
        del container_id
        return self._learnt(meter).tree

    def block(
        self, container_id: ContainerId, block_id: BlockId, meter: TransferCost | None = None
    ) -> BlockData:
        """Return the row of a block. Raise RefusedError if it has none."""
        block = self._learnt(meter).rows.get(block_id)
        if block is None:
            raise RefusedError(
                Code.NO_SUCH_BLOCK,
                f"datanode {self._datanode.address} has no block {block_id} of container "
                f"{container_id}",
            )
        return block

    def replica(self, container_id: ContainerId) -> container_pb2.ReplicaReport:
        """Raise RefusedError: commit ids of Ozone's replicas have no meaning here."""
        raise RefusedError(Code.INELIGIBLE, f"container {container_id} is Ozone's")

    # bytes

    def read_chunk(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        offset: int,
        meter: TransferCost | None = None,
    ) -> tuple[ChunkInfo, bytes]:
        """Return a chunk and its bytes, verified by the peer's own row.

        Raise RefusedError(CHECKSUM_MISMATCH) if they differ; chunks of type NONE accept any bytes.
        """
        block = self.block(container_id, block_id, meter)
        chunks = {chunk.offset: chunk for chunk in block.chunks}
        return read_checked(
            self._datanode, self._container_id, block_id, chunks, offset, fits_twice, meter
        )

    def read_unverified(self, block_id: BlockId, offset: int, length_bytes: int) -> bytes:
        """Return bytes of a block, unverified. Raise RefusedError or UnavailableError."""
        piece = ChunkInfo(offset, length_bytes, ChecksumType.NONE, 0, b"")
        return self._datanode.read(self._container_id, block_id, piece)

    def reaches(self, block_id: BlockId, end: int) -> bool:
        """Return True if its row of a block reaches this far; otherwise a request is useless."""
        known = self._known
        block = None if known is None else known.rows.get(block_id)
        return block is not None and block.length_bytes >= end

    # learning

    def _learnt(self, meter: TransferCost | None) -> _PeerBlocks:
        if self._known is None:
            self._known = self._learn(meter)
        return self._known

    def _learn(self, meter: TransferCost | None) -> _PeerBlocks:
        ozone_tree, leaves = self._asked_tree(meter)
        wanted = [
            block_id
            for block_id, stored in sorted(self._damaged.items())
            if self._may_have(ozone_tree, block_id, stored)
        ]
        rows = {}
        for block_id, found in self._datanode.blocks(self._container_id, wanted):
            if not isinstance(found, RefusedError):
                rows[block_id] = found
        builder = TreeBuilder(ALGORITHM)
        for block_id, block in sorted(rows.items()):
            builder.add_block(block_id)
            told = None if ozone_tree is None else leaves.get(block_id, {})
            for chunk in block.chunks:
                builder.add_leaf(_leaf(chunk, told, unread_offsets(self._damaged[block_id])))
        return _PeerBlocks(builder.build(), rows)

    def _asked_tree(self, meter: TransferCost | None) -> tuple[OzoneTree | None, Leaves]:
        """Return its tree; None if it is unusable, so that only its rows count."""
        try:
            data = self._datanode.checksum_info(self._container_id)
            if meter is not None:
                meter.tree_bytes += len(data)
            tree = decode_tree(data, self._container_id)
        except DamagedData as damage:
            self.remark = f"its tree is not used: {damage}"
            return None, {}
        except RefusedError as error:
            if error.code is not Code.MALFORMED_REQUEST:  # too large for an answer of Ozone
                raise
            self.remark = f"its tree is not used: {error}"
            return None, {}
        if tree.root is None:
            return None, {}
        return tree, decode_leaves(data, self._damaged.keys())

    def _may_have(self, tree: OzoneTree | None, block_id: BlockId, stored: StoredBlock) -> bool:
        """Return True if a block may be requested: a missing one makes Ozone read the whole
        container.
        """
        if tree is None or block_id in tree.live:
            return True
        return block_id not in tree.tombstones and bool(unread_offsets(stored))


def unread_offsets(stored: StoredBlock) -> frozenset[int]:
    """Return the offsets of the chunks that Ozone's scanner does not read."""
    chunks = stored.block.chunks
    tail = chunks[len(chunks) - stored.tail_count :]
    unsummed = [one for one in chunks if one.checksum_type is ChecksumType.NONE]
    return frozenset(chunk.offset for chunk in (*tail, *unsummed))


def _leaf(
    chunk: ChunkInfo, told: Mapping[int, tuple[int, bool]] | None, unread: frozenset[int]
) -> Leaf:
    """Return the leaf of a peer's chunk from its row, and whether its tree marks it as damaged."""
    checksum = leaf_checksum(ALGORITHM, chunk.offset, chunk.length_bytes, chunk.window_checksums)
    if told is None or (chunk.offset in unread and chunk.offset not in told):
        return Leaf(chunk.offset, chunk.length_bytes, checksum, True)
    is_whole = told.get(chunk.offset) == (checksum, True)
    return Leaf(chunk.offset, chunk.length_bytes, checksum, is_whole)
