"""Builds the tree of a replica while its rows arrive, so that little work is left at the end. No
I/O."""

from collections.abc import Iterable

import numpy as np

from merkle.checksum import Algorithm
from merkle.checksum_columns import U64s
from merkle.damaged_data import DamagedData
from merkle.replica import BlockData, BlockId
from merkle.tree import Tree
from merkle.tree_building import TreeBuilder, build_from_rows
from scanner.rows.small_blocks import SimpleRun
from suture.wire.mapping import codec


class ImportTreeBuilder:
    """Builds a tree from rows that arrive in ascending order of block ids."""

    def __init__(self, source: Tree) -> None:
        """Begin a tree with the same algorithm and the same tombstones as the tree of the
        source."""
        self._builder = TreeBuilder(source.algorithm)
        self._tombstones = tombstones(source)

    def add_run(self, run: SimpleRun) -> None:
        """Add several blocks that have one chunk each, and whose leaves are already computed."""
        counts = np.ones(len(run.rows), np.uint64)
        self._builder.add_blocks(run.block_ids, counts, run.spans, run.leaves)

    def add_block(self, block: BlockData) -> None:
        """Add one block with any number of chunks.

        Raise RefusedError if a tree cannot contain these chunks, for example because they overlap.
        """
        self._builder.add_block(block.block_id)
        try:
            for chunk in block.chunks:
                self._builder.add_chunk(chunk.offset, chunk.length_bytes, chunk.window_checksums)
        except ValueError as error:
            raise codec.malformed("blocks.rows", str(error)) from error

    def tree(self) -> Tree:
        """Return the tree of all added blocks. Raise RefusedError if the blocks are invalid."""
        for block_id, checksum in self._tombstones.items():
            self._builder.add_tombstone(block_id, checksum)
        try:
            return self._builder.build()
        except DamagedData as damage:
            raise codec.malformed("blocks.rows", str(damage)) from damage


def rebuild_tree(rows: Iterable[tuple[BlockId, bytes]], source: Tree, algorithm: Algorithm) -> Tree:
    """Build a tree from intact rows, with another checksum algorithm than the tree of the source.

    Raise RefusedError if the rows are invalid.
    """
    try:
        return build_from_rows(rows, tombstones(source), algorithm=algorithm)
    except DamagedData as damage:
        raise codec.malformed("blocks.rows", str(damage)) from damage


def tombstones(tree: Tree) -> dict[BlockId, int]:
    """Return the checksum in the tombstone of each deleted block."""
    dead = tree.deleted
    ids, checksums = tree.block_ids[dead].tolist(), tree.block_checksums[dead].tolist()
    return dict(zip(ids, checksums, strict=True))


def plain(tree: Tree, excused: U64s) -> tuple[U64s, U64s]:
    """Return the ids and the checksums of all live blocks in `tree`, without the blocks in
    `excused`."""
    kept = ~tree.deleted & ~np.isin(tree.block_ids, excused)
    return tree.block_ids[kept], tree.block_checksums[kept]
