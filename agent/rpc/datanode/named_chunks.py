"""Blocks and chunks as callers name them: one, or several of a container at once."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from agent.errors import Code, Refused, SutureError
from agent.rpc.v1 import datanode_pb2 as pb
from agent.rpc.wire import codec
from agent.store.operations.reading import Readable
from agent.store.ports import ReadableReplicas
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId

COUNT_MAX: Final = 256  # named in one call
BYTES_MAX: Final = 1024**2  # of them together, as in any message of chunk data

Key = tuple[BlockId, int]
"""A block, and where one of its chunks begins."""


def parse_block_ids(asked: Sequence[int]) -> list[BlockId]:
    """Return which blocks are named. Raises Refused for too many, or the same twice."""
    ids = [codec.parse_block_id(value, "local_ids") for value in asked]
    _check_names(ids, "local_ids")
    return ids


def parse_keys(asked: Sequence[pb.ChunkKey] | Sequence[pb.ChunkChallenge]) -> list[Key]:
    """Return which chunks are named. Raises Refused for too many, or the same twice."""
    keys = [(codec.parse_block_id(key.local_id, "chunks.local_id"), key.offset) for key in asked]
    _check_names(keys, "chunks")
    return keys


def _check_names(named: Sequence[BlockId] | Sequence[Key], where: str) -> None:
    if len(named) > COUNT_MAX:
        raise codec.malformed(where, f"{len(named)} of them, at most {COUNT_MAX} at once")
    if len(set(named)) < len(named):
        raise codec.malformed(where, "names one twice")


def several_chunks(
    store: ReadableReplicas, container_id: ContainerId, keys: Sequence[Key]
) -> dict[Key, tuple[Readable, ChunkInfo]]:
    """Return those of the chunks that there are, with their blocks, in the order of `keys`; what
    goes beyond `BYTES_MAX` is left out. A block is looked up once."""
    blocks: dict[BlockId, Readable] = {}
    chosen: dict[Key, tuple[Readable, ChunkInfo]] = {}
    left_bytes = BYTES_MAX
    for key in keys:
        block_id, offset = key
        with suppress(SutureError):  # who asks for it alone is told
            if block_id not in blocks:
                blocks[block_id] = store.readable(container_id, block_id)
            chunk = chunk_at(blocks[block_id].block, offset)
            if chunk.length_bytes <= left_bytes:
                chosen[key] = blocks[block_id], chunk
                left_bytes -= chunk.length_bytes
    return chosen


def chunk_at(block: BlockData, offset: int) -> ChunkInfo:
    """Return the chunk of a block that begins at `offset`. Raises Refused."""
    for chunk in block.chunks:
        if chunk.offset == offset:
            return chunk
    raise Refused(
        Code.UNABLE_TO_FIND_CHUNK,
        f"block {block.block_id} has no chunk at offset {offset}",
        block_id=block.block_id,
        offset=offset,
    )
