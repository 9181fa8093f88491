"""The chunks of one block as a scan reads them: several in one read, each compared as a whole."""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from merkle.replica import ChunkInfo
from scanner.chunk_verdict import Witnesses

Wholes: TypeAlias = Mapping[tuple[int, int], int]
"""The CRC to expect of a chunk's data, by where the chunk begins and ends."""


def spans_of(
    chunks: tuple[ChunkInfo, ...], length_bytes_max: int
) -> Iterator[tuple[ChunkInfo, ...]]:
    """Group chunks that lie side by side into reads of at most `length_bytes_max`.

    A chunk larger than that is a group of its own: a window must not be cut.
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
    """Return what to expect of chunks as a whole; nothing where the witnesses do not say."""
    if witnesses.wholes is None:
        return {}
    wholes = zip(chunks, witnesses.wholes(chunks), strict=True)
    return {(chunk.offset, chunk.end): whole for chunk, whole in wholes}
