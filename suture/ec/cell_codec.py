"""Computes any shards of a stripe from any `data_count` other shards.

    parity cells = Cauchy rows x data cells
    lost cells   = rows of the lost cells x inverse(rows of the present cells) x present cells

In the last stripe, a short cell is padded with zeros. The caller must cut the computed cells to
their lengths.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np

from suture.ec import isal
from suture.ec.isal import Octets
from suture.ec.scheme import CodecName, Scheme
from suture.errors import Code, RefusedError

Cell: TypeAlias = bytes | bytearray | memoryview | Octets

TILE_BYTES: Final = 128 * 1024  # tiles of all shards fit a core's second-level cache
PATTERNS_KEPT_MAX: Final = 256  # a reconstruction needs one or few; RS(10,4) has 1,470 in all


def encode(scheme: Scheme, data_cells: Sequence[Cell]) -> list[Octets]:
    """Return the parity cells of one stripe, each as long as the longest data cell.

    `data_cells` has one cell per data shard. A cell is empty if the group ends before it.
    """
    if len(data_cells) != scheme.data_count:
        raise RefusedError(
            Code.MALFORMED_REQUEST, f"{len(data_cells)} data cells do not match {scheme}"
        )
    cells = dict(enumerate(data_cells, start=1))
    parity = range(scheme.data_count + 1, scheme.shard_count + 1)
    length_bytes = max(map(len, data_cells))
    return list(rebuild(scheme, cells, parity, length_bytes).values())


def rebuild(
    scheme: Scheme, cells: Mapping[int, Cell], wanted: Sequence[int], length_bytes: int
) -> dict[int, Octets]:
    """Return the wanted cells of a stripe, by shard index. Each has `length_bytes` bytes.

    `cells` has cells of the stripe by shard index. Only the first `data_count` of them are used;
    shorter cells are padded with zeros. Raise RefusedError if there are fewer than `data_count`.
    """
    sources = sources_for(scheme, cells)
    inputs = [padded(cells[index], length_bytes) for index in sources]
    names = scheme.checked(wanted)
    if not names:
        return {}
    outputs = isal.multiply(_tables(scheme, sources, names), inputs, length_bytes, len(names))
    return dict(zip(names, outputs, strict=True))


def rebuild_checked(
    scheme: Scheme, cells: Mapping[int, Cell], wanted: Sequence[int], length_bytes: int
) -> dict[int, Octets]:
    """Return the same cells as `rebuild`, after a check that computes in the reverse direction.

    The check computes one of the used cells from the rebuilt cells and the other used cells, and
    compares it. It processes small parts of the cells that remain in the second-level cache, so it
    costs no memory traffic. It detects a processor, a memory module or a library that fails in one
    of the two computations. If the cells differ, raise RefusedError(CHECKSUM_MISMATCH). This says
    nothing about any disk.
    """
    sources, names = sources_for(scheme, cells), scheme.checked(wanted)
    fresh = next((index for index in names if index not in sources), None)
    if fresh is None:
        return rebuild(scheme, cells, names, length_bytes)
    inputs = [padded(cells[index], length_bytes) for index in sources]
    outputs = [np.empty(length_bytes, np.uint8) for _ in names]
    witness = sources[-1]
    there = _tables(scheme, sources, names)
    back = _tables(scheme, (*sources[:-1], fresh), (witness,))
    again = np.empty(min(length_bytes, TILE_BYTES), np.uint8)
    from_, to = isal.addresses(inputs), isal.addresses(outputs)
    others = [*from_[:-1], to[names.index(fresh)]]
    for start in range(0, length_bytes, TILE_BYTES):
        step_bytes = min(TILE_BYTES, length_bytes - start)
        isal.multiply_at(there, from_, to, start, step_bytes)
        isal.multiply_at(back, others, [again.ctypes.data - start], start, step_bytes)
        if not np.array_equal(again[:step_bytes], inputs[-1][start : start + step_bytes]):
            raise RefusedError(
                Code.CHECKSUM_MISMATCH,
                f"shard {witness}, computed from rebuilt data, does not match the shard that "
                "was read",
                hint="check the memory and the processor of this host; nothing was committed",
            )
    return dict(zip(names, outputs, strict=True))


def sources_for(scheme: Scheme, at_hand: Mapping[int, object]) -> tuple[int, ...]:
    """Return the indexes of the first `data_count` shards that are present. Raise RefusedError if
    fewer are present."""
    indexes = scheme.checked(at_hand)
    if len(indexes) < scheme.data_count:
        raise RefusedError(
            Code.INELIGIBLE,
            f"{scheme} needs {scheme.data_count} shards, only {len(indexes)} are available: "
            f"{', '.join(map(str, indexes)) or 'none'}",
            hint="start a datanode that has another shard",
        )
    return indexes[: scheme.data_count]


def padded(cell: Cell, length_bytes: int) -> Octets:
    """Return the cell padded with zeros to `length_bytes`. A cell that already has this length is
    not copied. Raise RefusedError if it is longer."""
    octets = np.frombuffer(cell, np.uint8)
    if len(octets) == length_bytes:
        return octets
    if len(octets) > length_bytes:
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            f"a cell of {len(octets)} bytes in a stripe whose cells have at most {length_bytes}",
        )
    whole = np.zeros(length_bytes, np.uint8)
    whole[: len(octets)] = octets
    return whole


@lru_cache(maxsize=len(CodecName) * 8)
def matrix(codec: CodecName, data_count: int, parity_count: int) -> Octets:
    """Return the generator matrix of a code. Row i - 1 computes the shard with index i from the
    data shards."""
    if codec is CodecName.XOR:
        ones = np.ones((parity_count, data_count), np.uint8)
        return np.vstack([np.eye(data_count, dtype=np.uint8), ones])
    return isal.cauchy_matrix(data_count + parity_count, data_count)


@lru_cache(maxsize=PATTERNS_KEPT_MAX)
def _tables(scheme: Scheme, sources: tuple[int, ...], wanted: tuple[int, ...]) -> Octets:
    rows = matrix(scheme.codec, scheme.data_count, scheme.parity_count)
    at_hand = isal.inverse(rows[[index - 1 for index in sources]])
    if at_hand is None:
        raise RefusedError(
            Code.INELIGIBLE, f"shards {', '.join(map(str, sources))} do not determine {scheme}"
        )
    return isal.tables(isal.product(rows[[index - 1 for index in wanted]], at_hand))
