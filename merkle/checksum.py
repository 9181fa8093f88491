"""The checksums of data windows, and their combination into the checksums of a Merkle tree.

    window  ── type and width chosen by the writer (ChecksumType), default CRC32C every 16 KiB
    leaf    ── fold of a chunk's window checksums
    block   ── fold of (be64 block id, be64 leaf ... by offset)
    root    ── fold of (be64 block ... by block id), live blocks and tombstones

"Fold" means the checksum of a list of checksums. Only this module names algorithms.
docs/DISK_FORMAT.md has the rules with test vectors. The tree algorithm `crc32c` combines checksums
exactly as Apache Ozone does. `xxh3_64` also includes a chunk's offset and length in its leaf, so
that a chunk that is split at a window boundary has a different leaf. The checksums of `xxh3_64`
have 64 bits; with 32 bits, one in four billion damaged blocks would not be detected.
"""

import ctypes
import hashlib
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from importlib import import_module
from typing import Any, Final, Protocol, TypeAlias, cast

import crc32c as crc32c_library
import xxhash

from merkle.isal_library import isal_library
from merkle.replica import BlockId, ChecksumType, ChunkInfo

Buffer: TypeAlias = bytes | bytearray | memoryview
Fold: TypeAlias = Callable[[Any], int]  # over any contiguous buffer

CASTAGNOLI: Final = 0x82F63B78  # polynomial of CRC32C, reflected
IEEE: Final = 0xEDB88320  # polynomial of CRC32, reflected
POLYNOMIALS: Final = {ChecksumType.CRC32: IEEE, ChecksumType.CRC32C: CASTAGNOLI}

COMBINED_WINDOWS_MIN: Final = 8
"""Minimum number of windows for which combining their CRCs is cheaper than computing each CRC."""

CRC32_LONG_BYTES: Final = 4_096
"""Minimum length for which ISA-L's CRC-32, with its call overhead, is faster than zlib's."""


class Algorithm(StrEnum):
    """The algorithm that combines checksums into a tree. Roots of different algorithms are not
    comparable."""

    CRC32C = "crc32c"
    XXH3_64 = "xxh3_64"


WIDTH_BYTES: Final = {
    ChecksumType.NONE: 0,
    ChecksumType.CRC32: 4,
    ChecksumType.CRC32C: 4,
    ChecksumType.SHA256: 32,
    ChecksumType.MD5: 16,
}


def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the CRC-32C (Castagnoli, RFC 3720) of `data`. `value` is the CRC of the data before
    `data`."""
    result: int = crc32c_library.crc32c(data, value)
    return result


class LongCrc(Protocol):
    """A function that returns the CRC of a buffer. Its second argument is the CRC of the data
    before the buffer."""

    def __call__(self, data: Any, value: int = 0, /) -> int: ...  # noqa: D102 - see the class


@cache
def long_crc32c() -> LongCrc:
    """Return the fastest function that computes the CRC-32C of long data.

    The function is twice as fast as `crc32c` if the processor multiplies polynomials 512 bits at a
    time, and equally fast on other processors (ADR 0012). Its library is loaded on first use,
    because the library is large and most commands read no data.
    """
    return cast(LongCrc, import_module("awscrt.checksums").crc32c)


@cache
def long_crc32() -> LongCrc:
    """Return the fastest function that computes the CRC-32 of long data (IEEE, as in zlib).

    It is ISA-L's function, or zlib's if ISA-L is not installed. ISA-L's is four to six times as
    fast as zlib's. CRC-32 is the default checksum of Ozone's clients (ADR 0019).
    """
    library = isal_library()
    if library is None:
        return zlib.crc32
    function = library.crc32_gzip_refl
    function.argtypes = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint64]
    function.restype = ctypes.c_uint32
    view_of, pointer_to = ctypes.c_char.from_buffer, ctypes.byref

    def crc32(data: Any, value: int = 0, /) -> int:
        length_bytes = len(data)
        if length_bytes < CRC32_LONG_BYTES:
            return zlib.crc32(data, value)
        try:
            place = data if isinstance(data, bytes) else pointer_to(view_of(data))
        except TypeError:  # a read-only view does not expose its address
            return zlib.crc32(data, value)
        found: int = function(value, place, length_bytes)
        return found

    return crc32


@cache
def long_crcs() -> Mapping[ChecksumType, LongCrc]:
    """Return the fastest CRC function for long data, by checksum type."""
    return {ChecksumType.CRC32: long_crc32(), ChecksumType.CRC32C: long_crc32c()}


def xxh3_64(*parts: Buffer) -> int:
    """Return the XXH3-64, with seed 0, of the concatenated parts."""
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return state.intdigest()


FOLDS: Final[dict[Algorithm, Fold]] = {
    Algorithm.CRC32C: crc32c_library.crc32c,
    Algorithm.XXH3_64: xxhash.xxh3_64_intdigest,
}


def checksum_width_bytes(checksum_type: ChecksumType) -> int:
    """Return the number of bytes of one window's checksum; 0 for the type NONE."""
    return WIDTH_BYTES[checksum_type]


def window_count(length_bytes: int, bytes_per_checksum: int) -> int:
    """Return the number of windows of `bytes_per_checksum` bytes that cover `length_bytes` bytes.

    The last window may be shorter. Raise ValueError if `bytes_per_checksum` is less than 1.
    """
    if bytes_per_checksum < 1:
        raise ValueError(f"a window of {bytes_per_checksum} bytes covers nothing")
    return -(-length_bytes // bytes_per_checksum)


def window_checksums(checksum_type: ChecksumType, bytes_per_checksum: int, data: Buffer) -> bytes:
    """Return the concatenated checksums of all windows of `data`, in the format of `ChunkInfo`.

    Every read calls this function. Therefore it makes one C call per window and does not copy the
    data.
    """
    if checksum_type is ChecksumType.NONE:
        return b""
    windows = slices_of(data, bytes_per_checksum)
    match checksum_type:
        case ChecksumType.CRC32C:
            return big_endian_32([crc32c_library.crc32c(window) for window in windows])
        case ChecksumType.CRC32:
            return big_endian_32([zlib.crc32(window) for window in windows])
        case ChecksumType.SHA256:
            return b"".join([hashlib.sha256(window).digest() for window in windows])
        case ChecksumType.MD5:
            return b"".join(
                [hashlib.md5(window, usedforsecurity=False).digest() for window in windows]
            )


def short_crc32(data: Buffer) -> int:
    """Return the CRC-32 of one window."""
    return long_crc32()(data) if len(data) >= CRC32_LONG_BYTES else zlib.crc32(data)


SHORT_CRCS: Final[dict[ChecksumType, Callable[[Any], int]]] = {
    ChecksumType.CRC32: short_crc32,
    ChecksumType.CRC32C: crc32c_library.crc32c,
}


def windows_verify(
    checksum_type: ChecksumType, bytes_per_checksum: int, expected: bytes, data: Buffer
) -> bool:
    """Return True if the windows of `data` have the checksums `expected`.

    Every scan calls this function. It combines the expected CRCs of many windows into one CRC of
    all data, so that one C call verifies the bytes and releases the interpreter's lock. It detects
    damage in a single window, and any change of at most three bits (two with CRC32), as reliably as
    a comparison of each window. It misses damage in several windows with about the same probability
    as a comparison of each window misses damage in one window (ADR 0011).
    """
    polynomial = POLYNOMIALS.get(checksum_type)
    if polynomial is not None:
        length_bytes = len(data)
        if 0 < length_bytes <= bytes_per_checksum:
            whole = SHORT_CRCS[checksum_type](data)
            return whole.to_bytes(4) == expected
        count = window_count(length_bytes, bytes_per_checksum)
        if count >= COMBINED_WINDOWS_MIN and len(expected) == 4 * count:
            from merkle.crc_combine import combined  # loads numpy, which most commands never use

            whole = long_crcs()[checksum_type](data)
            return whole == combined(
                polynomial, expected, part_bytes=bytes_per_checksum, length_bytes=length_bytes
            )
        if checksum_type is ChecksumType.CRC32:
            crc32 = long_crc32()
            windows = slices_of(data, bytes_per_checksum)
            return big_endian_32([crc32(window) for window in windows]) == expected
    return window_checksums(checksum_type, bytes_per_checksum, data) == expected


def fits(chunk: ChunkInfo, data: Buffer, *, each: bool = True) -> bool:
    """Return True if `data` has the length and the checksums that are stored for `chunk`.

    If the chunk has the checksum type NONE, only the length is compared. If `each` is True, each
    window is compared, as for data to be written. Otherwise, many windows are compared at once, as
    in scans (ADR 0011).
    """
    if len(data) != chunk.length_bytes:
        return False
    kind, window_bytes, expected = (
        chunk.checksum_type,
        chunk.bytes_per_checksum,
        chunk.window_checksums,
    )
    if kind is ChecksumType.NONE:
        return True
    if each:
        return window_checksums(kind, window_bytes, data) == expected
    return windows_verify(kind, window_bytes, expected, data)


def slices_of(data: Buffer, bytes_per_checksum: int) -> list[memoryview]:
    """Return the windows of `data` as memoryviews, without copying the data."""
    view = memoryview(data).cast("B")
    count = window_count(len(view), bytes_per_checksum)
    starts = range(0, count * bytes_per_checksum, bytes_per_checksum)
    return [view[start : start + bytes_per_checksum] for start in starts]


def big_endian_32(values: Sequence[int]) -> bytes:
    """Return the values as 4 bytes each, big-endian, concatenated."""
    return struct.pack(f">{len(values)}I", *values)


def folds_position(algorithm: Algorithm) -> bool:
    """Return True if a leaf of `algorithm` includes the offset and length of its chunk. The leaves
    of CRC32C, which Ozone uses, do not include them."""
    return algorithm is not Algorithm.CRC32C


def leaf_checksum(
    algorithm: Algorithm, offset: int, length_bytes: int, window_checksums: Buffer
) -> int:
    """Return the leaf of one chunk: the combination of its concatenated window checksums."""
    if not folds_position(algorithm):
        return FOLDS[algorithm](window_checksums)
    return xxh3_64(struct.pack(">QQ", offset, length_bytes), window_checksums)


def block_checksum(algorithm: Algorithm, block_id: BlockId, leaf_checksums: Sequence[int]) -> int:
    """Return the checksum of one block, given the leaves of its chunks in ascending order of
    offset."""
    return FOLDS[algorithm](struct.pack(f">Q{len(leaf_checksums)}Q", block_id, *leaf_checksums))
