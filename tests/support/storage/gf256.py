"""Reed-Solomon by the definition of GF(2^8), one octet at a time. It is the reference for the
library and shares no code and no table with it.
"""

from collections.abc import Sequence

POLYNOMIAL = 0x11D  # x^8 + x^4 + x^3 + x^2 + 1


def times(left: int, right: int) -> int:
    """Return the product of two numbers as polynomials over GF(2), modulo POLYNOMIAL."""
    result = 0
    while right:
        if right & 1:
            result ^= left
        left <<= 1
        if left & 0x100:
            left ^= POLYNOMIAL
        right >>= 1
    return result


def reciprocal(value: int) -> int:
    """Return the inverse of `value`, found by trying all values."""
    return next(other for other in range(1, 256) if times(value, other) == 1)


def cauchy_rows(data_count: int, parity_count: int) -> list[list[int]]:
    """Return the parity rows that Hadoop's RSUtil.genCauchyMatrix makes."""
    rows = range(data_count, data_count + parity_count)
    return [[reciprocal(row ^ column) for column in range(data_count)] for row in rows]


def parity_of(rows: Sequence[Sequence[int]], data_cells: Sequence[bytes]) -> list[bytes]:
    """Return the parity cells of data cells. Data cells that are too short are padded with
    zeros."""
    length = max(map(len, data_cells))
    columns = list(zip(*(cell.ljust(length, b"\0") for cell in data_cells), strict=True))
    products = {c: bytes(times(c, value) for value in range(256)) for row in rows for c in row}
    cells = []
    for row in rows:
        cell = bytearray(length)
        for at, octets in enumerate(columns):
            for coefficient, octet in zip(row, octets, strict=True):
                cell[at] ^= products[coefficient][octet]
        cells.append(bytes(cell))
    return cells
