"""Rows of blocks after a repair of chunks, and the counts in their replica's row.

All functions work within one transaction, which the caller commits when the bytes are durable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from agent.store.index.rows import moved_on
from agent.store.index.transactions import IndexChange, IndexView
from agent.store.operations.write_rules import recounted
from merkle.blockrow import decode_block, encode_block, is_intact
from merkle.damaged_data import DamagedData
from merkle.replica import Bcsid, BlockData, BlockId, ChunkInfo, ContainerId


def readable_block(
    rows: IndexView, container_id: ContainerId, block_id: BlockId
) -> BlockData | None:
    """Return the block if its row is readable; a damaged row counts as missing, and is replaced."""
    row = rows.block(container_id, block_id)
    try:
        return None if row is None else decode_block(block_id, row)
    except DamagedData:
        return None


def record_chunk(
    rows: IndexChange, container_id: ContainerId, block_id: BlockId, chunk: ChunkInfo
) -> None:
    """Record a chunk with durable bytes, new or in place of a damaged one."""
    record_chunks(rows, container_id, {block_id: [chunk]}, {})


def record_chunks(
    rows: IndexChange,
    container_id: ContainerId,
    installed: Mapping[BlockId, Sequence[ChunkInfo]],
    lent: Mapping[BlockId, BlockData],
) -> None:
    """Record chunks with durable bytes of some blocks.

    `lent` has peers' blocks. A block gets the commit id of a lent one if it now has all its chunks,
    unless its own is higher, and the client's metadata, unless it has some.
    """
    put_blocks(
        rows,
        container_id,
        [
            _with_chunks(rows, container_id, block_id, chunks, lent.get(block_id))
            for block_id, chunks in installed.items()
        ],
    )


def _with_chunks(
    rows: IndexView,
    container_id: ContainerId,
    block_id: BlockId,
    installed: Sequence[ChunkInfo],
    lent: BlockData | None,
) -> tuple[BlockData, int]:
    """Return a block with these chunks added, and the number of added bytes."""
    block = readable_block(rows, container_id, block_id) or BlockData(block_id, Bcsid(0))
    had = {chunk.offset: chunk for chunk in block.chunks}
    added_bytes = sum(chunk.length_bytes for chunk in installed if chunk.offset not in had)
    merged = had | {chunk.offset: chunk for chunk in installed}
    chunks = tuple(merged[offset] for offset in sorted(merged))
    if lent is None or not has_each_chunk(chunks, lent.chunks):
        return replace(block, chunks=chunks), added_bytes
    bcsid, metadata = max(block.bcsid, lent.bcsid), block.metadata or lent.metadata
    return BlockData(block_id, bcsid, chunks, metadata), added_bytes


def has_each_chunk(mine: Sequence[ChunkInfo], theirs: Sequence[ChunkInfo]) -> bool:
    """Return whether each of their chunks is among mine; another chunk at its place does not
    count."""
    return mine == theirs or set(theirs) <= set(mine)


def put_blocks(
    rows: IndexChange, container_id: ContainerId, blocks: Sequence[tuple[BlockData, int]]
) -> None:
    """Set the rows of blocks, each with its number of added bytes, and the counts in the replica's
    row."""
    row = rows.replica(container_id)
    is_unknown = False
    for block, added_bytes in blocks:
        before = rows.block(container_id, block.block_id)
        rows.put_block(container_id, block.block_id, encode_block(block))
        if before is not None and not is_intact(block.block_id, before):
            is_unknown = True  # the share of the damaged row is unknown
        row = replace(
            row,
            block_count=row.block_count + (before is None),
            bytes_used=row.bytes_used + added_bytes,
        )
    if is_unknown:  # the commit id stays: a present block proves nothing about missing ones
        row = replace(recounted(rows, container_id, row), bcsid=row.bcsid)
    rows.put_replica(container_id, moved_on(row))
