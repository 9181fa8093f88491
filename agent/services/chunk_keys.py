"""Functions that parse the blocks and chunks in a request, and look them up in the store."""

from collections.abc import Sequence
from typing import Final, TypeAlias

from agent.store.operations.reading import BlockLocation
from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.wire.clients.message_groups import REPAIR_BYTES_MAX
from suture.wire.mapping import codec
from suture.wire.v1 import datanode_pb2 as pb

COUNT_MAX: Final = 256  # blocks or chunks per request
BYTES_MAX: Final = REPAIR_BYTES_MAX  # chunk data per response

Key: TypeAlias = tuple[BlockId, int]
"""Key of a chunk: the block id, and the offset of the chunk in the block."""
Found: TypeAlias = tuple[BlockLocation, ChunkInfo]


def parse_keys(asked: Sequence[pb.ChunkKey] | Sequence[pb.ChunkChallenge]) -> list[Key]:
    """Return the keys of the requested chunks.

    Raise RefusedError if the request names more than COUNT_MAX chunks, or one chunk twice.
    """
    keys = [(codec.parse_block_id(key.local_id, "chunks.local_id"), key.offset) for key in asked]
    check_names(keys, "chunks")
    return keys


def check_names(named: Sequence[tuple[int, int]], where: str) -> None:
    """Raise RefusedError if a request names more than COUNT_MAX blocks or chunks, or one of them
    twice."""
    if len(named) > COUNT_MAX:
        raise codec.malformed(where, f"{len(named)} of them, at most {COUNT_MAX} at once")
    if len(set(named)) < len(named):
        raise codec.malformed(where, "names one twice")


def no_room(bytes_max: int) -> UnavailableError:
    """Return the error BUSY for a block or chunk that no longer fits into the response."""
    return UnavailableError(
        Code.BUSY, f"cannot read another chunk: earlier requests already need {bytes_max} bytes"
    )


def several_chunks(
    store: ReplicaStore, container_id: ContainerId, keys: Sequence[Key]
) -> dict[Key, Found | SutureError]:
    """Look up the requested chunks. Return each chunk with its block, or the error, in the order of
    `keys`.

    A chunk gets the error BUSY if the response would exceed BYTES_MAX with it, unless it is the
    only requested chunk. Each block is looked up only once.
    """
    blocks: dict[BlockId, BlockLocation] = {}
    chosen: dict[Key, Found | SutureError] = {}
    left_bytes = BYTES_MAX
    for block_id, offset in keys:
        try:
            if block_id not in blocks:
                blocks[block_id] = store.view(container_id).readable(block_id)
            chunk = chunk_at(blocks[block_id].block, offset)
        except SutureError as error:
            chosen[block_id, offset] = error
            continue
        if chunk.length_bytes > left_bytes and len(keys) > 1:
            chosen[block_id, offset] = no_room(BYTES_MAX)
            continue
        chosen[block_id, offset] = blocks[block_id], chunk
        left_bytes -= chunk.length_bytes
    return chosen


def chunk_at(block: BlockData, offset: int) -> ChunkInfo:
    """Return the chunk of a block that begins at `offset`. Raise RefusedError if no chunk begins
    there."""
    chunk = block.chunk_at(offset)
    if chunk is None:
        raise RefusedError(
            Code.UNABLE_TO_FIND_CHUNK,
            f"block {block.block_id} has no chunk at offset {offset}",
            block_id=block.block_id,
            offset=offset,
        )
    return chunk
