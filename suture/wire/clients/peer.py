"""Client of a datanode, for its peers, clients and operators.

The client does not trust answers. The codec checks every answer, and chunk data is checked against
the window checksums in the same answer before it is returned.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

from merkle.checksum import U64s
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId
from merkle.tree import Tree, TreeSummary
from merkle.tree_descent import BlockRange
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.wire.clients.channel import (
    PATIENCE_S,
    Method,
    call,
    call_again,
    call_with_retry,
    open_channel,
    retry_while,
    start_call,
    stream,
    upload,
)
from suture.wire.clients.response_checks import (
    SMALL_BYTES_MAX,
    assemble_chunk,
    parse_chunks,
    parts_as_they_come,
    parts_of,
)
from suture.wire.clients.shard_writer import ShardWriter
from suture.wire.mapping import codec, tree_pages
from suture.wire.mapping.addressee import ADDRESSEE_HEADER
from suture.wire.mapping.blockpieces import BlockPiece, Data, decode_piece
from suture.wire.mapping.errors import error_of
from suture.wire.mapping.tree_pages import BlockRows
from suture.wire.security.tls import LOOPBACK_ONLY, Security
from suture.wire.v1 import container_pb2, datanode_pb2_grpc
from suture.wire.v1 import datanode_pb2 as pb

SAMPLE_TIMEOUT_S: Final = 7 * 86_400.0  # for millions of chunks at the pace of scans
SCAN_TIMEOUT_S: Final = 6 * 3600.0  # a full container on a busy disk
READ_BLOCK_METHOD: Final = "/suture.v1.Datanode/ReadBlock"  # with a deserializer of its own
IMPORT_METHOD: Final = "/suture.v1.Datanode/ImportContainer"  # with a serializer of its own
READ_BYTES_PER_S_MIN: Final = 1024**2  # a slower read of a block is cancelled
WRITE_BLOCKS_METHOD: Final = "/suture.v1.Datanode/WriteBlocks"  # with a serializer of its own
BLOCKS_MAX: Final = 1_000_000  # blocks of one container, when all are listed

T = TypeVar("T")


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
        """Its id; empty if the id is unknown, for instance because an operator gave only an
        address."""
        ...

    @property
    def address(self) -> str:
        """HOST:PORT of its service."""
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


class Peer(ShardWriter):
    """A datanode. The connection is opened on first use. Thread-safe."""

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
        self._channel = open_channel(address, security, header=header)
        self.stub = datanode_pb2_grpc.DatanodeStub(self._channel)  # type: ignore[no-untyped-call]
        self._read_block: Method = self._channel.unary_stream(
            READ_BLOCK_METHOD,
            request_serializer=pb.ReadBlockRequest.SerializeToString,
            response_deserializer=decode_piece,
        )
        self._import: Method = self._channel.stream_unary(
            IMPORT_METHOD, response_deserializer=pb.ImportContainerResponse.FromString
        )
        self._write_blocks: Method = self._channel.stream_unary(
            WRITE_BLOCKS_METHOD, response_deserializer=pb.WriteBlocksResponse.FromString
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; running calls fail with UnavailableError(CANCELLED)."""
        self._channel.close()

    # Trees.

    def summary(self, container_id: ContainerId, meter: TransferCost | None = None) -> TreeSummary:
        """Return the summary of the peer's tree."""
        request = pb.GetContainerHashesRequest(container_id=container_id, level=pb.ROOT)
        return self._hashes(request, tree_pages.read_summary, meter)

    def ranges(
        self, container_id: ContainerId, starts: U64s, meter: TransferCost | None = None
    ) -> tuple[TreeSummary, U64s]:
        """Return the summary, and the checksum of each range that begins at one of `starts`."""
        request = pb.GetContainerHashesRequest(
            container_id=container_id, level=pb.RANGES, range_starts=starts.tolist()
        )
        return self._hashes(request, partial(tree_pages.read_ranges, count=len(starts)), meter)

    def blocks(
        self,
        container_id: ContainerId,
        ranges: Sequence[BlockRange] = (),
        meter: TransferCost | None = None,
    ) -> BlockRows:
        """Return a row per block and tombstone in `ranges`; without `ranges`, all rows."""
        request = pb.GetContainerHashesRequest(
            container_id=container_id,
            level=pb.BLOCKS,
            ranges=[pb.BlockRange(first=first, last=last) for first, last in ranges],
        )
        return self._hashes(request, tree_pages.read_blocks, meter)

    def chunks(
        self, container_id: ContainerId, block_ids: U64s, meter: TransferCost | None = None
    ) -> tuple[TreeSummary, Tree]:
        """Return the summary, and the tree of the blocks `block_ids`, which must not be empty."""
        assert len(block_ids) > 0, "no ids would mean all blocks"
        request = pb.GetContainerHashesRequest(
            container_id=container_id, level=pb.CHUNKS, block_ids=block_ids.tolist()
        )
        return self._hashes(request, tree_pages.read_tree, meter)

    def tree(self, container_id: ContainerId, meter: TransferCost | None = None) -> Tree:
        """Return the peer's whole tree."""
        request = pb.GetContainerHashesRequest(container_id=container_id, level=pb.CHUNKS)
        summary, tree = self._hashes(request, tree_pages.read_tree, meter)
        if tree.root != summary.root:
            raise RefusedError(
                Code.MALFORMED_REQUEST,
                f"response: the root of the blocks is {tree.root:#x}, the root sent is "
                f"{summary.root:#x}",
            )
        return tree

    def _hashes(
        self,
        request: pb.GetContainerHashesRequest,
        read: Callable[[Iterator[pb.HashesPage]], T],
        meter: TransferCost | None,
    ) -> T:
        """Request pages of a tree and return the result of `read`."""

        def ask() -> T:
            return read(self._pages(request, meter))

        return call_with_retry(ask, timeout_s=self._timeouts.tree_s)

    def _pages(
        self, request: pb.GetContainerHashesRequest, meter: TransferCost | None
    ) -> Iterator[pb.HashesPage]:
        timeout_s = self._timeouts.tree_s
        for page in stream(self.stub.GetContainerHashes, request, timeout_s=timeout_s):
            if meter is not None:
                meter.tree_bytes += page.ByteSize()
            yield page

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
        """Yield each requested block, or its error."""
        asked = [_key(container_id, block_id) for block_id in block_ids]
        answer: pb.GetBlocksResponse = self._ask(
            self.stub.GetBlocks, pb.GetBlocksRequest(block_ids=asked)
        )
        if meter is not None:
            meter.tree_bytes += answer.ByteSize()
        _check_count(answer.results, asked)
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
            answer: pb.ListBlocksResponse = self._ask(self.stub.ListBlocks, request)
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
        return parse_chunks(self._ask(self.stub.ReadChunks, request, timeout_s=timeout_s), keys)

    def prove_chunks(
        self, container_id: ContainerId, asked: Sequence[tuple[BlockId, int, bytes]]
    ) -> list[bytes | SutureError]:
        """Return the peer's keyed hash of each (block, offset, nonce), or its error. The peer reads
        the chunks to compute the hashes."""
        request = pb.ProveChunksRequest(
            container_id=container_id,
            chunks=[
                pb.ChunkChallenge(local_id=block_id, offset=offset, nonce=nonce)
                for block_id, offset, nonce in asked
            ],
        )
        timeout_s = self._timeouts.chunk_s
        answer: pb.ProveChunksResponse = self._ask(
            self.stub.ProveChunks, request, timeout_s=timeout_s
        )
        _check_count(answer.proofs, asked)
        return [
            error_of(proof.code, message=proof.message) if proof.code else proof.answer
            for proof in answer.proofs
        ]

    def prove_replica(
        self, request: pb.ProveReplicaRequest, timeout_s: float
    ) -> tuple[TreeSummary, pb.ReplicaProof]:
        """Return the peer's proof of a replica. The peer may have to read the whole replica."""
        proof: pb.ReplicaProof | None = None
        for message in stream(self.stub.ProveReplica, request, timeout_s=timeout_s):
            if message.HasField("proof"):
                proof = message.proof
        if proof is None:
            raise codec.malformed("answer.proof", "is not set")
        return codec.parse_summary(proof.tree, "answer.proof.tree"), proof

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
        yield from parts_of(self._ask(self.stub.GetSmallFile, request, timeout_s=timeout_s), end)

    def _streamed_parts(
        self, request: pb.ReadBlockRequest, end: int, timeout_s: float
    ) -> Iterator[tuple[int, Data]]:
        start_call = [stream(self._read_block, request, timeout_s=timeout_s)]

        def first() -> tuple[BlockPiece | None, Iterator[BlockPiece]]:
            answers = (
                start_call.pop()
                if start_call
                else stream(self._read_block, request, timeout_s=timeout_s)
            )
            return next(answers, None), answers

        def parts() -> Iterator[tuple[int, Data]]:
            piece, answers = call_with_retry(first, timeout_s=self._timeouts.chunk_s)
            if piece is not None:
                yield from parts_as_they_come(chain([piece], answers), end)

        return parts()

    def import_container(
        self, parts: Iterator[bytes], *, timeout_s: float, must_end: Callable[[], bool]
    ) -> pb.ImportContainerResponse:
        """Push a replica as encoded `ImportPart`s. Cancel the call when `must_end` returns True.

        The call is not retried. The target deletes an interrupted import.
        """
        answer: pb.ImportContainerResponse = upload(
            self._import, parts, timeout_s=timeout_s, must_end=must_end
        )
        return answer

    def begin_blocks(self, messages: Iterator[bytes], timeout_s: float) -> Any:
        """Start a call that writes new blocks, as encoded `NewBlocks`; return the call's future.

        A thread of gRPC iterates over `messages` until the call ends.
        """
        return start_call(self._write_blocks, messages, timeout_s=timeout_s)

    # Replicas and their state.

    def replica(self, container_id: ContainerId) -> container_pb2.ReplicaReport:
        """Return the datanode's report of its replica."""
        request = pb.GetContainerRequest(container_id=container_id)
        answer: pb.GetContainerResponse = self._ask(self.stub.GetContainer, request)
        return answer.replica

    def replicas(self, start: int = 0, count: int = 0) -> pb.ListContainersResponse:
        """Return one page of the datanode's replicas."""
        request = pb.ListContainersRequest(start_container_id=start, count=count)
        answer: pb.ListContainersResponse = self._ask(self.stub.ListContainers, request)
        return answer

    def findings(self, container_id: ContainerId) -> list[pb.Finding]:
        """Return the unresolved findings of one replica."""
        request = pb.ListFindingsRequest(container_id=container_id)
        answer: pb.ListFindingsResponse = self._ask(self.stub.ListFindings, request)
        return list(answer.findings)

    def history(self, container_id: ContainerId) -> list[pb.HistoryEntry]:
        """Return the replica's history, oldest entry first."""
        request = pb.ListHistoryRequest(container_id=container_id)
        answer: pb.ListHistoryResponse = self._ask(self.stub.ListHistory, request)
        return list(answer.entries)

    def changes(self, since_ms: int, *, count: int = 0) -> pb.ListChangesResponse:
        """Return the newest changes on the datanode since an instant."""
        request = pb.ListChangesRequest(since_ms=since_ms, count=count)
        answer: pb.ListChangesResponse = self._ask(self.stub.ListChanges, request)
        return answer

    def scan(
        self, container_id: ContainerId, *, queue: bool = False, full_speed: bool = False
    ) -> Iterator[pb.ScanProgress]:
        """Scan the whole replica now; the last message has the result.

        With `queue`, only queue the scan. With `full_speed`, the scan does not yield to clients.
        """
        request = pb.ScanContainerRequest(
            container_id=container_id, queue=queue, full_speed=full_speed
        )
        yield from stream(self.stub.ScanContainer, request, timeout_s=SCAN_TIMEOUT_S)

    def scanned(
        self,
        container_id: ContainerId,
        *,
        full_speed: bool = False,
        progress: Callable[[pb.ScanProgress], None] = lambda _: None,
        waits: Callable[[SutureError], None] = lambda _: None,
        timeout_s: float = PATIENCE_S,
    ) -> pb.ScanResult:
        """Return the result of a scan of the replica. Retry while the datanode or the container is
        busy. `waits` receives the first refusal."""

        def once() -> pb.ScanResult:
            for step in self.scan(container_id, full_speed=full_speed):
                progress(step)
                if step.HasField("result"):
                    return step.result
            raise UnavailableError(
                Code.UNAVAILABLE, f"{self.address} ended the scan without a result"
            )

        return retry_while(
            once,
            codes={Code.BUSY},
            must_end=lambda: False,
            waits=waits,
            timeout_s=timeout_s,
        )

    def sample(self, request: pb.SampleChunksRequest) -> Iterator[pb.SampleProgress]:
        """Count chunks, or read a random sample of them; the last message has the result."""
        yield from stream(self.stub.SampleChunks, request, timeout_s=SAMPLE_TIMEOUT_S)

    def trust(self, request: pb.TrustReplicaRequest) -> pb.TrustReplicaResponse:
        """Make the replica equal to a trusted one, or return the changes that this would make."""
        answer: pb.TrustReplicaResponse = call(
            self.stub.TrustReplica, request, timeout_s=SCAN_TIMEOUT_S
        )
        return answer

    def status(self) -> pb.StatusResponse:
        """Return the datanode's status."""
        answer: pb.StatusResponse = self._ask(self.stub.Status, pb.StatusRequest())
        return answer

    def scrub_status(self) -> pb.ScrubStatusResponse:
        """Return the progress of the background scans."""
        answer: pb.ScrubStatusResponse = self._ask(self.stub.ScrubStatus, pb.ScrubStatusRequest())
        return answer

    def control_scrub(self, request: pb.ControlScrubRequest) -> pb.ScrubStatusResponse:
        """Pause, resume or cancel background scans; return their progress."""
        answer: pb.ScrubStatusResponse = self._ask(self.stub.ControlScrub, request)
        return answer

    def control_volume(self, request: pb.ControlVolumeRequest) -> pb.ControlVolumeResponse:
        """Set the mode of a volume, or add a volume; return all volumes."""
        answer: pb.ControlVolumeResponse = self._ask(self.stub.ControlVolume, request)
        return answer

    def list_disks(self) -> pb.ListDisksResponse:
        """Return the reports of a datanode's disks and its kernel."""
        answer: pb.ListDisksResponse = self._ask(self.stub.ListDisks, pb.ListDisksRequest())
        return answer

    def _ask(
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


def _check_count(results: Sequence[object], asked: Sequence[object]) -> None:
    """Raise RefusedError unless an answer has one result for each requested item."""
    if len(results) != len(asked):
        raise codec.malformed("answer", f"has {len(results)} of {len(asked)} results")


def _key(container_id: ContainerId, block_id: BlockId) -> container_pb2.BlockId:
    return container_pb2.BlockId(container_id=container_id, local_id=block_id)
