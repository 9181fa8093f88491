"""Compares Ozone's tree of a replica with its rows and bytes, and explains the differences. No I/O.

Ozone computes a tree from the rows when a container closes, and from the bytes when its scanner has
read them. Ozone's scanner does not read blocks without checksums, blocks without chunks, and last
chunks that are only in `last_chunk_info`. Therefore, the two trees of an undamaged replica differ
if it has such blocks. These differences are "explained". All others are reported as unexplained.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np

from merkle.checksum import Algorithm
from merkle.checksum_columns import U64s, container_checksum
from merkle.replica import BlockId, ChecksumType
from merkle.tree import Tree
from merkle.tree_columns import concatenate
from ozone.disk.blockrow import Folds, StoredBlock, folds_of
from ozone.disk.treefile import OzoneTree

BLOCKS_NAMED_MAX: Final = 100  # unexplained blocks to list; their total is always reported


class Agreement(StrEnum):
    """Result of the comparison of Ozone's tree with the rows and the data of a replica."""

    EQUAL = "EQUAL"  # the tree equals the one computed from the rows
    EXPLAINED = "EXPLAINED"  # Ozone's scanner computes this tree from the same data
    DAMAGE = "DAMAGE"  # the damage that the scrub found explains the differences
    UNEXPLAINED = "UNEXPLAINED"  # some differing block has no explanation
    NO_TREE = "NO_TREE"  # there is no readable tree


class ChecksumDifferenceReason(StrEnum):
    """Reason why Ozone's scanner computes no checksum, or another one, for an undamaged block."""

    NO_CHECKSUMS = "NO_CHECKSUMS"  # the block has chunks of checksum type NONE
    NO_CHUNKS = "NO_CHUNKS"  # the block is the padding of a small erasure-coded key
    LAST_CHUNK = "LAST_CHUNK"  # the file was synced and never closed


UNREADABLE: Final = frozenset(
    {ChecksumDifferenceReason.NO_CHECKSUMS, ChecksumDifferenceReason.NO_CHUNKS}
)
"""The reasons that apply to blocks without verifiable data: a read of such a block proves
nothing."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of the comparison of Ozone's tree with the rows and the data of a replica.

    `reasons` has the number of explained blocks by reason. `damaged_count` is the number of blocks
    that differ because of damage that the scrub found. `unexplained` has some of the other
    differing blocks, whose number is `unexplained_count`. `is_recorded` is False if the database
    has another root than the tree file.

    `settled_root` is computed from the rows, if Ozone's tree is equal or explained. `read_root` is
    computed from the data that was read. The two differ if data is damaged.
    """

    agreement: Agreement
    root: int | None = None
    settled_root: int | None = None
    read_root: int | None = None
    reasons: Mapping[ChecksumDifferenceReason, int] = field(default_factory=dict)
    damaged_count: int = 0
    unexplained: tuple[BlockId, ...] = ()
    unexplained_count: int = 0
    is_recorded: bool = True


class TreeComparisonBuilder:
    """Collects the checksums that each block may have in Ozone's tree.

    The blocks are added while the scan reads their rows.
    """

    def __init__(self) -> None:
        self._ids: list[U64s] = []
        self._written: list[U64s] = []
        self._unstable: dict[BlockId, tuple[Folds, ChecksumDifferenceReason]] = {}
        self._left_out: set[BlockId] = set()

    def leave_out(self, block_id: BlockId) -> None:
        """Omit a block whose row cannot be read from the comparison.

        The scan itself reports the block.
        """
        self._left_out.add(block_id)

    def add(self, stored: StoredBlock) -> None:
        """Add a block whose row the scan has read."""
        folds = folds_of(stored)
        block_id = stored.block.block_id
        self.add_stable(np.array([block_id], np.uint64), np.array([folds.written], np.uint64))
        if not folds.is_stable:
            self._unstable[block_id] = (folds, _reason(stored))

    def add_stable(self, block_ids: U64s, checksums: U64s) -> None:
        """Add blocks whose checksum is the same in every tree that Ozone may have built."""
        self._ids.append(block_ids)
        self._written.append(checksums)

    def _differing(self, tree: OzoneTree) -> list[tuple[BlockId, int | None, int | None]]:
        """Return the blocks whose checksum in Ozone's tree differs from the rows.

        Each block is (block id, checksum in Ozone's tree, checksum from the rows). A checksum is
        None if the block is missing in the tree or in the rows.
        """
        ids: U64s = concatenate(self._ids, np.uint64)
        written: U64s = concatenate(self._written, np.uint64)
        live = np.fromiter(tree.live, np.uint64, len(tree.live))
        checksums = np.fromiter(tree.live.values(), np.uint64, len(tree.live))
        both, in_tree, in_rows = np.intersect1d(live, ids, True, True)
        unlike = both[checksums[in_tree] != written[in_rows]]
        chosen = np.union1d(unlike, np.setxor1d(live, ids, True))
        is_ours = np.isin(ids, chosen)
        ours = dict(zip(ids[is_ours].tolist(), written[is_ours].tolist(), strict=True))
        return [
            (block_id, tree.live.get(block_id), ours.get(block_id))
            for block_id in map(BlockId, chosen.tolist())
        ]

    def _read(self, ids: U64s, written: U64s, scanned: Tree) -> U64s:
        """Return the checksums of the blocks `ids`, computed from the data that was read.

        `written` has the checksums from the rows, which are returned for blocks that no read can
        verify.
        """
        silent = [key for key, (_, reason) in self._unstable.items() if reason in UNREADABLE]
        is_silent = np.isin(ids, np.array(silent, dtype=np.uint64))
        is_read = np.isin(ids, scanned.block_ids) & ~is_silent
        found = np.where(is_silent, written, np.uint64(0))
        found[is_read] = scanned.block_checksums[np.searchsorted(scanned.block_ids, ids[is_read])]
        return found

    def compare(self, tree: OzoneTree | None, recorded: int | None, scanned: Tree) -> Comparison:
        """Compare the rows with Ozone's tree.

        `recorded` is the root in Ozone's database. `scanned` is the tree of the data that the scan
        read.
        """
        if tree is None or tree.root is None:
            return Comparison(Agreement.NO_TREE)
        reasons: Counter[ChecksumDifferenceReason] = Counter()
        damaged_count = 0
        unexplained: list[BlockId] = []
        for block_id, theirs, ours in self._differing(tree):
            if block_id in tree.tombstones or block_id in self._left_out:
                continue
            folds, reason = self._unstable.get(block_id, (None, None))
            if reason is not None and folds is not None and theirs in {folds.closed, folds.scanned}:
                reasons[reason] += 1
            elif ours is not None and theirs == _checksum_of(scanned, block_id):
                damaged_count += 1
            else:
                unexplained.append(block_id)
        agreement = Agreement.EQUAL
        if unexplained:
            agreement = Agreement.UNEXPLAINED
        elif damaged_count:
            agreement = Agreement.DAMAGE
        elif reasons:
            agreement = Agreement.EXPLAINED
        settled_root = read_root = None
        if agreement is not Agreement.UNEXPLAINED and not self._left_out:
            ids: U64s = concatenate(self._ids, np.uint64)
            written: U64s = concatenate(self._written, np.uint64)
            read_root = _folded(ids, self._read(ids, written, scanned), tree)
            if agreement is not Agreement.DAMAGE:
                settled_root = _folded(ids, written, tree)
        return Comparison(
            agreement,
            tree.root,
            settled_root,
            read_root,
            dict(reasons),
            damaged_count,
            tuple(unexplained[:BLOCKS_NAMED_MAX]),
            len(unexplained),
            recorded in {None, tree.root},
        )


def _checksum_of(tree: Tree, block_id: BlockId) -> int | None:
    index = tree.index_of(block_id)
    return None if index < 0 else int(tree.block_checksums[index])


def _reason(stored: StoredBlock) -> ChecksumDifferenceReason:
    if stored.tail_count:
        return ChecksumDifferenceReason.LAST_CHUNK
    if not stored.block.chunks:
        return ChecksumDifferenceReason.NO_CHUNKS
    assert any(chunk.checksum_type is ChecksumType.NONE for chunk in stored.block.chunks)
    return ChecksumDifferenceReason.NO_CHECKSUMS


def _folded(ids: U64s, checksums: U64s, tree: OzoneTree) -> int:
    """Return the root of a tree with these blocks and with the tombstones of `tree`.

    If a block has a tombstone, only the tombstone is used.
    """
    dead = np.fromiter(tree.tombstones, np.uint64, len(tree.tombstones))
    sums = np.fromiter(tree.tombstones.values(), np.uint64, len(tree.tombstones))
    is_live = ~np.isin(ids, dead)
    keys = np.concatenate((ids[is_live], dead))
    folded = np.concatenate((checksums[is_live], sums))[np.argsort(keys)]
    return container_checksum(Algorithm.CRC32C, folded)
