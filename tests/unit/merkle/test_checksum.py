"""Window checksums and folds are those that the documents and other programs compute."""

import hashlib
import mmap
import zlib

import crcmod.predefined
import numpy as np
import pytest

from merkle.checksum import (
    Algorithm,
    block_checksum,
    checksum_width_bytes,
    crc32c,
    leaf_checksum,
    long_crc32c,
    window_checksums,
    window_count,
    windows_verify,
    xxh3_64,
)
from merkle.checksum_columns import (
    NO_WHOLE,
    TABLE_BYTES_MAX,
    TABLE_COUNT_MIN,
    TABLE_ROWS,
    container_checksum,
    flipped_bit,
    fold_slices,
    short_crc32cs,
    whole_checksums,
)
from merkle.replica import BlockId, ChecksumType, ChunkInfo
from tests.support.storage.trees import CHUNK_A, CHUNK_B, WINDOW_BYTES, chunk


def test_crc32c_is_castagnolis() -> None:
    """
    The check value of RFC 3720.
    """
    assert 0xE3069283 == crc32c(b"123456789")


def test_crc32c_continues_from_a_value() -> None:
    """
    A checksum over two pieces is the checksum of the whole.
    """
    assert crc32c(b"123456789") == crc32c(b"56789", crc32c(b"1234"))
    long = long_crc32c()
    assert crc32c(b"123456789") == long(b"56789", long(b"1234"))


def test_xxh3_is_the_published_one() -> None:
    """
    The value of the empty input that xxHash's own documentation gives, and pieces make a whole.
    """
    assert 0x2D06800538D394C2 == xxh3_64(b"")
    assert xxh3_64(b"one, two") == xxh3_64(b"one", b", ", b"two")


@pytest.mark.parametrize(
    ("checksum_type", "data", "expected"),
    [
        (ChecksumType.CRC32, CHUNK_A, "964ac3ac964ac3ac32253bcc"),
        (ChecksumType.CRC32, CHUNK_B, "1fe6a432"),
        (ChecksumType.CRC32C, CHUNK_A, "e55eb998e55eb9988036a166"),
        (ChecksumType.CRC32C, CHUNK_B, "04f256de"),
        (ChecksumType.SHA256, CHUNK_B, hashlib.sha256(CHUNK_B).hexdigest()),
        (ChecksumType.MD5, CHUNK_B, hashlib.md5(CHUNK_B, usedforsecurity=False).hexdigest()),
        (ChecksumType.NONE, CHUNK_A, ""),
        (ChecksumType.CRC32C, b"", ""),
    ],
)
def test_window_checksums_are_ozones(
    checksum_type: ChecksumType, data: bytes, expected: str
) -> None:
    """
    Each window's checksum stands big-endian behind the one before.
    """
    assert expected == window_checksums(checksum_type, WINDOW_BYTES, data).hex()


@pytest.mark.parametrize("checksum_type", list(ChecksumType))
def test_checksums_are_as_many_as_windows(checksum_type: ChecksumType) -> None:
    """Count and width give the total length, with a short last window."""
    data = bytes(range(256)) * 5

    checksums = window_checksums(checksum_type, 512, data)

    assert window_count(len(data), 512) * checksum_width_bytes(checksum_type) == len(checksums)


@pytest.mark.parametrize(("length_bytes", "count"), [(0, 0), (1, 1), (512, 1), (513, 2)])
def test_the_last_window_may_be_short(length_bytes: int, count: int) -> None:
    """
    Windows cover every byte.
    """
    assert count == window_count(length_bytes, 512)


@pytest.mark.parametrize("window_bytes", [0, -1])
def test_a_window_of_nothing_is_refused(window_bytes: int) -> None:
    """
    No loop over zero bytes at a time.
    """
    with pytest.raises(ValueError, match="covers nothing"):
        window_checksums(ChecksumType.CRC32, window_bytes, b"data")


@pytest.mark.parametrize("checksum_type", list(ChecksumType))
def test_every_buffer_has_the_same_checksums(checksum_type: ChecksumType) -> None:
    """
    A read buffer may be bytes, a bytearray, a slice of a mapping, or wider than a byte.
    """
    data = bytes(range(256)) * 8
    mapping = mmap.mmap(-1, 4096)
    mapping[: len(data)] = data
    buffers = [bytearray(data), memoryview(data).cast("Q"), memoryview(mapping)[: len(data)]]

    expected = window_checksums(checksum_type, 600, data)

    assert [expected] * 3 == [window_checksums(checksum_type, 600, each) for each in buffers]


def test_ozones_leaf_leaves_out_the_position() -> None:
    """
    Under crc32c a chunk has the same leaf wherever it is.
    """
    checksums = bytes.fromhex("964ac3ac964ac3ac32253bcc")

    assert 820081075 == leaf_checksum(Algorithm.CRC32C, 0, 40960, checksums)
    assert 820081075 == leaf_checksum(Algorithm.CRC32C, 1, 2, checksums)
    assert 0 == leaf_checksum(Algorithm.CRC32C, 0, 0, b"")


def test_our_leaf_includes_the_position() -> None:
    """
    Under xxh3_64 the same bytes elsewhere, or fewer of them, have another leaf.
    """
    checksums = bytes.fromhex("964ac3ac")
    positions = [(0, 100), (100, 100), (0, 99), (1 << 32, 100)]

    leaves = {leaf_checksum(Algorithm.XXH3_64, *position, checksums) for position in positions}

    assert len(positions) == len(leaves)
    assert xxh3_64(bytes(15) + b"\x64" + checksums) in leaves


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_a_block_folds_its_id_and_its_leaves(algorithm: Algorithm) -> None:
    """
    The same chunks in another block, or in another order, are another block.
    """
    leaves = [3, 1 << 31]

    checksums = {
        block_checksum(algorithm, BlockId(1), leaves),
        block_checksum(algorithm, BlockId(2), leaves),
        block_checksum(algorithm, BlockId(1), leaves[::-1]),
        block_checksum(algorithm, BlockId(1), []),
    }

    assert 4 == len(checksums)


def test_chunkless_and_empty_are_ozones_fixed_points() -> None:
    """
    Nothing folds to 0, and a block without chunks to the fold of its id.
    """
    chunkless = block_checksum(Algorithm.CRC32C, BlockId(1), [])

    assert 0 == container_checksum(Algorithm.CRC32C, [])
    assert 2118332809 == chunkless
    assert 2938966949 == container_checksum(Algorithm.CRC32C, [chunkless])


@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize(
    "lengths",
    [[], [0], [16] * 40, [64] * 3, [65] * 3, [16, 24, 16, 0, 200], [1], [256] * 2],
    ids=str,
)
def test_slices_fold_like_one_by_one(algorithm: Algorithm, lengths: list[int]) -> None:
    """Each slice has the fold of its own bytes, whatever way the slices are cut."""
    data = np.random.default_rng(3).integers(0, 256, 1_000, dtype=np.uint8)
    starts = np.arange(len(lengths)) * 7
    fold = crc32c if algorithm is Algorithm.CRC32C else xxh3_64
    expected = [
        fold(data.tobytes()[start : start + length])
        for start, length in zip(starts, lengths, strict=True)
    ]

    folded = fold_slices(algorithm, data, starts, np.array(lengths, dtype=np.int64))

    assert expected == folded.tolist()


@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("length_bytes", [1, 4, 12, 16, TABLE_BYTES_MAX, TABLE_BYTES_MAX + 1])
@pytest.mark.parametrize("count", [TABLE_COUNT_MIN - 1, TABLE_COUNT_MIN, TABLE_ROWS + 1])
def test_many_short_slices_fold_like_one_by_one(
    algorithm: Algorithm, length_bytes: int, count: int
) -> None:
    """Each fold agrees with another library, in the order of the request."""
    data = np.random.default_rng(length_bytes).integers(0, 256, 10_000, dtype=np.uint8)
    starts = np.random.default_rng(count).integers(0, len(data) - length_bytes, count)
    by_table = crcmod.predefined.mkPredefinedCrcFun("crc-32c")
    fold = by_table if algorithm is Algorithm.CRC32C else xxh3_64
    expected = [fold(data.tobytes()[start : start + length_bytes]) for start in starts]

    folded = fold_slices(algorithm, data, starts, np.full(count, length_bytes))

    assert expected == folded.tolist()


@pytest.mark.parametrize("length_bytes", [4, TABLE_BYTES_MAX])
def test_short_rows_are_looked_up_together(length_bytes: int) -> None:
    """The values equal those of single look-ups, including zeros."""
    rows = np.random.default_rng(5).integers(0, 256, (TABLE_ROWS + 1, length_bytes), dtype=np.uint8)
    rows[0] = 0

    assert [crc32c(row.tobytes()) for row in rows] == short_crc32cs(rows).tolist()


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 40])
@pytest.mark.parametrize("short_bytes", [0, 1])
@pytest.mark.parametrize("checksum_type", list(ChecksumType))
def test_windows_verify_as_one_by_one(
    checksum_type: ChecksumType, count: int, short_bytes: int
) -> None:
    """Any number of correct windows verifies, and a wrong byte anywhere does not."""
    length_bytes = max(0, 100 * count - short_bytes)
    data = bytearray(number % 251 for number in range(length_bytes))
    expected = window_checksums(checksum_type, 100, data)

    assert windows_verify(checksum_type, 100, expected, data)
    for position in range(0, len(data), 99):
        data[position] ^= 4
        fits = windows_verify(checksum_type, 100, expected, data)
        assert fits is (checksum_type is ChecksumType.NONE)
        data[position] ^= 4


@pytest.mark.parametrize(
    ("checksum_type", "window_bytes", "count", "is_known"),
    [
        (ChecksumType.CRC32C, 100, 8, True),
        (ChecksumType.CRC32C, 1, 8, True),
        (ChecksumType.CRC32C, 100, 7, False),
        (ChecksumType.CRC32, 100, 8, True),
        (ChecksumType.CRC32, 100, 7, False),
        (ChecksumType.MD5, 100, 8, False),
    ],
)
def test_the_checksum_of_a_whole_chunk_is_known_from_eight_windows_on(
    checksum_type: ChecksumType, window_bytes: int, count: int, is_known: bool
) -> None:
    """The checksum covers all bytes. If it is unknown, the windows are compared."""
    data = bytes(number % 251 for number in range(window_bytes * count))
    piece = chunk(0, data, checksum_type, window_bytes)

    crc = zlib.crc32 if checksum_type is ChecksumType.CRC32 else crc32c
    assert [crc(data) if is_known else NO_WHOLE] == whole_checksums([piece])


def test_a_chunk_without_windows_has_no_checksum_as_a_whole() -> None:
    """An impossible chunk is compared window by window, and refused there."""
    piece = ChunkInfo(0, 64, ChecksumType.CRC32C, 0, bytes(32))

    assert [NO_WHOLE] == whole_checksums([piece])


@pytest.mark.parametrize("checksum_type", [ChecksumType.CRC32, ChecksumType.CRC32C])
def test_only_a_bit_of_the_window_explains_a_wrong_checksum(checksum_type: ChecksumType) -> None:
    """
    Each bit of ten bytes is found; a change that a bit in front of them would make is not.
    """
    data = bytes(range(50, 61))
    for position in range(11):
        flipped = bytearray(data)
        flipped[position] ^= 8
        checksums = [window_checksums(checksum_type, 100, each) for each in (data, flipped)]

        found = flipped_bit(checksum_type, 10, *checksums)

        assert found == ((position - 1, 3) if position else None)


@pytest.mark.parametrize("length_bytes", [0, -1])
def test_no_bit_of_nothing_explains_anything(length_bytes: int) -> None:
    """
    An empty window has no bit that could have flipped.
    """
    assert flipped_bit(ChecksumType.CRC32C, length_bytes, bytes(4), bytes(4)) is None


def test_crc32_is_zlibs() -> None:
    """
    The client's default type, over one window.
    """
    assert zlib.crc32(CHUNK_B).to_bytes(4) == window_checksums(ChecksumType.CRC32, 1024, CHUNK_B)
