"""Computes the cells and blocks of lost shards from the remaining shards.

A stripe is checked in three ways:

1. Every cell that was read matches the checksums in its block record.
2. One cell that was read is computed from the other cells and compared.
3. All cells together match the stripe checksum that the writer recorded, if there is one.

If only check 3 fails, a source has wrong bytes with matching checksums. The other cells of the
stripe are then read, to identify the wrong shard, which is ignored. If it cannot be identified, the
stripe is not computed, and an error is raised.
"""

from collections.abc import Collection, Mapping

from merkle.replica import Bcsid, BlockData, ChunkInfo
from suture.client.stripes.stripe_sources import RebuildSources
from suture.ec.blockgroup import (
    RebuildableGroup,
    group_metadata,
    is_stripe_checksum,
    stripe_metadata,
)
from suture.ec.cell_codec import Cell, padded, rebuild_checked
from suture.ec.cells import described, proof_of, style_of
from suture.errors import Code, RefusedError

Made = dict[int, tuple[ChunkInfo, memoryview]]


class CellRebuilder:
    """Computes the cells of the shards with the indexes `wanted` from the cells of other shards."""

    def __init__(self, sources: RebuildSources, wanted: Collection[int]) -> None:
        self._sources = sources
        self._wanted = frozenset(wanted)

    def made(self, agreed: RebuildableGroup, stripe: int, cells: Mapping[int, bytes]) -> Made:
        """Return the wanted cells of a stripe with their descriptions, by shard index. Empty cells
        are omitted.

        If a wanted cell was read, it is returned unchanged, because another datanode has the same
        shard. Raise RefusedError if cells are wrong and the wrong ones cannot be identified.
        """
        cells, made = self.complete(agreed, stripe, cells)
        style, offset = style_of(agreed, stripe), stripe * self._sources.scheme.cell_bytes
        for i in self._wanted & set(cells):
            made[i] = described(offset, cells[i], style), padded(cells[i], len(cells[i])).data
        return {i: cell for i, cell in made.items() if i in self._wanted and len(cell[1])}

    def complete(
        self, agreed: RebuildableGroup, stripe: int, cells: Mapping[int, bytes]
    ) -> tuple[Mapping[int, bytes], Made]:
        """Return the cells that were read, and the computed cells. Cells that are proven wrong are
        omitted.

        Raise RefusedError if cells are wrong and the wrong ones cannot be identified.
        """
        made = self._computed(agreed, stripe, cells)
        if not _is_recorded(agreed, stripe, made):
            verdict, cells = self._sources.judged(agreed, stripe, proof_of(agreed, stripe))
            if not verdict.is_sure:
                raise RefusedError(
                    Code.CHECKSUM_MISMATCH,
                    f"container {self._sources.container_id}, block {agreed.block_id}, stripe "
                    f"{stripe}: the shards do not match the writer's record, and the wrong "
                    "shard cannot be identified",
                    hint="suture scrub parity checks every stripe of the container",
                    container_id=self._sources.container_id,
                )
            made = self._computed(agreed, stripe, cells)
        return cells, made

    def _computed(self, agreed: RebuildableGroup, stripe: int, cells: Mapping[int, Cell]) -> Made:
        """Compute the wanted cells that were not read.

        If the writer recorded a stripe checksum, also compute the cells of shards that no source
        has, because the checksum covers all cells. Cells that a source has need not be computed for
        this, because the block record of the source has their checksums.
        """
        group, scheme = agreed.group, self._sources.scheme
        computed = set(self._wanted)
        if agreed.stripe_checksums:
            computed |= set(scheme.indexes) - set(agreed.shards)
        lost = sorted(computed - set(cells))
        if not lost:
            return {}
        octets = rebuild_checked(scheme, cells, lost, group.cell_bytes_max(stripe))
        style, offset = style_of(agreed, stripe), stripe * scheme.cell_bytes
        cut = {i: octets[i][: group.cell_bytes(stripe, i)] for i in lost}
        return {i: (described(offset, cell, style), cell.data) for i, cell in cut.items()}


class BlockBuilder:
    """The block of a lost shard while it is rebuilt. The caller appends the computed chunks to
    `chunks`."""

    def __init__(self, agreed: RebuildableGroup, index: int) -> None:
        self.chunks: list[ChunkInfo] = []
        self._block_id = agreed.block_id
        self._shard_bytes = agreed.group.shard_bytes(index)
        self._bcsid = Bcsid(max(block.bcsid for block in agreed.shards.values()))
        model = agreed.shards[min(agreed.shards)]
        metadata = group_metadata(model.metadata, agreed.group)
        if index == 1 or agreed.group.scheme.is_parity(index):
            metadata += stripe_metadata(agreed.stripe_checksums) + agreed.notes
        self._metadata = metadata

    @property
    def is_whole(self) -> bool:
        """True if all chunks of the block were appended."""
        end = self.chunks[-1].end if self.chunks else 0
        return end == self._shard_bytes

    def block(self) -> BlockData:
        """Return the record of the block, which is committed with the last chunk."""
        return BlockData(self._block_id, self._bcsid, tuple(self.chunks), self._metadata)


def stripes_of(agreed: RebuildableGroup, indexes: Collection[int]) -> list[int]:
    """Return the numbers of the stripes of a block group in which one of the shards `indexes` has a
    cell."""
    group = agreed.group
    return [
        stripe
        for stripe in range(group.stripe_count)
        if any(group.cell_bytes(stripe, index) for index in indexes)
    ]


def _is_recorded(agreed: RebuildableGroup, stripe: int, made: Made) -> bool:
    """Return False if the cells do not match the stripe checksum that the writer recorded.

    Return True if they match, if no checksum was recorded, or if a cell for the comparison is
    missing.
    """
    chunks = {
        index: made[index][0] if index in made else agreed.chunk(index, stripe)
        for index in agreed.group.indexes(stripe)
        if index in made or index in agreed.shards
    }
    return is_stripe_checksum(agreed, stripe, chunks)
