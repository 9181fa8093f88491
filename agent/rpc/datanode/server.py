"""suture.v1.Datanode: the services of one storage host over its store.

Handlers are thin: the codec decides whether a request makes sense, the store whether it is
allowed, `ErrorEdge` turns what they raise into a status. A change of a container happens under
its lease, which is taken after the whole request is here and held for one call of the store: a
slow or dead client holds nothing. Reads take no lease.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import grpc

from agent.errors import Code, Refused, Unavailable
from agent.ports import Leases
from agent.rpc.datanode.backends import Importer, Scan, ScanMode, ScanStep, Scrub
from agent.rpc.security.tls import LOOPBACK_ONLY, Security
from agent.rpc.serving.access import Audit, Gate
from agent.rpc.serving.binding import PATIENCE, Patience, bind, server_options
from agent.rpc.serving.health_service import Health
from agent.rpc.serving.waits import Attended, Slots, Unlimited, Waits, share
from agent.rpc.v1 import container_pb2, datanode_pb2_grpc
from agent.rpc.v1 import datanode_pb2 as pb
from agent.rpc.wire import codec, hashes, reports
from agent.rpc.wire.errors import ErrorEdge
from agent.runtime.tracing import Traced
from merkle.replica import ID_MAX, BlockData, BlockId, ChunkInfo, ContainerId

if TYPE_CHECKING:
    from agent.store.replica_store import ReplicaStore

SERVICE_NAME: Final = "suture.v1.Datanode"
IMPORT_METHOD: Final = f"/{SERVICE_NAME}/ImportContainer"
PIECE_BYTES_MAX: Final = 1024**2  # of chunk data in one message
BLOCKS_PAGE_BYTES_MAX: Final = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one server. Beyond `rpc_count_max` callers get RESOURCE_EXHAUSTED at once."""

    rpc_count_max: int = 64
    streams_max: int = 64  # calls at once of one connection; the caller's gRPC holds more back
    connections_max: int = 1_000
    calls_per_s_max: int = 0  # of one caller; 0: no limit
    patience: Patience = PATIENCE
    lease_timeout_s: float = 30.0  # how long a call waits for a container that is being changed
    replicas_page_max: int = 1_000
    blocks_page_max: int = 1_000
    findings_page_max: int = 1_000


Status = Callable[[], pb.StatusResponse]


class DatanodeService(datanode_pb2_grpc.DatanodeServicer):
    """The handlers. `scan` and `status` are the runtime's."""

    def __init__(
        self,
        store: "ReplicaStore",
        leases: Leases,
        *,
        scan: Scan,
        status: Status,
        limits: Limits | None = None,
        scrub: Scrub | None = None,
        importer: Importer | None = None,
        on_read: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`on_read` is told how many seconds each read of chunk data took."""
        self._store = store
        self._leases = leases
        self._scan = scan
        self._status = status
        self._scrub = scrub
        self._importer = importer
        self.read_part = pb.ImportPart.FromString if importer is None else importer.read_part
        self._on_read = on_read
        self.limits = limits or Limits()

    def _hold(
        self, container_id: ContainerId, context: grpc.ServicerContext
    ) -> AbstractContextManager[None]:
        """Hold the lease, waiting no longer than the caller does."""
        remaining_s = context.time_remaining()
        timeout_s = self.limits.lease_timeout_s
        if remaining_s is not None:
            timeout_s = min(timeout_s, remaining_s)
        if not context.is_active():
            raise Unavailable(Code.CANCELLED, "the caller has gone")
        return self._leases.hold(container_id, timeout_s)

    # Writing.

    def CreateContainer(  # noqa: N802
        self, request: pb.CreateContainerRequest, context: grpc.ServicerContext
    ) -> pb.CreateContainerResponse:
        """Create an empty, open replica; the same again changes nothing."""
        container_id = codec.parse_container_id(request.container_id)
        index = codec.parse_replica_index(request.replica_index)
        if request.state not in {container_pb2.REPLICA_STATE_UNSPECIFIED, container_pb2.OPEN}:
            raise codec.malformed("state", f"no replica is created here in state {request.state}")
        with self._hold(container_id, context):
            self._store.create_container(container_id, replica_index=index)
        return pb.CreateContainerResponse()

    def WriteChunk(  # noqa: N802
        self, request: pb.WriteChunkRequest, context: grpc.ServicerContext
    ) -> pb.WriteChunkResponse:
        """Write one chunk, and commit the block with it if the request says so."""
        container_id, block_id = codec.parse_block_key(request.block_id, "block_id")
        chunk = codec.parse_written_chunk(request.chunk, "chunk")
        block = None
        if request.HasField("commit"):
            owner, block = _parse_commit(request.commit, "commit")
            if (owner, block.block_id) != (container_id, block_id):
                raise codec.malformed("commit.block_id", "is not the block of this chunk")
        with self._hold(container_id, context):
            self._store.write_chunk(container_id, block_id, chunk, request.data, commit=block)
        committed = 0 if block is None else block.length_bytes
        return pb.WriteChunkResponse(committed_length=committed)

    def PutBlock(  # noqa: N802
        self, request: pb.PutBlockRequest, context: grpc.ServicerContext
    ) -> pb.PutBlockResponse:
        """Commit a block whose chunks are all written."""
        container_id, block = _parse_commit(request.block, "block")
        with self._hold(container_id, context):
            length_bytes = self._store.put_block(container_id, block)
        return pb.PutBlockResponse(committed_length=length_bytes)

    def CloseContainer(  # noqa: N802
        self, request: pb.CloseContainerRequest, context: grpc.ServicerContext
    ) -> pb.CloseContainerResponse:
        """Close the replica: its tree exists before the answer."""
        container_id = codec.parse_container_id(request.container_id)
        bcsid = codec.parse_bcsid(request.bcsid, "bcsid")
        with self._hold(container_id, context):
            facts = self._store.close_container(container_id, bcsid=bcsid, force=request.force)
        return pb.CloseContainerResponse(replica=reports.replica_report(facts))

    def DeleteContainer(  # noqa: N802
        self, request: pb.DeleteContainerRequest, context: grpc.ServicerContext
    ) -> pb.DeleteContainerResponse:
        """Delete the replica; an open or non-empty one only by force."""
        container_id = codec.parse_container_id(request.container_id)
        with self._hold(container_id, context):
            self._store.delete_container(container_id, force=request.force)
        return pb.DeleteContainerResponse()

    # Reading.

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
        count = _page_size(request.count, self.limits.replicas_page_max)
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
        count = _page_size(request.count, self.limits.blocks_page_max)
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

    def ImportContainer(  # noqa: N802
        self, requests: Iterator[Any], context: grpc.ServicerContext
    ) -> pb.ImportContainerResponse:
        """Receive a whole replica that another datanode pushes; nothing shows before all is here.

        gRPC holds back a sender that is faster than we write.
        """
        del context
        if self._importer is None:
            raise Refused(Code.INELIGIBLE, "this datanode takes no replicas from others")
        arrived = self._importer.receive(requests)
        return pb.ImportContainerResponse(
            replica=reports.replica_report(arrived.facts),
            bytes_received=arrived.data_bytes,
            damaged_chunk_count=arrived.damaged_chunk_count,
        )

    # Judging.

    def ScanContainer(  # noqa: N802
        self, request: pb.ScanContainerRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ScanProgress]:
        """Read the replica whole, now, and say what was found; or queue that, and say so.

        Ends early when the caller goes."""
        container_id = codec.parse_container_id(request.container_id)
        if request.queue and request.full_speed:
            raise codec.malformed("full_speed", "a scan that is queued has the pace of the queue")
        mode = ScanMode.FULL_SPEED if request.full_speed else ScanMode.WAIT
        if request.queue:
            mode = ScanMode.QUEUE
        self._store.replica(container_id)  # an unknown container is refused before a scan begins
        for step in self._scan(container_id, lambda: not context.is_active(), mode):
            progress = pb.ScanProgress(
                bytes_read=step.bytes_read, bytes_total=step.bytes_total, queued=step.is_queued
            )
            if step.commit is not None:
                progress.result.CopyFrom(self._scan_result(container_id, step))
            yield progress

    def _scan_result(self, container_id: ContainerId, step: ScanStep) -> pb.ScanResult:
        count_max = self.limits.findings_page_max
        findings = self._store.findings(container_id, count=count_max)
        facts = self._store.replica(container_id)
        return pb.ScanResult(
            replica=reports.replica_report(facts),
            findings=reports.finding_messages(findings),
            finding_count=max(facts.finding_count, len(findings)),
            bytes_read=step.bytes_read,
        )

    def ListFindings(  # noqa: N802
        self, request: pb.ListFindingsRequest, context: grpc.ServicerContext
    ) -> pb.ListFindingsResponse:
        """Return findings by container; those of one container are never on two pages."""
        del context
        count = _page_size(request.count, self.limits.findings_page_max)
        if request.container_id:
            container_id = codec.parse_container_id(request.container_id)
            found = self._store.findings(container_id, count=count)
            return pb.ListFindingsResponse(findings=reports.finding_messages(found))
        start = codec.parse_int(
            request.start_container_id, "start_container_id", low=0, high=ID_MAX
        )
        found = self._store.findings(start=start, count=count + 1)
        next_id = 0
        if len(found) > count:
            next_id = found[count].container_id
            whole = [finding for finding in found if finding.container_id != next_id]
            if not whole:  # one container fills the page: say what fits, go on behind it
                next_id += 1
            found = whole or found[:count]
        return pb.ListFindingsResponse(
            findings=reports.finding_messages(found), next_container_id=next_id
        )

    def ScrubStatus(  # noqa: N802
        self, request: pb.ScrubStatusRequest, context: grpc.ServicerContext
    ) -> pb.ScrubStatusResponse:
        """Say how far the background scans are."""
        del request, context
        return pb.ScrubStatusResponse() if self._scrub is None else self._scrub.status()

    def SteerScrub(  # noqa: N802
        self, request: pb.SteerScrubRequest, context: grpc.ServicerContext
    ) -> pb.ScrubStatusResponse:
        """Pause, resume or cancel background scans; say how far they are."""
        del context
        if self._scrub is None:
            raise Refused(Code.INELIGIBLE, "this datanode scans nothing in the background")
        match request.WhichOneof("wish"):
            case "pause_ms":
                self._scrub.pause(request.volume_id, request.pause_ms / 1000)
            case "resume":
                self._scrub.resume(request.volume_id)
            case "skip_container_id":
                self._scrub.skip(codec.parse_container_id(request.skip_container_id))
            case _:
                raise codec.malformed("wish", "is not set")
        return self._scrub.status()

    def Status(  # noqa: N802
        self, request: pb.StatusRequest, context: grpc.ServicerContext
    ) -> pb.StatusResponse:
        """Say how this datanode is."""
        del request, context
        return self._status()


def _parse_commit(message: container_pb2.BlockData, where: str) -> tuple[ContainerId, BlockData]:
    return codec.parse_block(message, where, parse=codec.parse_written_chunk)


def _page_size(asked: int, most: int) -> int:
    """Return how many rows a page has: as asked, or as the server's maximum."""
    return min(asked, most) if asked else most


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


@dataclass(frozen=True, slots=True)
class BuiltServer:
    """A server that is bound and not started. `health` is for the runtime to set."""

    server: grpc.Server
    port: int
    health: Health
    waits: Waits


def build_server(
    service: DatanodeService,
    address: str,
    executor: Any,  # a concurrent.futures.ThreadPoolExecutor: threads are the runtime's
    *,
    limits: Limits | None = None,
    security: Security = LOOPBACK_ONLY,
    audit: Audit | None = None,
    slots: Slots | None = None,
) -> BuiltServer:
    """Bind `address` (port 0: any free one) and return the server, not yet started.

    `executor` should have a thread for each call that is let in, and `slots` be how many work.
    Raises Refused(INVALID_CONFIG) when the address cannot be bound, or not without TLS.
    """
    limits = limits or service.limits
    gate = Gate(audit, calls_per_s_max=limits.calls_per_s_max)
    waits = Waits(limits.rpc_count_max, slow_s=limits.patience.slow_s)
    server = grpc.server(
        executor,
        interceptors=[
            Attended(waits, slots or Unlimited()),
            Traced(),
            ErrorEdge({IMPORT_METHOD: service.read_part}),
            gate,
        ],
        options=server_options(
            min(limits.streams_max, share(limits.rpc_count_max)),
            limits.connections_max,
            patience=limits.patience,
        ),
        maximum_concurrent_rpcs=limits.rpc_count_max,
    )
    datanode_pb2_grpc.add_DatanodeServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    checks = Health([SERVICE_NAME])
    checks.add_to(server)
    return BuiltServer(server, bind(server, address, security), checks, waits)
