"""Byte ranges of blocks that form a range of a file. No I/O."""

from collections.abc import Iterable
from dataclasses import dataclass

from suture.wire.v1 import scm_pb2


@dataclass(frozen=True, slots=True)
class FileSpan:
    """The bytes of one block from `start` to before `stop`, counted from the start of the block."""

    location: scm_pb2.BlockLocation
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        """Length of the span in bytes."""
        return self.stop - self.start


def spans_of(
    blocks: Iterable[scm_pb2.BlockLocation], start: int = 0, stop: int | None = None
) -> list[FileSpan]:
    """Return the spans, in block order, that contain the bytes of a file from `start` to before
    `stop`; without `stop`, to the file's end. Blocks outside the range are omitted."""
    spans: list[FileSpan] = []
    at = 0  # offset of the block in the file
    for location in blocks:
        first = max(0, start - at)
        last = location.length if stop is None else min(location.length, stop - at)
        if first < last:
            spans.append(FileSpan(location, first, last))
        at += location.length
    return spans
