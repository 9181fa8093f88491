"""The client's write path: validated, durable, recorded; then acknowledged.

    check everything ─ pwrite ─ fdatasync ─ one LMDB commit ─ acknowledge

A crash before the commit leaves garbage bytes behind the recorded end.
"""

from contextlib import suppress
from dataclasses import replace

from agent.errors import Code, RefusedError, SutureError
from agent.store.files import blockfile
from agent.store.files.durable import disk_errors
from agent.store.index.transactions import IndexChange, IndexView
from agent.store.operations.overwrite import overwrite_chunk
from agent.store.operations.write_rules import (
    ChunkPlacement,
    RecordedBlock,
    check_id,
    check_room,
    checked_chunk,
    commit_block,
    known_block,
    place_chunk,
    resolved_commit,
    writable_replica,
)
from agent.store.options import StoreOptions
from agent.store.replica.obstacles import clear_place
from agent.store.volumes.volume import Volume, check_space
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId


def write_chunk(
    volume: Volume,
    options: StoreOptions,
    container_id: ContainerId,
    block_id: BlockId,
    chunk: ChunkInfo,
    data: bytes,
    commit: BlockData | None,
) -> ChunkInfo:
    """Write one chunk durably, and commit its block if `commit` is given.

    Raise `RefusedError` or `UnavailableError(DISK_OUT_OF_SPACE)`, with nothing changed.
    """
    check_id(block_id, "block id")
    recorded = checked_chunk(options, block_id, chunk, data)
    with volume.index.read() as rows:
        row = writable_replica(rows, container_id, block_id)
        known = known_block(rows, container_id, block_id)
        place = place_chunk(
            rows,
            container_id,
            block_id,
            known,
            recorded,
            lambda: _holds(volume, container_id, block_id, chunk.offset, data),
        )
        block = _commit_with(rows, container_id, block_id, known, recorded, commit)
    match place:
        case ChunkPlacement.END:
            check_room(options, row, recorded)
            check_space(volume, len(data), reserve_bytes=options.reserve_bytes)
            clear_place(
                volume,
                container_id,
                block_id,
                reserve_bytes=options.reserve_bytes,
                end=chunk.offset,
            )
            _append(volume, container_id, block_id, recorded, data, block)
        case ChunkPlacement.AGAIN:

            def record(rows: IndexChange) -> None:
                rows.put_pending(container_id, block_id, recorded)
                if block is not None:
                    commit_block(rows, container_id, block)

            overwrite_chunk(
                volume, options, container_id, block_id, recorded, data, record, pending=True
            )
        case ChunkPlacement.RECORDED:
            if block is not None and block != known.committed:
                _commit(volume, container_id, block)
    return recorded


def _holds(
    volume: Volume, container_id: ContainerId, block_id: BlockId, offset: int, data: bytes
) -> bool:
    path = volume.paths(container_id).block_file(block_id)
    with disk_errors(path):
        return blockfile.read(path, offset, len(data)) == data


def put_block(volume: Volume, container_id: ContainerId, block: BlockData) -> int:
    """Commit a block whose chunks are written; return its length in bytes."""
    check_id(block.block_id, "block id")
    with volume.index.read() as rows:
        writable_replica(rows, container_id, block.block_id)
        known = known_block(rows, container_id, block.block_id)
        written = [chunk for _, chunk in rows.pending(container_id, block.block_id)]
        resolved = resolved_commit(known, written, block)
    if resolved != known.committed:
        _commit(volume, container_id, resolved)
    return resolved.length_bytes


def _commit_with(
    rows: IndexView,
    container_id: ContainerId,
    block_id: BlockId,
    known: RecordedBlock,
    chunk: ChunkInfo,
    commit: BlockData | None,
) -> BlockData | None:
    if commit is None:
        return None
    if commit.block_id != block_id:
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            f"a chunk of block {block_id} with a commit of block {commit.block_id}",
        )
    written = [had for _, had in rows.pending(container_id, commit.block_id)]
    return resolved_commit(
        known, [had for had in written if had.offset != chunk.offset] + [chunk], commit
    )


def _commit(volume: Volume, container_id: ContainerId, block: BlockData) -> None:
    volume.index.write(lambda rows: commit_block(rows, container_id, block))


def _append(
    volume: Volume,
    container_id: ContainerId,
    block_id: BlockId,
    chunk: ChunkInfo,
    data: bytes,
    block: BlockData | None,
) -> None:
    def record(rows: IndexChange) -> None:
        row = rows.replica(container_id)
        bytes_used = row.bytes_used + chunk.length_bytes
        rows.put_replica(container_id, replace(row, bytes_used=bytes_used))
        covered = block is not None and chunk.end <= block.length_bytes
        if not covered:
            rows.put_pending(container_id, block_id, chunk)
        if block is not None:
            commit_block(rows, container_id, block)

    path = volume.paths(container_id).block_file(block_id)
    blockfile.append(path, data, chunk.offset)
    try:
        volume.index.write(record)
    except SutureError:
        _forget_unrecorded(volume, container_id, block_id, chunk.offset)
        raise


def _forget_unrecorded(
    volume: Volume, container_id: ContainerId, block_id: BlockId, offset: int
) -> None:
    """Cut off the bytes of a chunk that could not be recorded, only if the index confirms that."""
    with suppress(SutureError), volume.index.read() as rows:
        if known_block(rows, container_id, block_id).end == offset:
            blockfile.forget_tail(volume.paths(container_id).block_file(block_id), offset)
