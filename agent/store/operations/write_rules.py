"""Rules for client writes, which are checked before a write changes anything.

A block is a sequence of chunks from offset 0 without holes. Committed chunks never change.
Uncommitted chunks may follow them, and a client may rewrite only these.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from agent.store.index.facts import ReplicaFacts
from agent.store.index.rows import ReplicaRow
from agent.store.index.transactions import IndexChange, IndexView
from agent.store.options import StoreOptions
from merkle.blockrow import check_chunk, decode_block, encode_block
from merkle.checksum import Buffer, checksum_width_bytes, window_checksums, window_count
from merkle.damaged_data import DamagedData
from merkle.replica import (
    BLOCK_BYTES_MAX,
    CHUNKS_PER_BLOCK_MAX,
    ID_MAX,
    WINDOW_BYTES_DEFAULT,
    WINDOW_BYTES_MAX,
    WINDOW_BYTES_MIN,
    WRITABLE_STATES,
    Bcsid,
    BlockData,
    BlockId,
    ChecksumType,
    ChunkInfo,
    ContainerId,
    ReplicaState,
)
from suture.errors import Code, RefusedError

REPLICA_INDEX_MAX: Final = 255  # the maximum number of shards of an erasure code


class ChunkPlacement(Enum):
    """Position of a chunk in a client's write, relative to the recorded chunks of its block."""

    END = auto()  # directly after the recorded chunks
    RECORDED = auto()  # already recorded, with matching checksums
    AGAIN = auto()  # overwrites an uncommitted chunk with the same range


@dataclass(frozen=True, slots=True)
class RecordedBlock:
    """The recorded chunks of one block. `end` is the end in bytes, including uncommitted chunks."""

    committed: BlockData | None
    end: int

    @property
    def chunks(self) -> tuple[ChunkInfo, ...]:
        """The committed chunks of the block."""
        return self.committed.chunks if self.committed else ()

    @property
    def committed_end(self) -> int:
        """End of the committed chunks, in bytes."""
        return self.committed.length_bytes if self.committed else 0


def check_id(value: int, what: str) -> None:
    """Raise RefusedError if an id is outside Ozone's range. `what` names the id in the message."""
    if not 1 <= value <= ID_MAX:
        raise RefusedError(Code.MALFORMED_REQUEST, f"{what} {value} is not within 1..{ID_MAX}")


def check_bcsid(bcsid: int) -> None:
    """Raise RefusedError if a BCSID (the commit id of a block) is out of range."""
    if not 0 <= bcsid <= ID_MAX:
        raise RefusedError(Code.MALFORMED_REQUEST, f"bcsid {bcsid} is not within 0..{ID_MAX}")


def check_new(container_id: ContainerId, replica_index: int, state: ReplicaState) -> None:
    """Raise RefusedError if a new replica would have an invalid id, index or state."""
    check_id(container_id, "container id")
    if not 0 <= replica_index <= REPLICA_INDEX_MAX:
        raise RefusedError(Code.MALFORMED_REQUEST, f"replica index {replica_index} is out of range")
    if state not in {ReplicaState.OPEN, ReplicaState.RECOVERING}:
        raise RefusedError(Code.MALFORMED_REQUEST, f"cannot create a replica in state {state}")


def check_same(facts: ReplicaFacts, replica_index: int, state: ReplicaState) -> ReplicaFacts:
    """Return the existing replica if it has this replica index and state.

    Otherwise, raise `RefusedError(CONTAINER_EXISTS)`.
    """
    if facts.state is state and facts.replica_index == replica_index:
        return facts
    raise RefusedError(
        Code.CONTAINER_EXISTS,
        f"container {facts.container_id} exists here: {facts.state}, replica index "
        f"{facts.replica_index}",
        container_id=facts.container_id,
    )


def writable_replica(rows: IndexView, container_id: ContainerId, block_id: BlockId) -> ReplicaRow:
    """Return the replica row. Raise RefusedError if a client is not allowed to write this block."""
    row = rows.replica(container_id)
    check_open(container_id, row)
    refuse_tombstone(rows, container_id, block_id)
    return row


def refuse_tombstone(rows: IndexView, container_id: ContainerId, block_id: BlockId) -> None:
    """Raise RefusedError if the block was deleted.

    A deleted block must be neither written nor restored.
    """
    if rows.tombstone(container_id, block_id) is not None:
        raise RefusedError(
            Code.NO_SUCH_BLOCK,
            f"block {block_id} of container {container_id} was deleted",
            container_id=container_id,
            block_id=block_id,
        )


def check_open(container_id: ContainerId, row: ReplicaRow) -> None:
    """Raise `RefusedError(CONTAINER_NOT_OPEN)` if the replica's state does not allow writes."""
    if row.state not in WRITABLE_STATES:
        raise RefusedError(
            Code.CONTAINER_NOT_OPEN,
            f"container {container_id} is {row.state}",
            container_id=container_id,
            state=row.state,
        )


def known_block(rows: IndexView, container_id: ContainerId, block_id: BlockId) -> RecordedBlock:
    """Return the recorded chunks of a block. Raise `DamagedData` if its row is damaged."""
    row = rows.block(container_id, block_id)
    committed = None if row is None else decode_block(block_id, row)
    last = rows.last_pending(container_id, block_id)
    known = RecordedBlock(committed, 0)
    return replace(known, end=known.committed_end if last is None else last.end)


def checked_chunk(
    options: StoreOptions, block_id: BlockId, chunk: ChunkInfo, data: Buffer
) -> ChunkInfo:
    """Return the chunk to record for these bytes.

    Raise RefusedError if `data` does not match the length or the checksums of the chunk. A chunk
    without a checksum type gets CRC32C, because the agent must be able to verify stored data.
    """
    where = f"block {block_id}, chunk at {chunk.offset}"
    if not 0 < len(data) <= options.chunk_bytes_max or chunk.length_bytes != len(data):
        raise RefusedError(
            Code.INVALID_WRITE_SIZE,
            f"{where}: {len(data)} bytes for a length of {chunk.length_bytes}; expected "
            f"1..{options.chunk_bytes_max}",
        )
    if chunk.offset < 0 or chunk.end > min(BLOCK_BYTES_MAX, options.container_bytes_max):
        raise RefusedError(
            Code.INVALID_WRITE_SIZE,
            f"{where}: ends at {chunk.end}, a block has at most {BLOCK_BYTES_MAX} bytes",
        )
    if chunk.checksum_type is None:
        return summed_chunk(chunk.offset, data)
    if chunk.checksum_type not in set(ChecksumType):
        raise RefusedError(
            Code.NO_SUCH_ALGORITHM, f"{where}: checksum type {chunk.checksum_type} is unknown"
        )
    check_checksums(block_id, chunk, data)
    return chunk


def summed_chunk(offset: int, data: Buffer) -> ChunkInfo:
    """Return a chunk for `data` at `offset`, with checksums of the default type."""
    checksums = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES_DEFAULT, data)
    return ChunkInfo(offset, len(data), ChecksumType.CRC32C, WINDOW_BYTES_DEFAULT, checksums)


def check_checksums(block_id: BlockId, chunk: ChunkInfo, data: Buffer) -> None:
    """Raise RefusedError if the checksums are malformed, or do not match `data`.

    Malformed checksums have the wrong number or length.
    """
    where = f"block {block_id}, chunk at {chunk.offset}"
    if chunk.checksum_type is ChecksumType.NONE:
        if chunk.window_checksums:
            raise RefusedError(Code.MALFORMED_REQUEST, f"{where}: checksums given for type NONE")
        if not 0 <= chunk.bytes_per_checksum <= WINDOW_BYTES_MAX:
            raise RefusedError(
                Code.MALFORMED_REQUEST, f"{where}: bytes_per_checksum is out of range"
            )
        return
    if not WINDOW_BYTES_MIN <= chunk.bytes_per_checksum <= WINDOW_BYTES_MAX:
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            f"{where}: bytes_per_checksum {chunk.bytes_per_checksum} is not within "
            f"{WINDOW_BYTES_MIN}..{WINDOW_BYTES_MAX}",
        )
    width = checksum_width_bytes(chunk.checksum_type)
    count = window_count(chunk.length_bytes, chunk.bytes_per_checksum)
    if len(chunk.window_checksums) != count * width:
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            f"{where}: {len(chunk.window_checksums)} bytes of checksums for {count} windows "
            f"of {width} bytes each",
        )
    actual = window_checksums(chunk.checksum_type, chunk.bytes_per_checksum, data)
    if actual != chunk.window_checksums:
        window = differing_window(actual, chunk.window_checksums, width)
        raise RefusedError(
            Code.CHECKSUM_MISMATCH,
            f"{where}: window {window} has {chunk.checksum_type.name} "
            f"{actual[window * width : (window + 1) * width].hex()}, given was "
            f"{chunk.window_checksums[window * width : (window + 1) * width].hex()}",
            hint="the data was damaged between the client's memory and this host",
            block_id=block_id,
        )


def differing_window(actual: bytes, given: bytes, width: int) -> int:
    """Return the index of the first checksum that differs between `actual` and `given`.

    Each checksum is `width` bytes long.
    """
    return next(
        start // width
        for start in range(0, len(given), width)
        if actual[start : start + width] != given[start : start + width]
    )


def place_chunk(
    rows: IndexView,
    container_id: ContainerId,
    block_id: BlockId,
    known: RecordedBlock,
    chunk: ChunkInfo,
    is_there: Callable[[], bool],
) -> ChunkPlacement:
    """Return where a chunk that a client writes belongs among the recorded chunks of its block.

    Raise `RefusedError(CHUNK_GAP)` if the chunk would leave a hole, and
    `RefusedError(OVERLAPPING_CHUNK)` if it overlaps recorded data. `is_there` returns whether the
    disk has the bytes of the chunk. It is called only for chunks without checksums.
    """
    if chunk.offset == known.end:
        return ChunkPlacement.END
    where = f"block {block_id} of container {container_id}, chunk at {chunk.offset}"
    if chunk.offset > known.end:
        raise RefusedError(
            Code.CHUNK_GAP,
            f"{where}: the block ends at {known.end}, the write would leave a hole",
            container_id=container_id,
            block_id=block_id,
        )
    pending = rows.pending_at(container_id, block_id, chunk.offset)
    recorded = pending or next((had for had in known.chunks if had.offset == chunk.offset), None)
    if recorded == chunk and (chunk.checksum_type is not ChecksumType.NONE or is_there()):
        return ChunkPlacement.RECORDED
    if pending is not None and pending.length_bytes == chunk.length_bytes:
        return ChunkPlacement.AGAIN
    raise RefusedError(
        Code.OVERLAPPING_CHUNK,
        f"{where}: overlaps what is {'written' if pending else 'committed'} up to {known.end}",
        container_id=container_id,
        block_id=block_id,
    )


def check_room(options: StoreOptions, row: ReplicaRow, added_bytes: int) -> None:
    """Raise RefusedError if the container would exceed its maximum size."""
    if row.used_bytes + added_bytes > options.container_bytes_max:
        raise RefusedError(
            Code.INVALID_WRITE_SIZE,
            f"container holds {row.used_bytes} bytes, {added_bytes} more exceed its "
            f"{options.container_bytes_max}",
            hint="close the container and write to another one",
        )


def resolved_commit(known: RecordedBlock, written: list[ChunkInfo], block: BlockData) -> BlockData:
    """Return the block to record by a commit, with every chunk exactly as it was written.

    `written` has the uncommitted chunks by offset. Raise `RefusedError` for the first chunk that is
    not contiguous with the previous one, was never written, or was written with other checksums.
    Also raise it if the new commit is shorter than the committed block.
    """
    check_commit(known, block)
    recorded = {chunk.offset: chunk for chunk in (*known.chunks, *written)}
    chunks = []
    end = 0
    for given in block.chunks:
        where = f"block {block.block_id}, chunk at {given.offset}"
        if given.offset != end:
            code = Code.CHUNK_GAP if given.offset > end else Code.OVERLAPPING_CHUNK
            raise RefusedError(code, f"{where}: the chunk before it ends at {end}")
        chunk = recorded.get(given.offset)
        if chunk is None or chunk.length_bytes != given.length_bytes:
            raise RefusedError(
                Code.UNABLE_TO_FIND_CHUNK,
                f"{where}: no chunk of {given.length_bytes} bytes was written there",
            )
        if given.checksum_type is not None and given != chunk:
            raise RefusedError(
                Code.CHECKSUM_MISMATCH, f"{where}: checksums differ from those written with it"
            )
        chunks.append(chunk)
        end = chunk.end
    if end < known.committed_end:
        raise RefusedError(
            Code.OVERLAPPING_CHUNK,
            f"block {block.block_id}: cannot commit {end} bytes: {known.committed_end} are "
            "already committed",
        )
    resolved = replace(block, chunks=tuple(chunks))
    check_encodable(resolved)
    return resolved


def check_commit(known: RecordedBlock, block: BlockData) -> None:
    """Raise RefusedError if a commit has invalid numbers, or a BCSID that is too low.

    The BCSID must not be lower than that of the committed block.
    """
    check_id(block.block_id, "block id")
    check_bcsid(block.bcsid)
    if len(block.chunks) > CHUNKS_PER_BLOCK_MAX:
        raise RefusedError(
            Code.INVALID_WRITE_SIZE,
            f"block {block.block_id}: {len(block.chunks)} chunks, at most {CHUNKS_PER_BLOCK_MAX}",
        )
    if known.committed is not None and block.bcsid < known.committed.bcsid:
        raise RefusedError(
            Code.BCSID_MISMATCH,
            f"block {block.block_id}: cannot commit bcsid {block.bcsid}: "
            f"{known.committed.bcsid} is already committed",
        )


def check_encodable(block: BlockData) -> None:
    """Raise RefusedError if the block does not fit in a row.

    The cause may be too much metadata.
    """
    try:
        for chunk in block.chunks:
            check_chunk(block.block_id, chunk)
        encode_block(block)
    except (ValueError, UnicodeEncodeError) as error:
        raise RefusedError(Code.MALFORMED_REQUEST, str(error)) from error


def recounted(rows: IndexView, container_id: ContainerId, row: ReplicaRow) -> ReplicaRow:
    """Return the replica row with counts that are computed from its block rows.

    These are the block count, the byte count and the highest BCSID. A damaged block row counts as a
    block of 0 bytes.
    """
    block_count = used_bytes = bcsid = 0
    for block_id, raw in rows.blocks(container_id):
        block_count += 1
        try:
            block = decode_block(block_id, raw)
        except DamagedData:
            continue
        used_bytes += sum(chunk.length_bytes for chunk in block.chunks)
        bcsid = max(bcsid, block.bcsid)
    used_bytes += sum(chunk.length_bytes for _, chunk in rows.pending(container_id))
    return replace(
        row, block_count=block_count, used_bytes=used_bytes, bcsid=Bcsid(max(row.bcsid, bcsid))
    )


def commit_blocks(
    rows: IndexChange, container_id: ContainerId, blocks: Sequence[BlockData], added_bytes: int = 0
) -> None:
    """Record written chunks as committed blocks.

    `added_bytes` is the number of their bytes that the replica row does not count yet.
    """
    row = rows.replica(container_id)
    bcsid, block_count = row.bcsid, row.block_count
    for block in blocks:
        block_count += rows.block(container_id, block.block_id) is None
        bcsid = max(bcsid, block.bcsid)
        rows.put_block(container_id, block.block_id, encode_block(block))
        rows.delete_pending(container_id, block.block_id, end=block.length_bytes)
    used_bytes = row.used_bytes + added_bytes
    changed = replace(row, used_bytes=used_bytes, block_count=block_count, bcsid=bcsid)
    rows.put_replica(container_id, changed)
