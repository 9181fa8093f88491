"""Client that reads and writes the blocks of a datanode.

The client does not trust the responses. Every response is validated, and the data of a chunk is
compared with the window checksums in the same response before it is returned.
`suture.wire.clients.peer` adds the calls for peers and operators, which need numpy.
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
    """Timeouts of the calls to a datanode, in seconds."""

    call_s: float = 10.0
    tree_s: float = 60.0
    chunk_s: float = 60.0


class NodeAddress(Protocol):
    """The id and the address of a datanode. Several messages of the control plane have both."""

    @property
    def datanode_id(self) -> str:
        """Id of the datanode. It is empty if the id is unknown, for instance if an operator gave
        only an address."""
        ...

    @property
    def address(self) -> str:
        """HOST:PORT at which the datanode serves calls."""
        ...


class Endpoint(NamedTuple):
    """The id and the address of a datanode, from another source than a message of the control
    plane."""

    datanode_id: str
    address: str


@dataclass(slots=True)
class TransferCost:
    """Counts the bytes that calls receive. Only one thread may use the object."""

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
        """Create a client for the datanode at `address`. If `datanode_id` is given and the datanode
        at `address` has another id, it refuses each call."""
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
        """Close the connection. Running calls raise UnavailableError(CANCELLED)."""
        self._channel.close()

    # Data.

    def block(
        self, container_id: ContainerId, block_id: BlockId, meter: TransferCost | None = None
    ) -> BlockData:
        """Return the metadata of one committed block. Raise SutureError if the datanode does not
        have it."""
        [block] = self._block_results(container_id, [block_id], meter)
        if isinstance(block, SutureError):
            raise block
        return block

    def blocks_of(self, container_id: ContainerId) -> list[BlockData]:
        """Return the metadata of all blocks of a container, in the order of their ids."""
        return list(self.each_block(container_id))

    def named_blocks(
        self, container_id: ContainerId, block_ids: Sequence[BlockId]
    ) -> dict[BlockId, BlockData]:
        """Return the metadata of the blocks `block_ids`, by id.

        A block is missing in the result if the datanode refuses it, or if the response of one call
        cannot have all blocks.
        """
        results = self._block_results(container_id, block_ids)
        return {block.block_id: block for block in results if isinstance(block, BlockData)}

    def _block_results(
        self,
        container_id: ContainerId,
        block_ids: Sequence[BlockId],
        meter: TransferCost | None = None,
    ) -> Iterator[BlockData | SutureError]:
        """Yield the metadata of each requested block, or the error that the datanode returned for
        it."""
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
        """Yield the metadata of all blocks of a container, in the order of their ids. Each call
        returns one page."""
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
        """Return one chunk and its data, which was compared with the window checksums in the
        response.

        Raise RefusedError(CHECKSUM_MISMATCH) if they do not match. For a chunk with the checksum
        type NONE, only the length is compared.
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
        """Return chunks with their data, by (block id, offset), from one call.

        A chunk is missing in the result if one response cannot have all chunks, or if its data does
        not match the window checksums in the response.
        """
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
        """Yield (offset, data) for the verified parts of a block, beginning with the chunk that has
        the byte at `offset`.

        `end` is the expected end of the block, and no part extends beyond it. A short remainder is
        requested as one message, for which the client waits at most `patience_s` seconds. For a
        longer remainder, the datanode starts to send at once, ahead of the reader. Errors are those
        of `read_chunk`. They are raised when the first part is requested.
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
        """Start a call that writes new blocks, and return its future. `messages` are encoded
        `NewBlocks`.

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
    """Raise RefusedError if a response does not have one result for each requested item."""
    if len(results) != len(asked):
        raise codec.malformed("answer", f"has {len(results)} of {len(asked)} results")


def _key(container_id: ContainerId, block_id: BlockId) -> container_pb2.BlockId:
    return container_pb2.BlockId(container_id=container_id, local_id=block_id)
