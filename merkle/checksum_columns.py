"""Computes checksums of many rows at a time with numpy, and combines CRCs.

`merkle.checksum` has the rules and the checksums of single values. That module does not load numpy,
because clients and most commands never need columns.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from merkle.checksum import (
    CASTAGNOLI,
    COMBINED_WINDOWS_MIN,
    FOLDS,
    POLYNOMIALS,
    Algorithm,
    crc32c,
)
from merkle.crc_combine import bit_images, combined_each
from merkle.replica import ChecksumType, ChunkInfo

U64s: TypeAlias = npt.NDArray[np.uint64]

NO_WHOLE: Final = -1
"""Value for a chunk whose CRC of the complete data is unknown. Such a chunk is verified window by
window."""

GATHER_BYTES_MAX: Final = 64
"""Maximum length of a slice for which a copy is cheaper than a memoryview."""

TABLE_BYTES_MAX: Final = 32
"""Maximum length for which table lookups of many CRC-32Cs are faster than a call for each."""

TABLE_COUNT_MIN: Final = 64
"""Minimum number of slices of one length for which table lookups are faster than a call for
each."""

TABLE_ROWS: Final = 4_096
"""Number of slices per table lookup, whose indexes fit into the processor's cache."""


def whole_checksums(chunks: Sequence[ChunkInfo]) -> list[int]:
    """Return the expected CRC of the complete data of each chunk, computed from its window
    checksums.

    The caller compares this CRC with the CRC of the data that it read (`long_crcs`). The value is
    NO_WHOLE for a chunk that must be compared window by window.
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
    """Return the position (byte, bit) of the single flipped bit that explains a window's wrong CRC.

    Return None if no single bit explains it. Bit 0 is the lowest bit of a byte. The function needs
    only the expected and the actual CRC, because their difference depends only on the positions of
    the changed bits, and is different for each single bit of a window.
    """
    polynomial = POLYNOMIALS.get(checksum_type)
    if polynomial is None or length_bytes < 1:
        return None
    change = int.from_bytes(expected) ^ int.from_bytes(actual)
    if polynomial == CASTAGNOLI and change.bit_count() % 2 == 0:
        return None  # x + 1 divides this polynomial, so each single bit changes an odd number
    places = np.flatnonzero(bit_images(polynomial, 8 * length_bytes) == np.uint32(change))
    if len(places) != 1:
        return None
    from_end = int(places[0])
    return length_bytes - 1 - from_end // 8, 7 - from_end % 8


def container_checksum(algorithm: Algorithm, block_checksums: Sequence[int] | U64s) -> int:
    """Return the root of a tree, given the checksums of live blocks and tombstones in ascending
    order of block id."""
    return FOLDS[algorithm](np.asarray(block_checksums, dtype=np.uint64).astype(">u8"))


def fold_each(algorithm: Algorithm, inputs: Iterable[bytes | memoryview], count: int) -> U64s:
    """Return the checksum of each of the `count` inputs, computed with the tree's `algorithm`."""
    return np.fromiter(map(FOLDS[algorithm], inputs), dtype=np.uint64, count=count)


@cache
def byte_tables(length_bytes: int) -> tuple[int, npt.NDArray[np.uint32]]:
    """Return the CRC-32C of `length_bytes` zeros, and an array of shape (length_bytes, 256).

    If byte i has the value v instead of 0, the CRC is XORed with the item (i, v) of the array.
    """
    zeros = crc32c(bytes(length_bytes))
    changes = [
        [crc32c(bytes(place) + bytes([value]) + bytes(length_bytes - place - 1)) ^ zeros]
        for place in range(length_bytes)
        for value in range(256)
    ]
    return zeros, np.array(changes, dtype=np.uint32).reshape(length_bytes, 256)


def short_crc32cs(octets: npt.NDArray[np.uint8]) -> U64s:
    """Return the CRC-32C of each row of `octets`, an array of shape (count, length).

    The function looks up the effect of each byte in a table for the byte's position. This is
    possible because a CRC is linear, so the effect depends only on the byte's value and position
    (Sarwate, *Computation of Cyclic Redundancy Checks via Table Look-Up*, CACM 1988).
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
    """Return the checksum of each slice `data[start : start + length]`; start and length are in
    bytes.

    The checksum is computed with the tree's `algorithm`. If all slices have the same length, which
    is usual, numpy cuts them in one operation.
    """
    count = len(starts)
    if count == 0:
        return np.empty(0, dtype=np.uint64)
    octets = data.view(np.uint8).ravel()
    length = int(lengths[0])
    if 0 < length <= GATHER_BYTES_MAX and bool((lengths == length).all()):
        # One item begins at every byte; numpy copies the selected items without interpreting them.
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
