"""Parses the rows of many small blocks at a time.

A container may have half a million blocks of one small chunk, so the work per block dominates a
scan. Therefore, rows are parsed as columns, and the leaves of healthy chunks are computed as
columns. The only work per block is one read of its file. A block with several chunks, another
checksum type or a damaged row is not simple. It is scanned separately, or by
`scanner.rows.uniform_chunks`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from merkle.blockrow import (
    CHUNK,
    HEADER,
    POSITION,
    TYPE_SHIFT,
    WINDOW_MASK,
    RowColumns,
    batches,
    read_columns,
)
from merkle.checksum import Algorithm
from merkle.checksum_columns import U64s
from merkle.damaged_data import DamagedData
from merkle.replica import BlockId, ChecksumType
from merkle.tree_columns import fold_leaves, spans_of
from scanner.rows.uniform_chunks import (
    SIMPLE_TYPES,
    SUM_BYTES,
    UniformChunks,
    alike_blocks,
    kinds_of,
)

Row: TypeAlias = tuple[BlockId, bytes]

NOT_SIMPLE: Final = 0
SUMS_START: Final = HEADER.size + CHUNK.size + POSITION.size
"""Offset of the first window checksum in a row with one chunk."""

FIRST_SUM_END: Final = SUMS_START + SUM_BYTES
"""Offset of the end of the window checksum in a row with one chunk and one window."""


@dataclass(frozen=True, slots=True)
class SimpleRun:
    """Consecutive blocks that each have one chunk at offset 0. All have the same checksum type.

    All sequences have one item per block. `first_sums` has the checksum of the first window, and
    `sums_ends` the offset in the row at which the window checksums end. `spans` and `leaves` have
    the entries of the chunk in the tree if it is healthy.
    """

    checksum_type: ChecksumType
    block_ids: U64s
    bcsids: U64s
    rows: Sequence[bytes]
    lengths_bytes: list[int]
    window_bytes: list[int]
    first_sums: U64s
    sums_ends: list[int]
    spans: U64s
    leaves: U64s


@dataclass(frozen=True, slots=True)
class _Columns:
    """The fields of a batch of blocks, as columns with one value per block. If the `simple_types`
    of a block is NOT_SIMPLE, its other values are undefined."""

    simple_types: npt.NDArray[np.int64]
    lengths_bytes: npt.NDArray[np.int64]
    window_bytes: npt.NDArray[np.int64]
    first_sums: U64s
    sums_bytes: npt.NDArray[np.int64]
    spans: U64s
    leaves: U64s


def runs(
    rows: Iterable[Row], algorithm: Algorithm, length_bytes_max: int
) -> Iterator[SimpleRun | Row]:
    """Yield the rows in order, with consecutive simple blocks as one SimpleRun and every other row
    alone.

    A simple block has a single chunk, at offset 0, of at most `length_bytes_max` bytes. All blocks
    of a SimpleRun have the same checksum type.
    """
    for item in runs_and_alike(rows, algorithm, length_bytes_max, are_sought=False):
        assert not isinstance(item, UniformChunks), "none is sought"
        yield item


def runs_and_alike(
    rows: Iterable[Row], algorithm: Algorithm, length_bytes_max: int, *, are_sought: bool = True
) -> Iterator[SimpleRun | UniformChunks | Row]:
    """Yield the rows in order, grouped where possible.

    Consecutive simple blocks are yielded as one SimpleRun. If `are_sought` is True, a block of
    adjacent small chunks, with at most half of `length_bytes_max` each, is yielded as
    UniformChunks. Every other row is yielded alone.
    """
    for block_ids, raws in batches(rows):
        try:
            parsed = read_columns(block_ids, raws)
        except DamagedData:
            yield from zip(block_ids, raws, strict=True)
            continue
        leaves = fold_leaves(algorithm, parsed)
        columns = _columns(parsed, leaves, length_bytes_max)
        alikes = alike_blocks(parsed, raws, leaves, length_bytes_max // 2) if are_sought else {}
        edges = np.flatnonzero(np.diff(columns.simple_types)) + 1
        starts = [0, *edges.tolist()]
        for start, end in zip(starts, [*starts[1:], len(raws)], strict=True):
            if columns.simple_types[start] != NOT_SIMPLE:
                yield _run(parsed, raws, columns, slice(start, end))
            else:
                for index in range(start, end):
                    alike = alikes.get(index)
                    yield (block_ids[index], raws[index]) if alike is None else alike


def _columns(parsed: RowColumns, leaves: U64s, length_bytes_max: int) -> _Columns:
    counts = parsed.chunk_counts
    one = np.flatnonzero(counts == 1)
    chunks = (np.cumsum(counts) - counts)[one]
    kinds = kinds_of(parsed, np.cumsum(counts) - counts)[chunks]
    result = _Columns(
        simple_types=np.full(len(counts), NOT_SIMPLE, dtype=np.int64),
        lengths_bytes=np.zeros(len(counts), dtype=np.int64),
        window_bytes=np.zeros(len(counts), dtype=np.int64),
        first_sums=np.zeros(len(counts), dtype=np.uint64),
        sums_bytes=np.zeros(len(counts), dtype=np.int64),
        spans=np.zeros(len(counts), dtype=np.uint64),
        leaves=np.zeros(len(counts), dtype=np.uint64),
    )
    # A very large unsigned length would become negative in int64. Compare before the conversion.
    fits = parsed.lengths_bytes[chunks] <= np.uint64(length_bytes_max)
    lengths = np.where(fits, parsed.lengths_bytes[chunks], np.uint64(0)).astype(np.int64)
    window_bytes = kinds & WINDOW_MASK
    sums_bytes = parsed.leaf_lengths[chunks] - POSITION.size
    window_counts = -(-lengths // np.maximum(window_bytes, 1))
    types = kinds >> TYPE_SHIFT
    is_simple = (
        np.isin(types, SIMPLE_TYPES)
        & (parsed.offsets[chunks] == 0)
        & (lengths > 0)
        & (window_bytes > 0)
        & (sums_bytes == SUM_BYTES * window_counts)
    )
    result.simple_types[one] = np.where(is_simple, types, NOT_SIMPLE)
    result.lengths_bytes[one] = lengths
    result.window_bytes[one] = window_bytes
    sums_starts = parsed.leaf_starts[chunks] + POSITION.size  # unused if the chunk has no sum
    result.first_sums[one] = parsed.octets.view(">u4")[sums_starts // 4]
    result.sums_bytes[one] = sums_bytes
    result.spans[one] = spans_of(
        np.zeros_like(chunks, np.uint64), lengths.astype(np.uint64), np.True_
    )
    result.leaves[one] = leaves[chunks]
    return result


def _run(parsed: RowColumns, raws: Sequence[bytes], columns: _Columns, part: slice) -> SimpleRun:
    return SimpleRun(
        checksum_type=ChecksumType(int(columns.simple_types[part.start])),
        block_ids=parsed.block_ids[part],
        bcsids=parsed.bcsids[part],
        rows=raws[part],
        lengths_bytes=columns.lengths_bytes[part].tolist(),
        window_bytes=columns.window_bytes[part].tolist(),
        first_sums=columns.first_sums[part],
        sums_ends=(columns.sums_bytes[part] + SUMS_START).tolist(),
        spans=columns.spans[part],
        leaves=columns.leaves[part],
    )
