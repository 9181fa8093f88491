"""The summary of a tree for reports. This module does not load numpy."""

from dataclasses import dataclass

from merkle.checksum import Algorithm


@dataclass(frozen=True, slots=True)
class TreeSummary:
    """The root, the generation and the counts of a tree. Two trees are first compared by their
    summaries.

    `block_count` is the number of live blocks. A replica without a tree has no summary.
    """

    algorithm: Algorithm
    root: int
    generation: int
    block_count: int
    tombstone_count: int
    tombstones_checksum: int
