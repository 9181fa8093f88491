"""Combines the CRCs of parts into the CRC of the whole data.

    crc(A ‖ B) = shift(crc(A), len(B)) ^ crc(B)

`shift` multiplies by x^(8 len) modulo the polynomial. `shift` is linear, so it can be computed with
a table of 256 values for each byte of a CRC, and numpy computes many shifts with one gather and one
XOR. The 256 window checksums of a chunk are combined into the chunk's CRC in a few microseconds.
Therefore, one C call instead of 256 verifies the chunk's bytes. The method is Mark Adler's
`crc32_combine` (zlib), applied to columns.

A CRC is in the reflected form in which CRCs are written: bit 31 is the coefficient of x^0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

U32s: TypeAlias = npt.NDArray[np.uint32]

BITS: Final = 32
BYTES: Final = 4
BYTE_VALUES: Final = 256
PARTS_PER_GATHER: Final = 256  # 1 MiB of tables: stays in the second-level cache
TABLES_KEPT: Final = 8  # window sizes in use at a time; nearly always one


@dataclass(frozen=True, slots=True)
class Shifts:
    """Lookup tables to combine the CRCs of parts of equal length.

    A gather combines the CRCs of up to PARTS_PER_GATHER parts in one numpy operation. `tables` is a
    flat array with the tables of these parts, in their order. `bases` has, for each byte of each
    part's CRC, the start of the byte's table in `tables`. `row` is the table that computes `shift`
    by the length of a complete gather.
    """

    tables: U32s
    bases: npt.NDArray[np.intp]
    row: U32s


def zero_bit(polynomial: int) -> U32s:
    """Return the operator that computes the new CRC when one zero bit is appended to the data.

    An operator is an array of 32 CRCs. Item i is the new CRC if only bit i of the old CRC is set.
    """
    operator = np.empty(BITS, dtype=np.uint32)
    operator[0] = polynomial
    operator[1:] = np.uint32(1) << np.arange(BITS - 1, dtype=np.uint32)
    return operator


def apply(operator: U32s, values: U32s) -> U32s:
    """Apply an operator (`zero_bit`) to each value: return the XOR of the items of `operator` at
    the set bits of the value."""
    bits = values[:, None] >> np.arange(BITS, dtype=np.uint32) & np.uint32(1)
    images: U32s = np.bitwise_xor.reduce(np.where(bits != 0, operator, np.uint32(0)), axis=1)
    return images


def zero_bits(polynomial: int, count: int) -> U32s:
    """Return the operator (`zero_bit`) that computes the new CRC when `count` zero bits are
    appended to the data."""
    result = np.uint32(1) << np.arange(BITS, dtype=np.uint32)  # identity
    power = zero_bit(polynomial)
    while count:
        if count & 1:
            result = apply(power, result)
        power = apply(power, power)
        count >>= 1
    return result


def tabulated(operators: U32s) -> U32s:
    """Return the lookup tables of each operator, an array of shape (operators, 4, 256).

    The tables have the operator's result for each value of each byte of a CRC. Byte 0 is the most
    significant, because CRCs are stored big-endian.
    """
    by_byte = operators.reshape(len(operators), BYTES, 8)[:, ::-1, :]
    tables = np.zeros((len(operators), BYTES, BYTE_VALUES), dtype=np.uint32)
    for bit in range(8):
        size = 1 << bit
        tables[:, :, size : 2 * size] = tables[:, :, :size] ^ by_byte[:, :, bit, None]
    return tables


@lru_cache(maxsize=TABLES_KEPT)
def shifts_of(polynomial: int, part_bytes: int) -> Shifts:
    """Return the lookup tables for parts of `part_bytes` bytes. The tables are computed once, in a
    millisecond."""
    step = zero_bits(polynomial, 8 * part_bytes)
    operators = np.empty((PARTS_PER_GATHER + 1, BITS), dtype=np.uint32)
    operators[-1] = zero_bits(polynomial, 0)
    for index in range(PARTS_PER_GATHER - 1, -1, -1):
        operators[index] = apply(step, operators[index + 1])
    tables = tabulated(operators)
    bases = np.arange(PARTS_PER_GATHER * BYTES, dtype=np.intp) * BYTE_VALUES
    return Shifts(tables[1:].ravel(), bases, tables[0])


@lru_cache(maxsize=TABLES_KEPT)
def tail_table(polynomial: int, tail_bytes: int) -> U32s:
    """Return the lookup table of `shift` by `tail_bytes`, the length of the last part."""
    return tabulated(zero_bits(polynomial, 8 * tail_bytes)[None, :]).reshape(BYTES, BYTE_VALUES)


def shifted(table: U32s, crcs: U32s) -> U32s:
    """Return `shift` of each CRC, computed with the lookup table `table`."""
    octets = crcs.astype(">u4").view(np.uint8).reshape(len(crcs), BYTES)
    moved: U32s = np.bitwise_xor.reduce(table[np.arange(BYTES), octets], axis=1)
    return moved


def combined(polynomial: int, crcs: bytes, *, part_bytes: int, length_bytes: int) -> int:
    """Return the CRC of `length_bytes` bytes of data, given the CRCs of its parts of `part_bytes`
    bytes each.

    `crcs` has 4 bytes per part, big-endian. The last part may be shorter. Raise ValueError if the
    number of CRCs does not match the length.
    """
    each = combined_each(polynomial, [crcs], part_bytes=part_bytes, length_bytes=length_bytes)
    return each[0]


def combined_each(
    polynomial: int, crcs: Sequence[bytes], *, part_bytes: int, length_bytes: int
) -> list[int]:
    """Return the result of `combined` for each item of `crcs`.

    All items must describe data of the same length. They are computed together while the tables are
    in the processor's cache. Raise ValueError if the number of CRCs does not match the length.
    """
    full_count, tail_bytes = divmod(length_bytes, part_bytes)
    row_bytes = BYTES * (full_count + (tail_bytes > 0))
    for item in crcs:
        if len(item) != row_bytes:
            raise ValueError(f"{len(item)} bytes of checksums for {length_bytes} bytes of data")
    octets = np.frombuffer(b"".join(crcs), dtype=np.uint8).reshape(len(crcs), row_bytes)
    shifts = shifts_of(polynomial, part_bytes)
    joined = np.zeros(len(crcs), dtype=np.uint32)
    start = 0
    first_end = full_count % PARTS_PER_GATHER or PARTS_PER_GATHER
    for end in range(first_end, full_count + 1, PARTS_PER_GATHER):
        rows = octets[:, BYTES * start : BYTES * end]
        places = shifts.bases[len(shifts.bases) - rows.shape[1] :] + rows
        images = shifts.tables.take(places, mode="clip")  # all places are valid: no check
        gathered = np.bitwise_xor.reduce(images, axis=1)
        if start:
            gathered ^= shifted(shifts.row, joined)
        joined, start = gathered, end
    if tail_bytes:
        tails = octets[:, -BYTES:].copy().view(">u4")[:, 0].astype(np.uint32)
        joined = shifted(tail_table(polynomial, tail_bytes), joined) ^ tails
    crcs_of_all: list[int] = joined.tolist()
    return crcs_of_all


@lru_cache(maxsize=1)
def bit_images(polynomial: int, bit_count: int) -> U32s:
    """Return an array with the change (XOR) of a CRC for each flipped bit of the data, the last
    byte first.

    Entry 0 is for the highest bit of the last byte, entry 7 for its lowest bit, and entry 8 for the
    highest bit of the byte before. All entries are different for up to 2^31 - 1 bits.
    """
    images = np.empty(bit_count, dtype=np.uint32)
    images[0] = polynomial
    filled = 1
    while filled < bit_count:
        more = min(filled, bit_count - filled)
        table = tabulated(zero_bits(polynomial, filled)[None, :])[0]
        images[filled : filled + more] = shifted(table, images[:more])
        filled += more
    return images
