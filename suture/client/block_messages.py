"""Encodes blocks as messages to a datanode: many small blocks in one message, or one chunk of a
large block."""

from collections.abc import Iterator, Sequence
from typing import Final

from merkle.replica import ChunkInfo
from suture.client.file_pieces import FilePart, chunks_of, describe
from suture.wire.mapping import new_blocks_message
from suture.wire.v1 import datanode_pb2, scm_pb2

RUN_BYTES_MAX: Final = 32 * 1024**2  # bytes of blocks that are acknowledged together
MESSAGE_BYTES_MAX: Final = 1024**2  # total bytes of small blocks in one message
MESSAGE_BLOCKS_MAX: Final = 256

Placed = tuple[FilePart, scm_pb2.BlockAllocation]


def runs_of(placed: Sequence[Placed]) -> list[list[Placed]]:
    """Divide the blocks into groups that are sent in one stream, and return the groups in order. A
    group has consecutive blocks of one container, with at most `RUN_BYTES_MAX` bytes in total."""
    runs: list[list[Placed]] = []
    run_bytes = 0
    for piece, allocation in placed:
        container_id = allocation.block_id.container_id
        run_bytes += piece.size_bytes
        is_next = runs and runs[-1][0][1].block_id.container_id == container_id
        if is_next and run_bytes <= RUN_BYTES_MAX:
            runs[-1].append((piece, allocation))
        else:
            runs.append([(piece, allocation)])
            run_bytes = piece.size_bytes
    return runs


def messages_of(run: Sequence[Placed]) -> Iterator[tuple[bytes, int]]:
    """Yield a pair (message, number of file bytes in it) for each message that sends the blocks in
    `run`.

    A message has many small blocks, or one chunk of a large block.
    """
    blocks: list[datanode_pb2.NewBlock] = []
    data: list[bytes] = []
    data_bytes = 0
    for piece, allocation in run:
        is_full = data_bytes + piece.size_bytes > MESSAGE_BYTES_MAX
        if blocks and (is_full or len(blocks) == MESSAGE_BLOCKS_MAX):
            yield new_blocks_message.encode(blocks, data), data_bytes
            blocks, data, data_bytes = [], [], 0
        if piece.size_bytes > MESSAGE_BYTES_MAX:
            yield from _messages_of_large(piece, allocation)
            continue
        content = b"".join(chunks_of(piece))
        chunks = [describe(0, content)] if content else []
        blocks.append(_new_block(piece, allocation, chunks, is_whole=True))
        data.append(content)
        data_bytes += len(content)
    if blocks:
        yield new_blocks_message.encode(blocks, data), data_bytes


def _messages_of_large(
    piece: FilePart, allocation: scm_pb2.BlockAllocation
) -> Iterator[tuple[bytes, int]]:
    offset = 0
    for content in chunks_of(piece):
        chunk = describe(offset, content)
        offset = chunk.end
        block = _new_block(piece, allocation, [chunk], is_whole=offset == piece.size_bytes)
        yield new_blocks_message.encode([block], [content]), len(content)


def _new_block(
    piece: FilePart,
    allocation: scm_pb2.BlockAllocation,
    chunks: Sequence[ChunkInfo],
    *,
    is_whole: bool,
) -> datanode_pb2.NewBlock:
    metadata = piece.metadata if is_whole else ()
    return new_blocks_message.new_block_message(
        allocation.block_id, chunks, is_whole=is_whole, metadata=metadata
    )
