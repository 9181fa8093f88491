"""The facts about a tree that a report has. This module does not load the tree's columns."""

from dataclasses import dataclass

from merkle.checksum import Algorithm


@dataclass(frozen=True, slots=True)
class TreeSummary:
    """The facts about a tree in a report. Two trees are compared by their summaries first.

    `block_count` counts live blocks. A replica without a tree has no summary.
    """

    algorithm: Algorithm
    root: int
    generation: int
    block_count: int
    tombstone_count: int
    tombstones_checksum: int
