"""Reads cells from one datanode: many small cells in one call, and each large cell in its own call.

A container may have a million small blocks, each with a small cell in each shard. A call for each
small cell would cost more than the transfer of the cell.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from merkle.replica import BlockId, ChunkInfo, ContainerId
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.wire.clients.replica_peer import BatchReplicaPeer, ReplicaPeer

CellKey = tuple[BlockId, int]
"""Identifies a cell by the id of its block and the offset of its chunk."""


@dataclass(slots=True)
class CellAnswers:
    """The cells and errors that one datanode returned. If a cell is in neither dictionary, it was
    not requested, because an earlier request got no answer."""

    cells: dict[CellKey, bytes] = field(default_factory=dict)
    errors: dict[CellKey, SutureError] = field(default_factory=dict)
    gives_several: bool = True  # the source can return several cells in one call


def read_cells(
    peer: ReplicaPeer, container_id: ContainerId, asked: Sequence[tuple[BlockId, ChunkInfo]]
) -> CellAnswers:
    """Read cells from one datanode. Return the data or the error of each cell.

    If a datanode describes a cell otherwise than `asked`, the result has an error for it. Several
    cells are requested in one call. Cells that are missing in the response are requested again one
    by one, to get the error of each cell.
    """
    answers = CellAnswers()
    chunks = {(block_id, chunk.offset): chunk for block_id, chunk in asked}
    if len(chunks) > 1 and isinstance(peer, BatchReplicaPeer):
        try:
            served = peer.read_chunks(container_id, list(chunks))
            answers.cells = {
                key: data for key, (chunk, data) in served.items() if chunk == chunks[key]
            }
        except UnavailableError as error:
            answers.errors[next(iter(chunks))] = error
            return answers
        except RefusedError:  # the source does not accept this datanode as a peer
            answers.gives_several = False
        except SutureError:  # the single requests below show which cells are affected
            pass
    for key, chunk in chunks.items():
        if key in answers.cells:
            continue
        try:
            answers.cells[key] = _read_alone(peer, container_id, key[0], chunk)
        except UnavailableError as error:
            answers.errors[key] = error
            break
        except SutureError as error:
            answers.errors[key] = error
    return answers


def _read_alone(
    peer: ReplicaPeer, container_id: ContainerId, block_id: BlockId, chunk: ChunkInfo
) -> bytes:
    served, data = peer.read_chunk(container_id, block_id, chunk.offset)
    if served != chunk:
        raise RefusedError(
            Code.CHECKSUM_MISMATCH,
            f"block {block_id}, chunk at {chunk.offset}: the data does not match the listed "
            "checksums",
        )
    return data
