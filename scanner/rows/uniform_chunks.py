"""Reads and verifies many equal small chunks of a block at a time, as if they were few large
chunks.

    64 KiB chunks of four windows each      ░░░░|░░░░|░░░░|░░░░|░░░░|░░░░|░░░░|░░░░|░░
    read, and compared, in one go           ──────── 4 MiB ────────┤ ───── 4 MiB ─────

A client that syncs often writes chunks of some kilobytes, so the work per chunk dominates a scan.
If every chunk except the last has only full windows, the windows of consecutive chunks are the same
as those of one large chunk. Therefore, many chunks are compared together, and their leaves are
computed as columns. Chunks are compared one by one only after a mismatch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from merkle.blockrow import CHUNK, POSITION, TYPE_SHIFT, WINDOW_MASK, RowColumns
from merkle.checksum_columns import U64s
from merkle.replica import BLOCK_BYTES_MAX, BlockId, ChecksumType, ChunkInfo
from merkle.tree_columns import spans_of

SIMPLE_TYPES: Final = (ChecksumType.CRC32, ChecksumType.CRC32C)
"""The checksum types of nearly all blocks that the clients of Ozone and Suture write."""

SUM_BYTES: Final = 4  # size of one window's checksum, for both types


@dataclass(frozen=True, slots=True)
class ChunkStretch:
    """The chunks `[first, last)` of one block, which are read together. `chunk` describes them as
    one chunk."""

    first: int
    last: int
    chunk: ChunkInfo


@dataclass(frozen=True, slots=True)
class UniformChunks:
    """A block of adjacent small chunks with the same checksum type and window size.

    Every chunk except the last has only full windows. Therefore, consecutive chunks have the same
    windows as one large chunk. `ends`, `spans` and `leaves` have one item per chunk. `sums` are the
    concatenated checksums of all windows.
    """

    block_id: BlockId
    row: bytes
    checksum_type: ChecksumType
    window_bytes: int
    ends: npt.NDArray[np.int64]
    sums: bytes
    spans: U64s
    leaves: U64s

    @property
    def length_bytes(self) -> int:
        """Length of the block in bytes."""
        return int(self.ends[-1])

    def stretches(self, length_bytes_max: int) -> list[ChunkStretch]:
        """Divide the chunks into groups that are read together. Each group has complete chunks with
        at most `length_bytes_max` bytes in total."""
        found = []
        first = start = 0
        while first < len(self.ends):
            last = int(np.searchsorted(self.ends, start + length_bytes_max, side="right"))
            end = int(self.ends[last - 1])
            sums = slice(
                SUM_BYTES * (start // self.window_bytes), SUM_BYTES * -(-end // self.window_bytes)
            )
            chunk = ChunkInfo(
                start, end - start, self.checksum_type, self.window_bytes, self.sums[sums]
            )
            found.append(ChunkStretch(first, last, chunk))
            first, start = last, end
        return found


def alike_blocks(
    parsed: RowColumns, raws: Sequence[bytes], leaves: U64s, length_bytes_max: int
) -> dict[int, UniformChunks]:
    """Return the blocks of several small chunks of at most `length_bytes_max` bytes with the same
    checksum type and window size, by their index in the batch."""
    counts = parsed.chunk_counts
    if not (counts > 1).any():
        return {}
    firsts = np.cumsum(counts) - counts
    kinds = kinds_of(parsed, firsts)
    fits = parsed.lengths_bytes <= np.uint64(length_bytes_max)
    lengths = np.where(fits, parsed.lengths_bytes, np.uint64(0)).astype(np.int64)
    window_bytes = kinds & WINDOW_MASK
    windows = np.maximum(window_bytes, 1)
    is_first = np.zeros(len(kinds), dtype=np.bool_)
    is_first[firsts[counts > 0]] = True
    is_last = np.roll(is_first, -1)
    ends = parsed.offsets + parsed.lengths_bytes
    is_alike = (
        np.isin(kinds >> TYPE_SHIFT, SIMPLE_TYPES)
        & (lengths > 0)
        & (window_bytes > 0)
        & (is_last | (lengths % windows == 0))
        & (parsed.leaf_lengths - POSITION.size == SUM_BYTES * -(-lengths // windows))
        & (parsed.offsets == np.where(is_first, np.uint64(0), np.roll(ends, 1)))
        & (ends <= np.uint64(BLOCK_BYTES_MAX))
        & (is_first | (kinds == np.roll(kinds, 1)))
    )
    wrong_counts = np.add.reduceat(~is_alike, firsts[counts > 0], dtype=np.int64)
    found = np.flatnonzero(counts > 0)[wrong_counts == 0]
    return {
        index: _alike(
            parsed,
            raws,
            leaves,
            index,
            first=int(firsts[index]),
            kind=int(kinds[firsts[index]]),
        )
        for index in found[counts[found] > 1].tolist()
    }


def _alike(
    parsed: RowColumns, raws: Sequence[bytes], leaves: U64s, index: int, *, first: int, kind: int
) -> UniformChunks:
    part = slice(first, first + int(parsed.chunk_counts[index]))
    starts = parsed.leaf_starts[part] + POSITION.size
    stops = parsed.leaf_starts[part] + parsed.leaf_lengths[part]
    octets = memoryview(parsed.octets.data)
    sums = [octets[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
    lengths = parsed.lengths_bytes[part]
    return UniformChunks(
        block_id=BlockId(int(parsed.block_ids[index])),
        row=raws[index],
        checksum_type=ChecksumType(kind >> TYPE_SHIFT),
        window_bytes=kind & WINDOW_MASK,
        ends=np.cumsum(lengths).astype(np.int64),
        sums=b"".join(sums),
        spans=spans_of(parsed.offsets[part], lengths, np.True_),
        leaves=leaves[part],
    )


def kinds_of(parsed: RowColumns, firsts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the checksum type and the window size of each chunk, packed into one integer as in the
    row.

    `firsts` has, for each row, the index of its first chunk.
    """
    counts = parsed.chunk_counts
    some = counts > 0
    tables = parsed.leaf_starts[firsts[some]] - CHUNK.size * counts[some]
    within = np.arange(counts.sum()) - np.repeat(firsts, counts)
    places = np.repeat(tables, counts[some]) + CHUNK.size * within
    words: npt.NDArray[np.uint32] = parsed.octets.view("<u4")
    kinds: npt.NDArray[np.int64] = words[places // 4 + 1].astype(np.int64)
    return kinds
