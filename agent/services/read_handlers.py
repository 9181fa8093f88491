"""Handlers of the RPCs that describe and read replicas. They do not hold the container's lease."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from time import perf_counter
from typing import Any, Final

from agent.services import report_messages
from agent.services.chunk_keys import (
    BYTES_MAX,
    check_names,
    chunk_at,
    no_room,
    parse_keys,
    several_chunks,
)
from agent.services.limits import DatanodeServerLimits
from agent.store.operations.reading import BlockLocation
from agent.store.replica_store import ReplicaStore
from merkle.replica import ID_MAX, BlockData, ChunkInfo, ContainerId
from suture.errors import Code, RefusedError, SutureError
from suture.wire.mapping import codec, tree_pages
from suture.wire.mapping.blockpieces import BlockPiece, encode_piece
from suture.wire.v1 import container_pb2
from suture.wire.v1 import datanode_pb2 as pb

PIECE_BYTES_MAX: Final = 1024**2  # chunk data per message
STREAM_PIECE_BYTES_MAX: Final = 2 * PIECE_BYTES_MAX  # per message of a block; fewer cost less
BLOCKS_PAGE_BYTES_MAX: Final = 1024**2
CHANGES_PAGE_MAX: Final = 2_000  # entries per page, usually of about 200 bytes


@dataclass(eq=False)
class ReadHandlers:
    """Handlers of GetContainer, ListContainers, GetBlocks, ListBlocks, ReadChunk, ReadChunks,
    ReadBlock, GetSmallFile, GetContainerHashes, ListHistory, ListChanges.

    `on_read` is called with the duration in seconds of each read of chunk data. The duration of the
    first read of a call includes the lookup of the row.
    """

    store: ReplicaStore
    _: KW_ONLY
    limits: DatanodeServerLimits
    on_read: Callable[[float], None] = lambda _: None

    def __post_init__(self) -> None:
        self.encoders: Mapping[str, Callable[[Any], bytes]] = {
            "ReadBlock": encode_piece,
            "ReadChunk": encode_piece,
        }

    def GetContainer(self, request: pb.GetContainerRequest) -> pb.GetContainerResponse:
        """Return the report of one replica, even if the replica cannot be loaded."""
        container_id = codec.parse_container_id(request.container_id)
        for unloadable in self.store.unloadable():
            if unloadable.container_id == container_id:
                return pb.GetContainerResponse(
                    replica=report_messages.unloadable_report(unloadable)
                )
        facts = self.store.replica(container_id)
        return pb.GetContainerResponse(replica=report_messages.replica_report(facts))

    def ListContainers(self, request: pb.ListContainersRequest) -> pb.ListContainersResponse:
        """Return a page of replica reports, in ascending order of container ids."""
        start = codec.parse_int(
            request.start_container_id, "start_container_id", low=0, high=ID_MAX
        )
        count = self.limits.replicas_page_max
        facts = self.store.replicas(start=start, count=count + 1)
        next_id = facts[count].container_id if len(facts) > count else 0
        found = [report_messages.replica_report(item) for item in facts[:count]]
        found += [
            report_messages.unloadable_report(item)
            for item in self.store.unloadable()
            if item.container_id >= start and (not next_id or item.container_id < next_id)
        ]
        found.sort(key=lambda report: report.container_id)
        return pb.ListContainersResponse(replicas=found, next_container_id=next_id)

    def GetBlocks(self, request: pb.GetBlocksRequest) -> pb.GetBlocksResponse:
        """Return the metadata of each requested block, or the error if the block cannot be
        returned."""
        keys = [codec.parse_block_key(asked, "block_ids") for asked in request.block_ids]
        check_names(keys, "block_ids")
        answer, size_bytes = pb.GetBlocksResponse(), 0
        for asked in request.block_ids:
            result = answer.results.add()
            try:
                container_id, found = self._readable(asked)
                message = codec.block_message(container_id, found.block)
                if size_bytes and size_bytes + message.ByteSize() > BLOCKS_PAGE_BYTES_MAX:
                    raise no_room(BLOCKS_PAGE_BYTES_MAX)
            except SutureError as error:
                result.code, result.message = error.code, str(error)
                continue
            size_bytes += message.ByteSize()
            result.block.CopyFrom(message)
        return answer

    def _readable(self, asked: container_pb2.BlockId) -> tuple[ContainerId, BlockLocation]:
        """Return the container id and the location of a requested block.

        Raise RefusedError if the block is missing, or if the request names another replica index or
        a later commit id than the replica or block has.
        """
        container_id, block_id = codec.parse_block_key(asked, "block_id")
        found = self.store.view(container_id).readable(block_id)
        if asked.replica_index not in {0, found.replica_index}:
            raise RefusedError(
                Code.CONTAINER_NOT_FOUND,
                f"container {container_id} has replica index {found.replica_index} here, not "
                f"{asked.replica_index}",
                container_id=container_id,
            )
        if asked.bcsid > found.bcsid:
            raise RefusedError(
                Code.UNKNOWN_BCSID,
                f"container {container_id} is at bcsid {found.bcsid}, the request is for "
                f"{asked.bcsid}",
                container_id=container_id,
            )
        if asked.bcsid > found.block.bcsid:
            raise RefusedError(
                Code.BCSID_MISMATCH,
                f"block {block_id} is at bcsid {found.block.bcsid}, the request is for "
                f"{asked.bcsid}",
                container_id=container_id,
                block_id=block_id,
            )
        return container_id, found

    def ListBlocks(self, request: pb.ListBlocksRequest) -> pb.ListBlocksResponse:
        """Return a page of blocks, in ascending order of block ids."""
        container_id = codec.parse_container_id(request.container_id)
        start = codec.parse_int(request.start_local_id, "start_local_id", low=0, high=ID_MAX)
        count = self.limits.blocks_page_max
        blocks = self.store.view(container_id).blocks(start=start, count=count + 1)
        page = pb.ListBlocksResponse()
        size_bytes = 0
        for block in blocks[:count]:
            message = codec.block_message(container_id, block)
            size_bytes += message.ByteSize()
            if page.blocks and size_bytes > BLOCKS_PAGE_BYTES_MAX:
                break
            page.blocks.append(message)
        if len(page.blocks) < len(blocks):
            page.next_local_id = blocks[len(page.blocks)].block_id
        return page

    def ReadChunk(self, request: pb.ReadChunkRequest) -> Iterable[BlockPiece]:
        """Send the bytes of one chunk, with its recorded checksums in the first message.

        A small chunk is sent in one message. If the caller disconnects, gRPC requests no further
        message, and no more data is read.
        """
        begun_s = perf_counter()
        container_id, found = self._readable(request.block_id)
        chunk = chunk_at(found.block, request.offset)
        before_s = perf_counter() - begun_s
        if chunk.length_bytes > PIECE_BYTES_MAX:
            return self._pieces(container_id, found, chunk, before_s, PIECE_BYTES_MAX)
        data = self._read(container_id, found, chunk.offset, chunk.length_bytes, before_s)
        return (BlockPiece(codec.chunk_message(chunk), data),)

    def _pieces(
        self,
        container_id: ContainerId,
        found: BlockLocation,
        chunk: ChunkInfo,
        before_s: float,
        piece_bytes_max: int,
    ) -> Iterator[BlockPiece]:
        """Yield the messages of a chunk; the first one describes the chunk."""
        described: container_pb2.ChunkInfo | None = codec.chunk_message(chunk)
        for offset, length_bytes in pieces(chunk, piece_bytes_max):
            data = self._read(container_id, found, offset, length_bytes, before_s)
            yield BlockPiece(described, data)
            described, before_s = None, 0.0

    def ReadChunks(self, request: pb.ReadChunksRequest) -> pb.ReadChunksResponse:
        """Send several chunks in one message.

        Chunks that are unreadable, and chunks that do not fit into the message, are omitted. The
        caller can request each of them by ReadChunk, which returns the error.
        """
        container_id = codec.parse_container_id(request.container_id)
        keys = parse_keys(request.chunks)
        answer = pb.ReadChunksResponse()
        for chosen in several_chunks(self.store, container_id, keys).values():
            if isinstance(chosen, SutureError) or chosen[1].length_bytes > BYTES_MAX:
                continue
            found, chunk = chosen
            with suppress(SutureError):  # omit the chunk; ReadChunk returns the error
                data = self._read(container_id, found, chunk.offset, chunk.length_bytes)
                described = codec.chunk_message(chunk)
                answer.chunks.add(local_id=found.block.block_id, chunk=described, data=data)
        return answer

    def ReadBlock(self, request: pb.ReadBlockRequest) -> Iterator[BlockPiece]:
        """Send a block from an offset to its end, chunk by chunk.

        gRPC's flow control limits how much data is read before the caller receives it.
        """
        begun_s = perf_counter()
        container_id, found = self._readable(request.block_id)
        before_s = perf_counter() - begun_s
        for chunk in _chunks_from(found.block, request.offset):
            yield from self._pieces(container_id, found, chunk, before_s, STREAM_PIECE_BYTES_MAX)
            before_s = 0.0

    def GetSmallFile(self, request: pb.ReadBlockRequest) -> pb.GetSmallFileResponse:
        """Send a block from an offset to its end in one message.

        Raise RefusedError if this would be more than PIECE_BYTES_MAX bytes.
        """
        begun_s = perf_counter()
        container_id, found = self._readable(request.block_id)
        before_s = perf_counter() - begun_s
        chunks = _chunks_from(found.block, request.offset)
        length_bytes = sum([chunk.length_bytes for chunk in chunks])
        if length_bytes > PIECE_BYTES_MAX:
            raise RefusedError(
                Code.INELIGIBLE,
                f"cannot send {length_bytes} bytes of block {found.block.block_id} in one "
                f"message: the maximum is {PIECE_BYTES_MAX}",
                hint="ReadBlock streams them",
            )
        start = chunks[0].offset
        if start + length_bytes == chunks[-1].end:
            data = self._read(container_id, found, start, length_bytes, before_s)
        else:  # there are holes between the chunks
            data = b"".join(
                self._read(container_id, found, chunk.offset, chunk.length_bytes)
                for chunk in chunks
            )
        return pb.GetSmallFileResponse(chunks=map(codec.chunk_message, chunks), data=data)

    def _read(
        self,
        container_id: ContainerId,
        found: BlockLocation,
        offset: int,
        length_bytes: int,
        before_s: float = 0.0,
    ) -> bytes:
        """Return data of a block.

        `on_read` is called with the duration of the read plus `before_s`, in seconds.
        """
        begun_s = perf_counter()
        data = self.store.view(container_id).read(found, offset, length_bytes)
        self.on_read(before_s + perf_counter() - begun_s)
        return data

    def GetContainerHashes(self, request: pb.GetContainerHashesRequest) -> Iterator[pb.HashesPage]:
        """Send the checksum tree of a replica, down to the requested level."""
        container_id = codec.parse_container_id(request.container_id)
        selection = tree_pages.parse_selection(request)
        yield from tree_pages.pages(self.store.view(container_id).tree(), selection)

    def ListHistory(self, request: pb.ListHistoryRequest) -> pb.ListHistoryResponse:
        """Return the history of a replica, oldest entry first. The store limits the number of
        entries."""
        entries = self.store.view(codec.parse_container_id(request.container_id)).history()
        return pb.ListHistoryResponse(entries=report_messages.HISTORY_ENTRY.messages(entries))

    def ListChanges(self, request: pb.ListChangesRequest) -> pb.ListChangesResponse:
        """Return the changes of this datanode's replicas since the requested time.

        If there are more than CHANGES_PAGE_MAX changes, return the newest of them, and the number
        of changes that were omitted.
        """
        since_ms = codec.parse_int(request.since_ms, "since_ms", low=0, high=ID_MAX)
        found = self.store.changes(since_ms, count=CHANGES_PAGE_MAX)
        return pb.ListChangesResponse(
            changes=(
                pb.ReplicaChange(
                    container_id=owner, entry=report_messages.HISTORY_ENTRY.message(entry)
                )
                for owner, entry in found.entries
            ),
            left_out_count=found.left_out_count,
            unread_paths=found.unread_paths,
        )


def _chunks_from(block: BlockData, offset: int) -> Sequence[ChunkInfo]:
    """Return the chunk that contains the byte at `offset`, and all chunks after it.

    Raise RefusedError if no chunk contains that byte.
    """
    chunks: Sequence[ChunkInfo] = block.chunks
    if offset or not chunks:
        chunks = [chunk for chunk in chunks if chunk.end > offset]
    if not chunks or chunks[0].offset > offset:
        raise RefusedError(
            Code.UNABLE_TO_FIND_CHUNK,
            f"block {block.block_id} has {block.length_bytes} bytes and no chunk at {offset}",
            block_id=block.block_id,
            offset=offset,
        )
    return chunks


def pieces(chunk: ChunkInfo, piece_bytes_max: int = PIECE_BYTES_MAX) -> Iterator[tuple[int, int]]:
    """Divide a chunk into messages of at most `piece_bytes_max` bytes, and yield (offset, length)
    of each.

    Each message ends at the end of a checksum window, unless a window is larger than a message.
    """
    window_bytes = max(chunk.bytes_per_checksum, 1)
    step_bytes = piece_bytes_max // window_bytes * window_bytes or piece_bytes_max
    for offset in range(chunk.offset, chunk.end, step_bytes):
        yield offset, min(step_bytes, chunk.end - offset)
