"""The Merkle tree of one container replica, stored as columns.

    container  root ── fold of block checksums, by block id
    block      ├─ 17 ── fold of the id and the leaves of its chunks, by offset
    chunk      │   ├─ 0 .. 4 MiB     leaf: fold of its window checksums
               │   └─ 4 .. 8 MiB
               └─ 23 deleted        tombstone: keeps the block's checksum, has no chunks

"Fold" means the checksum of a list of checksums. A container has a thousand large chunks or half a
million small blocks. Therefore, the columns are numpy arrays, with 37 bytes for a block of one
chunk, and a `Leaf` is created only on request. A tree is immutable; operations return a new tree.

The checksums are computed in `merkle.checksum`, and `merkle.tree_codec` has the file format.
docs/DISK_FORMAT.md describes every column.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from merkle.checksum import Algorithm
from merkle.checksum_columns import U64s, container_checksum
from merkle.damaged_data import DamagedData
from merkle.replica import BlockId
from merkle.tree_columns import (
    LENGTH_MASK,
    OFFSET_SHIFT,
    Column,
    check_shape,
    fold_blocks,
    spans_of,
    u64s,
)
from merkle.tree_summary import TreeSummary


class Leaf(NamedTuple):
    """A chunk as it is on disk: the bytes `[offset, offset + length_bytes)` of its block. `healthy`
    is False if its data differs from the written data."""

    offset: int
    length_bytes: int
    checksum: int
    healthy: bool = True

    @property
    def end(self) -> int:
        """First offset after the chunk."""
        return self.offset + self.length_bytes


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tree:
    """The tree of one replica. `merkle.tree_building` builds a tree from chunks or rows.

    The columns `block_ids`, `block_checksums` and `deleted` have one value per block, in ascending
    order of the ids. Block i has the chunks from `chunk_starts[i]` up to, but not including,
    `chunk_starts[i + 1]`. The columns `chunk_spans` and `chunk_checksums` have one value per chunk.
    `generation` is a number that grows with every tree that the datanode stores for the replica.
    The result of a scan may replace the stored tree only if the stored generation has not changed
    since the scan started.
    """

    algorithm: Algorithm
    generation: int
    root: int
    tombstones_checksum: int
    block_ids: U64s
    block_checksums: U64s
    deleted: npt.NDArray[np.bool_]
    chunk_starts: npt.NDArray[np.uint32]
    chunk_spans: U64s
    chunk_checksums: U64s

    def __post_init__(self) -> None:
        for column in self.columns():
            column.flags.writeable = False

    @classmethod
    def from_columns(
        cls,
        algorithm: Algorithm,
        *,
        block_ids: Sequence[int] | U64s,
        block_checksums: Sequence[int] | U64s,
        deleted: Sequence[bool] | npt.NDArray[np.bool_],
        chunk_counts: Sequence[int] | Column,
        chunk_offsets: Sequence[int] | Column,
        chunk_lengths: Sequence[int] | Column,
        chunk_checksums: Sequence[int] | U64s,
        chunk_healthy: Sequence[bool] | npt.NDArray[np.bool_],
        generation: int = 0,
    ) -> "Tree":
        """Return the tree of the columns that a peer sent.

        Raise DamagedData if the columns are invalid, or if a live block's checksum does not match
        its leaves.
        """
        counts = np.asarray(chunk_counts, dtype=np.int64)
        sizes = {len(chunk_offsets), len(chunk_lengths), len(chunk_checksums), len(chunk_healthy)}
        if sizes != {int(counts.sum())} or (counts < 0).any():
            raise DamagedData(f"chunk columns of {sorted(sizes)} rows for {counts.sum()} chunks")
        tree = compose(
            algorithm,
            generation,
            block_ids=u64s(block_ids),
            block_checksums=u64s(block_checksums),
            deleted=np.array(deleted, dtype=np.bool_),
            chunk_counts=counts,
            chunk_spans=spans_of(
                u64s(chunk_offsets), u64s(chunk_lengths), np.asarray(chunk_healthy, np.bool_)
            ),
            chunk_checksums=u64s(chunk_checksums),
        )
        tree.verify()
        return tree

    @property
    def block_count(self) -> int:
        """Number of live blocks."""
        return len(self.block_ids) - self.tombstone_count

    @property
    def tombstone_count(self) -> int:
        """Number of tombstones (deleted blocks)."""
        return int(np.count_nonzero(self.deleted))

    @property
    def chunk_count(self) -> int:
        """Number of chunks of all blocks."""
        return len(self.chunk_spans)

    @property
    def unhealthy_count(self) -> int:
        """Number of chunks whose data differs from the written data."""
        return self.chunk_count - int(np.count_nonzero(self.chunk_spans & np.uint64(1)))

    @property
    def chunk_offsets(self) -> U64s:
        """Offset of each chunk in its block. The array is computed on each access."""
        return self.chunk_spans >> np.uint64(OFFSET_SHIFT)

    @property
    def chunk_lengths(self) -> npt.NDArray[np.uint32]:
        """Length of each chunk in bytes. The array is computed on each access."""
        return (self.chunk_spans >> np.uint64(1) & np.uint64(LENGTH_MASK)).astype(np.uint32)

    @property
    def chunk_healthy(self) -> npt.NDArray[np.bool_]:
        """True for each healthy chunk. The array is computed on each access."""
        return (self.chunk_spans & np.uint64(1)).astype(np.bool_)

    @property
    def chunk_counts(self) -> npt.NDArray[np.int64]:
        """Number of chunks of each block. The array is computed on each access."""
        starts = self.chunk_starts.astype(np.int64)
        return starts[1:] - starts[:-1]

    def columns(self) -> tuple[Column, ...]:
        """Return every array of the tree. The sum of their sizes is the tree's memory use."""
        return (
            self.block_ids,
            self.block_checksums,
            self.deleted,
            self.chunk_starts,
            self.chunk_spans,
            self.chunk_checksums,
        )

    def summary(self) -> TreeSummary:
        """Return the summary of this tree for a report: root, generation and counts."""
        tombstone_count = self.tombstone_count
        return TreeSummary(
            algorithm=self.algorithm,
            root=self.root,
            generation=self.generation,
            block_count=len(self.block_ids) - tombstone_count,
            tombstone_count=tombstone_count,
            tombstones_checksum=self.tombstones_checksum,
        )

    def tombstones(self) -> dict[BlockId, int]:
        """Return the checksum of each deleted block, by block id."""
        dead = self.block_ids[self.deleted].tolist()
        return dict(zip(dead, self.block_checksums[self.deleted].tolist(), strict=True))

    def index_of(self, block_id: int) -> int:
        """Return the position of a block in the columns; -1 if the tree does not have the block."""
        index = int(np.searchsorted(self.block_ids, np.uint64(block_id)))
        found = index < len(self.block_ids) and int(self.block_ids[index]) == block_id
        return index if found else -1

    def chunks_of(self, index: int) -> slice:
        """Return the slice of the chunk columns for the block at `index`."""
        return slice(int(self.chunk_starts[index]), int(self.chunk_starts[index + 1]))

    def leaf(self, index: int) -> Leaf:
        """Return the leaf of the chunk at `index` of the chunk columns."""
        return leaf_of(int(self.chunk_spans[index]), int(self.chunk_checksums[index]))

    def leaves(self, block_id: int) -> list[Leaf]:
        """Return the chunks of a block in the order of offset. Return an empty list for a tombstone
        or an unknown block."""
        index = self.index_of(block_id)
        return [] if index < 0 else self.leaves_at(index)

    def leaves_at(self, index: int) -> list[Leaf]:
        """Return the chunks of the block at the position `index`, in the order of offset."""
        chunks = self.chunks_of(index)
        spans, checksums = self.chunk_spans[chunks].tolist(), self.chunk_checksums[chunks].tolist()
        return [
            Leaf(span >> OFFSET_SHIFT, span >> 1 & LENGTH_MASK, checksum, bool(span & 1))
            for span, checksum in zip(spans, checksums, strict=True)
        ]

    def unhealthy_block_ids(self) -> U64s:
        """Return the ids of the blocks that have an unhealthy chunk."""
        chunks = np.flatnonzero((self.chunk_spans & np.uint64(1)) == 0)
        return self.block_ids[np.unique(self.block_of(chunks))]

    def block_of(self, chunks: Column) -> npt.NDArray[np.int64]:
        """Return, for each chunk position in `chunks`, the position of the block that has the
        chunk."""
        return np.searchsorted(self.chunk_starts, chunks, side="right") - 1

    def select(self, block_ids: Iterable[int] | U64s) -> "Tree":
        """Return a tree with only the given blocks. Ids that this tree does not have are
        ignored."""
        wanted = u64s(block_ids if isinstance(block_ids, np.ndarray) else list(block_ids))
        return select_blocks(self, np.flatnonzero(np.isin(self.block_ids, wanted)))

    def with_generation(self, generation: int) -> "Tree":
        """Return the same tree with another generation."""
        return replace(self, generation=generation)

    def verify(self) -> None:
        """Raise DamagedData if the checksum of a live block does not match its chunks, or if the
        root does not match the blocks."""
        live = ~self.deleted
        folded = fold_blocks(
            self.algorithm,
            self.block_ids[live],
            self.chunk_counts[live],
            self.chunk_checksums,
        )
        wrong = np.flatnonzero(folded != self.block_checksums[live])
        if len(wrong):
            raise DamagedData(
                f"block {self.block_ids[live][wrong[0]]}: checksum is not the fold of its chunks"
            )
        if self.root != container_checksum(self.algorithm, self.block_checksums):
            raise DamagedData("root is not the fold of the blocks")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tree):
            return NotImplemented
        return (self.algorithm, self.generation, self.root) == (
            other.algorithm,
            other.generation,
            other.root,
        ) and all(map(np.array_equal, self.columns(), other.columns()))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"Tree({self.algorithm}, root={self.root:#x}, generation={self.generation}, "
            f"blocks={self.block_count}, tombstones={self.tombstone_count}, "
            f"chunks={self.chunk_count}, unhealthy={self.unhealthy_count})"
        )


def with_tombstones(tree: Tree, *, block_ids: U64s, checksums: U64s) -> Tree:
    """Return a tree in which the blocks `block_ids` are tombstones, including blocks that `tree`
    does not have."""
    if len(block_ids) == 0:
        return tree
    rest = select_blocks(tree, np.flatnonzero(~np.isin(tree.block_ids, block_ids)))
    ids = np.concatenate([rest.block_ids, block_ids])
    order = np.argsort(ids, kind="stable")
    added = np.zeros(len(block_ids), dtype=np.int64)
    return compose(
        tree.algorithm,
        tree.generation,
        block_ids=ids[order],
        block_checksums=np.concatenate([rest.block_checksums, checksums])[order],
        deleted=np.concatenate([rest.deleted, np.ones(len(block_ids), dtype=np.bool_)])[order],
        chunk_counts=np.concatenate([rest.chunk_counts, added])[order],
        chunk_spans=rest.chunk_spans,  # a tombstone has no chunks: their order stays
        chunk_checksums=rest.chunk_checksums,
    )


def select_blocks(tree: Tree, indexes: npt.NDArray[np.intp]) -> Tree:
    """Return a tree with only the blocks at the positions `indexes`, which must ascend."""
    counts = tree.chunk_counts[indexes]
    starts = tree.chunk_starts[:-1][indexes].astype(np.int64)
    chunks = np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    return compose(
        tree.algorithm,
        tree.generation,
        block_ids=tree.block_ids[indexes],
        block_checksums=tree.block_checksums[indexes],
        deleted=tree.deleted[indexes],
        chunk_counts=counts,
        chunk_spans=tree.chunk_spans[chunks],
        chunk_checksums=tree.chunk_checksums[chunks],
    )


def compose(
    algorithm: Algorithm,
    generation: int,
    *,
    block_ids: U64s,
    block_checksums: U64s,
    deleted: npt.NDArray[np.bool_],
    chunk_counts: npt.NDArray[np.int64],
    chunk_spans: U64s,
    chunk_checksums: U64s,
) -> Tree:
    """Return a tree with these columns, and compute its root. Raise DamagedData if the lengths of
    the columns do not match."""
    starts = np.zeros(len(chunk_counts) + 1, dtype=np.uint32)
    np.cumsum(chunk_counts, out=starts[1:])
    check_shape(block_ids, block_checksums, deleted, starts, chunk_spans, chunk_checksums)
    return Tree(
        algorithm=algorithm,
        generation=generation,
        root=container_checksum(algorithm, block_checksums),
        tombstones_checksum=container_checksum(algorithm, block_ids[deleted]),
        block_ids=block_ids,
        block_checksums=block_checksums,
        deleted=deleted,
        chunk_starts=starts,
        chunk_spans=chunk_spans,
        chunk_checksums=chunk_checksums,
    )


def leaf_of(span: int, checksum: int) -> Leaf:
    """Return the leaf with this checksum. `span` is an integer that contains the offset, the length
    and the health of the chunk."""
    return Leaf(span >> OFFSET_SHIFT, span >> 1 & LENGTH_MASK, checksum, bool(span & 1))
