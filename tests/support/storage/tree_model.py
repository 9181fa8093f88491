"""A simple model of changes to a tree: a perfect repair, deletes, and a merge."""

from collections.abc import Iterable

import numpy as np

from merkle.checksum_columns import U64s
from merkle.diff import REPAIRED_KINDS, DifferenceKind, Divergence
from merkle.tree import Leaf, Tree, with_tombstones
from merkle.tree_building import TreeBuilder
from merkle.tree_columns import u64s


def apply_divergence(
    mine: Tree, divergence: Divergence, *, are_deletes_confirmed: bool = True
) -> Tree:
    """Return my tree after a perfect repair.

    Deletes that peers claim are executed only if they are confirmed. The model has no holes between
    chunks. The repairer ensures that no chunk is written after a hole: it combines the chunks of
    all peers, in order.
    """
    blocks = {int(mine.block_ids[index]): index for index in np.flatnonzero(~mine.deleted).tolist()}
    leaves = {
        block_id: {leaf.offset: leaf for leaf in mine.leaves_at(index)}
        for block_id, index in blocks.items()
    }
    tombstones = mine.tombstones()
    for difference in divergence.differences:
        if difference.kind not in REPAIRED_KINDS:
            continue
        if difference.kind is DifferenceKind.ADOPT_TOMBSTONE:
            if not are_deletes_confirmed and difference.block_id not in tombstones:
                continue
            known = tombstones.get(difference.block_id, 0)
            tombstones[difference.block_id] = max(known, difference.checksum)
            continue
        chunks = leaves.setdefault(difference.block_id, {})
        if difference.theirs is not None:
            local = chunks.get(difference.theirs.offset)
            if local is None or not local.healthy:
                chunks[difference.theirs.offset] = difference.theirs
    return rebuild(mine, leaves, tombstones)


def rebuild(mine: Tree, leaves: dict[int, dict[int, Leaf]], tombstones: dict[int, int]) -> Tree:
    """Return the tree with these leaves and tombstones by block id, and with the algorithm and
    generation of `mine`."""
    builder = TreeBuilder(mine.algorithm)
    for block_id, chunks in sorted(leaves.items()):
        builder.add_block(block_id)
        for _, leaf in sorted(chunks.items()):
            builder.add_leaf(leaf)
    for block_id, checksum in tombstones.items():
        builder.add_tombstone(block_id, checksum)
    return builder.build(mine.generation)


def merge(existing: Tree | None, fresh: Tree) -> Tree:
    """Return `fresh` with the tombstones of `existing`, as Ozone merges a scan's tree.

    The live blocks are those of `fresh`. If both trees have a tombstone, that of `fresh` is kept. A
    block with a tombstone in `existing` stays deleted, so a scan that began before a delete does
    not restore the block. A tombstone keeps its checksum even if the algorithm has changed.
    """
    if existing is None or not existing.deleted.any():
        return fresh
    kept = existing.deleted & ~np.isin(existing.block_ids, fresh.block_ids[fresh.deleted])
    return with_tombstones(
        fresh, block_ids=existing.block_ids[kept], checksums=existing.block_checksums[kept]
    )


def bury(tree: Tree, block_ids: Iterable[int] | U64s) -> Tree:
    """Return `tree` with these live blocks replaced by tombstones of the same checksum, so that the
    root does not change.

    An id that is not a live block of the tree changes nothing.
    """
    wanted = u64s(block_ids if isinstance(block_ids, np.ndarray) else list(block_ids))
    buried = np.isin(tree.block_ids, wanted)  # an existing tombstone remains unchanged
    return with_tombstones(
        tree, block_ids=tree.block_ids[buried], checksums=tree.block_checksums[buried]
    )
