"""Divides the blocks of a replica into pieces. Each piece is sent in one message. No I/O.

A piece has either several complete small blocks, or one range of a large block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from agent.store.operations.replica_export import spread_bytes
from agent.transfer.parts import PART_BLOCKS_MAX, PART_BYTES
from merkle.replica import BlockId

SPREAD_BYTES_MAX: Final = 2 * PART_BYTES  # size of a piece if each block is aligned to a page


@dataclass(frozen=True, slots=True)
class BlockSpan:
    """A range of the data of one block."""

    block_id: BlockId
    offset: int
    length_bytes: int
    is_damaged: bool


@dataclass(frozen=True, slots=True)
class ExportPiece:
    """The content of one message: a range of one block, or several complete small blocks.

    `span` is the range; it is None for several small blocks. `local_ids` are the ids of the blocks
    that begin in this message.
    """

    local_ids: Sequence[BlockId]
    rows: Sequence[bytes]
    file_bytes: Sequence[int]
    span: BlockSpan | None = None

    @property
    def data_bytes(self) -> int:
        """Number of data bytes in the message."""
        return sum(self.file_bytes) if self.span is None else self.span.length_bytes


@dataclass(slots=True)
class SmallBlockBatch:
    """Small blocks that will be sent in one message.

    `spread_bytes` is the size of their data in memory if the data of each block is aligned to a
    page.
    """

    ids: list[BlockId] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    data_bytes: int = 0
    spread_bytes: int = 0

    def add(
        self, ids: Sequence[BlockId], rows: Sequence[bytes], sizes: npt.NDArray[np.int64]
    ) -> Iterator[ExportPiece]:
        """Add blocks of at most `PART_BYTES` each. Yield the content of each message that is
        full."""
        data = np.cumsum(sizes)
        spread = np.cumsum(spread_bytes(sizes))
        start = 0
        while start < len(ids):
            gone = (int(data[start - 1]), int(spread[start - 1])) if start else (0, 0)
            data_max = gone[0] + PART_BYTES - self.data_bytes
            spread_max = gone[1] + SPREAD_BYTES_MAX - self.spread_bytes
            end = min(
                int(np.searchsorted(data, data_max, side="right")),
                int(np.searchsorted(spread, spread_max, side="right")),
                start + PART_BLOCKS_MAX - len(self.ids),
            )
            if end <= start:
                yield from self.taken()
                continue
            self.ids += ids[start:end]
            self.rows += rows[start:end]
            self.sizes += sizes[start:end].tolist()
            self.data_bytes += int(data[end - 1]) - gone[0]
            self.spread_bytes += int(spread[end - 1]) - gone[1]
            start = end

    def taken(self) -> Iterator[ExportPiece]:
        """Yield the blocks that were added as one message, and begin the next message.

        If no blocks were added, yield nothing.
        """
        if self.ids:
            is_one = len(self.ids) == 1
            span = BlockSpan(self.ids[0], 0, self.sizes[0], is_damaged=False) if is_one else None
            yield ExportPiece(self.ids, self.rows, self.sizes, span)
            self.ids, self.rows, self.sizes = [], [], []
            self.data_bytes = self.spread_bytes = 0
