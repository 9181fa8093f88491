"""Reads a chunk from a datanode of Ozone, verified by its row."""

from collections.abc import Callable, Mapping

from agent.errors import Code, RefusedError
from agent.rpc.calls.peer import TransferCost
from merkle.replica import BlockId, ChunkInfo, ContainerId
from ozone.wire.datanode import Datanode


def read_checked(
    datanode: Datanode,
    container_id: ContainerId,
    block_id: BlockId,
    chunks: Mapping[int, ChunkInfo],
    offset: int,
    fits: Callable[[ChunkInfo, bytes], bool],
    meter: TransferCost | None,
) -> tuple[ChunkInfo, bytes]:
    """Return the chunk at `offset` and its bytes, as the datanode serves them. `chunks` are those
    of its row by offset, and `fits` returns whether bytes match a chunk.

    Raise RefusedError: UNABLE_TO_FIND_CHUNK; CHECKSUM_MISMATCH if they do not match.
    """
    chunk = chunks.get(offset)
    if chunk is None:
        raise RefusedError(
            Code.UNABLE_TO_FIND_CHUNK,
            f"datanode {datanode.address}: block {block_id} has no chunk at {offset}",
        )
    data = datanode.read(container_id, block_id, chunk)
    if meter is not None:
        meter.data_bytes += len(data)
    if not fits(chunk, data):
        raise RefusedError(
            Code.CHECKSUM_MISMATCH,
            f"datanode {datanode.address}: block {block_id}, chunk at {offset}: what it serves "
            "does not have its checksums",
        )
    return chunk, data
