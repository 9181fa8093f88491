"""Finds the differing chunks of two replicas without fetching the complete tree of the peer.

    level    the peer returns          for
    ROOT     the summary               the tree; the descent ends if the summaries are equal
    RANGES   one checksum per range    all ranges that the caller defines
    BLOCKS   one row per block         the ranges that differ
    CHUNKS   the chunks                the blocks that differ

The levels are compared in this order, and each level is fetched only where the previous level
differs. Both sides compute the checksums of the same ranges of block ids, so that replicas with
different blocks can be compared. The traffic depends on the damage: for ten damaged blocks among
half a million, the peer sends a thousand range checksums and the rows of ten ranges.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from merkle.checksum import Algorithm
from merkle.checksum_columns import U64s, fold_slices
from merkle.damaged_data import DamagedData
from merkle.replica import ID_MAX
from merkle.tree import Tree, compose
from merkle.tree_columns import u64s

BlockRange: TypeAlias = tuple[int, int]
"""The first and the last block id of a range, both inclusive."""

BLOCKS_PER_RANGE: Final = 512
"""Number of blocks per range. The peer sends 8 bytes per range, and 17 bytes per block of a
differing range."""

ROW: Final = np.dtype([("block_id", ">u8"), ("checksum", ">u8"), ("deleted", "u1")])


def range_starts(tree: Tree, blocks_per_range: int = BLOCKS_PER_RANGE) -> U64s:
    """Return the first block id of each range, for ranges of `blocks_per_range` blocks of the local
    tree.

    The first range starts at 0, and the last range has no end, so that the ranges contain every
    block id.
    """
    starts = tree.block_ids[::blocks_per_range].copy()
    if len(starts) == 0:
        return np.zeros(1, dtype=np.uint64)
    starts[0] = 0
    return starts


def range_checksums(tree: Tree, starts: Sequence[int] | U64s) -> U64s:
    """Return a checksum for each range of block ids.

    It is the checksum of (block id as 8 bytes, block checksum as 8 bytes, deleted as 1 byte) of all
    blocks in the range. Raise ValueError if the starts do not ascend from 0.
    """
    bounds = check_starts(u64s(starts))
    rows = np.empty(len(tree.block_ids), dtype=ROW)
    rows["block_id"] = tree.block_ids
    rows["checksum"] = tree.block_checksums
    rows["deleted"] = tree.deleted
    first = np.searchsorted(tree.block_ids, bounds).astype(np.int64)
    counts = np.append(first[1:], len(rows)) - first
    return fold_slices(tree.algorithm, rows, first * ROW.itemsize, counts * ROW.itemsize)


def check_starts(starts: U64s) -> U64s:
    """Return `starts` unchanged. Raise ValueError if they do not ascend from 0."""
    if len(starts) == 0 or starts[0] != 0 or (starts[1:] <= starts[:-1]).any():
        raise ValueError("range starts must ascend from 0")
    return starts


def differing_ranges(
    my_checksums: Sequence[int] | U64s,
    their_checksums: Sequence[int] | U64s,
    starts: Sequence[int] | U64s,
    *,
    also: Sequence[int] | U64s = (),
) -> list[BlockRange]:
    """Return the ranges whose blocks must be compared. Adjacent ranges are joined.

    The ranges of the blocks in `also` are included even if their checksums are equal. These blocks
    have unhealthy chunks in the local replica, and checksums do not include the health. Raise
    DamagedData if the peer returned another number of checksums than requested.
    """
    bounds = check_starts(u64s(starts))
    mine, theirs = u64s(my_checksums), u64s(their_checksums)
    if not len(mine) == len(theirs) == len(bounds):
        raise DamagedData(f"{len(theirs)} range checksums for {len(bounds)} ranges")
    differs = mine != theirs
    differs[np.searchsorted(bounds, u64s(also), side="right") - 1] = True
    lasts = np.append(bounds[1:] - np.uint64(1), np.uint64(ID_MAX))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], differs, [False]]).astype(np.int8)))
    return [
        (int(bounds[first]), int(lasts[end - 1]))
        for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    ]


def differing_blocks(
    mine: Tree,
    block_ids: Sequence[int] | U64s,
    block_checksums: Sequence[int] | U64s,
    deleted: Sequence[bool] | npt.NDArray[np.bool_],
) -> U64s:
    """Return the ids of the blocks whose chunks must be fetched from the peer.

    These blocks are live at the peer. In the local tree they are absent, or they are live and have
    another checksum or an unhealthy chunk. If a block is a tombstone on either side, its chunks are
    not needed.
    """
    ids, checksums = u64s(block_ids), u64s(block_checksums)
    if len(mine.block_ids) == 0:
        return ids[~np.asarray(deleted, dtype=np.bool_)]
    index = np.minimum(np.searchsorted(mine.block_ids, ids), len(mine.block_ids) - 1)
    here = mine.block_ids[index] == ids
    differs = mine.block_checksums[index] != checksums
    differs |= np.isin(ids, mine.unhealthy_block_ids())
    wanted = ~here | (differs & ~mine.deleted[index])
    result: U64s = ids[wanted & ~np.asarray(deleted, dtype=np.bool_)]
    return result


def partial_tree(
    algorithm: Algorithm,
    *,
    block_ids: Sequence[int] | U64s,
    block_checksums: Sequence[int] | U64s,
    deleted: Sequence[bool] | npt.NDArray[np.bool_],
    detailed: Tree,
    generation: int = 0,
) -> Tree:
    """Return the fetched part of a peer's tree.

    All blocks have a checksum, but only the blocks in `detailed` have chunks. `detailed` is the
    result of `Tree.from_columns`. Raise DamagedData if `detailed` does not match the other
    arguments.
    """
    ids, checksums = u64s(block_ids), u64s(block_checksums)
    buried = np.array(deleted, dtype=np.bool_)
    if not len(ids) == len(checksums) == len(buried):
        raise DamagedData(f"rows of {len(ids)} blocks have {len(checksums)} checksums")
    counts = np.zeros(len(ids), dtype=np.int64)
    if len(detailed.block_ids):
        index = np.searchsorted(ids, detailed.block_ids)
        counts[check_detailed(ids, checksums, buried, detailed, index)] = detailed.chunk_counts
    return compose(
        algorithm,
        generation,
        block_ids=ids,
        block_checksums=checksums,
        deleted=buried,
        chunk_counts=counts,
        chunk_spans=detailed.chunk_spans,
        chunk_checksums=detailed.chunk_checksums,
    )


def check_detailed(
    ids: U64s,
    checksums: U64s,
    deleted: npt.NDArray[np.bool_],
    detailed: Tree,
    index: npt.NDArray[np.intp],
) -> npt.NDArray[np.intp]:
    """Check that the tree `detailed` matches the rows of blocks, and return `index`.

    `index` has the position in `ids` of each block of `detailed`. Raise DamagedData if a block of
    `detailed` has no row, is deleted, or has another checksum than its row.
    """
    known = index < len(ids)
    known &= ids[np.minimum(index, len(ids) - 1)] == detailed.block_ids if len(ids) else False
    if not known.all():
        raise DamagedData(f"chunks of block {detailed.block_ids[~known][0]}, which no row mentions")
    same = (checksums[index] == detailed.block_checksums) & ~deleted[index] & ~detailed.deleted
    if not same.all():
        raise DamagedData(
            f"chunks of block {detailed.block_ids[~same][0]} are not those of its row"
        )
    return index


def check_ranges(
    theirs: Tree,
    starts: Sequence[int] | U64s,
    advertised: Sequence[int] | U64s,
    scope: Sequence[BlockRange],
) -> None:
    """Raise DamagedData if the blocks in `scope` do not match the range checksums that the peer
    sent.

    The caller then compares the peer's generation. If it has changed, the peer's tree has changed,
    and the caller starts again at the root. Otherwise, the peer's responses are inconsistent.
    """
    bounds = u64s(starts)
    wrong = np.flatnonzero(range_checksums(theirs, bounds) != u64s(advertised))
    for start in bounds[wrong].tolist():
        if any(first <= start <= last for first, last in scope):
            raise DamagedData(f"blocks from {start} on are not those whose range checksum was sent")
