"""Functions on the columns of a tree (`merkle.tree`), which pack values, compute checksums and
check consistency."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from merkle.blockrow import POSITION, RowColumns
from merkle.checksum import Algorithm, folds_position
from merkle.checksum_columns import U64s, fold_slices
from merkle.damaged_data import DamagedData
from merkle.replica import BLOCK_BYTES_MAX, CHUNK_BYTES_MAX, ID_MAX

Column: TypeAlias = npt.NDArray[Any]

# A span is a chunk's offset, length and health in one word: `offset << 28 | length << 1 | healthy`.
LENGTH_BITS: Final = 27
OFFSET_SHIFT: Final = LENGTH_BITS + 1
OFFSET_BITS: Final = 64 - OFFSET_SHIFT
LENGTH_MASK: Final = (1 << LENGTH_BITS) - 1
assert CHUNK_BYTES_MAX <= LENGTH_MASK, "a chunk's length must fit its span"
assert BLOCK_BYTES_MAX < 1 << OFFSET_BITS, "a chunk's offset must fit its span"


def spans_of(offsets: U64s, lengths_bytes: U64s, healthy: Column | np.bool_) -> U64s:
    """Return the offset, the length and the health of each chunk, packed into one 64-bit integer.

    Raise DamagedData if an offset or length exceeds its limit.
    """
    if (offsets >> np.uint64(OFFSET_BITS)).any() or (lengths_bytes > LENGTH_MASK).any():
        raise DamagedData("a chunk's offset or length is not possible")
    spans: U64s = offsets << np.uint64(OFFSET_SHIFT) | lengths_bytes << np.uint64(1)
    return spans | healthy.astype(np.uint64)


def fold_leaves(algorithm: Algorithm, columns: RowColumns) -> U64s:
    """Return the leaf of each chunk of the rows. The result equals that of `leaf_checksum`."""
    skipped_bytes = 0 if folds_position(algorithm) else POSITION.size
    return fold_slices(
        algorithm,
        columns.octets,
        columns.leaf_starts + skipped_bytes,
        columns.leaf_lengths - skipped_bytes,
    )


def fold_blocks(
    algorithm: Algorithm,
    block_ids: U64s,
    chunk_counts: npt.NDArray[np.int64],
    leaves: U64s,
) -> U64s:
    """Return the checksum of each block. The result equals that of `block_checksum`. `leaves` has
    the leaves of all blocks in order."""
    words = np.empty(len(block_ids) + len(leaves), dtype=">u8")
    sizes = chunk_counts + 1
    heads = np.cumsum(sizes) - sizes
    is_leaf = np.ones(len(words), dtype=np.bool_)
    is_leaf[heads] = False
    words[heads] = block_ids
    words[is_leaf] = leaves
    return fold_slices(algorithm, words, heads * words.itemsize, sizes * words.itemsize)


def check_shape(
    block_ids: U64s,
    block_checksums: U64s,
    deleted: npt.NDArray[np.bool_],
    chunk_starts: npt.NDArray[np.uint32],
    chunk_spans: U64s,
    chunk_checksums: U64s,
) -> None:
    """Raise DamagedData if the columns of a tree are inconsistent.

    The lengths of the columns must match, the block ids and the offsets of a block's chunks must
    ascend, and a tombstone must have no chunks.
    """
    count = len(block_ids)
    lengths = (len(block_checksums), len(deleted), len(chunk_starts) - 1)
    if lengths != (count, count, count):
        raise DamagedData(f"columns of {count} blocks have lengths {lengths}")
    if chunk_starts[0] != 0 or (chunk_starts[1:] < chunk_starts[:-1]).any():
        raise DamagedData("chunk starts do not ascend from 0")
    lengths = (int(chunk_starts[-1]), len(chunk_spans), len(chunk_checksums))
    if len(set(lengths)) != 1:
        raise DamagedData(
            "blocks have {} chunks, there are {} spans and {} leaves".format(*lengths)
        )
    if (block_ids[1:] <= block_ids[:-1]).any() or (count and block_ids[-1] > ID_MAX):
        raise DamagedData(f"block ids do not ascend up to {ID_MAX}")
    if (chunk_starts[1:][deleted] != chunk_starts[:-1][deleted]).any():
        raise DamagedData("a tombstone has chunks")
    offsets = chunk_spans >> np.uint64(OFFSET_SHIFT)
    begins_block = np.zeros(len(offsets) + 1, dtype=np.bool_)
    begins_block[chunk_starts] = True
    if ((offsets[1:] <= offsets[:-1]) & ~begins_block[1:-1]).any():
        raise DamagedData("chunk offsets do not ascend within a block")


def concatenate(parts: list[Column], dtype: type[np.generic]) -> Column:
    """Return the parts as one column. Return an empty column of type `dtype` if there are no
    parts."""
    return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)


def u64s(values: Sequence[int] | Column) -> U64s:
    """Return a copy of the values as an array of uint64. The copy is needed, because a tree makes
    its arrays read-only."""
    return np.array(values, dtype=np.uint64)
