"""Where an unfinished scan goes on: a mark inside a replica, small enough to be kept on disk.

    blocks by id, chunks by offset
    ├── read, clean ──┼── doubt ──┼── read, clean ──┤ mark ├── not read yet ──►

What lies before the mark is not read again, except chunks in doubt: damage is judged anew, so that
every finding rests on what this process has seen. A mark is good for one generation only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from merkle.replica import BlockData, BlockId, ChunkInfo

MARK_BYTES_MIN: Final = 1024**2  # read between two marks that are offered
DOUBTS_MAX: Final = 1_000  # beyond it the mark stays where it is


Doubt = tuple[BlockId, int, int]
"""Block id, offset and length in bytes of what was not clean; of no block or chunk: -1."""


@dataclass(frozen=True)
class ScanMark:
    """How far a scan has come: before `offset` of block `block_id` everything was read.

    `doubts`: what was not clean there. `bytes_read`: by this scan so far.
    """

    block_id: BlockId
    offset: int
    doubts: frozenset[Doubt]
    bytes_read: int

    def covers_block(self, block: BlockData) -> bool:
        """Whether the whole block was read and nothing about it is in doubt."""
        return block.block_id < self.block_id and block.block_id not in self._doubts

    def covers(self, block_id: BlockId, span: tuple[ChunkInfo, ...]) -> bool:
        """Whether these chunks of the block were read and are clean."""
        start, end = span[0].offset, span[-1].end
        if (block_id, end) > (self.block_id, self.offset):
            return False
        return not any(
            offset < end and start < offset + length_bytes
            for offset, length_bytes in self._doubts.get(block_id, ())
        )

    @cached_property
    def _doubts(self) -> dict[BlockId, list[tuple[int, int]]]:
        places: dict[BlockId, list[tuple[int, int]]] = {}
        for block_id, offset, length_bytes in self.doubts:
            places.setdefault(block_id, []).append((offset, length_bytes))
        return places


KeepMark = Callable[[ScanMark], None]


def no_mark(_mark: ScanMark) -> None:
    """Keep no mark: of a scan that is not resumed."""


class Marker:
    """Offers marks while a scan walks on; never one before the mark that it resumed from."""

    def __init__(self, keep: KeepMark, resume: ScanMark | None) -> None:
        self._keep = keep
        self._doubts: set[Doubt] = set()
        self._behind = (resume.block_id, resume.offset) if resume else (BlockId(0), 0)
        self._offered_bytes = resume.bytes_read if resume else 0

    def doubt(self, block_id: BlockId, offset: int, length_bytes: int) -> None:
        """Remember what has to be read again."""
        self._doubts.add((block_id, offset, length_bytes))

    def passed(self, block_id: BlockId, end: int, bytes_read: int) -> None:
        """Offer a mark behind `end`, if enough was read since the last one."""
        if bytes_read - self._offered_bytes < MARK_BYTES_MIN or len(self._doubts) > DOUBTS_MAX:
            return
        if (block_id, end) <= self._behind:
            return
        self._offered_bytes = bytes_read
        self._keep(ScanMark(block_id, end, frozenset(self._doubts), bytes_read))
