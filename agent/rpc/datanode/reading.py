"""Calls that tell of replicas and read them. They take no lease."""

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Final

import grpc

from agent.errors import Code, Refused
from agent.rpc.datanode.limits import Limits, page_size
from agent.rpc.v1 import container_pb2
from agent.rpc.v1 import datanode_pb2 as pb
from agent.rpc.wire import codec, hashes, reports
from agent.store.ports import ReadableReplicas
from merkle.replica import ID_MAX, BlockData, BlockId, ChunkInfo, ContainerId

PIECE_BYTES_MAX: Final = 1024**2  # of chunk data in one message
BLOCKS_PAGE_BYTES_MAX: Final = 1024**2


class ReadHandlers:
    """GetContainer, ListContainers, GetBlock, ListBlocks, ReadChunk, GetContainerHashes,
    ListHistory."""

    def __init__(
        self,
        store: ReadableReplicas,
        *,
        limits: Limits,
        on_read: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`on_read` is told how many seconds each read of chunk data took."""
        self._store = store
        self._limits = limits
        self._on_read = on_read

    def GetContainer(  # noqa: N802
        self, request: pb.GetContainerRequest, context: grpc.ServicerContext
    ) -> pb.GetContainerResponse:
        """Report one replica, also one that cannot be loaded."""
        del context
        container_id = codec.parse_container_id(request.container_id)
        for unloadable in self._store.unloadable():
            if unloadable.container_id == container_id:
                return pb.GetContainerResponse(replica=reports.unloadable_report(unloadable))
        facts = self._store.replica(container_id)
        return pb.GetContainerResponse(replica=reports.replica_report(facts))

    def ListContainers(  # noqa: N802
        self, request: pb.ListContainersRequest, context: grpc.ServicerContext
    ) -> pb.ListContainersResponse:
        """Report replicas by ascending container id."""
        del context
        start = codec.parse_int(
            request.start_container_id, "start_container_id", low=0, high=ID_MAX
        )
        count = page_size(request.count, self._limits.replicas_page_max)
        facts = self._store.replicas(start=start, count=count + 1)
        next_id = facts[count].container_id if len(facts) > count else 0
        found = [reports.replica_report(item) for item in facts[:count]]
        found += [
            reports.unloadable_report(item)
            for item in self._store.unloadable()
            if item.container_id >= start and (not next_id or item.container_id < next_id)
        ]
        found.sort(key=lambda report: report.container_id)
        return pb.ListContainersResponse(replicas=found, next_container_id=next_id)

    def GetBlock(  # noqa: N802
        self, request: pb.GetBlockRequest, context: grpc.ServicerContext
    ) -> pb.GetBlockResponse:
        """Return the metadata of one committed block."""
        del context
        container_id, block_id = codec.parse_block_key(request.block_id, "block_id")
        block = self._block(container_id, block_id, request.block_id)
        return pb.GetBlockResponse(block=codec.block_message(container_id, block))

    def _block(
        self, container_id: ContainerId, block_id: BlockId, asked: container_pb2.BlockId
    ) -> BlockData:
        """Return the block, unless the asker knows of a later commit or another replica index."""
        facts = self._store.replica(container_id)
        if asked.replica_index not in {0, facts.replica_index}:
            raise Refused(
                Code.CONTAINER_NOT_FOUND,
                f"container {container_id} is here with replica index {facts.replica_index}, "
                f"not {asked.replica_index}",
                container_id=container_id,
            )
        if asked.bcsid > facts.bcsid:
            raise Refused(
                Code.UNKNOWN_BCSID,
                f"container {container_id} is at bcsid {facts.bcsid}, {asked.bcsid} was asked for",
                container_id=container_id,
            )
        block = self._store.block(container_id, block_id)
        if asked.bcsid > block.bcsid:
            raise Refused(
                Code.BCSID_MISMATCH,
                f"block {block_id} is at bcsid {block.bcsid}, {asked.bcsid} was asked for",
                container_id=container_id,
                block_id=block_id,
            )
        return block

    def ListBlocks(  # noqa: N802
        self, request: pb.ListBlocksRequest, context: grpc.ServicerContext
    ) -> pb.ListBlocksResponse:
        """Return blocks by ascending id, as many as fit a page."""
        del context
        container_id = codec.parse_container_id(request.container_id)
        start = codec.parse_int(request.start_local_id, "start_local_id", low=0, high=ID_MAX)
        count = page_size(request.count, self._limits.blocks_page_max)
        blocks = self._store.blocks(container_id, start=start, count=count + 1)
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

    def ReadChunk(  # noqa: N802
        self, request: pb.ReadChunkRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReadChunkResponse]:
        """Send what the disk holds of one chunk, behind the checksums written with it.

        When the caller has gone gRPC takes no further piece, so none is read.
        """
        del context
        container_id, block_id = codec.parse_block_key(request.block_id, "block_id")
        block = self._block(container_id, block_id, request.block_id)
        chunk = _chunk_at(block, request.offset)
        yield pb.ReadChunkResponse(chunk=codec.chunk_message(chunk))
        for offset, length_bytes in pieces(chunk):
            begun_s = perf_counter()
            data = self._store.read(container_id, block_id, offset, length_bytes)
            self._on_read(perf_counter() - begun_s)
            yield pb.ReadChunkResponse(data=data)

    def GetContainerHashes(  # noqa: N802
        self, request: pb.GetContainerHashesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.HashesPage]:
        """Send the tree as deep as it is asked for."""
        del context
        container_id = codec.parse_container_id(request.container_id)
        selection = hashes.parse_selection(request)
        yield from hashes.pages(self._store.tree(container_id), selection)

    def ListHistory(  # noqa: N802
        self, request: pb.ListHistoryRequest, context: grpc.ServicerContext
    ) -> pb.ListHistoryResponse:
        """Say what a replica was, the oldest first; the store bounds how much there is."""
        del context
        entries = self._store.history(codec.parse_container_id(request.container_id))
        return pb.ListHistoryResponse(entries=map(reports.history_message, entries))


def _chunk_at(block: BlockData, offset: int) -> ChunkInfo:
    for chunk in block.chunks:
        if chunk.offset == offset:
            return chunk
    raise Refused(
        Code.UNABLE_TO_FIND_CHUNK,
        f"block {block.block_id} has no chunk at offset {offset}",
        block_id=block.block_id,
        offset=offset,
    )


def pieces(chunk: ChunkInfo) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of the messages of one chunk, each ending with a window.

    Windows larger than a message cannot end with one: their messages are simply full.
    """
    window_bytes = max(chunk.bytes_per_checksum, 1)
    step_bytes = PIECE_BYTES_MAX // window_bytes * window_bytes or PIECE_BYTES_MAX
    for offset in range(chunk.offset, chunk.end, step_bytes):
        yield offset, min(step_bytes, chunk.end - offset)
