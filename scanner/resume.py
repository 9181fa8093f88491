"""The mark of an unfinished scan: a position in a replica, small enough to keep on disk.

A scan reads blocks by ascending id and chunks by ascending offset. Everything before the mark was
read. A chunk before the mark is suspect if the scan found a possible fault in it.

A resumed scan does not read data before the mark again, except suspect chunks. It judges damage
again, so that every finding is based on reads of this process. A mark is valid for one generation
only.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Final

from merkle.replica import BLOCK_BYTES_MAX, ID_MAX, BlockData, BlockId, ChunkInfo

MARK_BYTES_MIN: Final = 1024**2  # minimum bytes read between two marks
DOUBTS_MAX: Final = 1_000  # with more, the mark does not advance


Doubt = tuple[BlockId, int, int]
"""Block id, offset and length in bytes of a possible fault; -1 if it is not about a block or
chunk."""


@dataclass(frozen=True)
class ScanMark:
    """The progress of a scan: everything before `offset` of block `block_id` was read.

    `doubts` has the positions of possible faults before the mark. `bytes_read` is the number of
    bytes that the scan has read.
    """

    block_id: BlockId
    offset: int
    doubts: frozenset[Doubt]
    bytes_read: int

    def covers_block(self, block: BlockData) -> bool:
        """Return True if the complete block was read without a possible fault."""
        return self.covers_id(block.block_id)

    def covers_id(self, block_id: BlockId) -> bool:
        """Return the same as `covers_block`, given only the id of the block."""
        return block_id < self.block_id and block_id not in self._reread_ranges

    def covers(self, block_id: BlockId, span: tuple[ChunkInfo, ...]) -> bool:
        """Return True if these chunks of the block were read without a possible fault."""
        return self.covers_range(block_id, span[0].offset, span[-1].end)

    def covers_range(self, block_id: BlockId, start: int, end: int) -> bool:
        """Return True if these bytes of the block were read without a possible fault."""
        if (block_id, end) > (self.block_id, self.offset):
            return False
        return not any(
            offset < end and start < offset + length_bytes
            for offset, length_bytes in self._reread_ranges.get(block_id, ())
        )

    def parts(
        self, block_id: BlockId, span: tuple[ChunkInfo, ...]
    ) -> Iterator[tuple[bool, tuple[ChunkInfo, ...]]]:
        """Yield (is covered, chunks) for each part of a span.

        A part is covered if an earlier scan has read it without a possible fault. A covered part is
        not read again.
        """
        is_covered = self.covers(block_id, span)
        if is_covered or (block_id, span[-1].end) > (self.block_id, self.offset):
            yield is_covered, span
            return
        for has_been_read, part in groupby(span, lambda chunk: self.covers(block_id, (chunk,))):
            yield has_been_read, tuple(part)

    @cached_property
    def _reread_ranges(self) -> dict[BlockId, list[tuple[int, int]]]:
        places: dict[BlockId, list[tuple[int, int]]] = {}
        for block_id, offset, length_bytes in self.doubts:
            places.setdefault(block_id, []).append((offset, length_bytes))
        return places


def all_but(places: Iterable[Doubt]) -> ScanMark:
    """Return a mark with which a scan reads only these positions. A position without an offset or
    length stands for the complete block.
    """
    doubts = frozenset(
        (block_id, offset, length_bytes)
        if offset >= 0 and length_bytes > 0
        else (block_id, 0, BLOCK_BYTES_MAX)
        for block_id, offset, length_bytes in places
    )
    return ScanMark(BlockId(ID_MAX + 1), 0, doubts, 0)


KeepMark = Callable[[ScanMark], None]


def no_mark(_mark: ScanMark) -> None:
    """Discard a mark. For scans that are not resumed."""


class ScanMarkRecorder:
    """Passes marks to `keep` during a scan, but none before the mark at which the scan resumed."""

    def __init__(self, keep: KeepMark, resume: ScanMark | None) -> None:
        self._keep = keep
        self._doubts: set[Doubt] = set()
        self._behind = (resume.block_id, resume.offset) if resume else (BlockId(0), 0)
        self._offered_bytes = resume.bytes_read if resume else 0

    def mark_for_reread(self, block_id: BlockId, offset: int, length_bytes: int) -> None:
        """Record a position that a resumed scan must read again."""
        self._doubts.add((block_id, offset, length_bytes))

    def passed(self, block_id: BlockId, end: int, bytes_read: int) -> None:
        """Pass a mark at `end` to `keep`, if enough bytes were read since the last mark."""
        if bytes_read - self._offered_bytes < MARK_BYTES_MIN or len(self._doubts) > DOUBTS_MAX:
            return
        if (block_id, end) <= self._behind:
            return
        self._offered_bytes = bytes_read
        self._keep(ScanMark(block_id, end, frozenset(self._doubts), bytes_read))
