"""Datanodes in one process: real stores on disk, real servers on loopback, real scans."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from agent.delete_pins import DeletePins
from agent.plan.actions import ConfirmedDeletes
from agent.plan.reconcile_outcome import ReconcileResult
from agent.reconcile.reconciler import Prove, Reconciler
from agent.reconcile.repair_executor import RepairLimits
from agent.reconcile.survey import SilentHolder
from agent.scan.container_scan import scan_container
from agent.services.admin_handlers import AdminHandlers
from agent.services.import_handlers import ImportHandlers
from agent.services.limits import DatanodeServerLimits
from agent.services.proof_handlers import ProofHandlers
from agent.services.read_handlers import ReadHandlers
from agent.services.scan_handlers import ScanHandlers
from agent.services.server import build_server
from agent.services.service_protocols import ScanStep
from agent.services.write_handlers import RecoveryTracker, WriteHandlers
from agent.store.options import PACKED_COUNT_MIN
from agent.transfer.incoming import ReplicaImporter
from agent.transfer.replicate import FINISH_S, STALL_S, Replicator
from merkle.checksum import Algorithm
from merkle.replica import ContainerId
from suture.errors import SutureError
from suture.runtime.call_thread_pool import CallThreadPool
from suture.runtime.clock import SystemClock
from suture.wire.clients.block_peer import PeerTimeouts
from suture.wire.clients.peer import Peer
from suture.wire.security.tls import LOOPBACK_ONLY, Security
from suture.wire.server.authorization import Audit
from suture.wire.server.limited_server import BuiltServer
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tests.support.storage.stored_replica import CONTAINER, StoredReplica

THREADS = 8
LIMITS = DatanodeServerLimits(lease_timeout_s=2.0)
QUICK = PeerTimeouts(call_s=5.0, tree_s=10.0, chunk_s=10.0)


class Datanode:
    """A datanode: a store below `path`, and after a call of `serve`, its server."""

    def __init__(
        self,
        datanode_id: str,
        path: Path,
        *,
        algorithm: Algorithm = Algorithm.XXH3_64,
        packed_count_min: int = PACKED_COUNT_MIN,
    ) -> None:
        self.datanode_id = datanode_id
        self.replica = StoredReplica(path, algorithm=algorithm, packed_count_min=packed_count_min)
        self.built: BuiltServer | None = None
        self.on_demand: list[ContainerId] = []  # scans that peers or commands requested
        self.pins = DeletePins(SystemClock())
        self.doubts: list[ContainerId] = []  # replicas that it would scan after a check
        self.reads: list[tuple[int, int]] = []  # (block, offset) of every chunk that was requested
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix=f"{datanode_id}-rpc")
        self._fetchers = ThreadPoolExecutor(THREADS, thread_name_prefix=f"{datanode_id}-fetch")
        self.importer = ReplicaImporter(
            store=self.replica.store,
            leases=self.replica.leases,
            executor=self._fetchers,
            now_ms=SystemClock().now_ms,
            on_arrived=self.on_demand.append,
        )

    def serve(
        self,
        reading: Callable[["Datanode"], ReadHandlers] | None = None,
        *,
        security: Security = LOOPBACK_ONLY,
        audit: Audit | None = None,
        limits: DatanodeServerLimits = LIMITS,
        threads: CallThreadPool | None = None,
        recoveries: RecoveryTracker | None = None,
        known: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """Start the server on a free port of loopback. `reading` replaces the handlers that read
        replicas, for example to simulate a dishonest datanode. `threads` is the thread pool for
        calls; without it, a small executor is used."""
        self.built = build_server(
            self.groups(reading, limits, recoveries),
            "127.0.0.1:0",
            threads or self._executor,
            datanode_id=self.datanode_id,
            security=security,
            audit=audit,
            limits=limits,
            slots=threads,
            known=known,
        )
        self.built.server.start()

    def groups(
        self,
        reading: Callable[["Datanode"], ReadHandlers] | None = None,
        limits: DatanodeServerLimits = LIMITS,
        recoveries: RecoveryTracker | None = None,
    ) -> Sequence[object]:
        """Return the groups of handlers of a datanode without background scans."""
        store, leases = self.replica.store, self.replica.leases
        return [
            WriteHandlers(store, leases, limits=limits, recoveries=recoveries),
            (reading or CountingReads)(self),
            ImportHandlers(self.importer),
            ScanHandlers(
                store, lambda found, *_: scan_steps(self, found), lambda *_: (), limits=limits
            ),
            ProofHandlers(
                store,
                lambda found, *_: scan_steps(self, found),
                self.pins,
                SystemClock(),
                lambda container_id, _why: self.doubts.append(container_id),
            ),
            AdminHandlers(lambda: datanode_pb2.StatusResponse(datanode_id=self.datanode_id)),
        ]

    @property
    def address(self) -> str:
        """The address of its server."""
        assert self.built is not None, "serve first"
        return f"127.0.0.1:{self.built.port}"

    def stop_serving(self) -> None:
        """Stop the server at once; running calls fail."""
        if self.built is not None:
            self.built.server.stop(0).wait()

    def close(self) -> None:
        """Stop the server and close the store."""
        self.stop_serving()
        self._executor.shutdown()
        self._fetchers.shutdown()
        self.replica.close()

    def scan(self, container_id: ContainerId = CONTAINER) -> None:
        """Scan a replica as the agent does. Fail if the result is not committed."""
        report = self.replica.scan(container_id)
        assert report.committed, report.tripped_reason

    def reconciler(
        self,
        *,
        limits: RepairLimits = RepairLimits(),  # noqa: B008 - frozen
        deletes: ConfirmedDeletes | None = None,
        prove: Prove | None = None,
    ) -> Reconciler:
        """Return a reconciler of this datanode. `deletes` are the deletes that the control plane
        confirms. If `prove` is None, the reconciler reads the complete replica after a repair."""
        return Reconciler(
            self.replica.store,
            self.replica.leases,
            self._fetchers,
            scan=lambda container_id: scan_container(self.replica.tools, container_id),
            now_ms=SystemClock().now_ms,
            limits=limits,
            confirm=lambda _id, _blocks: deletes or ConfirmedDeletes(),
            prove=prove,
        )

    def replicator(self, *, stall_s: float = STALL_S, finish_s: float = FINISH_S) -> Replicator:
        """Return the component that pushes replicas of this datanode to others."""
        return Replicator(
            store=self.replica.store,
            leases=self.replica.leases,
            executor=self._fetchers,
            monotonic_s=SystemClock().monotonic_s,
            scan=lambda container_id: self.replica.scan(container_id).committed,
            on_damage=lambda container_id, _: self.on_demand.append(container_id),
            stall_s=stall_s,
            finish_s=finish_s,
        )

    def replicate(
        self,
        target: "Datanode",
        container_id: ContainerId = CONTAINER,
        *,
        stop: Callable[[], bool] = lambda: False,
        replicator: Replicator | None = None,
    ) -> scm_pb2.ReplicateOutcome:
        """Push a replica to another datanode, as on a command of the SCM."""
        pushing = replicator or self.replicator()
        with Peer(target.address, timeouts=QUICK) as peer:
            return pushing.replicate(container_id, peer, stop=stop)

    def reconcile(
        self,
        others: Sequence["Datanode"],
        container_id: ContainerId = CONTAINER,
        *,
        holders: Sequence[SilentHolder] = (),
        deletes: ConfirmedDeletes | None = None,
        trusted: str = "",
        stop: Callable[[], bool] = lambda: False,
        prove: Prove | None = None,
    ) -> ReconcileResult:
        """Reconcile with other datanodes, as on a command of the SCM."""
        with dialled(others) as peers:
            return self.reconciler(deletes=deletes, prove=prove).reconcile(
                container_id, peers, holders=holders, trusted=trusted, stop=stop
            )

    def files(self, container_id: ContainerId = CONTAINER) -> dict[str, bytes]:
        """Return every block file of a container, by name."""
        chunks = self.replica.store.paths(container_id).chunks
        return {path.name: path.read_bytes() for path in sorted(chunks.glob("*"))}


class CountingReads(ReadHandlers):
    """The real handlers that read replicas. They also record the requested chunks."""

    def __init__(self, datanode: Datanode) -> None:
        super().__init__(datanode.replica.store, limits=LIMITS)
        self.datanode = datanode
        self.encoders = {"ReadBlock": self.encoders["ReadBlock"]}

    def ReadChunk(self, request):  # type: ignore[no-untyped-def]
        """Record the requested chunk, then serve it in messages, which subclasses may change."""
        self.datanode.reads.append((request.block_id.local_id, request.offset))
        for piece in super().ReadChunk(request):
            yield datanode_pb2.ReadChunkResponse(chunk=piece.chunk, data=bytes(piece.data))

    def ReadChunks(self, request):  # type: ignore[no-untyped-def]
        """Serve each requested chunk by a call of `ReadChunk`, so that subclasses only override
        that method. Errors become results of their chunks."""
        answer = datanode_pb2.ReadChunksResponse()
        for key in request.chunks:
            block_id = container_pb2.BlockId(
                container_id=request.container_id, local_id=key.local_id
            )
            alone = datanode_pb2.ReadChunkRequest(block_id=block_id, offset=key.offset)
            try:
                parts = list(self.ReadChunk(alone))  # type: ignore[no-untyped-call]
            except SutureError:
                continue
            data = b"".join(part.data for part in parts)
            answer.chunks.add(local_id=key.local_id, chunk=parts[0].chunk, data=data)
        return answer

    def ReadBlock(self, request):  # type: ignore[no-untyped-def]
        """Record the offset from which the block is read, then serve it."""
        self.datanode.reads.append((request.block_id.local_id, request.offset))
        yield from super().ReadBlock(request)

    def GetSmallFile(self, request):  # type: ignore[no-untyped-def]
        """Record the offset from which the block is read, then serve it."""
        self.datanode.reads.append((request.block_id.local_id, request.offset))
        return super().GetSmallFile(request)


def scan_steps(datanode: Datanode, container_id: ContainerId) -> Iterator[ScanStep]:
    """Scan a replica completely, and yield the result as the only step."""
    report = scan_container(datanode.replica.tools, container_id)
    yield ScanStep(report.bytes_read, report.bytes_read, report.commit)


@contextmanager
def dialled(datanodes: Sequence[Datanode]) -> Iterator[dict[str, Peer]]:
    """Connect to datanodes; yield the peers by datanode id."""
    peers = {one.datanode_id: Peer(one.address, timeouts=QUICK) for one in datanodes}
    try:
        yield peers
    finally:
        for peer in peers.values():
            peer.close()


def code_of(work: Callable[[], object]) -> str:
    """Return the code with which `work` is refused; "" if it succeeds."""
    try:
        work()
    except SutureError as error:
        return error.code.value
    return ""
