"""Packs: one file per replica that contains many small blocks.

An imported replica with thousands of small blocks gets a pack file. To create, read and delete one
file per block would cost several times the processing of the bytes (Beaver et al., "Finding a
needle in Haystack", OSDI 2010; Swift stores small objects in this way, too). The writes of a client
create one file per block.

An import writes the pack file, and the index gets a row for each packed block. Reads, scans and
exports use the pack file directly. A repair or a trim first copies the block to a file of its own
and then deletes the row. A delete frees the pages of the block in the pack file and deletes the
row.

If a block has such a row, its bytes are in the pack file. Otherwise they are in its own file. A
crash between two steps therefore leaves only an unused file until the step is repeated.
"""

import os
from array import array
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from agent.store.files import blockfile
from agent.store.files.layout import PACK_NAME, ReplicaPaths, block_name
from agent.store.files.writebehind import FileWriter, Submit
from agent.store.index.environment import Index
from agent.store.index.packformat import (
    FOOTER_BYTES,
    PAGE_BYTES,
    PackedBlocks,
    PackedPlace,
    decode_footer,
    decode_table,
    encode_table,
)
from agent.store.index.transactions import IndexView
from agent.store.volumes.volume import Volume
from merkle.damaged_data import DamagedData
from merkle.replica import BlockId, ContainerId
from suture.runtime.durable import (
    block_errors,
    make_directories,
    punch,
    raise_shortage,
    remove_file,
    sync_directory,
    write_all,
)

TABLE_BYTES_MAX: Final = 128 * 1024**2  # eight million blocks, more than a container has
ZEROS: Final = memoryview(bytes(PAGE_BYTES))

assert PAGE_BYTES == blockfile.ALIGNMENT_BYTES


class BlockBytes(NamedTuple):
    """Location of the bytes of one block.

    If `packed` is None, the bytes are in the block's own file. Otherwise, they are in that part of
    the pack file.
    """

    paths: ReplicaPaths
    block_id: BlockId
    packed: PackedPlace | None

    @property
    def name(self) -> Path:
        """Path of the block's own file, or of the block within the pack file, for messages."""
        own = self.paths.block_file(self.block_id)
        return own if self.packed is None else self.paths.pack / own.name

    def size_bytes(self) -> int:
        """Return the size of the block on disk in bytes, or `blockfile.ABSENT` if there is no file.

        Raise OSError if the size cannot be determined.
        """
        if self.packed is None:
            return blockfile.size_bytes(self.paths.block_file(self.block_id))
        return size_in(blockfile.size_bytes(self.paths.pack), self.packed)

    def read(self, offset: int, length_bytes: int) -> bytes:
        """Return `length_bytes` bytes at `offset`, or fewer if the file ends before that.

        Raise OSError if the read fails.
        """
        if self.packed is None:
            name = block_name(self.block_id)
            return blockfile.read_in(self.paths.chunks, name, offset, length_bytes)
        path, start, length_bytes = self._range(offset, length_bytes)
        return blockfile.read(path, start, length_bytes)

    def read_past_cache(self, offset: int, length_bytes: int) -> bytes:
        """Return `length_bytes` bytes at `offset` from the disk.

        Return fewer bytes if the file ends before that. Raise OSError if the read fails.
        """
        path, start, length_bytes = self._range(offset, length_bytes)
        return blockfile.read_past_cache(path, start, length_bytes)

    def read_each_past_cache(self, spans: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """Return the bytes on disk of several spans (offset, length in bytes) of the block.

        An item is None if its span cannot be read.
        """
        own = self.paths.block_file(self.block_id)
        path = own if self.packed is None else self.paths.pack
        return blockfile.read_each_past_cache(path, [self._range(*span)[1:] for span in spans])

    def _range(self, offset: int, length_bytes: int) -> tuple[Path, int, int]:
        if self.packed is None:
            return self.paths.block_file(self.block_id), offset, length_bytes
        left = max(self.packed.length_bytes - offset, 0)
        return self.paths.pack, self.packed.offset + offset, min(length_bytes, left)


def size_in(pack_bytes: int, packed: PackedPlace) -> int:
    """Return how many bytes of a block are in a pack file that is `pack_bytes` long.

    Return ABSENT if there is no pack file.
    """
    if pack_bytes == blockfile.ABSENT:
        return blockfile.ABSENT
    return max(0, min(packed.length_bytes, pack_bytes - packed.offset))


def place_of(
    rows: IndexView, paths: ReplicaPaths, container_id: ContainerId, block_id: BlockId
) -> BlockBytes:
    """Return the current location of the bytes of a block."""
    return BlockBytes(paths, block_id, rows.packed(container_id, block_id))


@dataclass(frozen=True, slots=True)
class PackIndex:
    """Reads the index rows of the packed blocks of one replica."""

    index: Index
    container_id: ContainerId

    def of(self, block_id: BlockId) -> PackedPlace | None:
        """Return the current place of a block in the pack file, or None if it is not there."""
        with self.index.read() as rows:
            return rows.packed(self.container_id, block_id)

    def blocks(self) -> PackedBlocks:
        """Return all packed blocks of the replica."""
        with self.index.read() as rows:
            return rows.packed_blocks(self.container_id)


class PackWriter:
    """Writes a pack file past the page cache, in the background."""

    def __init__(self, directory_fd: int, submit: Submit | None) -> None:
        """Prepare to write a pack file in this directory.

        The file is created with the first block.
        """
        self._files = FileWriter(directory_fd, submit)
        self._block_ids = array("Q")
        self._lengths = array("I")
        self._has_begun = False

    @property
    def unsynced_count(self) -> int:
        """Number of files that are still not durable after `end`."""
        return self._files.unsynced_count

    def add(self, blocks: Sequence[tuple[BlockId, memoryview]]) -> None:
        """Add blocks by ascending id. Raise OSError if this or an earlier write failed."""
        if not blocks:
            return
        if not self._has_begun:
            self._files.begin(PACK_NAME, 0)
            self._has_begun = True
        views = [view for _, view in blocks]
        lengths = list(map(len, views))
        gaps = [ZEROS[: -length % PAGE_BYTES] for length in lengths]
        self._files.append(memoryview(b"".join(chain.from_iterable(zip(views, gaps, strict=True)))))
        self._block_ids.extend(block_id for block_id, _ in blocks)
        self._lengths.extend(lengths)

    def end(self) -> PackedBlocks:
        """Write the table and wait for all writes. Return the packed blocks.

        Raise OSError if a write failed.
        """
        if not self._has_begun:
            return PackedBlocks.none()
        blocks = PackedBlocks.side_by_side(self._block_ids, self._lengths)
        pages = int(blocks.pages[-1]) + -(-self._lengths[-1] // PAGE_BYTES)
        self._files.append(memoryview(encode_table(blocks, pages * PAGE_BYTES)))
        self._files.end()
        self._files.wait_written()
        return blocks

    def abandon(self) -> None:
        """Stop writing, and wait until no write is running."""
        self._files.abandon()


def read_table(paths: ReplicaPaths) -> PackedBlocks:
    """Return the blocks in the table of a pack file.

    The table shows the blocks at the time of its write. Return no blocks if there is no pack file.
    Raise `DamagedData` if the table is invalid, and OSError if it cannot be read.
    """
    size = blockfile.size_bytes(paths.pack)
    if size == blockfile.ABSENT:
        return PackedBlocks.none()
    footer = blockfile.read(paths.pack, max(size - FOOTER_BYTES, 0), FOOTER_BYTES)
    count, offset, checksum = decode_footer(footer, size)
    if size - offset > TABLE_BYTES_MAX:
        raise DamagedData(
            f"table of the pack: {size - offset} bytes, {TABLE_BYTES_MAX} are possible"
        )
    table = blockfile.read(paths.pack, offset, size - FOOTER_BYTES - offset)
    return decode_table(table, count, checksum)


def recover_pack_index(
    paths: ReplicaPaths, known: PackedBlocks, gone: Collection[BlockId], names: Collection[str]
) -> PackedBlocks:
    """Return the packed blocks of a replica whose row was lost.

    These are the blocks in `known`, which still have a row of the pack, and the blocks in the table
    of the pack file that are neither deleted nor in a file of their own. `gone` has the ids of
    deleted blocks, and `names` the names in the directory of block files. If the table cannot be
    read, return only the blocks in `known`.
    """
    try:
        found = read_table(paths)
    except (DamagedData, OSError) as error:
        raise_shortage(error, paths.pack)
        return known
    has_own = [
        block_name(block_id) in names
        and blockfile.size_bytes(paths.block_file(block_id)) != blockfile.ABSENT
        for block_id, _ in found
    ]
    is_known = np.isin(found.block_ids, known.block_ids)
    is_gone = np.isin(found.block_ids, np.array(list(gone), np.uint64))
    return found.where(is_known | ~(is_gone | np.array(has_own, np.bool_)))


def unpack(volume: Volume, container_id: ContainerId, block_id: BlockId) -> None:
    """Move a packed block to a file of its own, durably. Do nothing if the block is not packed.

    A repair needs this, because blocks in a pack file are never overwritten. The new file ends
    before the first page that cannot be read, because zeros in its place could be mistaken for
    data. The pages of the block in the pack file are not freed, because another thread may be
    reading them.

    The caller holds the container's lease. Raise SutureError if this fails. The block is then still
    in the pack file.
    """
    paths = volume.paths(container_id)
    with volume.index.read() as rows:
        place = place_of(rows, paths, container_id, block_id)
    if place.packed is None:
        return
    own = paths.block_file(block_id)
    with block_errors(own):  # the directory may have been lost with all its files
        make_directories(paths.chunks, below=volume.layout.current)
        if place.size_bytes() != blockfile.ABSENT:
            _copy_out(place, own)

    volume.index.write(lambda rows: rows.delete_packed(container_id, [block_id]))


def _copy_out(place: BlockBytes, own: Path) -> None:
    """Copy a packed block to its own file, durably. Replace the file of an interrupted attempt."""
    with suppress(FileNotFoundError):
        own.unlink()
    with blockfile.opened(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
        write_all(fd, _readable(place), 0)
        os.fsync(fd)
    sync_directory(own.parent)


def remove_spent(paths: ReplicaPaths) -> bool:
    """Remove a pack file that no longer contains any blocks. Return whether the file existed.

    A pack file whose table cannot be read is kept, because its content is unknown. Raise OSError if
    the removal fails.
    """
    try:
        read_table(paths)
    except (DamagedData, OSError):
        return False
    return remove_file(paths.pack)


def _readable(place: BlockBytes) -> bytes:
    """Return the bytes of a packed block up to the first page that cannot be read."""
    found = []
    assert place.packed is not None
    for offset in range(0, place.packed.length_bytes, PAGE_BYTES):
        try:
            found.append(place.read_past_cache(offset, PAGE_BYTES))
        except OSError as error:
            raise_shortage(error, place.name)
            break
    return b"".join(found)


def give_back_pages(paths: ReplicaPaths, gone: Iterable[PackedPlace]) -> None:
    """Free the pages of deleted blocks in a pack file, if the file system supports that.

    If the pack file has other hard links, do nothing, because another owner may need the bytes.
    Raise OSError if the pages cannot be freed.
    """
    with suppress(FileNotFoundError), blockfile.opened(paths.pack, os.O_RDWR) as fd:
        if os.fstat(fd).st_nlink > 1:
            return
        start = end = 0
        for packed in sorted(gone, key=lambda packed: packed.offset):
            if packed.offset != end:
                punch(fd, offset=start, length_bytes=end - start)
                start = packed.offset
            end = packed.offset + -(-packed.length_bytes // PAGE_BYTES) * PAGE_BYTES
        punch(fd, offset=start, length_bytes=end - start)
