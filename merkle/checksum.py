"""Checksums: of data windows, and the folds that make a tree of them.

    window  ── type and width chosen by the writer (ChecksumType), default CRC32C every 16 KiB
    leaf    ── fold of a chunk's window checksums
    block   ── fold of (be64 block id, be64 leaf ... by offset)
    root    ── fold of (be64 block ... by block id), live blocks and tombstones

This is the only file that names an algorithm; docs/DISK_FORMAT.md has the rules with test vectors.
`crc32c` folds as Apache Ozone does, bit for bit. `xxh3_64` also folds a chunk's offset and length
into its leaf, so that a chunk split at a window boundary differs, and has 64 bits: with 32, one in
four billion damaged blocks would look whole.
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
"""From how many windows on it is cheaper to combine their CRCs than to compute each."""

NO_WHOLE: Final = -1
"""In place of a chunk's CRC as a whole where there is none to expect."""

CRC32_LONG_BYTES: Final = 4_096
"""From how many bytes on ISA-L's CRC-32 is faster than zlib's, the longer way to it included."""

GATHER_BYTES_MAX: Final = 64
"""Longest slice worth copying to save a memoryview: beyond it the copy costs more."""

TABLE_BYTES_MAX: Final = 32
"""Up to this length, looking many CRC-32Cs up in tables is faster than a call for each."""

TABLE_COUNT_MIN: Final = 64
"""From how many slices of one length on tables are worth it."""

TABLE_ROWS: Final = 4_096
"""Slices looked up at once: their indexes stay in the processor's cache."""


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
    """Return the CRC-32C (Castagnoli, RFC 3720) of `data`, continuing from `value`."""
    result: int = crc32c_library.crc32c(data, value)
    return result


class LongCrc(Protocol):
    """A CRC of any contiguous buffer, continuing from a value."""

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
    """Return, by checksum type, the fastest function for long data: for `whole_checksums`."""
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
    """Return the checksums of all windows of `data`, concatenated as `ChunkInfo` keeps them.

    The hot path of every read: one C call per window, on slices that are not copied.
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
    """Return True if the windows of `data` have these checksums: the hot path of every scan.

    The expected CRCs of many windows are combined into that of the whole, so that the bytes need
    one C call, which releases the interpreter's lock. Damage to a single window is found as surely
    as window by window, and so is any change of at most three bits (two with CRC32); damage to
    several windows escapes about as rarely as damage to one (ADR 0011).
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
    """Return True if `data` are the bytes of a chunk, by the checksums of its row.

    A row of type NONE only has their number. `each`: compare window by window, as for data to be
    written; otherwise many windows as one, as scans do (ADR 0011).
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
    """Return the expected CRC of each chunk's data as a whole; NO_WHOLE if it must be compared
    window by window. `windows_verify` for many chunks: compare with `long_crcs`.
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

    Needs only the two checksums: a CRC changes by an amount that depends only on the positions of
    the changed bits, and no two single bits of a window change it alike. Bit 0 is a byte's lowest.
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
    """Return True if a leaf folds the chunk's offset and length: Ozone's does not."""
    return algorithm is not Algorithm.CRC32C


def leaf_checksum(
    algorithm: Algorithm, offset: int, length_bytes: int, window_checksums: Buffer
) -> int:
    """Return the leaf of one chunk, from its checksums as `window_checksums` returns them."""
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
    """Return the CRC-32C of `length_bytes` zeros, and the change by each value of each byte: an
    array of (length, 256).
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

    A CRC is linear, so that each byte changes it by what depends on its place alone (Sarwate,
    *Computation of Cyclic Redundancy Checks via Table Look-Up*, CACM 1988; here with a table for
    each place).
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
    """Return the fold of each `data[start : start + length]`, counted in bytes.

    Slices of one length, the usual case, are cut by numpy in one sweep instead of one by one.
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
