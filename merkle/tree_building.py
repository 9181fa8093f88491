"""Builds a tree, either from chunks in the order in which a scan reads them, or from rows of the
index."""

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from merkle.blockrow import batches, read_columns
from merkle.checksum import Algorithm, leaf_checksum
from merkle.checksum_columns import U64s
from merkle.replica import ID_MAX, BlockId
from merkle.tree import Leaf, Tree, compose, with_tombstones
from merkle.tree_columns import (
    LENGTH_MASK,
    OFFSET_BITS,
    OFFSET_SHIFT,
    Column,
    concatenate,
    fold_blocks,
    fold_leaves,
    spans_of,
    u64s,
)


class TreeBuilder:
    """Builds a tree chunk by chunk, in the order in which a scan reads the chunks."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self._block_ids = array("Q")
        self._chunk_counts = array("Q")
        self._spans = array("Q")
        self._checksums = array("Q")
        self._tombstones: dict[int, int] = {}

    def add_block(self, block_id: int) -> None:
        """Begin the next block. Raise ValueError if its id is not greater than the previous id."""
        if self._block_ids and block_id <= self._block_ids[-1]:
            raise ValueError(f"block {block_id} after block {self._block_ids[-1]}: ids must ascend")
        if not 0 <= block_id <= ID_MAX:
            raise ValueError(f"block id {block_id} is outside 0..{ID_MAX}")
        self._block_ids.append(block_id)
        self._chunk_counts.append(0)

    def add_blocks(self, block_ids: U64s, counts: Column, spans: U64s, leaves: U64s) -> None:
        """Add several blocks. `counts` has the number of chunks of each block; `spans` and `leaves`
        have the span (offset, length and health) and the leaf of each chunk."""
        if len(block_ids):
            self.add_block(int(block_ids[0]))
            self._chunk_counts[-1] = int(counts[0])
            self._block_ids.frombytes(block_ids[1:].tobytes())
            self._chunk_counts.frombytes(counts[1:].astype(np.uint64).tobytes())
            self._spans.frombytes(spans.tobytes())
            self._checksums.frombytes(leaves.tobytes())

    def add_chunk(
        self, offset: int, length_bytes: int, window_checksums: bytes, healthy: bool = True
    ) -> None:
        """Add the next chunk of the current block. `window_checksums` are the checksums of its
        bytes."""
        checksum = leaf_checksum(self._algorithm, offset, length_bytes, window_checksums)
        self.add_leaf(Leaf(offset, length_bytes, checksum, healthy))

    def add_leaf(self, leaf: Leaf) -> None:
        """Add the next chunk of the current block, given its leaf. Raise ValueError if its offset
        is not greater than the previous offset, or exceeds a limit."""
        if not self._block_ids:
            raise ValueError(f"chunk at {leaf.offset} before any block")
        if not (0 <= leaf.offset < 1 << OFFSET_BITS and 0 <= leaf.length_bytes <= LENGTH_MASK):
            raise ValueError(f"chunk at {leaf.offset} of {leaf.length_bytes} bytes is not possible")
        if self._chunk_counts[-1] and leaf.offset <= self._spans[-1] >> OFFSET_SHIFT:
            raise ValueError(
                f"block {self._block_ids[-1]}: chunk at {leaf.offset} after chunk at "
                f"{self._spans[-1] >> OFFSET_SHIFT}: offsets must ascend"
            )
        self._chunk_counts[-1] += 1
        self._spans.append(leaf.offset << OFFSET_SHIFT | leaf.length_bytes << 1 | leaf.healthy)
        self._checksums.append(leaf.checksum)

    def add_tombstone(self, block_id: int, checksum: int) -> None:
        """Add a deleted block. The method may be called at any time. The tombstone replaces a live
        block with the same id."""
        self._tombstones[block_id] = checksum

    def build(self, generation: int = 0) -> Tree:
        """Return the tree of all added blocks, chunks and tombstones."""
        ids, leaves = u64s(self._block_ids), u64s(self._checksums)
        counts = np.array(self._chunk_counts, dtype=np.int64)
        return build_live(
            self._algorithm,
            generation,
            block_ids=ids,
            block_checksums=fold_blocks(self._algorithm, ids, counts, leaves),
            chunk_counts=counts,
            chunk_spans=u64s(self._spans),
            chunk_checksums=leaves,
            tombstones=self._tombstones,
        )


def build_from_rows(
    rows: Iterable[tuple[BlockId, bytes]],
    tombstones: Mapping[BlockId, int],
    *,
    algorithm: Algorithm,
    generation: int = 0,
) -> Tree:
    """Return the tree of the blocks that these rows (`merkle.blockrow`) describe.

    The rows must be in ascending order of block ids. All chunks of the tree are healthy. If a block
    has both a row and a tombstone, the tombstone is used, because a delete writes the tombstone
    before it removes the row. Raise DamagedData if a row is damaged, and ValueError if the rows are
    not in order.
    """
    ids, checksums, counts, spans, leaves = [], [], [], [], []
    for batch_ids, batch_rows in batches(rows):
        columns = read_columns(batch_ids, batch_rows)
        ids.append(columns.block_ids)
        counts.append(columns.chunk_counts)
        spans.append(spans_of(columns.offsets, columns.lengths_bytes, np.True_))
        leaves.append(fold_leaves(algorithm, columns))
        checksums.append(fold_blocks(algorithm, ids[-1], counts[-1], leaves[-1]))
    return build_live(
        algorithm,
        generation,
        block_ids=concatenate(ids, np.uint64),
        block_checksums=concatenate(checksums, np.uint64),
        chunk_counts=concatenate(counts, np.int64),
        chunk_spans=concatenate(spans, np.uint64),
        chunk_checksums=concatenate(leaves, np.uint64),
        tombstones=tombstones,
    )


def build_live(
    algorithm: Algorithm,
    generation: int,
    *,
    block_ids: U64s,
    block_checksums: U64s,
    chunk_counts: npt.NDArray[np.int64],
    chunk_spans: U64s,
    chunk_checksums: U64s,
    tombstones: Mapping[Any, int],
) -> Tree:
    """Return the tree of these live blocks and tombstones. Raise ValueError if the block ids do not
    ascend."""
    if (block_ids[1:] <= block_ids[:-1]).any():
        raise ValueError("block ids must ascend")
    tree = compose(
        algorithm,
        generation,
        block_ids=block_ids,
        block_checksums=block_checksums,
        deleted=np.zeros(len(block_ids), dtype=np.bool_),
        chunk_counts=chunk_counts,
        chunk_spans=chunk_spans,
        chunk_checksums=chunk_checksums,
    )
    dead = sorted(tombstones)
    return with_tombstones(
        tree, block_ids=u64s(dead), checksums=u64s([tombstones[block_id] for block_id in dead])
    )
