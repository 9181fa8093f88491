"""The progress of an unfinished scan, as a mark that is small enough to store on disk.

A scan reads blocks in ascending order of id, and chunks in ascending order of offset. Everything
before the mark was read. If the scan found a possible fault in a chunk before the mark, the mark
has the position of the chunk.

A resumed scan does not read data before the mark again, except the chunks with a possible fault.
These are verified again, so that every finding is based on reads of the current process. A mark is
valid for one generation of the replica only.
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
"""Block id, offset and length in bytes of a possible fault. Values are -1 if the fault is not about
a block or chunk."""


@dataclass(frozen=True)
class ScanMark:
    """The progress of a scan: everything before `offset` of the block `block_id` was read.

    `doubts` has the positions of possible faults before the mark. `bytes_read` is the number of
    bytes that the scan has read.
    """

    block_id: BlockId
    offset: int
    doubts: frozenset[Doubt]
    bytes_read: int

    def covers_block(self, block: BlockData) -> bool:
        """Return True if the complete block was read, and no possible fault was found in it."""
        return self.covers_id(block.block_id)

    def covers_id(self, block_id: BlockId) -> bool:
        """Return True if the complete block with this id was read, and no possible fault was found
        in it."""
        return block_id < self.block_id and block_id not in self._reread_ranges

    def covers(self, block_id: BlockId, span: tuple[ChunkInfo, ...]) -> bool:
        """Return True if these chunks of the block were read, and no possible fault was found in
        them."""
        return self.covers_range(block_id, span[0].offset, span[-1].end)

    def covers_range(self, block_id: BlockId, start: int, end: int) -> bool:
        """Return True if the bytes from `start` to before `end` of the block were read, and no
        possible fault was found in them."""
        if (block_id, end) > (self.block_id, self.offset):
            return False
        return not any(
            offset < end and start < offset + length_bytes
            for offset, length_bytes in self._reread_ranges.get(block_id, ())
        )

    def parts(
        self, block_id: BlockId, span: tuple[ChunkInfo, ...]
    ) -> Iterator[tuple[bool, tuple[ChunkInfo, ...]]]:
        """Divide the adjacent chunks in `span` into parts. Yield a pair (is covered, chunks) for
        each part.

        A part is covered if an earlier scan has read it and found no possible fault in it. A
        covered part is not read again.
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
    """Return a mark with which a scan reads only the given positions. If a position has no offset
    or length, it stands for the complete block."""
    doubts = frozenset(
        (block_id, offset, length_bytes)
        if offset >= 0 and length_bytes > 0
        else (block_id, 0, BLOCK_BYTES_MAX)
        for block_id, offset, length_bytes in places
    )
    return ScanMark(BlockId(ID_MAX + 1), 0, doubts, 0)


KeepMark = Callable[[ScanMark], None]


def no_mark(_mark: ScanMark) -> None:
    """Do nothing. This function is for scans that are not resumed."""


class ScanMarkRecorder:
    """Calls `keep` with the marks of a scan. If the scan was resumed, marks before the resumed mark
    are omitted."""

    def __init__(self, keep: KeepMark, resume: ScanMark | None) -> None:
        self._keep = keep
        self._doubts: set[Doubt] = set()
        self._behind = (resume.block_id, resume.offset) if resume else (BlockId(0), 0)
        self._offered_bytes = resume.bytes_read if resume else 0

    def mark_for_reread(self, block_id: BlockId, offset: int, length_bytes: int) -> None:
        """Record the position of a possible fault, which a resumed scan must read again."""
        self._doubts.add((block_id, offset, length_bytes))

    def passed(self, block_id: BlockId, end: int, bytes_read: int) -> None:
        """Record that the block was read up to `end`. Call `keep` with a new mark if enough bytes
        were read since the last mark."""
        if bytes_read - self._offered_bytes < MARK_BYTES_MIN or len(self._doubts) > DOUBTS_MAX:
            return
        if (block_id, end) <= self._behind:
            return
        self._offered_bytes = bytes_read
        self._keep(ScanMark(block_id, end, frozenset(self._doubts), bytes_read))
