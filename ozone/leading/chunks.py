"""Reads the blocks of one replica at a datanode of Ozone, and chunks verified by their rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agent.rpc.calls.peer import TransferCost
from merkle.checksum import fits
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId
from ozone.wire.checked import read_checked
from ozone.wire.datanode import Datanode

ROWS_KEPT_MAX: Final = 256  # of blocks whose chunks are being fetched: a few at a time


@dataclass(frozen=True, slots=True)
class _Row:
    """A block as the peer has it, and its chunks by offset."""

    block: BlockData
    chunks: Mapping[int, ChunkInfo]


class Chunks:
    """The blocks of one replica. Thread-safe."""

    def __init__(self, datanode: Datanode) -> None:
        self._datanode = datanode
        self._rows: dict[BlockId, _Row] = {}

    def block(self, container_id: ContainerId, block_id: BlockId) -> BlockData:
        """Return the metadata of one committed block."""
        return self._row(container_id, block_id).block

    def keep(self, block: BlockData) -> None:
        """Keep a block that was listed: its chunks are likely to be read soon."""
        self._kept(block)

    def read(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        offset: int,
        meter: TransferCost | None = None,
    ) -> tuple[ChunkInfo, bytes]:
        """Return one chunk and its bytes, verified by the checksums of the peer's row.

        Raise RefusedError(CHECKSUM_MISMATCH) if they differ; chunks of type NONE accept any bytes.
        """
        chunks = self._row(container_id, block_id).chunks
        return read_checked(self._datanode, container_id, block_id, chunks, offset, fits, meter)

    def _row(self, container_id: ContainerId, block_id: BlockId) -> _Row:
        row = self._rows.get(block_id)
        return row or self._kept(self._datanode.block(container_id, block_id))

    def _kept(self, block: BlockData) -> _Row:
        row = _Row(block, {chunk.offset: chunk for chunk in block.chunks})
        if len(self._rows) >= ROWS_KEPT_MAX:
            self._rows = {}  # another thread that still fills the old one requests it again
        self._rows[block.block_id] = row
        return row
