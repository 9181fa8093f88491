"""Builds the tree of a scan from the chunks on disk. The blocks and chunks are added in order."""

from typing import Final

import numpy as np

from merkle.checksum import Algorithm
from merkle.replica import BlockId, ChunkInfo
from merkle.tree import Tree
from merkle.tree_building import TreeBuilder
from scanner.rows.small_blocks import SimpleRun
from scanner.rows.uniform_chunks import UniformChunks

UNREADABLE_LEAF: Final = b"unreadable"
"""Replaces the window checksums of an unreadable chunk, so that its leaf differs from every healthy
leaf."""


class ScanTreeBuilder:
    """Builds the tree of a scan, and counts its blocks and chunks."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._builder = TreeBuilder(algorithm)
        self._clean: list[ChunkInfo] = []
        self.block_count = 0
        self.chunk_count = 0

    def add_tombstone(self, block_id: BlockId, checksum: int) -> None:
        """Add a deleted block. The method may be called at any time."""
        self._builder.add_tombstone(block_id, checksum)

    def begin(self, block_id: BlockId) -> None:
        """Add the next block. The chunks that are added next belong to it."""
        self._add_clean()
        self.block_count += 1
        self._builder.add_block(block_id)

    def healthy(self, *chunks: ChunkInfo) -> None:
        """Add chunks whose data matches the checksums in their row."""
        self._clean += chunks
        self.chunk_count += len(chunks)

    def damaged(self, chunk: ChunkInfo, length_bytes: int, sums: bytes) -> None:
        """Add a damaged chunk, with the length and the window checksums of its content on disk."""
        self._add_clean()
        self.chunk_count += 1
        self._builder.add_chunk(chunk.offset, length_bytes, sums, False)

    def run(self, run: SimpleRun, start: int, end: int) -> None:
        """Add the blocks with the indexes `[start, end)` of `run`. All of them are healthy."""
        self._add_clean()
        self.block_count += end - start
        self.chunk_count += end - start
        part = slice(start, end)
        counts = np.ones(end - start, dtype=np.uint64)
        self._builder.add_blocks(run.block_ids[part], counts, run.spans[part], run.leaves[part])

    def alike(self, block: UniformChunks, count: int) -> None:
        """Add a block with its first `count` chunks. All of them are healthy."""
        self._add_clean()
        self.block_count += 1
        self.chunk_count += count
        self._builder.add_blocks(
            np.array([block.block_id], dtype=np.uint64),
            np.array([count], dtype=np.uint64),
            block.spans[:count],
            block.leaves[:count],
        )

    def build(self) -> Tree:
        """Return the tree of all added blocks and chunks."""
        self._add_clean()
        return self._builder.build()

    def _add_clean(self) -> None:
        """Add the collected healthy chunks to the tree.

        Many chunks are added at once. Adding each chunk between two reads would be slow, because
        the processor's cache is then full of data.
        """
        for chunk in self._clean:
            self._builder.add_chunk(chunk.offset, chunk.length_bytes, chunk.window_checksums, True)
        self._clean.clear()
