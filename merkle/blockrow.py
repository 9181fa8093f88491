"""The binary form of one block's metadata: a row in the index of a volume.

    ┌ word 0   magic, version, chunk count ┐
    │ word 1   block id                    │ header, little-endian
    │ word 2   bcsid                       │
    │ word 3   metadata bytes, zero        │
    ├ per chunk, one word: bytes of its window checksums, type and window size
    ├ per chunk: be64 offset, be64 length, window checksums, zeros to the next word
    ├ metadata: per entry, the lengths of key and value, then both texts
    └ zeros, then the CRC32C of all bytes before, which ends at a word

The bytes of a chunk in the row are the input of the checksum that is the chunk's leaf in the tree.
Therefore, a tree is built without parsing single rows. Every field begins at a multiple of 8 bytes,
so numpy reads a field of many rows in one operation. The row ends with its little-endian CRC.
Therefore, the CRC over an intact row, including these bytes, is a constant, and one call verifies a
row.

docs/DISK_FORMAT.md describes the format with an example.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

from merkle.checksum import WIDTH_BYTES, Algorithm, crc32c
from merkle.checksum_columns import U64s, fold_each
from merkle.damaged_data import DamagedData
from merkle.replica import (
    BLOCK_BYTES_MAX,
    CHUNK_BYTES_MAX,
    CHUNKS_PER_BLOCK_MAX,
    ID_MAX,
    METADATA_BYTES_MAX,
    WINDOW_BYTES_MAX,
    Bcsid,
    BlockData,
    BlockId,
    ChecksumType,
    ChunkInfo,
)

MAGIC: Final = 0x5242  # "BR"
VERSION: Final = 1
WORD_BYTES: Final = 8
HEADER: Final = struct.Struct("<HHIQQII")
HEADER_WORDS: Final = HEADER.size // WORD_BYTES
CHUNK: Final = struct.Struct("<II")
POSITION: Final = struct.Struct(">QQ")
TEXT: Final = struct.Struct("<II")
CRC: Final = struct.Struct("<I")
TYPE_SHIFT: Final = 28  # the low bits of that field hold the window size
WINDOW_MASK: Final = (1 << TYPE_SHIFT) - 1
_KINDS: Final = {int(kind): kind for kind in ChecksumType}  # a lookup is faster than a conversion
ALIKE_MIN: Final = 4  # with fewer chunks, decoding one by one is as fast
INTACT_CRC: Final = 0x48674BC7  # CRC32C of any bytes followed by their CRC32C, little-endian
ROWS_PER_BATCH: Final = 4_096  # some hundred KB of rows: parsed while in the CPU's cache

assert max(ChecksumType) < 1 << (32 - TYPE_SHIFT)
assert WINDOW_BYTES_MAX < 1 << TYPE_SHIFT


def encode_block(block: BlockData) -> bytes:
    """Return the row of `block`. Raise ValueError if the block exceeds a limit, or if its fields
    are inconsistent."""
    check_block(block)
    metadata = b"".join([encode_text(key, value) for key, value in block.metadata])
    if len(metadata) > METADATA_BYTES_MAX:
        raise ValueError(
            f"block {block.block_id} has {len(metadata)} bytes of metadata, "
            f"at most {METADATA_BYTES_MAX} are kept"
        )
    header = HEADER.pack(
        MAGIC, VERSION, len(block.chunks), block.block_id, block.bcsid, len(metadata), 0
    )
    table = [
        CHUNK.pack(len(checksums), kind << TYPE_SHIFT | bytes_per_checksum)
        for _, _, kind, bytes_per_checksum, checksums in block.chunks
    ]
    leaves = [
        POSITION.pack(offset, length_bytes) + padded(checksums)
        for offset, length_bytes, _, _, checksums in block.chunks
    ]
    content = b"".join([header, *table, *leaves, metadata])
    content += bytes(-(len(content) + CRC.size) % WORD_BYTES)
    return content + CRC.pack(crc32c(content))


def check_block(block: BlockData) -> None:
    """Raise ValueError if `block` exceeds a limit, or if its fields are inconsistent. The message
    names the field."""
    for name, number in (("block id", block.block_id), ("bcsid", block.bcsid)):
        if not 0 <= number <= ID_MAX:
            raise ValueError(f"{name} {number} is outside 0..{ID_MAX}")
    if len(block.chunks) > CHUNKS_PER_BLOCK_MAX:
        raise ValueError(
            f"block {block.block_id} has {len(block.chunks)} chunks, "
            f"at most {CHUNKS_PER_BLOCK_MAX} are possible"
        )
    end, checked = 0, None  # chunks of one shape are alike, except for their offsets
    for chunk in block.chunks:
        offset, length_bytes, kind, bytes_per_checksum, checksums = chunk
        shape = (length_bytes, kind, bytes_per_checksum, len(checksums))
        if shape != checked or offset + length_bytes > BLOCK_BYTES_MAX:
            check_chunk(block.block_id, chunk)
            checked = shape
        if offset < end:
            raise ValueError(
                f"block {block.block_id}: chunk at {offset} begins before {end}, "
                "where the one before it ends"
            )
        end = offset + length_bytes


def check_chunk(block_id: BlockId, chunk: ChunkInfo) -> None:
    """Raise ValueError if `chunk` exceeds a limit, or if the number of its checksums does not match
    its length."""
    offset, length_bytes, kind, bytes_per_checksum, checksums = chunk
    if offset < 0 or not 0 <= length_bytes <= CHUNK_BYTES_MAX:
        raise _wrong(block_id, offset, f"a length of {length_bytes} bytes is not possible")
    if offset + length_bytes > BLOCK_BYTES_MAX:
        raise _wrong(
            block_id, offset, f"ends at {offset + length_bytes}, behind {BLOCK_BYTES_MAX} bytes"
        )
    if not 0 <= bytes_per_checksum <= WINDOW_BYTES_MAX:
        raise _wrong(block_id, offset, f"a window of {bytes_per_checksum} bytes is not possible")
    expected = 0
    if kind is not ChecksumType.NONE:
        if not bytes_per_checksum:
            raise _wrong(block_id, offset, "a window of 0 bytes covers nothing")
        expected = -(-length_bytes // bytes_per_checksum) * WIDTH_BYTES[kind]
    if len(checksums) != expected:
        raise _wrong(
            block_id,
            offset,
            f"{len(checksums)} bytes of {kind.name} checksums, expected {expected} for "
            f"{length_bytes} bytes",
        )


def _wrong(block_id: BlockId, offset: int, why: str) -> ValueError:
    return ValueError(f"block {block_id}, chunk at {offset}: {why}")


def encode_text(key: str, value: str) -> bytes:
    """Return one metadata entry in binary form: the lengths of key and value, then both texts."""
    key_bytes, value_bytes = key.encode(), value.encode()
    return TEXT.pack(len(key_bytes), len(value_bytes)) + key_bytes + value_bytes


def padded(data: bytes) -> bytes:
    """Return `data` with zeros appended up to the next multiple of 8 bytes."""
    return data + bytes(-len(data) % WORD_BYTES)


def is_intact(block_id: BlockId, row: bytes) -> bool:
    """Return True if `row` has a correct CRC and is the row of the block `block_id`."""
    return (
        len(row) >= HEADER.size + WORD_BYTES
        and len(row) % WORD_BYTES == 0
        and crc32c(row) == INTACT_CRC
        and HEADER.unpack_from(row)[3] == block_id
    )


def decode_block(block_id: BlockId, row: bytes) -> BlockData:
    """Return the block that `row` describes. Raise DamagedData if the row is damaged."""
    if not is_intact(block_id, row):
        raise DamagedData(f"row of block {block_id}: {len(row)} bytes fail their checksum")
    magic, version, chunk_count, _, bcsid, metadata_bytes, _ = HEADER.unpack_from(row)
    if (magic, version) != (MAGIC, VERSION):
        raise DamagedData(
            f"row of block {block_id}: unknown format {magic:#06x}, version {version}"
        )
    try:
        chunks, end = decode_chunks(row, chunk_count)
        check_layout(end + metadata_bytes + CRC.size, len(row))
        block = BlockData(
            block_id=block_id,
            bcsid=Bcsid(bcsid),
            chunks=tuple(chunks),
            metadata=tuple(decode_texts(row[end : end + metadata_bytes])),
        )
        check_block(block)
    except (struct.error, ValueError) as error:
        raise DamagedData(f"row of block {block_id}: {error}") from error
    return block


def check_layout(used_bytes: int, row_bytes: int) -> None:
    """Raise ValueError if a row of `row_bytes` bytes is not as long as its content of `used_bytes`
    bytes requires."""
    if used_bytes + -used_bytes % WORD_BYTES != row_bytes:
        raise ValueError(f"{used_bytes} bytes of content in {row_bytes} bytes")


def decode_chunks(row: bytes, chunk_count: int) -> tuple[list[ChunkInfo], int]:
    """Return the chunks of a row, and the offset in the row of the first byte after the chunks."""
    if chunk_count > ALIKE_MIN:
        chunks, start = _alike_chunks(row, chunk_count)
    else:
        chunks, start = [], HEADER.size + CHUNK.size * chunk_count
    table = row[HEADER.size + CHUNK.size * len(chunks) : HEADER.size + CHUNK.size * chunk_count]
    for checksums_bytes, kind in CHUNK.iter_unpack(table):
        offset, length_bytes = POSITION.unpack_from(row, start)
        start += POSITION.size
        chunks.append(
            ChunkInfo(
                offset,
                length_bytes,
                _KINDS.get(kind >> TYPE_SHIFT) or ChecksumType(kind >> TYPE_SHIFT),
                kind & WINDOW_MASK,
                row[start : start + checksums_bytes],
            )
        )
        start += checksums_bytes + -checksums_bytes % WORD_BYTES
    return chunks, start


def _alike_chunks(row: bytes, chunk_count: int) -> tuple[list[ChunkInfo], int]:
    """Decode all chunks of a row except the last one in one operation.

    Return these chunks, and the offset of the last chunk in the row. If the checksum types, window
    sizes or numbers of checksums of the chunks differ, return no chunks and the offset of the first
    chunk.
    """
    start = HEADER.size + CHUNK.size * chunk_count
    count = chunk_count - 1
    first = row[HEADER.size : HEADER.size + CHUNK.size]
    if row[HEADER.size : start - CHUNK.size] != first * count:
        return [], start
    checksums_bytes, packed = CHUNK.unpack(first)
    kind = _KINDS.get(packed >> TYPE_SHIFT) or ChecksumType(packed >> TYPE_SHIFT)
    bytes_per_checksum = packed & WINDOW_MASK
    leaf = f">QQ{checksums_bytes}s{-checksums_bytes % WORD_BYTES}x"
    end = start + struct.calcsize(leaf) * count
    return [
        ChunkInfo(offset, length_bytes, kind, bytes_per_checksum, checksums)
        for offset, length_bytes, checksums in struct.iter_unpack(leaf, row[start:end])
    ], end


def decode_texts(data: bytes) -> list[tuple[str, str]]:
    """Return the (key, value) pairs that are encoded in `data`. Raise ValueError if an entry is
    longer than `data`."""
    texts = []
    start = 0
    while start < len(data):
        key_bytes, value_bytes = TEXT.unpack_from(data, start)
        middle = start + TEXT.size + key_bytes
        end = middle + value_bytes
        if end > len(data):
            raise ValueError(f"metadata entry at byte {start} runs past {len(data)}")
        texts.append((data[start + TEXT.size : middle].decode(), data[middle:end].decode()))
        start = end
    return texts


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The fields of many rows, as columns, from which a tree is built.

    `octets` has the bytes of all rows. `block_ids`, `bcsids` and `chunk_counts` have one value per
    row. The other columns have one value per chunk, in row order. The leaf of a chunk is the
    checksum of `leaf_lengths` bytes of `octets`, beginning at `leaf_starts`. These bytes include
    the chunk's offset and length.
    """

    octets: npt.NDArray[np.uint8]
    block_ids: U64s
    bcsids: U64s
    chunk_counts: npt.NDArray[np.int64]
    offsets: U64s
    lengths_bytes: U64s
    leaf_starts: npt.NDArray[np.int64]
    leaf_lengths: npt.NDArray[np.int64]


def batches(
    rows: Iterable[tuple[BlockId, bytes]],
) -> Iterator[tuple[Sequence[BlockId], Sequence[bytes]]]:
    """Yield (block ids, rows) for `read_columns`, with at most ROWS_PER_BATCH rows each.

    The function does not use `zip(*batch)`, which would create an iterator for each row and trigger
    the garbage collector.
    """
    iterator = iter(rows)
    while batch := list(islice(iterator, ROWS_PER_BATCH)):
        yield [block_id for block_id, _ in batch], [row for _, row in batch]


def read_columns(block_ids: Sequence[BlockId], rows: Sequence[bytes]) -> RowColumns:
    """Return the fields of these rows as columns. Raise DamagedData if a row is damaged. The
    message names the first damaged row."""
    count = len(rows)
    ids = np.fromiter(block_ids, dtype=np.uint64, count=count)
    sizes_bytes = np.fromiter(map(len, rows), dtype=np.int64, count=count)
    refuse(ids, (sizes_bytes < HEADER.size + WORD_BYTES) | (sizes_bytes % WORD_BYTES != 0), "size")
    refuse(ids, fold_each(Algorithm.CRC32C, rows, count) != INTACT_CRC, "checksum")

    joined = b"".join(rows)
    words = np.frombuffer(joined, dtype="<u8")
    sizes = sizes_bytes // WORD_BYTES
    starts = np.cumsum(sizes) - sizes
    first = words[starts]
    refuse(ids, (first & 0xFFFF_FFFF) != (VERSION << 16 | MAGIC), "format")
    refuse(ids, words[starts + 1] != ids, "block id")
    counts = (first >> np.uint64(32)).astype(np.int64)
    refuse(ids, HEADER_WORDS + counts > sizes, "chunk count")

    leaf_sizes_bytes, leaf_words, bases = read_table(words, starts, counts)
    metadata_bytes = (words[starts + 3] & 0xFFFF_FFFF).astype(np.int64)
    tails = (metadata_bytes + CRC.size + WORD_BYTES - 1) // WORD_BYTES
    leaf_ends = np.cumsum(leaf_words)
    block_words = np.diff(np.append(0, leaf_ends)[np.append(0, np.cumsum(counts))])
    refuse(ids, HEADER_WORDS + counts + block_words + tails != sizes, "layout")

    before = np.cumsum(block_words) - block_words
    leaf_starts = leaf_ends - leaf_words + np.repeat(starts + bases - before, counts)
    big_endian = words.view(">u8")
    return RowColumns(
        octets=words.view(np.uint8),
        block_ids=ids,
        bcsids=words[starts + 2],
        chunk_counts=counts,
        offsets=big_endian[leaf_starts].astype(np.uint64),
        lengths_bytes=big_endian[leaf_starts + 1].astype(np.uint64),
        leaf_starts=leaf_starts * WORD_BYTES,
        leaf_lengths=leaf_sizes_bytes,
    )


def read_table(
    words: U64s, starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Read the length of each chunk's checksums from the rows.

    Return three columns. The first two have one value per chunk: the number of bytes that are the
    input of the chunk's leaf, and the same number in words of 8 bytes. The third has one value per
    row: the position in words at which the inputs of the leaves begin.
    """
    chunk_count = int(counts.sum())
    firsts = np.cumsum(counts) - counts
    within = np.arange(chunk_count) - np.repeat(firsts, counts)
    table = words[np.repeat(starts + HEADER_WORDS, counts) + within]
    leaf_sizes_bytes = (table & 0xFFFF_FFFF).astype(np.int64) + POSITION.size
    leaf_words = (leaf_sizes_bytes + WORD_BYTES - 1) // WORD_BYTES
    return leaf_sizes_bytes, leaf_words, HEADER_WORDS + counts


def refuse(ids: U64s, wrong: npt.NDArray[np.bool_], what: str) -> None:
    """Raise DamagedData if any item of `wrong` is True. The message names the first such block of
    `ids`."""
    if wrong.any():
        raise DamagedData(f"row of block {ids[int(wrong.argmax())]}: wrong {what}")
