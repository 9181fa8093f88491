"""Fetches the evidence about a replica for a `diagnose` bundle: checksums, but no data.

    rows     the checksums that were written with the data, up to a maximum size
    medium   the checksums of the data on disk now, for chunks with findings

The checksums of the data on disk are computed by two checksum libraries. If a chunk cannot be read
completely, the bundle has the reason instead.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Final

from merkle.checksum import window_checksums
from merkle.replica import CHUNK_BYTES_MAX, BlockData, BlockId, ChunkInfo, ContainerId
from merkle.second_checksum import witness_checksums
from merkle.tree import Tree
from suture.errors import SutureError
from suture.terminal.document import facts
from suture.wire.clients.channel import stream
from suture.wire.clients.peer import Peer
from suture.wire.v1 import container_pb2, datanode_pb2

SUMS_BYTES_MAX: Final = 8 * 1024**2  # checksums per replica; enough for 32 GiB with 16 KiB windows
MEDIUM_CHUNKS_MAX: Final = 64  # chunks read from the disk for the bundle
READ_TIMEOUT_S: Final = 60.0

Place = tuple[int, int]
"""Position of a chunk: the block id, and the offset of the chunk in bytes."""


class JudgedReplica:
    """A replica whose evidence is written to a bundle.

    Each part of the evidence is fetched from the datanode on first use, and then cached.
    """

    def __init__(self, peer: Peer, container_id: ContainerId) -> None:
        self.peer = peer
        self.container_id = container_id

    @cached_property
    def tree(self) -> Tree:
        """Tree of the last scan or repair. Raise SutureError if the tree cannot be fetched."""
        return self.peer.tree(self.container_id)

    @cached_property
    def findings(self) -> list[datanode_pb2.Finding]:
        """Unresolved findings. Raise SutureError if they cannot be fetched."""
        return self.peer.findings(self.container_id)

    @cached_property
    def blocks(self) -> list[BlockData]:
        """Block records that the datanode can read, by block id.

        Raise SutureError if they cannot be fetched.
        """
        return self.peer.blocks_of(self.container_id)

    def findings_document(self) -> dict[str, object]:
        """Return the findings about the replica as a document for the bundle."""
        return {"findings": [facts(found) for found in self.findings]}

    def rows_document(self) -> dict[str, object]:
        """Return the block records (rows) as a document for the bundle.

        If the checksums exceed SUMS_BYTES_MAX, some rows are omitted. Rows of blocks with findings
        have priority over other rows.
        """
        wanted = {block_id for block_id, _ in self._suspects()}
        kept: list[BlockData] = []
        sums_bytes = 0
        for block in sorted(
            self.blocks, key=lambda one: (one.block_id not in wanted, one.block_id)
        ):
            sums_bytes += sum(len(chunk.window_checksums) for chunk in block.chunks)
            if sums_bytes > SUMS_BYTES_MAX:
                break
            kept.append(block)
        return {
            "block_count": len(self.blocks),
            "complete": len(kept) == len(self.blocks),
            "blocks": [row_document(block) for block in sorted(kept, key=lambda b: b.block_id)],
        }

    def medium_document(self) -> dict[str, object]:
        """Return the checksums of the data on disk as a document, for at most MEDIUM_CHUNKS_MAX
        damaged chunks."""
        suspects = self._suspects()
        chunks = {(b.block_id, chunk.offset): chunk for b in self.blocks for chunk in b.chunks}
        known = [place for place in suspects if place in chunks]
        read = known[:MEDIUM_CHUNKS_MAX]
        return {
            "chunks": [self._medium(BlockId(place[0]), chunks[place]) for place in read],
            "left_out": len(known) - len(read),
        }

    def _suspects(self) -> list[Place]:
        """Return the positions of the chunks that a finding or the tree reports as damaged."""
        found = {(item.local_id, item.offset) for item in self.findings if item.offset >= 0}
        return sorted(found | set(self._unhealthy()))

    def _unhealthy(self) -> Iterator[Place]:
        try:
            tree = self.tree
        except SutureError:  # the document "tree" has the reason
            return
        for block_id in tree.unhealthy_block_ids().tolist():
            yield from (
                (block_id, leaf.offset) for leaf in tree.leaves(block_id) if not leaf.healthy
            )

    def _medium(self, block_id: BlockId, chunk: ChunkInfo) -> dict[str, object]:
        place: dict[str, object] = {"block_id": block_id, "offset": chunk.offset}
        try:
            data = self._as_it_lies(block_id, chunk)
        except SutureError as error:
            return {**place, "error": str(error), "code": error.code.value}
        windows = (chunk.checksum_type, chunk.bytes_per_checksum, data)
        return {
            **place,
            "length_bytes": len(data),
            "primary": window_checksums(*windows).hex(),
            "second": witness_checksums(*windows).hex(),
        }

    def _as_it_lies(self, block_id: BlockId, chunk: ChunkInfo) -> bytes:
        """Return the bytes of a chunk as they are on the disk, even if they are damaged.

        Raise SutureError if they cannot be read.
        """
        key = container_pb2.BlockId(container_id=self.container_id, local_id=block_id)
        request = datanode_pb2.ReadChunkRequest(block_id=key, offset=chunk.offset)
        data = bytearray()
        for piece in stream(self.peer.stub.ReadChunk, request, timeout_s=READ_TIMEOUT_S):
            data += piece.data
            if len(data) > CHUNK_BYTES_MAX:
                break
        return bytes(data)


def row_document(block: BlockData) -> dict[str, object]:
    """Return a block record as a document for the bundle.

    The metadata of the client is omitted, because it contains file names.
    """
    return {
        "block_id": block.block_id,
        "bcsid": block.bcsid,
        "chunks": [
            {
                "offset": chunk.offset,
                "length_bytes": chunk.length_bytes,
                "type": chunk.checksum_type.name,
                "window_bytes": chunk.bytes_per_checksum,
                "sums": chunk.window_checksums.hex(),
            }
            for chunk in block.chunks
        ],
    }


Question = Callable[[JudgedReplica], dict[str, object]]
