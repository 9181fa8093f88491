"""Computes the differences between the tree of the local replica (`mine`) and a peer's (`theirs`).

A difference describes a possible change of the local replica only; the peer computes the
differences for its own replica. Every difference has a kind, and every kind has an action or a
reason for taking no action. If every replica applies its differences from all others, in any order,
all trees become equal, provided that a healthy copy of each chunk exists
(tests/property/test_tree_laws.py). No I/O.

    mine        theirs      kind
    absent      live        MISSING_BLOCK, and each of its chunks as below
    live        absent      ONLY_MINE
    live        tombstone   ADOPT_TOMBSTONE, also when the checksums agree
    absent      tombstone   ADOPT_TOMBSTONE
    tombstone   live        PEER_ADOPTS
    tombstone   absent      PEER_ADOPTS
    tombstone   tombstone   the larger checksum is kept: ADOPT_TOMBSTONE or PEER_ADOPTS

    chunk of a block live on both sides whose checksums differ
    absent      healthy     MISSING_CHUNK
    absent      unhealthy   PEER_UNHEALTHY
    any         absent      ONLY_MINE
    unhealthy   healthy     CORRUPT_CHUNK
    healthy     unhealthy   PEER_UNHEALTHY
    unhealthy   unhealthy   BOTH_UNHEALTHY
    healthy     healthy     IRRECONCILABLE

`merkle.tree_descent` finds the differing chunks without fetching the complete tree of the peer.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from merkle.checksum import Algorithm
from merkle.checksum_columns import U64s
from merkle.replica import BlockId
from merkle.tree import Leaf, Tree
from merkle.tree_columns import LENGTH_MASK, OFFSET_SHIFT, Column
from merkle.tree_descent import BlockRange

Indexes: TypeAlias = npt.NDArray[np.int64]
ABSENT: Final = -1
ALIKE_MIN: Final = 8  # with fewer chunks, comparing one by one is as fast


class SummaryComparison(StrEnum):
    """The result of a comparison of the summaries of two trees."""

    EQUAL = "EQUAL"
    DIFFERENT = "DIFFERENT"
    TOMBSTONES_DIFFER = "TOMBSTONES_DIFFER"  # equal roots, different deleted blocks
    NOT_COMPARABLE = "NOT_COMPARABLE"  # different fold algorithms: nothing is known


class HasRoot(Protocol):
    """The common attributes of a `TreeSummary` and a `Tree`."""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that combines checksums into the tree."""

    @property
    def root(self) -> int:
        """The combined checksum of all blocks, live and deleted."""

    @property
    def tombstones_checksum(self) -> int:
        """The combined checksum of the ids of the deleted blocks."""


class DifferenceKind(StrEnum):
    """The kind of a difference, which determines the action. Only the first four kinds have an
    action that changes the local replica."""

    MISSING_BLOCK = "MISSING_BLOCK"  # create the block; each of its chunks is a difference, too
    MISSING_CHUNK = "MISSING_CHUNK"  # fetch the chunk
    CORRUPT_CHUNK = "CORRUPT_CHUNK"  # unhealthy here, healthy at the peer: fetch the chunk
    ADOPT_TOMBSTONE = "ADOPT_TOMBSTONE"  # the peer deleted the block; delete it once confirmed
    PEER_ADOPTS = "PEER_ADOPTS"  # nothing to do: the peer adopts the local tombstone
    PEER_UNHEALTHY = "PEER_UNHEALTHY"  # nothing to fetch: the peer's chunk is damaged
    BOTH_UNHEALTHY = "BOTH_UNHEALTHY"  # nothing to fetch: mine needs another source
    IRRECONCILABLE = "IRRECONCILABLE"  # two healthy versions: an operator decides
    ONLY_MINE = "ONLY_MINE"  # nothing to do: the peer's diff has the difference


REPAIRED_KINDS: Final = frozenset(
    {
        DifferenceKind.MISSING_BLOCK,
        DifferenceKind.MISSING_CHUNK,
        DifferenceKind.CORRUPT_CHUNK,
        DifferenceKind.ADOPT_TOMBSTONE,
    }
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between two trees in one block, or in one chunk if `mine` or `theirs` is not
    None.

    `checksum` is the checksum of a tombstone: of the peer's tombstone for ADOPT_TOMBSTONE, and of
    the local tombstone for PEER_ADOPTS. It is 0 for other kinds.
    """

    kind: DifferenceKind
    block_id: BlockId
    mine: Leaf | None = None
    theirs: Leaf | None = None
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class Divergence:
    """All differences between two trees, in the order of block id and chunk offset. A difference of
    a complete block comes before the differences of its chunks."""

    differences: tuple[Difference, ...] = ()

    def counts(self) -> dict[DifferenceKind, int]:
        """Return the number of differences by kind, without the kinds that do not occur."""
        return dict(Counter(difference.kind for difference in self.differences))


def compare(mine: HasRoot, theirs: HasRoot) -> SummaryComparison:
    """Compare two trees by their summaries.

    The result EQUAL does not mean that the replicas are healthy. Therefore, callers compute the
    differences of a replica with unhealthy chunks even if the result is EQUAL.
    """
    if mine.algorithm != theirs.algorithm:
        return SummaryComparison.NOT_COMPARABLE
    if mine.root != theirs.root:
        return SummaryComparison.DIFFERENT
    if mine.tombstones_checksum != theirs.tombstones_checksum:
        return SummaryComparison.TOMBSTONES_DIFFER
    return SummaryComparison.EQUAL


def diff(mine: Tree, theirs: Tree, *, scope: Sequence[BlockRange] | None = None) -> Divergence:
    """Return the differences of the blocks in `scope`, or of all blocks if `scope` is None.

    `theirs` may be a part of the peer's tree (`merkle.tree_descent.partial_tree`). The part must
    have every block of the scope, and the chunks of the differing blocks. Raise ValueError if the
    trees have different algorithms.
    """
    if mine.algorithm != theirs.algorithm:
        raise ValueError(f"a {mine.algorithm} tree cannot be compared with {theirs.algorithm}")
    differences = [
        difference
        for my_index, their_index in differing(mine, theirs, scope)
        for difference in of_block(mine, my_index, theirs, their_index)
    ]
    return Divergence(tuple(differences))


def differing(
    mine: Tree, theirs: Tree, scope: Sequence[BlockRange] | None
) -> Iterator[tuple[int, int]]:
    """Yield the positions of each block that may differ, in ascending order of the block ids.

    The positions are a pair (index in `mine`, index in `theirs`). An index is ABSENT if the tree
    does not have the block.
    """
    my_at, their_at = in_scope(mine.block_ids, scope), in_scope(theirs.block_ids, scope)
    my_ids, their_ids = mine.block_ids[my_at], theirs.block_ids[their_at]
    my_only, their_only = align(my_ids, their_ids)
    shared_ids = without(my_ids, my_only)
    differs = np.zeros(len(shared_ids), dtype=np.bool_)
    for mine_column, their_column in (
        (mine.block_checksums, theirs.block_checksums),
        (mine.deleted, theirs.deleted),
    ):
        differs |= without(mine_column[my_at], my_only) != without(
            their_column[their_at], their_only
        )
    if mine.unhealthy_count:
        differs |= np.isin(shared_ids, mine.unhealthy_block_ids())
    ids = np.concatenate([my_ids[my_only], their_ids[their_only], shared_ids[differs]])
    ids.sort()
    my_indexes, their_indexes = indexes_of(mine.block_ids, ids), indexes_of(theirs.block_ids, ids)
    yield from zip(my_indexes.tolist(), their_indexes.tolist(), strict=True)


def in_scope(block_ids: U64s, scope: Sequence[BlockRange] | None) -> Indexes | slice:
    """Return the positions of the ids that are in one of the ranges of `scope`. The ranges must
    ascend and be disjoint. If `scope` is None, return the slice of all ids."""
    if scope is None:
        return slice(None)
    parts = [
        np.arange(
            np.searchsorted(block_ids, np.uint64(first)),
            np.searchsorted(block_ids, np.uint64(last), side="right"),
        )
        for first, last in scope
    ]
    return np.concatenate(parts) if parts else np.arange(0)


def align(mine: U64s, theirs: U64s) -> tuple[Indexes, Indexes]:
    """Return the positions of the ids that are only in `mine`, and the positions of the ids that
    are only in `theirs`.

    The function sorts both lists together, because a stable sort merges two ascending lists in a
    fifth of the time of a binary search for each id.
    """
    ids = np.sort(np.concatenate([mine, theirs]), kind="stable")
    alone = np.ones(len(ids), dtype=np.bool_)
    twice = ids[1:] == ids[:-1]
    alone[1:] &= ~twice
    alone[:-1] &= ~twice
    ids = ids[alone]
    my_indexes, their_indexes = indexes_of(mine, ids), indexes_of(theirs, ids)
    return my_indexes[my_indexes != ABSENT], their_indexes[their_indexes != ABSENT]


def indexes_of(block_ids: U64s, wanted: U64s) -> Indexes:
    """Return the position of each id of `wanted` in the ascending `block_ids`; ABSENT if the id is
    not there."""
    if len(block_ids) == 0:
        return np.full(len(wanted), ABSENT)
    indexes = np.minimum(np.searchsorted(block_ids, wanted), len(block_ids) - 1)
    return np.where(block_ids[indexes] == wanted, indexes, ABSENT)


def without(column: Column, indexes: Indexes) -> Column:
    """Return a copy of `column` without the items at `indexes`. If `indexes` is empty, return
    `column` itself."""
    return np.delete(column, indexes) if len(indexes) else column


def of_block(mine: Tree, my_index: int, theirs: Tree, their_index: int) -> Iterator[Difference]:
    """Yield the differences between two trees in one block.

    `my_index` and `their_index` are the positions of the block in the trees. A position is ABSENT
    if the tree does not contain the block.
    """
    if my_index == ABSENT:
        yield from of_their_block(theirs, their_index)
        return
    block_id = BlockId(int(mine.block_ids[my_index]))
    buried_here = bool(mine.deleted[my_index])
    if their_index == ABSENT:
        if buried_here:
            yield tombstone(DifferenceKind.PEER_ADOPTS, mine, my_index)
        else:
            yield Difference(DifferenceKind.ONLY_MINE, block_id)
    elif not theirs.deleted[their_index]:
        if buried_here:
            yield tombstone(DifferenceKind.PEER_ADOPTS, mine, my_index)
        else:
            yield from of_live_block(block_id, mine, my_index, theirs, their_index)
    elif not buried_here or mine.block_checksums[my_index] < theirs.block_checksums[their_index]:
        yield tombstone(DifferenceKind.ADOPT_TOMBSTONE, theirs, their_index)
    else:
        yield tombstone(DifferenceKind.PEER_ADOPTS, mine, my_index)


def tombstone(kind: DifferenceKind, tree: Tree, index: int) -> Difference:
    """Return a difference of this `kind` for the tombstone at `index` in `tree`."""
    return Difference(
        kind, BlockId(int(tree.block_ids[index])), checksum=int(tree.block_checksums[index])
    )


def of_their_block(theirs: Tree, their_index: int) -> Iterator[Difference]:
    """Yield the differences of a block that only the peer's tree has."""
    if theirs.deleted[their_index]:
        yield tombstone(DifferenceKind.ADOPT_TOMBSTONE, theirs, their_index)
        return
    block_id = BlockId(int(theirs.block_ids[their_index]))
    leaves = theirs.leaves_at(their_index)
    # Do not create a local block without content if the peer has only damaged chunks of it.
    if not leaves or any(leaf.healthy for leaf in leaves):
        yield Difference(DifferenceKind.MISSING_BLOCK, block_id)
    yield from of_chunks(block_id, [], leaves)


def of_live_block(
    block_id: BlockId, mine: Tree, my_index: int, theirs: Tree, their_index: int
) -> Iterator[Difference]:
    """Yield the differences of a block that is live in both trees.

    Usually, the chunks of both blocks have the same offsets, and only a few chunks differ. In this
    case, only the leaves of the differing chunks are created.
    """
    my_chunks, their_chunks = mine.chunks_of(my_index), theirs.chunks_of(their_index)
    my_spans, their_spans = mine.chunk_spans[my_chunks], theirs.chunk_spans[their_chunks]
    if len(my_spans) < ALIKE_MIN or not are_cut_alike(my_spans, their_spans):
        yield from of_chunks(block_id, mine.leaves_at(my_index), theirs.leaves_at(their_index))
        return
    is_unlike = mine.chunk_checksums[my_chunks] != theirs.chunk_checksums[their_chunks]
    is_unhealthy = (my_spans & np.uint64(1)) == 0
    for at in np.flatnonzero(is_unlike | is_unhealthy).tolist():
        my_leaf, their_leaf = (
            mine.leaf(my_chunks.start + at),
            theirs.leaf(their_chunks.start + at),
        )
        kind = kind_of(my_leaf, their_leaf)
        assert kind is not None, "a chunk that is healthy here and the same there was not asked"
        yield Difference(kind, block_id, my_leaf, their_leaf)


def are_cut_alike(mine: U64s, theirs: U64s) -> bool:
    """Return True if the chunks of two blocks have the same offsets and lengths, and do not
    overlap."""
    if not np.array_equal(mine >> np.uint64(1), theirs >> np.uint64(1)):
        return False
    offsets = mine >> np.uint64(OFFSET_SHIFT)
    ends = offsets + (mine >> np.uint64(1) & np.uint64(LENGTH_MASK))
    return bool((offsets[1:] >= ends[:-1]).all())


def of_chunks(
    block_id: BlockId, mine: Sequence[Leaf], theirs: Sequence[Leaf]
) -> Iterator[Difference]:
    """Yield the differences between the chunks of one block in two trees. Both lists must be in
    ascending order of offset."""
    my_leaves = {leaf.offset: leaf for leaf in mine}
    their_leaves = {leaf.offset: leaf for leaf in theirs}
    healthy = [leaf for leaf in mine if leaf.healthy]
    farthest = list(accumulate(healthy, farther))
    for offset in sorted(my_leaves.keys() | their_leaves.keys()):
        my_leaf, their_leaf = my_leaves.get(offset), their_leaves.get(offset)
        if their_leaf is None:
            yield Difference(DifferenceKind.ONLY_MINE, block_id, my_leaf)
            continue
        kind = kind_of(my_leaf, their_leaf)
        if kind is None:
            continue
        before = bisect_left(healthy, their_leaf.end, key=lambda leaf: leaf.offset)
        if kind in REPAIRED_KINDS and before and farthest[before - 1].end > offset:
            # Replicas with different chunks for a block were written differently: no byte that
            # verifies here is overwritten to make them alike.
            other = farthest[before - 1]
            yield Difference(DifferenceKind.IRRECONCILABLE, block_id, other, their_leaf)
        else:
            yield Difference(kind, block_id, my_leaf, their_leaf)


def farther(one: Leaf, other: Leaf) -> Leaf:
    """Return the leaf with the greater end offset."""
    return one if one.end > other.end else other


def kind_of(mine: Leaf | None, theirs: Leaf) -> DifferenceKind | None:
    """Return the kind of the difference between two chunks at the same offset. Return None if the
    local chunk is healthy and the checksums are equal."""
    if mine is None:
        return DifferenceKind.MISSING_CHUNK if theirs.healthy else DifferenceKind.PEER_UNHEALTHY
    if not mine.healthy:
        return DifferenceKind.CORRUPT_CHUNK if theirs.healthy else DifferenceKind.BOTH_UNHEALTHY
    if mine.checksum == theirs.checksum:
        return None
    return DifferenceKind.IRRECONCILABLE if theirs.healthy else DifferenceKind.PEER_UNHEALTHY
