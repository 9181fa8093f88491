"""Extents of a file on its device, from the kernel's FIEMAP ioctl.

ext4, XFS, Btrfs and others support FIEMAP. File systems without a disk (memory, network, overlay)
do not. The binary format is `struct fiemap` of linux/fiemap.h. The ioctl needs no privilege.
"""

import errno
import fcntl
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

FS_IOC_FIEMAP: Final = 0xC020660B
SYNC: Final = 0x1  # write dirty data first, because it has no extent yet
LAST: Final = 0x1
UNKNOWN: Final = 0x2
DELAYED: Final = 0x4
ENCODED: Final = 0x8
INLINE: Final = 0x200
NO_PLACE: Final = UNKNOWN | DELAYED | ENCODED | INLINE
EXTENTS_PER_CALL: Final = 128
EXTENTS_MAX: Final = 4_096  # per file; no block file has more
HEADER: Final = struct.Struct("=QQLLLL")
EXTENT: Final = struct.Struct("=QQQQQLLLL")
NOT_SUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOTTY, errno.EBADR, errno.EINVAL})

assert (HEADER.size, EXTENT.size) == (32, 56), "as linux/fiemap.h has them"


@dataclass(frozen=True, slots=True)
class Extent:
    """A contiguous part of a file on the device.

    `offset` is the position in the file, `physical` the position on the device, both in bytes.
    """

    offset: int
    physical: int
    length_bytes: int

    @property
    def physical_end(self) -> int:
        """Offset in bytes of the first byte on the device after the extent."""
        return self.physical + self.length_bytes


def extents_of(fd: int, offset: int = 0, length_bytes: int = (1 << 63) - 1) -> Iterator[Extent]:
    """Yield the extents of `[offset, offset + length_bytes)` of an open file, by ascending offset.

    Omit holes, and data that is stored inline or compressed. Stop after EXTENTS_MAX extents. Raise
    OSError if the ioctl fails. Its errno is one of NOT_SUPPORTED if the file system has no FIEMAP.
    """
    end, count = offset + length_bytes, 0
    while offset < end and count < EXTENTS_MAX:
        answer = bytearray(HEADER.size + EXTENTS_PER_CALL * EXTENT.size)
        HEADER.pack_into(answer, 0, offset, end - offset, SYNC, 0, EXTENTS_PER_CALL, 0)
        fcntl.ioctl(fd, FS_IOC_FIEMAP, answer)
        mapped = HEADER.unpack_from(answer)[3]
        flags = LAST
        for index in range(mapped):
            found = EXTENT.unpack_from(answer, HEADER.size + index * EXTENT.size)
            logical, physical, length, flags = found[0], found[1], found[2], found[5]
            if not flags & NO_PLACE:
                yield _cut(Extent(logical, physical, length), offset, end)
            offset = logical + length
        count += mapped
        if not mapped or flags & LAST:
            return


def _cut(extent: Extent, start: int, end: int) -> Extent:
    """Return the part of an extent within the range `[start, end)` of the file."""
    first, behind = max(extent.offset, start), min(extent.offset + extent.length_bytes, end)
    return Extent(first, extent.physical + first - extent.offset, behind - first)
