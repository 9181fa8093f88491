"""Updates of block rows after a repair of chunks, and of the counts in the replica row.

All functions run within one transaction, which the caller commits after the bytes are durable.
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
    """Return the block in a block row, or None if the row is missing or damaged."""
    row = rows.block(container_id, block_id)
    try:
        return None if row is None else decode_block(block_id, row)
    except DamagedData:
        return None


def record_chunk(
    rows: IndexChange, container_id: ContainerId, block_id: BlockId, chunk: ChunkInfo
) -> None:
    """Record a chunk whose bytes are durable. The chunk is new, or replaces a damaged chunk."""
    record_chunks(rows, container_id, {block_id: [chunk]}, {})


def record_chunks(
    rows: IndexChange,
    container_id: ContainerId,
    installed: Mapping[BlockId, Sequence[ChunkInfo]],
    lent: Mapping[BlockId, BlockData],
) -> None:
    """Record chunks whose bytes are durable. `installed` has the chunks by block id.

    `lent` has the block records of peers, by block id. If a block now has all chunks of the peer's
    record, it takes over the commit id of the record if that is higher, and the client metadata of
    the record if the block has none.
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
    """Return a block with these chunks added, and the number of bytes that this adds."""
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
    """Return whether `mine` contains every chunk of `theirs`.

    A different chunk at the same offset does not count as the same chunk.
    """
    return mine == theirs or set(theirs) <= set(mine)


def put_blocks(
    rows: IndexChange, container_id: ContainerId, blocks: Sequence[tuple[BlockData, int]]
) -> None:
    """Write the rows of blocks, and update the counts in the replica row.

    `blocks` has each block with the number of bytes that were added to it.
    """
    row = rows.replica(container_id)
    is_unknown = False
    for block, added_bytes in blocks:
        before = rows.block(container_id, block.block_id)
        rows.put_block(container_id, block.block_id, encode_block(block))
        if before is not None and not is_intact(block.block_id, before):
            is_unknown = True  # the damaged row's share of the counts is unknown
        row = replace(
            row,
            block_count=row.block_count + (before is None),
            used_bytes=row.used_bytes + added_bytes,
        )
    if is_unknown:  # keep the commit id, because blocks may be missing
        row = replace(recounted(rows, container_id, row), bcsid=row.bcsid)
    rows.put_replica(container_id, moved_on(row))
