"""Groups adjacent chunks of one block that are read together."""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from merkle.replica import ChunkInfo
from scanner.chunk_verdict import Witnesses

Wholes: TypeAlias = Mapping[tuple[int, int], int]
"""The expected CRC of a complete chunk, by (start, end) of the chunk."""


def spans_of(
    chunks: tuple[ChunkInfo, ...], length_bytes_max: int
) -> Iterator[tuple[ChunkInfo, ...]]:
    """Yield groups of adjacent chunks. Each group is read at once and has at most
    `length_bytes_max` bytes.

    A larger chunk is a group of its own, because a window must not be divided.
    """
    first = 0
    for index in range(1, len(chunks) + 1):
        is_last = index == len(chunks)
        if (
            is_last
            or chunks[index].offset != chunks[index - 1].end
            or chunks[index].end - chunks[first].offset > length_bytes_max
        ):
            yield chunks[first:index]
            first = index


def expected_wholes(chunks: tuple[ChunkInfo, ...], witnesses: Witnesses) -> Wholes:
    """Return the expected CRC of each complete chunk. Return an empty mapping if `witnesses` has no
    function for this."""
    if witnesses.wholes is None:
        return {}
    wholes = zip(chunks, witnesses.wholes(chunks), strict=True)
    return {(chunk.offset, chunk.end): whole for chunk, whole in wholes}
