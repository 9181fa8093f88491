"""Parses Ozone's rows of many small blocks at once, in columns. No I/O.

A container may have half a million blocks with one small chunk each. Protobuf's parser takes
several times as long as the read of such a block. Therefore, this module parses rows of the most
common format together, field by field. Such a "simple" row has one chunk at offset 0 with CRCs, and
its fields are in numerical order, as Ozone writes them. All other rows, valid or not, are decoded
one by one (`blockrow`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from merkle.blockrow import (
    CHUNK,
    CRC,
    HEADER,
    MAGIC,
    POSITION,
    TYPE_SHIFT,
    VERSION,
    WORD_BYTES,
)
from merkle.checksum import Algorithm
from merkle.checksum_columns import U64s, fold_slices
from merkle.replica import (
    CHUNK_BYTES_MAX,
    WINDOW_BYTES_MAX,
    BlockId,
    ChecksumType,
    ContainerId,
)
from merkle.tree_columns import fold_blocks

Numbers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

VARINT_BYTES_MAX: Final = 9  # 63 bits; a longer number is not simple
VARINT_PLACES: Final = np.arange(VARINT_BYTES_MAX)
SHORT_MAX: Final = 127  # maximum length that fits into one byte
NOTES_MAX: Final = 4  # entries of a block's metadata; clients write one or two
WINDOWS_MAX: Final = 256
SUM_BYTES: Final = 4
TAGGED_SUM_BYTES: Final = 6  # a checksum with its tag and length
PADDING: Final = bytes(VARINT_BYTES_MAX + 2 * SHORT_MAX + 16)  # for reads after the last row
TYPES: Final = (ChecksumType.CRC32, ChecksumType.CRC32C)
FIRST_WORD: Final = 1 << 32 | VERSION << 16 | MAGIC  # first word of our rows with one chunk
SUMS_START: Final = HEADER.size + CHUNK.size + POSITION.size

# Tags: the field number and type that precede each field.
BLOCK_ID, NOTE, CHUNK_INFO, SIZE = 0x0A, 0x1A, 0x22, 0x28  # fields of a row
CONTAINER, LOCAL, BCSID, INDEX = 0x08, 0x10, 0x18, 0x20  # fields of a block id
KEY, VALUE = 0x0A, 0x12  # fields of a metadata entry
NAME, OFFSET, LENGTH, CHECKSUMS = 0x0A, 0x10, 0x18, 0x2A  # fields of a chunk
TYPE, WINDOW, SUM = 0x08, 0x10, 0x1A  # fields of a chunk's checksums


@dataclass(frozen=True, slots=True)
class SimpleRows:
    """The rows of a batch that have the most common format (simple rows), parsed together.

    The fields are columns. `is_simple` has one value per row of the batch, and the others one value
    per simple row. `rows` are in Suture's format (`merkle.blockrow`). `checksums` are the checksums
    of the blocks in Ozone's tree.
    """

    is_simple: Flags
    block_ids: U64s
    lengths_bytes: Numbers
    rows: list[bytes]
    checksums: U64s


class _Cursor:
    """State of the parser, as columns with one value per row of a batch.

    `at` is the position in each row. `is_simple` is True if all fields before this position were
    simple.
    """

    def __init__(self, rows: Sequence[bytes]) -> None:
        sizes = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        self.octets = np.frombuffer(b"".join(rows) + PADDING, dtype=np.uint8)
        self.ends = np.cumsum(sizes)
        self.at = self.ends - sizes
        self.is_simple = np.ones(len(rows), dtype=np.bool_)
        self._beyond = int(self.ends[-1]) + 1 if len(rows) else 0

    def need(self, condition: Flags) -> None:
        """Mark the rows whose `condition` is False as not simple."""
        self.is_simple &= condition

    def move(self, size_bytes: Numbers | int) -> None:
        """Advance the position in each row by `size_bytes`.

        In a row that is not simple, the position may move into later rows, but not beyond the end
        of the last row.
        """
        self.at = np.minimum(self.at + size_bytes, self._beyond)

    def tag(self, tag: int) -> None:
        """Read the tag (field number and type) of the next field of each row.

        Mark rows with another tag than `tag` as not simple.
        """
        self.need(self.octets[self.at] == tag)
        self.move(1)

    def varint(self) -> Numbers:
        """Return the varint at the position of each row, and advance the position after it."""
        window = self.octets[self.at[:, None] + VARINT_PLACES]
        is_last = window < 0x80
        sizes = is_last.argmax(axis=1) + 1
        self.need(is_last.any(axis=1))
        bits = np.where(sizes[:, None] > VARINT_PLACES, window & 0x7F, 0).astype(np.int64)
        self.move(sizes)
        value: Numbers = np.bitwise_or.reduce(bits << 7 * VARINT_PLACES, axis=1)
        return value

    def short(self) -> Numbers:
        """Return the one-byte length at the position of each row.

        Advance the position after the length.
        """
        length: Numbers = self.octets[self.at].astype(np.int64)
        self.need(length <= SHORT_MAX)
        self.move(1)
        return length


def read_simple(
    container_id: ContainerId, block_ids: Sequence[BlockId], rows: Sequence[bytes]
) -> SimpleRows:
    """Parse the simple rows among these rows of the table `block_data`.

    Mark the others as not simple.
    """
    ids = np.fromiter(block_ids, dtype=np.int64, count=len(rows))
    cursor = _Cursor(rows)
    bcsids = _pass_block_id(cursor, container_id, ids)
    _pass_notes(cursor)
    cursor.tag(CHUNK_INFO)
    chunk_bytes = cursor.varint()
    chunk_ends = cursor.at + chunk_bytes
    cursor.tag(NAME)
    cursor.move(cursor.short())
    cursor.tag(OFFSET)
    cursor.need(cursor.varint() == 0)
    cursor.tag(LENGTH)
    lengths = cursor.varint()
    cursor.need((lengths > 0) & (lengths <= CHUNK_BYTES_MAX))
    cursor.tag(CHECKSUMS)
    sums_bytes = cursor.varint()
    cursor.need(cursor.at + sums_bytes == chunk_ends)
    cursor.tag(TYPE)
    types = cursor.varint()
    cursor.need(np.isin(types, TYPES))
    cursor.tag(WINDOW)
    windows = cursor.varint()
    cursor.need((windows > 0) & (windows <= WINDOW_BYTES_MAX))
    counts = -(-lengths // np.maximum(windows, 1))
    cursor.need((counts <= WINDOWS_MAX) & (chunk_ends - cursor.at == TAGGED_SUM_BYTES * counts))
    sums_at = cursor.at
    cursor.move(chunk_ends - cursor.at)
    _pass_size(cursor)
    _check_sums(cursor, sums_at, counts)
    columns = _Columns(cursor.octets, ids, bcsids, lengths, types, windows, counts, sums_at)
    return _encoded(columns, cursor.is_simple)


def _pass_block_id(cursor: _Cursor, container_id: ContainerId, ids: Numbers) -> Numbers:
    """Read the block id of each row, which must be the id in the key of the row.

    Return the BCSIDs.
    """
    cursor.tag(BLOCK_ID)
    ends = cursor.short() + cursor.at
    cursor.tag(CONTAINER)
    cursor.need(cursor.varint() == container_id)
    cursor.tag(LOCAL)
    cursor.need(cursor.varint() == ids)
    cursor.tag(BCSID)
    bcsids = cursor.varint()
    had, at = cursor.is_simple.copy(), cursor.at
    cursor.tag(INDEX)
    cursor.varint()
    is_over = at == ends
    cursor.is_simple = had & (is_over | cursor.is_simple)
    cursor.at = np.where(is_over, at, cursor.at)
    cursor.need(cursor.at == ends)
    return bcsids


def _pass_notes(cursor: _Cursor) -> None:
    """Advance after the metadata entries of each block. Each entry has a key and a value."""
    octets = cursor.octets
    for _ in range(NOTES_MAX):
        at = cursor.at
        is_note = octets[at] == NOTE
        if not is_note.any():
            return
        ends = at + 2 + octets[at + 1]
        middle = at + 4 + octets[at + 3]
        fits = (
            (np.maximum(octets[at + 1], octets[at + 3]) <= SHORT_MAX)
            & (octets[at + 2] == KEY)
            & (octets[middle] == VALUE)
            & (octets[middle + 1] <= SHORT_MAX)
            & (middle + 2 + octets[middle + 1] == ends)
        )
        cursor.need(fits | ~is_note)
        cursor.move(np.where(is_note, ends - at, 0))


def _pass_size(cursor: _Cursor) -> None:
    """Skip the optional size of each block, which is not used.

    It must be the last field of the row.
    """
    had, at = cursor.is_simple.copy(), cursor.at
    cursor.tag(SIZE)
    cursor.varint()
    is_over = at == cursor.ends
    cursor.is_simple = had & (is_over | (cursor.is_simple & (cursor.at == cursor.ends)))


def _check_sums(cursor: _Cursor, sums_at: Numbers, counts: Numbers) -> None:
    """Mark rows as not simple if their checksums are not of the usual form.

    The field of checksums must have only consecutive checksums of 4 bytes.
    """
    for count, places in _alike(cursor.is_simple, counts):
        tagged = cursor.octets[sums_at[places][:, None] + np.arange(TAGGED_SUM_BYTES * count)]
        heads = tagged.reshape(len(places), count, TAGGED_SUM_BYTES)[:, :, :2]
        cursor.is_simple[places] &= (heads == (SUM, SUM_BYTES)).all(axis=(1, 2))


def _alike(is_simple: Flags, counts: Numbers) -> list[tuple[int, npt.NDArray[np.intp]]]:
    """Group the simple rows by the number of checksum windows of their blocks.

    Return each number with the indexes of its rows.
    """
    chosen = np.flatnonzero(is_simple)
    return [
        (count, chosen[counts[chosen] == count]) for count in np.unique(counts[chosen]).tolist()
    ]


@dataclass(frozen=True, slots=True)
class _Columns:
    octets: npt.NDArray[np.uint8]
    ids: Numbers
    bcsids: Numbers
    lengths: Numbers
    types: Numbers
    windows: Numbers
    counts: Numbers
    sums_at: Numbers


def _encoded(columns: _Columns, is_simple: Flags) -> SimpleRows:
    """Return the simple rows, encoded in Suture's format."""
    rows = np.empty(len(is_simple), dtype=object)
    leaves = np.zeros(len(is_simple), dtype=np.uint64)
    for count, places in _alike(is_simple, columns.counts):
        tagged = columns.octets[columns.sums_at[places][:, None] + np.arange(6 * count)]
        sums = tagged.reshape(len(places), count, TAGGED_SUM_BYTES)[:, :, 2:]
        sums = np.ascontiguousarray(sums.reshape(len(places), SUM_BYTES * count))
        leaves[places] = _folds(sums, sums.shape[1])
        rows[places] = _rows_of(columns, places, sums)
    ids = columns.ids[is_simple].astype(np.uint64)
    ones = np.ones(len(ids), dtype=np.int64)
    return SimpleRows(
        is_simple=is_simple,
        block_ids=ids,
        lengths_bytes=columns.lengths[is_simple],
        rows=rows[is_simple].tolist(),
        checksums=fold_blocks(Algorithm.CRC32C, ids, ones, leaves[is_simple]),
    )


def _rows_of(
    columns: _Columns, places: npt.NDArray[np.intp], sums: npt.NDArray[np.uint8]
) -> list[bytes]:
    """Encode blocks as rows, in the format of `encode_block`.

    All of these blocks have the same number of checksum windows.
    """
    sums_bytes = sums.shape[1]
    size_bytes = SUMS_START + sums_bytes + -sums_bytes % WORD_BYTES + WORD_BYTES
    table = np.zeros((len(places), size_bytes), dtype=np.uint8)
    words = table.view("<u8")
    words[:, 0] = FIRST_WORD
    words[:, 1] = columns.ids[places]
    words[:, 2] = columns.bcsids[places]
    kinds = columns.types[places] << TYPE_SHIFT | columns.windows[places]
    words[:, HEADER.size // WORD_BYTES] = kinds << 32 | sums_bytes
    table.view(">u8")[:, SUMS_START // WORD_BYTES - 1] = columns.lengths[places]
    table[:, SUMS_START : SUMS_START + sums_bytes] = sums
    table.view("<u4")[:, -1] = _folds(table, size_bytes - CRC.size)
    octets = table.tobytes()
    return [octets[at : at + size_bytes] for at in range(0, len(octets), size_bytes)]


def _folds(table: npt.NDArray[np.uint8], length_bytes: int) -> U64s:
    """Return the CRC-32C of the first `length_bytes` bytes of each row of `table`."""
    starts = np.arange(len(table), dtype=np.int64) * table.shape[1]
    return fold_slices(
        Algorithm.CRC32C, table, starts, np.full(len(table), length_bytes, dtype=np.int64)
    )
