"""Damaged blocks whose file is whole, and another block's: files that were put back in the wrong
place, or names that a file system mixed up.

A chunk's checksums cover the chunk as it was cut for its own block, so a file in the wrong place
looks damaged in each of its chunks. Where its length is that of another damaged block, that block's
checksums are tried on it. Pure: who calls it brings the bytes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from merkle.checksum import windows_verify
from merkle.replica import BlockData, BlockId, ChecksumType

TRIED_MAX: Final = 100  # damaged blocks of one container: with more, something else is wrong
TRIED_BYTES_MAX: Final = 64 * 1024**2  # of one file: as much by accident there is not

Read = Callable[[BlockId, int, int], bytes | memoryview]
"""Return bytes of a block's file: block, offset, length."""


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A damaged block, and how long the file in its place is."""

    block: BlockData
    file_bytes: int


def exchanges(damaged: Mapping[BlockId, Misplaced], read: Read) -> dict[BlockId, BlockId]:
    """Return by block whose file is in its place, where it is another's. Raises OSError."""
    found = {}
    for block_id, item in list(damaged.items())[:TRIED_MAX]:
        for other_id, other in list(damaged.items())[:TRIED_MAX]:
            fits = other_id != block_id and other.block.length_bytes == item.file_bytes
            if fits and _is_file_of(other.block, block_id, read):
                found[block_id] = other_id
                break
    return found


def _is_file_of(block: BlockData, at: BlockId, read: Read) -> bool:
    summed = [c for c in block.chunks if c.checksum_type is not ChecksumType.NONE]
    tried = [chunk for chunk in summed if chunk.end <= TRIED_BYTES_MAX]
    return bool(tried) and all(
        windows_verify(
            chunk.checksum_type,
            chunk.bytes_per_checksum,
            chunk.window_checksums,
            read(at, chunk.offset, chunk.length_bytes),
        )
        for chunk in tried
    )
