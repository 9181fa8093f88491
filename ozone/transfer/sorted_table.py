"""Checks the unpacked sizes of the blocks of an untrusted RocksDB table, before RocksDB reads it.

A block states its unpacked size, up to 4 GiB, and RocksDB trusts this number. It allocates the
memory, and ends the process if the allocation fails. To find all blocks that RocksDB will read,
this module unpacks the index and the properties. It applies the same size limit to them.

    blocks | properties | index | metaindex: names and handles | footer: handles, format, magic
    a block: content, its compression (1 byte), checksum (4); packed content begins with its size
"""

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from merkle.damaged_data import DamagedData

BLOCKS_MAX: Final = 1_000_000  # a table of 512 MiB has an eighth of this, in blocks of 4 KiB
MAGIC: Final = 0x88E241B785F4CFF7
FOOTER: Final = struct.Struct("<B40sIQ")  # checksum type, handles, format, magic
FORMATS: Final = range(2, 7)
NAMED_SINCE: Final = 6  # since this format, the metaindex names the index
METAINDEX_SIZE: Final = struct.Struct("<12xI24x")
TRAILER_BYTES: Final = 5
NONE, SNAPPY = 0, 1  # Ozone exports its tables with RocksDB's default, which is snappy
PROPERTIES: Final = b"rocksdb.properties"
INDEX: Final = b"rocksdb.index"
INDEX_TYPE: Final = b"rocksdb.block.based.table.index.type"
IS_RELATIVE: Final = b"rocksdb.index.value.is.delta.encoded"
NUMBER_BYTES_MAX: Final = 10
COUNT_MASK: Final = 0x7FFF_FFFF  # the highest bit is a flag
COPY_TAGS: Final = {1: 1, 2: 2, 3: 4}  # snappy's copy tags -> bytes of the distance


class Handle(NamedTuple):
    """The location of a block in the file.

    It has the offset of the block, and its size in bytes without the trailer.
    """

    offset: int
    size_bytes: int


def check_blocks(path: Path, block_bytes_max: int) -> None:
    """Check the blocks of a table file before RocksDB reads it.

    Raise DamagedData if the blocks are not consecutive in the file, if a block unpacks to more than
    `block_bytes_max`, or if the file cannot be parsed. Raise OSError if it cannot be read.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            _Table(data, block_bytes_max).check()
        except DamagedData:
            raise
        except (LookupError, ValueError, struct.error) as error:
            raise DamagedData(f"no sorted table: {error}") from error


class _Table:
    def __init__(self, data: mmap.mmap, block_bytes_max: int) -> None:
        self._data = data
        self._block_bytes_max = block_bytes_max

    def check(self) -> None:
        """Check each block of the table. Raise DamagedData if a block is invalid."""
        start = len(self._data) - FOOTER.size
        if start < 0:
            raise DamagedData(f"{len(self._data)} bytes are no sorted table")
        _, handles, version, magic = FOOTER.unpack_from(self._data, start)
        if magic != MAGIC or version not in FORMATS:
            raise DamagedData(f"a table of format {version}, magic {magic:x}")
        metaindex, at = _handle(handles, 0)
        if version >= NAMED_SINCE:
            size_bytes = METAINDEX_SIZE.unpack(handles)[0]
            metaindex = Handle(start - TRAILER_BYTES - size_bytes, size_bytes)
        named = {key: _handle(value, 0)[0] for key, value in _entries(self._unpacked(metaindex))}
        index = named[INDEX] if version >= NAMED_SINCE else _handle(handles, at)[0]
        for handle in named.values():
            self._check(handle)
        is_relative = self._is_relative(named.get(PROPERTIES))
        end = 0
        for count, handle in enumerate(_indexed(self._unpacked(index), is_relative=is_relative)):
            if handle.offset < end or count >= BLOCKS_MAX:
                raise DamagedData(f"block {count} at byte {handle.offset}: none may begin there")
            self._check(handle)
            end = handle.offset + handle.size_bytes + TRAILER_BYTES

    def _is_relative(self, properties: Handle | None) -> bool:
        """Return whether the index stores each handle relative to the previous one.

        Raise DamagedData if the index has several levels.
        """
        if properties is None:
            return False
        stated = dict(_entries(self._unpacked(properties)))
        kind = int.from_bytes(stated.get(INDEX_TYPE, bytes(4))[:4], "little")
        if kind:
            raise DamagedData(f"an index of type {kind}")
        return IS_RELATIVE in stated and _number(stated[IS_RELATIVE], 0)[0] != 0

    def _check(self, handle: Handle) -> tuple[int, int, int]:
        """Check the head and the trailer of a block.

        Return the number of its compression, the offset of its content, and its unpacked size in
        bytes. Raise DamagedData if one of these is invalid.
        """
        end = handle.offset + handle.size_bytes
        if handle.offset < 0 or end + TRAILER_BYTES > len(self._data) - FOOTER.size:
            raise DamagedData(f"a block of {handle.size_bytes} bytes at byte {handle.offset}")
        kind, start, size_bytes = self._data[end], handle.offset, handle.size_bytes
        if kind == SNAPPY:  # snappy's content begins with its unpacked size
            size_bytes, start = _number(self._data, start)
        elif kind != NONE:
            raise DamagedData(f"the block at byte {handle.offset} is packed by method {kind}")
        if size_bytes > self._block_bytes_max:
            raise DamagedData(
                f"the block at byte {handle.offset} unpacks to {size_bytes} bytes, at most "
                f"{self._block_bytes_max}"
            )
        return kind, start, size_bytes

    def _unpacked(self, handle: Handle) -> bytes:
        kind, start, size_bytes = self._check(handle)
        content = self._data[start : handle.offset + handle.size_bytes]
        if kind == SNAPPY:
            content = _unsnapped(content, size_bytes)
        if len(content) != size_bytes:
            raise DamagedData(f"the block at byte {handle.offset} has not the size that it states")
        return content


def _number(data: bytes | mmap.mmap, at: int) -> tuple[int, int]:
    """Read a varint of at most 64 bits at offset `at`. Return its value and the offset after it."""
    value = 0
    for index in range(NUMBER_BYTES_MAX):
        octet = int(data[at + index])
        value |= (octet & 0x7F) << 7 * index
        if octet < 0x80:
            return value, at + index + 1
    raise DamagedData("a number that does not end")


def _handle(data: bytes, at: int) -> tuple[Handle, int]:
    offset, at = _number(data, at)
    size_bytes, at = _number(data, at)
    return Handle(offset, size_bytes), at


def _end_of(block: bytes) -> int:
    """Return the offset of the end of the entries of a block, where its restart points begin."""
    count: int = struct.unpack_from("<I", block, len(block) - 4)[0] & COUNT_MASK
    end = len(block) - 4 - 4 * count
    if end < 0:
        raise DamagedData(f"{count} restart points in {len(block)} bytes")
    return end


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, value) for each entry of a block. Raise DamagedData if an entry is invalid.

    The block stores only the part of each key that differs from the previous key.
    """
    at, end, key = 0, _end_of(block), b""
    while at < end:
        shared, at = _number(block, at)
        more, at = _number(block, at)
        size_bytes, at = _number(block, at)
        if shared > len(key) or at + more + size_bytes > end:
            raise DamagedData("an entry that is longer than its block")
        key = key[:shared] + block[at : at + more]
        at += more
        yield key, block[at : at + size_bytes]
        at += size_bytes


def _indexed(block: bytes, *, is_relative: bool) -> Iterator[Handle]:
    """Yield the handles of the blocks in an index.

    With `is_relative`, an entry whose key shares bytes with the previous key has no full handle.
    Its block follows the previous block, and the entry has the difference of the two sizes.
    """
    at, end, last = 0, _end_of(block), Handle(0, 0)
    while at < end:
        shared, at = _number(block, at)
        more, at = _number(block, at)
        if not is_relative:
            _, at = _number(block, at)
        at += more
        if is_relative and shared:
            folded, at = _number(block, at)
            size_bytes = last.size_bytes + (folded >> 1 ^ -(folded & 1))
            last = Handle(last.offset + last.size_bytes + TRAILER_BYTES, size_bytes)
            if size_bytes < 0:
                raise DamagedData(f"a block of {size_bytes} bytes")
        else:
            last, at = _handle(block, at)
        yield last


def _unsnapped(data: bytes, size_bytes: int) -> bytes:
    """Return the content of Snappy-compressed data.

    A copy element may overlap the end of the output.
    """
    out, at = bytearray(), 0
    while at < len(data):
        tag = data[at]
        at += 1
        if not tag & 3:
            length_bytes, width = tag >> 2, max(0, (tag >> 2) - 59)
            if width:
                length_bytes = int.from_bytes(data[at : at + width], "little")
                at += width
            out += data[at : at + length_bytes + 1]
            at += length_bytes + 1
            continue
        width = COPY_TAGS[tag & 3]
        distance = int.from_bytes(data[at : at + width], "little")
        at += width
        length_bytes = (tag >> 2) + 1
        if width == 1:
            distance |= tag >> 5 << 8
            length_bytes = (tag >> 2 & 7) + 4
        if not 0 < distance <= len(out) or len(out) + length_bytes > size_bytes:
            raise DamagedData("a copy of what is not there, or of too much")
        start = len(out) - distance
        while length_bytes > 0:
            piece = out[start : start + length_bytes]
            out += piece
            length_bytes -= len(piece)
    return bytes(out)
