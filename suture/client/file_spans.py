"""Computes which bytes of which blocks form a range of a file. No I/O."""

from collections.abc import Iterable
from dataclasses import dataclass

from suture.wire.v1 import scm_pb2


@dataclass(frozen=True, slots=True)
class FileSpan:
    """The bytes of one block from `start` up to, but not including, `stop`. Both are offsets in the
    block."""

    location: scm_pb2.BlockLocation
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        """Number of bytes in the range."""
        return self.stop - self.start


def spans_of(
    blocks: Iterable[scm_pb2.BlockLocation], start: int = 0, stop: int | None = None
) -> list[FileSpan]:
    """Return the ranges of blocks that have the bytes of a file from `start` up to, but not
    including, `stop`.

    If `stop` is None, the range ends at the end of the file. Blocks outside the range are omitted.
    """
    spans: list[FileSpan] = []
    at = 0  # offset of the block in the file
    for location in blocks:
        first = max(0, start - at)
        last = location.length if stop is None else min(location.length, stop - at)
        if first < last:
            spans.append(FileSpan(location, first, last))
        at += location.length
    return spans
