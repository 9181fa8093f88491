"""A block's row says what was put in, or says that it is damaged."""

import struct

import pytest

from merkle.blockrow import (
    ALIKE_MIN,
    HEADER,
    INTACT_CRC,
    TEXT,
    batches,
    check_block,
    decode_block,
    encode_block,
    is_intact,
    read_columns,
)
from merkle.checksum import crc32c
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
from tests.support.storage.trees import CHUNK_A, CHUNK_B, block, chunk


def alike(count: int) -> tuple[ChunkInfo, ...]:
    """Return chunks of 100 bytes that have equally many checksums."""
    return tuple(chunk(100 * at, bytes([at]) * 100) for at in range(count))


BLOCKS = [
    block(1),
    block(2, CHUNK_B),
    block(3, CHUNK_A, CHUNK_B, metadata=(("key", "/a/b"), ("", "é"))),
    block(4, CHUNK_B, checksum_type=ChecksumType.NONE),
    block(5, CHUNK_A, checksum_type=ChecksumType.SHA256),
    block(6, CHUNK_A, CHUNK_B, checksum_type=ChecksumType.MD5),
    BlockData(BlockId(7), Bcsid(ID_MAX), (chunk(5, CHUNK_B),)),
    BlockData(BlockId(8), Bcsid(3), (chunk(0, CHUNK_B, window_bytes=33), chunk(100, CHUNK_B))),
    BlockData(BlockId(9), Bcsid(3), (ChunkInfo(0, 10, ChecksumType.NONE, 0, b""),)),
    BlockData(
        BlockId(10), Bcsid(3), (ChunkInfo(BLOCK_BYTES_MAX - 1, 1, ChecksumType.NONE, 1, b""),)
    ),
    BlockData(BlockId(11), Bcsid(3), (ChunkInfo(0, CHUNK_BYTES_MAX, ChecksumType.NONE, 1, b""),)),
    BlockData(
        BlockId(12), Bcsid(3), (ChunkInfo(0, 10, ChecksumType.CRC32C, WINDOW_BYTES_MAX, bytes(4)),)
    ),
    BlockData(BlockId(ID_MAX), Bcsid(0), (chunk(0, b""),)),
    BlockData(BlockId(13), Bcsid(1), alike(9)),
    BlockData(BlockId(14), Bcsid(1), (*alike(9), chunk(900, CHUNK_B[:40])), (("k", "v"),)),
    BlockData(BlockId(15), Bcsid(1), (*alike(9), chunk(900, CHUNK_B), chunk(1_000, CHUNK_B[:40]))),
    BlockData(BlockId(16), Bcsid(1), (*alike(3), chunk(300, CHUNK_B, ChecksumType.CRC32))),
    BlockData(
        BlockId(19),
        Bcsid(1),
        (*alike(3), chunk(300, CHUNK_B, ChecksumType.CRC32), *alike(9)[4:]),
    ),
    BlockData(BlockId(17), Bcsid(1), (*alike(7), chunk(700, CHUNK_B, ChecksumType.MD5))),
    BlockData(
        BlockId(18),
        Bcsid(1),
        tuple(ChunkInfo(9 * at, 9, ChecksumType.NONE, 0, b"") for at in range(9)),
    ),
]
PLAIN = ChunkInfo(0, 10, ChecksumType.CRC32C, 16_384, bytes(4))


ALIKE_CHUNK = struct.pack("<II", 4, 3 << 28 | 16_384)
ALIKE_LEAF = struct.pack(">QQ4s4x", 0, 10, bytes(4))


def sealed(content: bytes) -> bytes:
    """Return `content` as a row whose checksum fits, whatever is in it."""
    content += bytes(-(len(content) + 4) % 8)
    return content + crc32c(content).to_bytes(4, "little")


@pytest.mark.parametrize("original", BLOCKS, ids=lambda block: str(block.block_id))
def test_encoded_block_is_decoded_again(original: BlockData) -> None:
    """The blocks have every checksum type, no chunks, a hole in front, and metadata in any
    script.
    """
    row = encode_block(original)

    assert original == decode_block(original.block_id, row)
    assert is_intact(original.block_id, row)
    assert INTACT_CRC == crc32c(row)


@pytest.mark.parametrize("original", BLOCKS, ids=lambda block: str(block.block_id))
def test_any_flipped_bit_is_noticed(original: BlockData) -> None:
    """One flipped bit anywhere in a row is detected by both readers."""
    row = encode_block(original)
    for position in range(len(row)):
        damaged = bytearray(row)
        damaged[position] ^= 1 << position % 8

        assert not is_intact(original.block_id, bytes(damaged))
        with pytest.raises(DamagedData, match=f"block {original.block_id}"):
            decode_block(original.block_id, bytes(damaged))


def test_rows_read_together_are_what_each_says() -> None:
    """
    Ids, commits, and where each chunk is: column by column the same as one by one.
    """
    rows = [encode_block(block) for block in BLOCKS]
    pieces = [piece for block in BLOCKS for piece in block.chunks]

    columns = read_columns([block.block_id for block in BLOCKS], rows)

    assert [block.block_id for block in BLOCKS] == columns.block_ids.tolist()
    assert [block.bcsid for block in BLOCKS] == columns.bcsids.tolist()
    assert [len(block.chunks) for block in BLOCKS] == columns.chunk_counts.tolist()
    assert [piece.offset for piece in pieces] == columns.offsets.tolist()
    assert [piece.length_bytes for piece in pieces] == columns.lengths_bytes.tolist()
    for piece, start, length in zip(pieces, columns.leaf_starts, columns.leaf_lengths, strict=True):
        leaf = piece.offset.to_bytes(8) + piece.length_bytes.to_bytes(8) + piece.window_checksums
        assert leaf == columns.octets[start : start + length].tobytes()


@pytest.mark.parametrize("length_bytes", range(9))
def test_metadata_of_any_length_is_read_by_both_readers(length_bytes: int) -> None:
    """Both readers read metadata that ends anywhere in a word."""
    original = BlockData(BlockId(1), Bcsid(1), (), (("k", "v" * length_bytes),))
    row = encode_block(original)

    assert original == decode_block(BlockId(1), row)
    assert [1] == read_columns([BlockId(1)], [row]).block_ids.tolist()


def test_metadata_of_the_maximum_size_is_encoded() -> None:
    """The two lengths of the entry count, too."""
    original = BlockData(BlockId(1), Bcsid(1), (), (("k", "v" * (METADATA_BYTES_MAX - 9)),))

    assert original == decode_block(BlockId(1), encode_block(original))


def test_a_block_of_as_many_chunks_as_are_possible_is_encoded() -> None:
    """
    The limit itself is allowed.
    """
    check_block(BlockData(BlockId(1), Bcsid(0), (chunk(0, b""),) * CHUNKS_PER_BLOCK_MAX))


@pytest.mark.parametrize("length_bytes", [0, 12, 20, 28, 41 - 4])
def test_a_sealed_piece_of_a_row_is_no_row(length_bytes: int) -> None:
    """
    A checksum that fits makes no row of what is too short, or ends within a word.
    """
    content = (HEADER.pack(0x5242, 1, 0, 1, 0, 0, 0) + bytes(8))[:length_bytes]
    row = content + crc32c(content).to_bytes(4, "little")

    assert INTACT_CRC == crc32c(row)
    assert not is_intact(BlockId(1), row)
    with pytest.raises(DamagedData, match="block 1: wrong size"):
        read_columns([BlockId(1)], [row])


def test_a_damaged_row_among_many_is_named() -> None:
    """
    Rows parsed together are checked one by one.
    """
    ids = [block.block_id for block in BLOCKS]
    rows = [encode_block(block) for block in BLOCKS]
    rows[2] = rows[2][:-1] + bytes([rows[2][-1] ^ 128])

    with pytest.raises(DamagedData, match="block 3: wrong checksum"):
        read_columns(ids, rows)


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 39])
def test_a_torn_row_is_noticed(cut: int) -> None:
    """A part of a row is not read as a row."""
    row = encode_block(BLOCKS[2])[:cut]

    assert not is_intact(BlockId(3), row)
    with pytest.raises(DamagedData, match="block 3"):
        decode_block(BlockId(3), row)
    with pytest.raises(DamagedData, match="block 3: wrong size"):
        read_columns([BlockId(3)], [row])


def test_the_row_of_another_block_is_refused() -> None:
    """
    A row stored under the wrong key is intact, and still not this block's.
    """
    row = encode_block(BLOCKS[1])

    with pytest.raises(DamagedData, match="block 9"):
        decode_block(BlockId(9), row)
    with pytest.raises(DamagedData, match="block 9: wrong block id"):
        read_columns([BlockId(9)], [row])


@pytest.mark.parametrize(
    "row",
    [
        sealed(HEADER.pack(0x5243, 1, 0, 1, 0, 0, 0)),
        sealed(HEADER.pack(0x5242, 2, 0, 1, 0, 0, 0)),
        sealed(HEADER.pack(0x5242, 1, 9, 1, 0, 0, 0)),
        sealed(HEADER.pack(0x5242, 1, 0, 1, 0, 99, 0)),
        sealed(HEADER.pack(0x5242, 1, 0, 1, 0, 0, 0) + bytes(8)),
        sealed(HEADER.pack(0x5242, 1, 9, 1, 0, 0, 0) + 9 * ALIKE_CHUNK + 3 * ALIKE_LEAF),
        sealed(HEADER.pack(0x5242, 1, 9, 1, 0, 0, 0) + 9 * ALIKE_CHUNK + 9 * ALIKE_LEAF[:-8]),
        sealed(HEADER.pack(0x5242, 1, 9, 1, 0, 0, 0) + 9 * struct.pack("<II", 2**31, 3 << 28)),
        sealed(HEADER.pack(0x5242, 1, 9, 1, 0, 0, 0) + 9 * struct.pack("<II", 4, 9 << 28 | 64)),
    ],
    ids=[
        "magic",
        "version",
        "chunk count",
        "metadata",
        "a word too many",
        "three of nine chunks that are alike",
        "nine that are cut",
        "checksums of gigabytes",
        "nine of no known type",
    ],
)
def test_nonsense_under_a_good_checksum_is_damage(row: bytes) -> None:
    """
    A row that a faulty writer sealed is refused by both readers.
    """
    with pytest.raises(DamagedData, match="block 1"):
        read_columns([BlockId(1)], [row])
    with pytest.raises(DamagedData, match="block 1"):
        decode_block(BlockId(1), row)


def test_metadata_that_runs_past_its_end_is_damage() -> None:
    """The length of a value is limited by the end of the row."""
    row = sealed(HEADER.pack(0x5242, 1, 0, 1, 0, 10, 0) + TEXT.pack(1, 50) + b"kv")

    with pytest.raises(DamagedData, match="metadata entry at byte 0 runs past 10"):
        decode_block(BlockId(1), row)


def row_of_chunks(chunks: list[tuple[int, int]]) -> bytes:
    """Return the row of block 1, whose chunks have one CRC each: types with windows, lengths."""
    content = HEADER.pack(0x5242, 1, len(chunks), 1, 0, 0, 0)
    for packed, _ in chunks:
        content += (4).to_bytes(4, "little") + packed.to_bytes(4, "little")
    offset = 0
    for _, length_bytes in chunks:
        content += offset.to_bytes(8) + length_bytes.to_bytes(8) + bytes(8)
        offset += length_bytes
    return sealed(content)


@pytest.mark.parametrize("count", [1, 2 * ALIKE_MIN])
@pytest.mark.parametrize(
    ("kind", "length_bytes", "message"),
    [
        (9 << 28 | 16_384, 10, "9 is not a valid ChecksumType"),
        (3 << 28, 10, "chunk at 0: a window of 0 bytes covers nothing"),
        (3 << 28 | 16_384, CHUNK_BYTES_MAX + 1, "chunk at 0: a length of"),
    ],
    ids=["unknown type", "no window", "too long"],
)
def test_a_chunk_that_cannot_be_is_damage(
    kind: int, length_bytes: int, message: str, count: int
) -> None:
    """A chunk that no writer may store is refused, alone or as one of many alike before a valid
    one.
    """
    possible = (3 << 28 | 16_384, 10)

    with pytest.raises(DamagedData, match=f"row of block 1: .*{message}"):
        decode_block(BlockId(1), row_of_chunks([(kind, length_bytes)] * count + [possible]))
    with pytest.raises(DamagedData, match=f"row of block 1: .*{message}"):
        decode_block(BlockId(1), row_of_chunks([(kind, length_bytes)]))
    assert count == len(decode_block(BlockId(1), row_of_chunks([possible] * count)).chunks)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"offset": -1}, "not possible"),
        ({"length_bytes": -1}, "not possible"),
        ({"length_bytes": CHUNK_BYTES_MAX + 1}, "not possible"),
        ({"offset": BLOCK_BYTES_MAX}, "behind"),
        ({"bytes_per_checksum": 1 << 28}, "window of"),
        ({"bytes_per_checksum": WINDOW_BYTES_MAX + 1}, "window of"),
        (
            {
                "bytes_per_checksum": -1,
                "checksum_type": ChecksumType.NONE,
                "window_checksums": b"",
            },
            "window of -1",
        ),
        ({"bytes_per_checksum": 0}, "covers nothing"),
        ({"window_checksums": bytes(8)}, "8 bytes of CRC32C checksums, expected 4"),
        ({"window_checksums": b""}, "0 bytes of CRC32C checksums, expected 4"),
        ({"checksum_type": ChecksumType.NONE}, "4 bytes of NONE checksums, expected 0"),
    ],
)
def test_a_chunk_that_contradicts_itself_is_not_encoded(
    changed: dict[str, object], message: str
) -> None:
    """
    The error names the chunk and what is wrong with it.
    """
    wrong = PLAIN._replace(**changed)

    with pytest.raises(ValueError, match=message) as refused:
        encode_block(BlockData(BlockId(77), Bcsid(0), (wrong,)))

    assert str(refused.value).startswith(f"block 77, chunk at {wrong.offset}: ")


def with_second(**changed: object) -> BlockData:
    """Return a block whose second chunk differs from its first chunk by these fields."""
    return BlockData(BlockId(1), Bcsid(0), (PLAIN, PLAIN._replace(**changed)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (BlockData(BlockId(-1), Bcsid(0)), "block id -1"),
        (BlockData(BlockId(ID_MAX + 1), Bcsid(0)), "block id"),
        (BlockData(BlockId(1), Bcsid(-1)), "bcsid -1"),
        (BlockData(BlockId(1), Bcsid(0), (PLAIN, PLAIN)), "chunk at 0 begins before 10"),
        (with_second(offset=10, window_checksums=b""), "chunk at 10: 0 bytes of CRC32C"),
        (with_second(offset=10, bytes_per_checksum=0), "chunk at 10: a window of 0 bytes"),
        (with_second(offset=BLOCK_BYTES_MAX - 9), "behind"),
        (BlockData(BlockId(1), Bcsid(0), (PLAIN,) * (CHUNKS_PER_BLOCK_MAX + 1)), "65536 chunks"),
        (BlockData(BlockId(1), Bcsid(0), (), (("k", "v" * METADATA_BYTES_MAX),)), "of metadata"),
    ],
    ids=[
        *("id", "id max", "bcsid", "overlap", "second sums", "second window", "second end"),
        *("chunks", "metadata"),
    ],
)
def test_a_block_beyond_limits_is_not_encoded(wrong: BlockData, message: str) -> None:
    """
    Limits hold where rows are made, so that every row that exists obeys them.
    """
    with pytest.raises(ValueError, match=message):
        encode_block(wrong)


def test_rows_come_in_batches() -> None:
    """
    No row is lost or doubled between two batches.
    """
    rows = [(BlockId(number), b"%d" % number) for number in range(10_000)]

    parts = list(batches(iter(rows)))

    assert rows == [pair for ids, raws in parts for pair in zip(ids, raws, strict=True)]
    assert len(parts) > 1
