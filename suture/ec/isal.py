"""Calls Intel's library ISA-L for matrix arithmetic in GF(2^8) modulo x^8+x^4+x^3+x^2+1.

Hadoop's Java and native Reed-Solomon coders use the same field and the same Cauchy matrix as ISA-L.
Therefore, this module decodes cells that Hadoop has encoded. `merkle.isal_library` loads the
library.

pyeclib's own functions are not used. They add a header of 80 bytes to every cell, which requires a
copy of each cell and costs three quarters of the speed.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from merkle.isal_library import isal_library
from suture.errors import Code, RefusedError

Octets = npt.NDArray[np.uint8]

TABLE_BYTES: Final = 32  # per coefficient: the products of each half octet


def cauchy_matrix(shard_count: int, data_count: int) -> Octets:
    """Return the Cauchy matrix of ISA-L and Hadoop, with `shard_count` rows and `data_count`
    columns. The first rows are the identity, and the others are 1/(i xor j)."""
    matrix = np.zeros((shard_count, data_count), np.uint8)
    _library().gf_gen_cauchy1_matrix(matrix.ctypes.data, shard_count, data_count)
    return matrix


def inverse(matrix: Octets) -> Octets | None:
    """Return the inverse of a square matrix. Return None if the matrix is singular."""
    source = np.array(matrix, np.uint8, order="C")  # a copy, because ISA-L works in place
    target = np.zeros_like(source)
    failed = _library().gf_invert_matrix(source.ctypes.data, target.ctypes.data, len(source))
    return None if failed else target


def product(left: Octets, right: Octets) -> Octets:
    """Return the product of two matrices."""
    rows = [np.ascontiguousarray(row) for row in right]
    return np.stack(multiply(tables(left), rows, right.shape[1], len(left)))


def tables(matrix: Octets) -> Octets:
    """Return the multiplication tables of a matrix, which `multiply` needs."""
    rows, columns = matrix.shape
    source = np.ascontiguousarray(matrix)
    found = np.zeros(rows * columns * TABLE_BYTES, np.uint8)
    _library().ec_init_tables(columns, rows, source.ctypes.data, found.ctypes.data)
    return found


def multiply(
    matrix_tables: Octets, inputs: Sequence[Octets], length_bytes: int, output_count: int
) -> list[Octets]:
    """Return the product of a matrix, given as its tables, and the inputs, byte by byte.

    Every input is contiguous and has `length_bytes` bytes. The interpreter's lock is released
    during the computation.
    """
    outputs = [np.empty(length_bytes, np.uint8) for _ in range(output_count)]
    multiply_into(matrix_tables, inputs, outputs)
    return outputs


def multiply_into(
    matrix_tables: Octets, inputs: Sequence[Octets], outputs: Sequence[Octets]
) -> None:
    """Write the product of a matrix, given as its tables, and the inputs to `outputs`. All arrays
    must be contiguous and equally long."""
    assert {len(outputs[0])} == {len(item) for item in (*inputs, *outputs)}
    multiply_at(matrix_tables, addresses(inputs), addresses(outputs), 0, len(outputs[0]))


def addresses(arrays: Sequence[Octets]) -> list[int]:
    """Return the memory address of each array. The caller must keep the arrays alive."""
    return [array.ctypes.data for array in arrays]


def multiply_at(
    matrix_tables: Octets,
    inputs: Sequence[int],
    outputs: Sequence[int],
    offset: int,
    length_bytes: int,
) -> None:
    """Multiply a part of arrays that are given by their addresses: `length_bytes` bytes from
    `offset`."""
    assert len(matrix_tables) == len(outputs) * len(inputs) * TABLE_BYTES
    if length_bytes:
        _library().ec_encode_data(
            length_bytes,
            len(inputs),
            len(outputs),
            matrix_tables.ctypes.data,
            _pointers(inputs, offset),
            _pointers(outputs, offset),
        )


def _pointers(places: Sequence[int], offset: int) -> "ctypes.Array[ctypes.c_void_p]":
    return (ctypes.c_void_p * len(places))(*(place + offset for place in places))


@cache
def _library() -> ctypes.CDLL:
    library = isal_library()
    if library is None:
        raise RefusedError(
            Code.NO_SUCH_ALGORITHM,
            "cannot use erasure coding: the library ISA-L is not installed",
            hint="reinstall pyeclib from its wheel, or: apt-get install libisal2",
        )
    _declare(library)
    return library


def _declare(library: ctypes.CDLL) -> None:
    number, pointer = ctypes.c_int, ctypes.c_void_p
    library.gf_gen_cauchy1_matrix.argtypes = [pointer, number, number]
    library.gf_gen_cauchy1_matrix.restype = None
    library.gf_invert_matrix.argtypes = [pointer, pointer, number]
    library.gf_invert_matrix.restype = number
    library.ec_init_tables.argtypes = [number, number, pointer, pointer]
    library.ec_init_tables.restype = None
    library.ec_encode_data.argtypes = [number, number, number, pointer, pointer, pointer]
    library.ec_encode_data.restype = None
