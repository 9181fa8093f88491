"""Formats of packs: the index rows of packed blocks, and the table at the end of the pack file.

    chunks/small.pack    blocks by ascending id, each page-aligned, padded with zeros
                         table: ids, pages, lengths, a column each
                         footer: magic, version, count, offset and CRC32C of the table; its CRC32C

The index rows decide which blocks are in the pack. When a row is deleted, its block is no longer in
the pack, but the table does not change. The table is used only if the index is lost. No I/O.
docs/DISK_FORMAT.md describes both formats.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from agent.store.index.rows import SEAL_BYTES, seal, unseal
from merkle.checksum import Algorithm, crc32c
from merkle.checksum_columns import U64s, fold_each
from merkle.damaged_data import DamagedData
from merkle.replica import BlockId

PAGE_BYTES: Final = 4096  # alignment of blocks, so that each is read and freed independently
PACKED_BYTES_MAX: Final = 64 * 1024  # larger blocks have files of their own
MAGIC: Final = b"SUTUPACK"
VERSION: Final = 1
FOOTER: Final = struct.Struct("<8sIIQI")
FOOTER_BYTES: Final = FOOTER.size + SEAL_BYTES
PLACE: Final = np.dtype([("page", "<u4"), ("length", "<u4")])
ROW: Final = np.dtype([("place", PLACE), ("seal", ">u4")])
MEMBER_BYTES: Final = 8 + PLACE.itemsize  # size of a table entry

U32s = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class PackedPlace:
    """Position and length of a block in its pack file, in bytes."""

    offset: int
    length_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class PackedBlocks:
    """Blocks of one pack file by ascending id, as three columns of equal length.

    `pages` has the number of the page at which each block begins. `lengths` has the length of each
    block in bytes.
    """

    block_ids: U64s
    pages: U32s
    lengths: U32s

    @classmethod
    def none(cls) -> Self:
        """Return an empty set of blocks."""
        return cls(np.empty(0, np.uint64), np.empty(0, np.uint32), np.empty(0, np.uint32))

    @classmethod
    def side_by_side(cls, block_ids: Sequence[int], lengths: Sequence[int]) -> Self:
        """Return the places in a pack file of blocks with these ids and lengths in bytes.

        Each block begins on the first page after the end of the previous block.
        """
        sizes = np.array(lengths, np.uint32)
        ends = np.cumsum(-(-sizes.astype(np.int64) // PAGE_BYTES))
        pages = np.concatenate([np.zeros(1, np.int64), ends])[: len(sizes)]
        return cls(np.array(block_ids, np.uint64), pages.astype(np.uint32), sizes)

    def __len__(self) -> int:
        return len(self.block_ids)

    def of(self, block_id: BlockId) -> PackedPlace | None:
        """Return the range of a block; None if it is not in the pack."""
        if not self.block_ids.size:
            return None
        ids = self.block_ids.data  # a lookup here is three times as fast as with numpy
        index = bisect_left(ids, block_id)
        if index == len(ids) or ids[index] != block_id:
            return None
        return PackedPlace(int(self.pages[index]) * PAGE_BYTES, int(self.lengths[index]))

    def where(self, mask: npt.NDArray[np.bool_]) -> "PackedBlocks":
        """Return the blocks for which `mask` is True."""
        return PackedBlocks(self.block_ids[mask], self.pages[mask], self.lengths[mask])

    def __iter__(self) -> Iterator[tuple[BlockId, PackedPlace]]:
        columns = (self.block_ids, self.pages, self.lengths)
        for block_id, page, length in zip(*(column.tolist() for column in columns), strict=True):
            yield BlockId(block_id), PackedPlace(page * PAGE_BYTES, length)


# -- index rows


def encode_packed(blocks: PackedBlocks) -> Iterator[tuple[BlockId, bytes]]:
    """Yield the index row of each block."""
    rows = np.zeros(len(blocks), ROW)
    rows["place"]["page"], rows["place"]["length"] = blocks.pages, blocks.lengths
    places = pieces(rows["place"].tobytes(), PLACE.itemsize)
    rows["seal"] = fold_each(Algorithm.CRC32C, places, len(rows))
    ids = map(BlockId, blocks.block_ids.tolist())
    return zip(ids, map(bytes, pieces(rows.tobytes(), ROW.itemsize)), strict=True)


def decode_place(row: bytes) -> PackedPlace | None:
    """Return the place of a block in its pack file, or None if its row is damaged."""
    try:
        page, length = struct.unpack("<II", unseal(row, "packed row"))
    except (DamagedData, struct.error):
        return None
    return PackedPlace(page * PAGE_BYTES, length)


def decode_packed(rows: Iterable[tuple[BlockId, bytes]]) -> PackedBlocks:
    """Return the blocks that these rows describe. Omit damaged rows.

    The rows must be in ascending order of block ids.
    """
    whole = [(block_id, row) for block_id, row in rows if len(row) == ROW.itemsize]
    read = np.frombuffer(b"".join([row for _, row in whole]), ROW)
    seals = fold_each(Algorithm.CRC32C, pieces(read["place"].tobytes(), PLACE.itemsize), len(read))
    ids = np.array([block_id for block_id, _ in whole], np.uint64)
    pages, lengths = (read["place"][name].astype(np.uint32) for name in ("page", "length"))
    found = PackedBlocks(ids, pages, lengths)
    return found.where(seals == read["seal"])


def pieces(data: bytes, size_bytes: int) -> Iterator[memoryview]:
    """Yield consecutive parts of `data`, each `size_bytes` long."""
    view = memoryview(data)
    return (view[start : start + size_bytes] for start in range(0, len(data), size_bytes))


# -- table after the blocks


def encode_table(blocks: PackedBlocks, offset: int) -> bytes:
    """Return the table and footer of a pack whose blocks end at `offset`."""
    table = b"".join(
        [
            blocks.block_ids.astype("<u8").tobytes(),
            blocks.pages.astype("<u4").tobytes(),
            blocks.lengths.astype("<u4").tobytes(),
        ]
    )
    return table + seal(FOOTER.pack(MAGIC, VERSION, len(blocks), offset, crc32c(table)))


def decode_footer(footer: bytes, file_bytes: int) -> tuple[int, int, int]:
    """Return the number of blocks in a pack file, and the offset and checksum of its table.

    Raise `DamagedData` if the footer is damaged, or does not match a file of `file_bytes`.
    """
    body = unseal(footer, "footer of the pack")
    magic, version, count, offset, checksum = FOOTER.unpack(body)
    if magic != MAGIC or version != VERSION:
        raise DamagedData(f"footer of the pack: magic {magic!r}, version {version}")
    if offset + count * MEMBER_BYTES + FOOTER_BYTES != file_bytes:
        raise DamagedData(f"footer of the pack: {count} blocks, table at {offset} of {file_bytes}")
    return count, offset, checksum


def decode_table(table: bytes, count: int, checksum: int) -> PackedBlocks:
    """Return the blocks in the table of a pack file.

    Raise `DamagedData` if the length or the checksum of the table does not match.
    """
    if len(table) != count * MEMBER_BYTES or crc32c(table) != checksum:
        raise DamagedData("table of the pack: its checksum does not match")
    ids = np.frombuffer(table, "<u8", count)
    pages = np.frombuffer(table, "<u4", count, 8 * count)
    lengths = np.frombuffer(table, "<u4", count, 12 * count)
    return PackedBlocks(ids.astype(np.uint64), pages.astype(np.uint32), lengths.astype(np.uint32))
