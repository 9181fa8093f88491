"""The summary of a tree for reports. This module does not load the tree's columns."""

from dataclasses import dataclass

from merkle.checksum import Algorithm


@dataclass(frozen=True, slots=True)
class TreeSummary:
    """Root, generation and counts of a tree. Two trees are compared by their summaries first.

    `block_count` counts live blocks. A replica without a tree has no summary.
    """

    algorithm: Algorithm
    root: int
    generation: int
    block_count: int
    tombstone_count: int
    tombstones_checksum: int
