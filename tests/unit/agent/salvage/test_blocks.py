"""The reasons for holes in a salvaged block."""

import errno
from typing import Any

from agent.salvage.blocks import Hole, Reader
from agent.salvage.offline_volumes import BlockCopy
from merkle.checksum import window_checksums
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo

DATA = b"as written" * 100
CHUNK = ChunkInfo(
    0, len(DATA), ChecksumType.CRC32C, 512, window_checksums(ChecksumType.CRC32C, 512, DATA)
)


class Medium:
    """The bytes of a copy, or the error of its medium."""

    def __init__(self, data: bytes | OSError) -> None:
        self.data = data

    def read(self, offset: int, length_bytes: int) -> bytes:
        """Return bytes."""
        if isinstance(self.data, OSError):
            raise self.data
        return self.data[offset : offset + length_bytes]


def copy(volume: str, medium: Any) -> BlockCopy:
    """Return a copy of a whole replica."""
    return BlockCopy(volume, 0, BlockData(BlockId(1), Bcsid(1), (CHUNK,)), medium)


def test_hole_names_the_copies_that_could_not_be_read() -> None:
    """A copy on a failing disk may have the bytes: they are not called lost everywhere."""
    broken = copy("/disks/1", Medium(OSError(errno.EIO, "Input/output error")))
    rotten = copy("/disks/2", Medium(bytes(len(DATA))))

    (hole,) = Reader([broken, rotten], None).pieces()

    assert isinstance(hole, Hole)
    assert "not read: /disks/1: " in hole.why
    assert "no replica has" not in hole.why


def test_copy_that_can_be_read_fills_in_for_one_that_cannot() -> None:
    """The failing disk costs nothing while another copy verifies."""
    broken = copy("/disks/1", Medium(OSError(errno.EIO, "Input/output error")))

    assert [DATA] == list(Reader([broken, copy("/disks/2", Medium(DATA))], None).pieces())
