"""Checksums of data windows, and the folds that combine them into a tree.

    window  ── type and width chosen by the writer (ChecksumType), default CRC32C every 16 KiB
    leaf    ── fold of a chunk's window checksums
    block   ── fold of (be64 block id, be64 leaf ... by offset)
    root    ── fold of (be64 block ... by block id), live blocks and tombstones

Only this module names algorithms. docs/DISK_FORMAT.md has the rules with test vectors. `crc32c`
folds exactly as Apache Ozone does. `xxh3_64` also includes a chunk's offset and length in its leaf,
so that a chunk split at a window boundary has a different leaf. It has 64 bits; with 32 bits, one
in four billion damaged blocks would not be detected.
"""

import ctypes
import hashlib
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from importlib import import_module
from typing import Any, Final, Protocol, TypeAlias, cast

import crc32c as crc32c_library
import numpy as np
import numpy.typing as npt
import xxhash

from merkle.crc_combine import bit_images, combined, combined_each
from merkle.isal_library import isal_library
from merkle.replica import BlockId, ChecksumType, ChunkInfo

Buffer: TypeAlias = bytes | bytearray | memoryview
U64s: TypeAlias = npt.NDArray[np.uint64]
Fold: TypeAlias = Callable[[Any], int]  # over any contiguous buffer

CASTAGNOLI: Final = 0x82F63B78  # of CRC32C, reflected
IEEE: Final = 0xEDB88320  # of CRC32, reflected
POLYNOMIALS: Final = {ChecksumType.CRC32: IEEE, ChecksumType.CRC32C: CASTAGNOLI}

COMBINED_WINDOWS_MIN: Final = 8
"""Minimum number of windows for which combining the CRCs is cheaper than computing each."""

NO_WHOLE: Final = -1
"""Stands for a missing CRC of a complete chunk, which must be verified window by window."""

CRC32_LONG_BYTES: Final = 4_096
"""Minimum length for which ISA-L's CRC-32, with its call overhead, is faster than zlib's."""

GATHER_BYTES_MAX: Final = 64
"""Maximum length of a slice that is cheaper to copy than to slice as a memoryview."""

TABLE_BYTES_MAX: Final = 32
"""Maximum length for which table lookups of many CRC-32Cs are faster than a call for each."""

TABLE_COUNT_MIN: Final = 64
"""Minimum number of slices of one length for which tables are faster."""

TABLE_ROWS: Final = 4_096
"""Number of slices per table lookup, whose indexes fit into the processor's cache."""


class Algorithm(StrEnum):
    """The fold algorithm of a tree. Roots of different algorithms are not comparable."""

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
    """Return the CRC-32C (Castagnoli, RFC 3720) of `data`; `value` is the CRC of preceding data."""
    result: int = crc32c_library.crc32c(data, value)
    return result


class LongCrc(Protocol):
    """A CRC function: a contiguous buffer, and the CRC of preceding data."""

    def __call__(self, data: Any, value: int = 0, /) -> int: ...


@cache
def long_crc32c() -> LongCrc:
    """Return the fastest CRC-32C for long data: twice as fast as `crc32c` if the processor
    multiplies polynomials 512 bits at a time, equally fast elsewhere (ADR 0012).

    Loaded on first use: it is a large library, and most commands read no data.
    """
    return cast(LongCrc, import_module("awscrt.checksums").crc32c)


@cache
def long_crc32() -> LongCrc:
    """Return the fastest CRC-32 (IEEE, zlib's) for long data: ISA-L's, if available, which is four
    to six times as fast as zlib's. It is the default of Ozone's clients (ADR 0019).
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
    """Return, by checksum type, the fastest CRC function for long data."""
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
    """Return the size of one window's checksum; 0 for NONE."""
    return WIDTH_BYTES[checksum_type]


def window_count(length_bytes: int, bytes_per_checksum: int) -> int:
    """Return how many windows cover `length_bytes`; the last one may be short."""
    if bytes_per_checksum < 1:
        raise ValueError(f"a window of {bytes_per_checksum} bytes covers nothing")
    return -(-length_bytes // bytes_per_checksum)


def window_checksums(checksum_type: ChecksumType, bytes_per_checksum: int, data: Buffer) -> bytes:
    """Return the concatenated checksums of all windows of `data`, as in `ChunkInfo`.

    Every read calls this function, so it makes one C call per window, on slices that are not
    copied.
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
    """Return True if the windows of `data` have these checksums.

    Every scan calls this function. It combines the expected CRCs of many windows into the CRC of
    all data, so that one C call verifies the bytes and releases the interpreter's lock. It detects
    damage in a single window, and any change of at most three bits (two with CRC32), as reliably as
    a comparison of each window. It misses damage in several windows with about the same probability
    as damage in one (ADR 0011).
    """
    polynomial = POLYNOMIALS.get(checksum_type)
    if polynomial is not None:
        length_bytes = len(data)
        if 0 < length_bytes <= bytes_per_checksum:
            whole = SHORT_CRCS[checksum_type](data)
            return whole.to_bytes(4) == expected
        count = window_count(length_bytes, bytes_per_checksum)
        if count >= COMBINED_WINDOWS_MIN and len(expected) == 4 * count:
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
    """Return True if `data` matches a chunk's row: its length and its checksums.

    A chunk of type NONE is compared by length only. With `each`, compare window by window, as for
    data to be written; otherwise compare many windows at once, as scans do (ADR 0011).
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


def whole_checksums(chunks: Sequence[ChunkInfo]) -> list[int]:
    """Return the expected CRC of each chunk's complete data, to compare with a function of
    `long_crcs`; NO_WHOLE for a chunk that must be compared window by window.
    """
    wholes = [NO_WHOLE] * len(chunks)
    alike: dict[tuple[int, int, int], list[int]] = {}
    for index, chunk in enumerate(chunks):
        polynomial = POLYNOMIALS.get(chunk.checksum_type)
        if polynomial is not None and chunk.bytes_per_checksum > 0:
            window_bytes, length_bytes = chunk.bytes_per_checksum, chunk.length_bytes
            if len(chunk.window_checksums) >= 4 * COMBINED_WINDOWS_MIN:
                alike.setdefault((polynomial, window_bytes, length_bytes), []).append(index)
    for (polynomial, window_bytes, length_bytes), places in alike.items():
        sums = [chunks[index].window_checksums for index in places]
        joined = combined_each(polynomial, sums, part_bytes=window_bytes, length_bytes=length_bytes)
        for index, whole in zip(places, joined, strict=True):
            wholes[index] = whole
    return wholes


def flipped_bit(
    checksum_type: ChecksumType, length_bytes: int, expected: bytes, actual: bytes
) -> tuple[int, int] | None:
    """Return (byte, bit) of the single bit flip that explains a window's wrong CRC, or None.

    Only the expected and the actual CRC are needed. Their difference depends only on the positions
    of the changed bits, and is different for each single bit of a window. Bit 0 is a byte's lowest.
    """
    polynomial = POLYNOMIALS.get(checksum_type)
    if polynomial is None or length_bytes < 1:
        return None
    change = np.uint32(int.from_bytes(expected) ^ int.from_bytes(actual))
    places = np.flatnonzero(bit_images(polynomial, 8 * length_bytes) == change)
    if len(places) != 1:
        return None
    from_end = int(places[0])
    return length_bytes - 1 - from_end // 8, 7 - from_end % 8


def slices_of(data: Buffer, bytes_per_checksum: int) -> list[memoryview]:
    """Return the windows of `data` without copying."""
    view = memoryview(data).cast("B")
    count = window_count(len(view), bytes_per_checksum)
    starts = range(0, count * bytes_per_checksum, bytes_per_checksum)
    return [view[start : start + bytes_per_checksum] for start in starts]


def big_endian_32(values: Sequence[int]) -> bytes:
    """Return each value as 4 bytes, big-endian."""
    return struct.pack(f">{len(values)}I", *values)


def folds_position(algorithm: Algorithm) -> bool:
    """Return True if the algorithm's leaf includes the chunk's offset and length; Ozone's does
    not."""
    return algorithm is not Algorithm.CRC32C


def leaf_checksum(
    algorithm: Algorithm, offset: int, length_bytes: int, window_checksums: Buffer
) -> int:
    """Return the leaf of one chunk, from the result of `window_checksums`."""
    if not folds_position(algorithm):
        return FOLDS[algorithm](window_checksums)
    return xxh3_64(struct.pack(">QQ", offset, length_bytes), window_checksums)


def block_checksum(algorithm: Algorithm, block_id: BlockId, leaf_checksums: Sequence[int]) -> int:
    """Return the checksum of one block from its leaves by ascending offset."""
    return FOLDS[algorithm](struct.pack(f">Q{len(leaf_checksums)}Q", block_id, *leaf_checksums))


def container_checksum(algorithm: Algorithm, block_checksums: Sequence[int] | U64s) -> int:
    """Return the root from the checksums of live blocks and tombstones by ascending block id."""
    return FOLDS[algorithm](np.asarray(block_checksums, dtype=np.uint64).astype(">u8"))


def fold_each(algorithm: Algorithm, inputs: Iterable[bytes | memoryview], count: int) -> U64s:
    """Return the fold of each of `count` inputs."""
    return np.fromiter(map(FOLDS[algorithm], inputs), dtype=np.uint64, count=count)


@cache
def byte_tables(length_bytes: int) -> tuple[int, npt.NDArray[np.uint32]]:
    """Return the CRC-32C of `length_bytes` zeros, and an array (length, 256): the change of this
    CRC by each value of each byte.
    """
    zeros = crc32c(bytes(length_bytes))
    changes = [
        [crc32c(bytes(place) + bytes([value]) + bytes(length_bytes - place - 1)) ^ zeros]
        for place in range(length_bytes)
        for value in range(256)
    ]
    return zeros, np.array(changes, dtype=np.uint32).reshape(length_bytes, 256)


def short_crc32cs(octets: npt.NDArray[np.uint8]) -> U64s:
    """Return the CRC-32C of each row of `octets`, an array of (count, length).

    A CRC is linear, so the change by a byte depends only on its value and position (Sarwate,
    *Computation of Cyclic Redundancy Checks via Table Look-Up*, CACM 1988; this function has a
    table for each position).
    """
    zeros, tables = byte_tables(octets.shape[1])
    found = np.full(len(octets), zeros, dtype=np.uint32)
    for start in range(0, len(octets), TABLE_ROWS):
        part = found[start : start + TABLE_ROWS]
        values = octets[start : start + TABLE_ROWS].T.astype(np.intp, order="C")
        for table, column in zip(tables, values, strict=True):
            part ^= table.take(column, mode="wrap")
    return found.astype(np.uint64)


def fold_slices(
    algorithm: Algorithm,
    data: npt.NDArray[Any],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> U64s:
    """Return the fold of each `data[start : start + length]`, in bytes.

    If slices have the same length, as usual, numpy cuts them in one operation.
    """
    count = len(starts)
    if count == 0:
        return np.empty(0, dtype=np.uint64)
    octets = data.view(np.uint8).ravel()
    length = int(lengths[0])
    if 0 < length <= GATHER_BYTES_MAX and bool((lengths == length).all()):
        # An item at every byte; numpy copies the selected ones without interpreting them.
        items: npt.NDArray[Any] = np.ndarray(
            len(octets) - length + 1, dtype=f"V{length}", buffer=octets.data, strides=(1,)
        )
        cut = items[starts]
        is_short = length <= TABLE_BYTES_MAX and count >= TABLE_COUNT_MIN
        if algorithm is Algorithm.CRC32C and is_short:
            return short_crc32cs(cut.view(np.uint8).reshape(count, length))
        return fold_each(algorithm, cut.tolist(), count)
    view = octets.data
    bounds = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    return fold_each(algorithm, (view[start:end] for start, end in bounds), count)
