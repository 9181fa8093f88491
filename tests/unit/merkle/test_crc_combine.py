"""A chunk's CRC from its windows' CRCs, and the one flipped bit that a wrong CRC betrays."""

import zlib
from random import Random

import pytest

from merkle.checksum import (
    CASTAGNOLI,
    IEEE,
    crc32c,
    long_crc32,
    long_crc32c,
    window_checksums,
    windows_verify,
)
from merkle.checksum_columns import NO_WHOLE, flipped_bit, whole_checksums
from merkle.crc_combine import combined
from merkle.isal_library import isal_library
from merkle.replica import ChecksumType, ChunkInfo

LENGTHS = [
    (16_384, 4 * 1024**2),
    (16_384, 4 * 1024**2 + 1),
    (16_384, 16_384),
    (16_384, 5),
    (512, 512 * 600),
    (512, 512 * 600 + 17),
    (1, 1_000),
    (4_096, 4_096 * 256 + 4_095),
]
CRC_TYPES = [ChecksumType.CRC32C, ChecksumType.CRC32]


def noise(length_bytes: int, seed: int = 1) -> bytes:
    """Return bytes that no accident repeats."""
    return Random(seed).randbytes(length_bytes)


@pytest.mark.parametrize(("window_bytes", "length_bytes"), LENGTHS)
def test_windows_combine_to_the_crc_of_the_whole(window_bytes: int, length_bytes: int) -> None:
    """The result of two libraries over the whole follows from the windows alone."""
    data = noise(length_bytes)

    for checksum_type, polynomial, whole in (
        (ChecksumType.CRC32C, CASTAGNOLI, crc32c(data)),
        (ChecksumType.CRC32, IEEE, zlib.crc32(data)),
    ):
        sums = window_checksums(checksum_type, window_bytes, data)
        assert whole == combined(
            polynomial, sums, part_bytes=window_bytes, length_bytes=length_bytes
        )


def test_the_library_for_long_data_agrees_with_the_other() -> None:
    """Two libraries that share no code give one CRC-32C: any length, any place in memory, and
    any buffer that a scan reads into."""
    memory = bytearray(noise(100_000))
    random = Random(5)

    assert long_crc32c()(b"123456789") == 0xE3069283  # RFC 3720's polynomial, the catalogue's check
    for length_bytes in (*range(600), *(random.randrange(90_000) for _ in range(200))):
        start = random.randrange(10_000)
        with memoryview(memory) as whole, whole[start : start + length_bytes] as part:
            assert crc32c(part) == long_crc32c()(part)


def test_isa_l_has_the_crc_32_of_zlib() -> None:
    """The two agree for any length, any place in memory, any initial value and any buffer."""
    memory = bytearray(noise(100_000))
    random = Random(6)
    crc32 = long_crc32()

    assert isal_library() is not None
    assert crc32 is not zlib.crc32
    for length_bytes in (*range(4_000, 4_200), *(random.randrange(90_000) for _ in range(200))):
        start, value = random.randrange(10_000), random.randrange(1 << 32)
        with memoryview(memory) as whole, whole[start : start + length_bytes] as part:
            expected = zlib.crc32(part, value)
            for buffer in (part, part.toreadonly(), bytes(part), bytearray(part)):
                assert expected == crc32(buffer, value)


def test_many_chunks_are_told_at_once_what_one_by_one_they_have() -> None:
    """The CRC to expect of each chunk is that of its data, whatever lies beside it; chunks that
    have to be compared window by window are left out."""
    shapes = [(4_096, 40_960), (4_096, 40_960), (4_096, 50_001), (512, 512 * 600), (512, 512 * 600)]
    chunks, wholes = [], []
    for seed, (window_bytes, length_bytes) in enumerate(shapes):
        data = noise(length_bytes, seed)
        for checksum_type in ChecksumType:
            sums = window_checksums(checksum_type, window_bytes, data)
            chunks.append(ChunkInfo(0, length_bytes, checksum_type, window_bytes, sums))
            known = {ChecksumType.CRC32C: crc32c, ChecksumType.CRC32: zlib.crc32}
            wholes.append(known[checksum_type](data) if checksum_type in known else NO_WHOLE)
    chunks.append(ChunkInfo(0, 0, ChecksumType.CRC32C, 4_096, b""))
    chunks.append(ChunkInfo(0, 4, ChecksumType.CRC32C, 4_096, bytes(4)))

    assert [*wholes, NO_WHOLE, NO_WHOLE] == whole_checksums(chunks)
    assert whole_checksums([]) == []


@pytest.mark.parametrize("missing", [-4, 4])
def test_a_wrong_number_of_checksums_is_refused(missing: int) -> None:
    """Too few or too many checksums are no CRC of anything."""
    sums = bytes(40 + missing)

    with pytest.raises(ValueError, match=f"{len(sums)} bytes of checksums for 40960 bytes"):
        combined(CASTAGNOLI, sums, part_bytes=4_096, length_bytes=40_960)


@pytest.mark.parametrize("checksum_type", list(ChecksumType))
@pytest.mark.parametrize(("window_bytes", "length_bytes"), LENGTHS)
def test_whole_chunk_passes_the_quick_check(
    checksum_type: ChecksumType, window_bytes: int, length_bytes: int
) -> None:
    """The quick check accepts what the check by windows accepts, for every type and shape."""
    data = noise(length_bytes)
    sums = window_checksums(checksum_type, window_bytes, data)

    assert windows_verify(checksum_type, window_bytes, sums, data)
    assert windows_verify(checksum_type, window_bytes, sums, memoryview(data))


@pytest.mark.parametrize(
    "checksum_type", [item for item in ChecksumType if item is not ChecksumType.NONE]
)
def test_any_change_of_bytes_or_checksums_fails(checksum_type: ChecksumType) -> None:
    """One bit of data, one bit of a checksum, and one byte more or less are all detected."""
    random = Random(2)
    data = noise(16 * 4_096 + 100)
    sums = window_checksums(checksum_type, 4_096, data)

    for _ in range(200):
        assert not windows_verify(checksum_type, 4_096, sums, flip(data, random))
        assert not windows_verify(checksum_type, 4_096, flip(sums, random), data)
    for other in (data[:-1], data + b"\0", data[:-101], data[4_096:], b""):
        assert not windows_verify(checksum_type, 4_096, sums, other)
    assert not windows_verify(checksum_type, 4_096, sums[:-4], data)


def test_windows_that_changed_places_fail() -> None:
    """Order counts: right windows in wrong places are not what was written."""
    data = noise(16 * 4_096)
    sums = window_checksums(ChecksumType.CRC32C, 4_096, data)
    swapped = data[4_096:8_192] + data[:4_096] + data[8_192:]

    assert not windows_verify(ChecksumType.CRC32C, 4_096, sums, swapped)


@pytest.mark.parametrize("checksum_type", CRC_TYPES)
@pytest.mark.parametrize("length_bytes", [1, 100, 16_384])
def test_a_single_flipped_bit_is_located_without_the_good_bytes(
    checksum_type: ChecksumType, length_bytes: int
) -> None:
    """Two checksums are enough to name the byte and the bit."""
    random = Random(3)
    data = bytearray(noise(length_bytes))
    expected = window_checksums(checksum_type, length_bytes, data)

    for _ in range(100):
        byte, bit = random.randrange(length_bytes), random.randrange(8)
        data[byte] ^= 1 << bit
        actual = window_checksums(checksum_type, length_bytes, data)
        data[byte] ^= 1 << bit
        assert (byte, bit) == flipped_bit(checksum_type, length_bytes, expected, actual)


def test_two_flipped_bits_are_not_taken_for_one() -> None:
    """CRC32C distinguishes one flipped bit from two at any distance in a window."""
    random = Random(4)
    data = noise(16_384)
    expected = window_checksums(ChecksumType.CRC32C, 16_384, data)

    for _ in range(200):
        twice = flip(flip(data, random), random)
        actual = window_checksums(ChecksumType.CRC32C, 16_384, twice)
        if twice != data:
            assert flipped_bit(ChecksumType.CRC32C, 16_384, expected, actual) is None


def test_a_bit_is_not_sought_where_no_crc_is() -> None:
    """A cryptographic checksum does not locate damage."""
    sums = window_checksums(ChecksumType.MD5, 100, noise(100))

    assert flipped_bit(ChecksumType.MD5, 100, sums, bytes(16)) is None


def flip(data: bytes, random: Random) -> bytes:
    """Return the data with one random bit changed."""
    changed = bytearray(data)
    changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(changed)
