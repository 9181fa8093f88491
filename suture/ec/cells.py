"""Describes the cells of a stripe as chunks, with window checksums of the type that the writer
used."""

from collections.abc import Mapping

from merkle.checksum import window_checksums
from merkle.replica import WINDOW_BYTES_DEFAULT, ChecksumType, ChunkInfo
from suture.ec.blockgroup import RebuildableGroup, stripe_checksum
from suture.ec.cell_codec import Cell, padded
from suture.ec.wrong_shard import Proof

Style = tuple[ChecksumType, int]
"""The type of the window checksums, and the size of a window in bytes."""


def style_of(agreed: RebuildableGroup, stripe: int) -> Style:
    """Return the checksum type and the window size that the writer used for the cells of a
    stripe."""
    for index in agreed.group.indexes(stripe):
        if index in agreed.shards:
            chunk = agreed.chunk(index, stripe)
            if chunk.checksum_type is not ChecksumType.NONE:
                return chunk.checksum_type, chunk.bytes_per_checksum
    return ChecksumType.CRC32C, WINDOW_BYTES_DEFAULT


def described(offset: int, cell: Cell, style: Style) -> ChunkInfo:
    """Return the description of a cell as a chunk at `offset`, with the window checksums of its
    bytes."""
    checksum_type, window_bytes = style
    data = padded(cell, len(cell)).data
    sums = window_checksums(checksum_type, window_bytes, data)
    return ChunkInfo(offset, len(cell), checksum_type, window_bytes, sums)


def proof_of(agreed: RebuildableGroup, stripe: int) -> Proof | None:
    """Return a function that compares all cells of a stripe with the checksum that the writer
    recorded. Return None if the writer recorded none."""
    if not agreed.stripe_checksums:
        return None
    style = style_of(agreed, stripe)

    def proof(cells: Mapping[int, Cell]) -> bool:
        chunks = [described(0, cells[index], style) for index in sorted(cells)]
        return stripe_checksum(chunks) == agreed.stripe_checksums[stripe]

    return proof
