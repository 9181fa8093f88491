"""Decodes one block from Ozone's rows into `merkle.replica.BlockData`. No I/O.

    block_data        the chunks of a block; with the metadata key `incremental`, all but the last
    last_chunk_info   that last chunk, if the client synced the file and never closed it

Ozone's clients read both tables as one block, and so does this module. Ozone's scanner reads only
the first table.
"""

from dataclasses import dataclass
from typing import Any, Final

from merkle.blockrow import check_block
from merkle.checksum import Algorithm, block_checksum, leaf_checksum
from merkle.damaged_data import DamagedData
from merkle.replica import (
    BLOCK_BYTES_MAX,
    CHUNK_BYTES_MAX,
    CHUNKS_PER_BLOCK_MAX,
    ID_MAX,
    WINDOW_BYTES_MAX,
    Bcsid,
    BlockData,
    BlockId,
    ChecksumType,
    ChunkInfo,
    ContainerId,
)
from ozone.disk.messages import BLOCK_DATA, BLOCK_OUTLINE, parse
from ozone.disk.unsupported_format import UnsupportedFormat

INCREMENTAL: Final = "incremental"  # metadata key of a block whose last chunk is in the other table
ROW_BYTES_MAX: Final = 64 * 1024**2  # a row of 65,535 chunks with 256 checksums of 4 bytes


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block that was read from Ozone's rows.

    `tail_count` is the number of its chunks (0 or 1) that only the table `last_chunk_info` has.
    """

    block: BlockData
    tail_count: int


def decode_stored(
    container_id: ContainerId, block_id: BlockId, row: bytes | None, tail: bytes | None
) -> StoredBlock:
    """Return the block in two rows.

    `row` is of the table `block_data`, `tail` of `last_chunk_info`. One of the rows may be None.
    Raise DamagedData if a row is invalid, and UnsupportedFormat if this release does not support
    it.
    """
    if row is None:
        if tail is None:
            raise ValueError(f"block {block_id} has no row")
        first = _decode(container_id, block_id, tail)
        return StoredBlock(_block(block_id, first, _chunks(first)), len(first.chunks))
    first = _decode(container_id, block_id, row)
    chunks = _chunks(first)
    if tail is None or all(item.key != INCREMENTAL for item in first.metadata):
        return StoredBlock(_block(block_id, first, chunks), 0)
    second = _decode(container_id, block_id, tail)
    more = _chunks(second)
    end = chunks[-1].end if chunks else 0
    if len(more) != 1 or more[0].offset != end:
        starts = ", ".join(str(chunk.offset) for chunk in more)
        raise UnsupportedFormat(
            f"block {block_id}: its chunks end at {end}, its last chunk is at {starts}"
        )
    return StoredBlock(_block(block_id, second, chunks + more), 1)


def _decode(container_id: ContainerId, block_id: BlockId, row: bytes) -> Any:
    if len(row) > ROW_BYTES_MAX:
        raise UnsupportedFormat(f"block {block_id}: a row of {len(row)} bytes")
    _check_counts(block_id, row)
    message = parse(BLOCK_DATA, row)
    named = (message.block_id.container_id, message.block_id.local_id)
    if named != (container_id, block_id):
        raise DamagedData(
            f"row of block {block_id}: it names container {named[0]}, block {named[1]}"
        )
    if not 0 <= message.block_id.bcsid <= ID_MAX:
        raise DamagedData(f"row of block {block_id}: BCSID {message.block_id.bcsid}")
    return message


def _check_counts(block_id: BlockId, row: bytes) -> None:
    """Raise UnsupportedFormat if a row has too many chunks or metadata entries.

    The check does not parse them, which would allocate about 100 bytes for each.
    """
    if len(row) <= 2 * CHUNKS_PER_BLOCK_MAX:  # an empty message has two bytes
        return
    outline = parse(BLOCK_OUTLINE, row)
    for what, count in (("chunks", len(outline.chunks)), ("notes", len(outline.metadata))):
        if count > CHUNKS_PER_BLOCK_MAX:
            raise UnsupportedFormat(f"block {block_id}: {count} {what}")


def _chunks(message: Any) -> list[ChunkInfo]:
    chunks = [decode_chunk(message.block_id.local_id, chunk) for chunk in message.chunks]
    return sorted(chunks, key=lambda chunk: chunk.offset)


def decode_chunk(block_id: int, chunk: Any) -> ChunkInfo:
    """Decode a chunk of a row. Raise DamagedData or UnsupportedFormat, as `decode_stored` does."""
    where = f"block {block_id}, chunk at {chunk.offset}"
    if not (chunk.HasField("offset") and chunk.HasField("length")):
        raise DamagedData(f"block {block_id}: a chunk without offset or length")
    sums = chunk.checksum_data
    if not sums.HasField("type"):
        raise DamagedData(f"{where}: no checksum type")
    if sums.type not in set(ChecksumType):
        raise UnsupportedFormat(f"{where}: checksum type {sums.type}")
    if chunk.offset + chunk.length > BLOCK_BYTES_MAX or not 0 < chunk.length <= CHUNK_BYTES_MAX:
        raise UnsupportedFormat(f"{where}: a length of {chunk.length} bytes")
    if sums.bytes_per_checksum > WINDOW_BYTES_MAX:
        raise UnsupportedFormat(f"{where}: a window of {sums.bytes_per_checksum} bytes")
    kind = ChecksumType(sums.type)
    return ChunkInfo(
        offset=chunk.offset,
        length_bytes=chunk.length,
        checksum_type=kind,
        bytes_per_checksum=sums.bytes_per_checksum,
        window_checksums=b"" if kind is ChecksumType.NONE else b"".join(sums.checksums),
    )


def _block(block_id: BlockId, message: Any, chunks: list[ChunkInfo]) -> BlockData:
    block = BlockData(block_id, Bcsid(message.block_id.bcsid), tuple(chunks))
    try:
        check_block(block)
    except ValueError as error:
        raise DamagedData(f"row of block {block_id}: {error}") from error
    return block


@dataclass(frozen=True, slots=True)
class Folds:
    """The three block checksums that Ozone's tree may have for an undamaged block.

    `written` is computed when the data is written, from all chunks in the rows. `closed` is
    computed when the container is closed, without the chunk in `last_chunk_info`. `scanned` is
    computed by Ozone's scanner, from the chunks in `block_data` that have checksums. `scanned` is
    None if there are no such chunks, because the scanner's tree then omits the block.
    """

    written: int
    closed: int
    scanned: int | None

    @property
    def is_stable(self) -> bool:
        """True if all three block checksums are equal."""
        return self.written == self.closed == self.scanned


def folds_of(stored: StoredBlock) -> Folds:
    """Return the three block checksums that Ozone's trees may have for an undamaged block."""
    block = stored.block
    leaves = [
        leaf_checksum(Algorithm.CRC32C, chunk.offset, chunk.length_bytes, chunk.window_checksums)
        for chunk in block.chunks
    ]
    closed = leaves[: len(leaves) - stored.tail_count]
    read = [
        leaf
        for leaf, chunk in zip(closed, block.chunks, strict=False)
        if chunk.checksum_type is not ChecksumType.NONE
    ]
    fold = block_checksum
    return Folds(
        written=fold(Algorithm.CRC32C, block.block_id, leaves),
        closed=fold(Algorithm.CRC32C, block.block_id, closed),
        scanned=fold(Algorithm.CRC32C, block.block_id, read) if read else None,
    )
