"""Client of a datanode that reads and writes blocks.

The client does not trust answers. The codec checks every answer, and chunk data is checked against
the window checksums in the same answer before it is returned. `suture.wire.clients.peer` adds the
calls of peers and operators, which need the columns of trees.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol, Self

from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId
from suture.errors import SutureError
from suture.wire.clients.channel import (
    Method,
    call_again,
    call_with_retry,
    open_channel,
    start_call,
    stream,
)
from suture.wire.clients.response_checks import (
    SMALL_BYTES_MAX,
    assemble_chunk,
    parse_chunks,
    parts_as_they_come,
    parts_of,
)
from suture.wire.mapping import codec
from suture.wire.mapping.addressee import ADDRESSEE_HEADER
from suture.wire.mapping.blockpieces import BlockPiece, Data, decode_piece
from suture.wire.mapping.errors import error_of
from suture.wire.mapping.rpc_services import DATANODE, Stub
from suture.wire.security.tls import LOOPBACK_ONLY, Security
from suture.wire.v1 import container_pb2
from suture.wire.v1 import datanode_pb2 as pb

DECODERS: Final = {"ReadBlock": decode_piece}
ENCODERS: Final = {"WriteBlocks": None, "ImportContainer": None}  # the caller encodes messages
READ_BYTES_PER_S_MIN: Final = 1024**2  # a slower read of a block is cancelled
BLOCKS_MAX: Final = 1_000_000  # maximum number of blocks in a container whose blocks are listed


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTimeouts:
    """Deadlines of the calls to one peer."""

    call_s: float = 10.0
    tree_s: float = 60.0
    chunk_s: float = 60.0


class NodeAddress(Protocol):
    """A datanode's id and address; several messages of the control plane have both."""

    @property
    def datanode_id(self) -> str:
        """The datanode's id; empty if the id is unknown, for instance if an operator gave only an
        address."""
        ...

    @property
    def address(self) -> str:
        """HOST:PORT of the datanode's service."""
        ...


class Endpoint(NamedTuple):
    """A datanode whose address did not come from a message of the control plane."""

    datanode_id: str
    address: str


@dataclass(slots=True)
class TransferCost:
    """Number of bytes received in calls. Only the calling thread uses it."""

    tree_bytes: int = 0
    data_bytes: int = 0


class BlockPeer:
    """Client for the blocks of one datanode. The connection is opened on first use. Thread-safe."""

    def __init__(
        self,
        address: str,
        *,
        datanode_id: str = "",
        timeouts: PeerTimeouts | None = None,
        security: Security = LOOPBACK_ONLY,
    ) -> None:
        """If `datanode_id` is given, a datanode with another id at `address` refuses each call."""
        self.address = address
        self._party = f"the datanode at {address}"
        self._timeouts = timeouts or PeerTimeouts()
        header = (ADDRESSEE_HEADER, datanode_id) if datanode_id else None
        self._channel = open_channel(address, security)
        self.stub = Stub(
            self._channel, DATANODE, header=header, decoders=DECODERS, encoders=ENCODERS
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; running calls fail with UnavailableError(CANCELLED)."""
        self._channel.close()

    # Data.

    def block(
        self, container_id: ContainerId, block_id: BlockId, meter: TransferCost | None = None
    ) -> BlockData:
        """Return the metadata of one committed block."""
        [block] = self._block_results(container_id, [block_id], meter)
        if isinstance(block, SutureError):
            raise block
        return block

    def blocks_of(self, container_id: ContainerId) -> list[BlockData]:
        """Return the metadata of all blocks, in the order of their ids."""
        return list(self.each_block(container_id))

    def named_blocks(
        self, container_id: ContainerId, block_ids: Sequence[BlockId]
    ) -> dict[BlockId, BlockData]:
        """Return metadata for as many of the blocks `block_ids` as the peer returns in one call.
        Blocks that the peer refuses are left out."""
        results = self._block_results(container_id, block_ids)
        return {block.block_id: block for block in results if isinstance(block, BlockData)}

    def _block_results(
        self,
        container_id: ContainerId,
        block_ids: Sequence[BlockId],
        meter: TransferCost | None = None,
    ) -> Iterator[BlockData | SutureError]:
        """Yield the metadata of each requested block, or the error for it."""
        asked = [_key(container_id, block_id) for block_id in block_ids]
        answer: pb.GetBlocksResponse = self._call(
            self.stub.GetBlocks, pb.GetBlocksRequest(block_ids=asked)
        )
        if meter is not None:
            meter.tree_bytes += answer.ByteSize()
        check_count(answer.results, asked)
        for block_id, result in zip(block_ids, answer.results, strict=True):
            if result.code:
                yield error_of(result.code, message=result.message)
                continue
            owner, block = codec.parse_block(result.block, "answer.results.block")
            if (owner, block.block_id) != (container_id, block_id):
                raise codec.malformed("answer.results.block", "is not the block asked for")
            yield block

    def each_block(self, container_id: ContainerId) -> Iterator[BlockData]:
        """Yield the metadata of all blocks, in the order of their ids, page by page."""
        start = count = last = 0
        while True:
            request = pb.ListBlocksRequest(container_id=container_id, start_local_id=start)
            answer: pb.ListBlocksResponse = self._call(self.stub.ListBlocks, request)
            for item in answer.blocks:
                _, block = codec.parse_block(item, "answer.blocks")
                if block.block_id <= last:
                    raise codec.malformed("answer.blocks", "are not in ascending order")
                last = block.block_id
                yield block
            count += len(answer.blocks)
            if answer.next_local_id == 0:
                return
            if answer.next_local_id <= start or count > BLOCKS_MAX:
                raise codec.malformed("answer.next_local_id", "does not come to an end")
            start = answer.next_local_id

    def read_chunk(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        offset: int,
        meter: TransferCost | None = None,
    ) -> tuple[ChunkInfo, bytes]:
        """Return one chunk and its bytes, verified against the window checksums in the answer.

        Raise RefusedError(CHECKSUM_MISMATCH) if they do not match. For a chunk of type NONE, only
        the length is checked.
        """
        key = _key(container_id, block_id)
        request = pb.ReadChunkRequest(block_id=key, offset=offset)

        def ask() -> tuple[ChunkInfo, bytes]:
            pieces = stream(self.stub.ReadChunk, request, timeout_s=self._timeouts.chunk_s)
            return assemble_chunk(_metered(pieces, meter), offset)

        return call_with_retry(ask, timeout_s=self._timeouts.chunk_s)

    def read_chunks(
        self, container_id: ContainerId, keys: Sequence[tuple[BlockId, int]]
    ) -> dict[tuple[BlockId, int], tuple[ChunkInfo, bytes]]:
        """Return as many of the chunks as the peer returns in one call, by block and offset. Their
        bytes are verified against the window checksums in the answer."""
        request = pb.ReadChunksRequest(
            container_id=container_id,
            chunks=[pb.ChunkKey(local_id=block_id, offset=offset) for block_id, offset in keys],
        )
        timeout_s = self._timeouts.chunk_s
        return parse_chunks(self._call(self.stub.ReadChunks, request, timeout_s=timeout_s), keys)

    def parts_from(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        offset: int,
        end: int,
        *,
        patience_s: float | None = None,
    ) -> Iterator[tuple[int, Data]]:
        """Yield the verified parts of a block with their offsets, from the chunk that contains the
        byte at `offset` to the end.

        `end` is the expected end of the block, and no part extends beyond it. A short remainder is
        requested as one message; the wait for it is at most `patience_s`. For a longer remainder,
        the datanode starts sending at once, ahead of the reader. Errors are those of `read_chunk`,
        raised when the first part is taken.
        """
        request = pb.ReadBlockRequest(block_id=_key(container_id, block_id), offset=offset)
        if end - offset <= SMALL_BYTES_MAX:
            timeout_s = min(self._timeouts.chunk_s, patience_s or self._timeouts.chunk_s)
            return self._small_parts(request, end, timeout_s)
        timeout_s = self._timeouts.chunk_s + (end - offset) / READ_BYTES_PER_S_MIN
        return self._streamed_parts(request, end, timeout_s)

    def _small_parts(
        self, request: pb.ReadBlockRequest, end: int, timeout_s: float
    ) -> Iterator[tuple[int, Data]]:
        yield from parts_of(self._call(self.stub.GetSmallFile, request, timeout_s=timeout_s), end)

    def _streamed_parts(
        self, request: pb.ReadBlockRequest, end: int, timeout_s: float
    ) -> Iterator[tuple[int, Data]]:
        start_call = [stream(self.stub.ReadBlock, request, timeout_s=timeout_s)]

        def first() -> tuple[BlockPiece | None, Iterator[BlockPiece]]:
            answers = (
                start_call.pop()
                if start_call
                else stream(self.stub.ReadBlock, request, timeout_s=timeout_s)
            )
            return next(answers, None), answers

        def parts() -> Iterator[tuple[int, Data]]:
            piece, answers = call_with_retry(first, timeout_s=self._timeouts.chunk_s)
            if piece is not None:
                yield from parts_as_they_come(chain([piece], answers), end)

        return parts()

    def begin_blocks(self, messages: Iterator[bytes], timeout_s: float) -> Any:
        """Start a call that writes new blocks, as encoded `NewBlocks`; return the call's future.

        A thread of gRPC iterates over `messages` until the call ends.
        """
        return start_call(self.stub.WriteBlocks, messages, timeout_s=timeout_s)

    def _call(
        self, method: Method, request: object, *, timeout_s: float | None = None
    ) -> Any:  # the method's answer
        timeout_s = timeout_s or self._timeouts.call_s
        return call_again(method, request, timeout_s=timeout_s, party=self._party)


def _metered(
    pieces: Iterator[pb.ReadChunkResponse], meter: TransferCost | None
) -> Iterator[pb.ReadChunkResponse]:
    for piece in pieces:
        if meter is not None:
            meter.data_bytes += len(piece.data)
        yield piece


def check_count(results: Sequence[object], asked: Sequence[object]) -> None:
    """Raise RefusedError unless an answer has one result for each requested item."""
    if len(results) != len(asked):
        raise codec.malformed("answer", f"has {len(results)} of {len(asked)} results")


def _key(container_id: ContainerId, block_id: BlockId) -> container_pb2.BlockId:
    return container_pb2.BlockId(container_id=container_id, local_id=block_id)
