"""A datanode of Ozone as a peer of one damaged replica.

The repair requests the tree of the peer, which shows the peer's own damage. It also requests the
peer's rows of the damaged blocks, which have the checksums of the written data. Ozone's tree omits
data that its scanner does not read: chunks without checksums, and last chunks of files that were
synced and never closed. For these chunks, only the row of the peer is used.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from merkle.checksum import Algorithm, leaf_checksum
from merkle.damaged_data import DamagedData
from merkle.replica import BlockData, BlockId, ChecksumType, ChunkInfo, ContainerId
from merkle.tree import Leaf, Tree
from merkle.tree_building import TreeBuilder
from ozone.clients.datanode import Datanode
from ozone.clients.peer import OzonePeer
from ozone.disk.blockrow import StoredBlock
from ozone.disk.treefile import Leaves, OzoneTree, decode_leaves, decode_tree
from suture.errors import Code, RefusedError
from suture.wire.clients.block_peer import TransferCost

ALGORITHM: Final = Algorithm.CRC32C  # the algorithm of Ozone's trees


class DamagedBlocksPeer(OzonePeer):
    """A datanode as a peer, with its tree and its rows of the blocks that are damaged locally."""

    def __init__(
        self, datanode: Datanode, container_id: ContainerId, damaged: Mapping[BlockId, StoredBlock]
    ) -> None:
        super().__init__(datanode)
        self._container_id = container_id
        self._damaged = damaged
        self._known_rows: dict[BlockId, BlockData] = {}
        self._unknown_rows: frozenset[BlockId] = frozenset()
        self.remark = ""  # the reason why the tree is not used

    def block(
        self, container_id: ContainerId, block_id: BlockId, meter: TransferCost | None = None
    ) -> BlockData:
        """Return the peer's row of a damaged block.

        Raise RefusedError if the peer has no such row.
        """
        self.tree(container_id, meter)
        block = self._known_rows.get(block_id)
        if block is None:
            raise RefusedError(
                Code.NO_SUCH_BLOCK,
                f"datanode {self.address} has no block {block_id} of container {container_id}",
            )
        return block

    def read_unverified(self, block_id: BlockId, offset: int, length_bytes: int) -> bytes:
        """Return bytes of a block, without verification.

        Raise RefusedError if the peer rejects the request, and UnavailableError if it does not
        answer.
        """
        piece = ChunkInfo(offset, length_bytes, ChecksumType.NONE, 0, b"")
        return self._datanode.read(self._container_id, block_id, piece)

    def reaches(self, block_id: BlockId, end: int) -> bool:
        """Return whether the block is at least `end` bytes long according to the peer's row.

        Otherwise, a read up to `end` would fail.
        """
        block = self._known_rows.get(block_id)
        return block is not None and block.length_bytes >= end

    def is_silent_about(self, block_id: BlockId) -> bool:
        """Return whether it is unknown if the peer has a block.

        It is unknown if the peer returned neither the row of the block nor the error that the block
        does not exist.
        """
        return block_id in self._unknown_rows

    def _fetch_tree(self, container_id: ContainerId, meter: TransferCost | None) -> Tree:
        """Return a tree of the damaged blocks, built from the peer's rows and from its tree."""
        ozone_tree, leaves = self._asked_tree(meter)
        wanted = [
            block_id
            for block_id, stored in sorted(self._damaged.items())
            if self._may_have(ozone_tree, block_id, stored)
        ]
        rows = self._asked_rows(container_id, wanted)
        builder = TreeBuilder(ALGORITHM)
        for block_id, block in sorted(rows.items()):
            builder.add_block(block_id)
            told = None if ozone_tree is None else leaves.get(block_id, {})
            for chunk in block.chunks:
                builder.add_leaf(_leaf(chunk, told, unread_offsets(self._damaged[block_id])))
        self._known_rows = rows
        return builder.build()

    def _asked_rows(
        self, container_id: ContainerId, wanted: Sequence[BlockId]
    ) -> dict[BlockId, BlockData]:
        """Return the peer's rows of the blocks `wanted`. Omit blocks that do not exist at the peer.

        Raise RefusedError if the peer returns no row, and rejects at least one request with another
        error.
        """
        rows = {}
        refusals = {}
        for block_id, found in self._datanode.blocks(container_id, wanted):
            if not isinstance(found, RefusedError):
                rows[block_id] = found
            elif found.code is not Code.NO_SUCH_BLOCK:
                refusals[block_id] = found
        self._unknown_rows = frozenset(refusals)
        if refusals:
            first = next(iter(refusals.values()))
            said = f"{len(refusals)} of {len(wanted)} rows were refused: {first}"
            if not rows:
                raise RefusedError(first.code, said)
            self.remark = "; ".join(filter(None, (self.remark, said)))
        return rows

    def _asked_tree(self, meter: TransferCost | None) -> tuple[OzoneTree | None, Leaves]:
        """Return the peer's tree and the checksums of its chunks.

        Return None and no checksums if the tree cannot be used. The caller then uses only the rows.
        """
        try:
            data = self._checksum_info(self._container_id, meter)
            tree = decode_tree(data, self._container_id)
        except DamagedData as damage:
            self.remark = f"its tree is not used: {damage}"
            return None, {}
        except RefusedError as error:
            if error.code is not Code.MALFORMED_REQUEST:  # too large, or Ozone before 2.1
                raise
            self.remark = f"its tree is not used: {error}"
            return None, {}
        if tree.root is None:
            return None, {}
        return tree, decode_leaves(data, self._damaged.keys())

    def _may_have(self, tree: OzoneTree | None, block_id: BlockId, stored: StoredBlock) -> bool:
        """Return whether the peer may have a block.

        The repair requests the row of the block only in this case, because a request for a missing
        block makes Ozone scan the complete container.
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
    """Return the leaf of a peer's chunk, with the checksum in the peer's row.

    The leaf is unhealthy if the peer's tree marks the chunk as damaged, or has another checksum.
    """
    checksum = leaf_checksum(ALGORITHM, chunk.offset, chunk.length_bytes, chunk.window_checksums)
    if told is None or (chunk.offset in unread and chunk.offset not in told):
        return Leaf(chunk.offset, chunk.length_bytes, checksum, True)
    is_whole = told.get(chunk.offset) == (checksum, True)
    return Leaf(chunk.offset, chunk.length_bytes, checksum, is_whole)
