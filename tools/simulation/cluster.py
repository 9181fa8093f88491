"""Simulated datanodes with the real store, scans, reconciler and service, started and killed."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from agent.commands.replica_delete import ReplicaDeleter
from agent.delete_pins import DeletePins
from agent.leases import ContainerLeases
from agent.plan.actions import ConfirmedDeletes
from agent.plan.reconcile_outcome import ReconcileResult
from agent.reconcile.reconciler import Reconciler
from agent.scan.container_scan import ScanReport, StoreScanDeps, VerdictBreaker, scan_container
from agent.services.import_handlers import ImportHandlers
from agent.services.limits import DatanodeServerLimits
from agent.services.proof_handlers import ProofHandlers
from agent.services.read_handlers import ReadHandlers
from agent.services.service_protocols import ScanMode, ScanStep
from agent.services.write_handlers import WriteHandlers
from agent.store.files.layout import VolumeLayout
from agent.store.options import StoreOptions
from agent.store.replica_store import ReplicaStore
from agent.transfer.incoming import ReplicaImporter
from agent.transfer.replicate import Replicator
from merkle.checksum import Algorithm
from merkle.replica import BlockId, ContainerId
from scanner.breaker import Breaker
from suture.errors import Code, UnavailableError
from suture.wire.clients.block_peer import PeerTimeouts
from suture.wire.clients.peer import Peer
from suture.wire.mapping.errors import ErrorStatusMiddleware
from suture.wire.mapping.rpc_services import DATANODE, method_handlers
from suture.wire.security.tls import Security
from tools.simulation.oracle import DiskHost
from tools.simulation.simulated_os.fibers import ProcessLifetime, Scheduler
from tools.simulation.simulated_os.kernel import Kernel
from tools.simulation.simulated_os.network import Collected, Network
from tools.simulation.simulated_os.primitives import Executor

CLUSTER_ID: Final = "CID-simulation"
PORT: Final = 9859
PROOF_S: Final = 20.0
QUICK: Final = PeerTimeouts(call_s=5.0, tree_s=8.0, chunk_s=8.0)
ALGORITHM: Final = Algorithm.XXH3_64
PLAIN: Final = Security(allow_plaintext=True)


class Agent:
    """The components of a datanode's process."""

    def __init__(self, node: "Datanode") -> None:
        self.leases = ContainerLeases(clock=node.clock)
        self.store = ReplicaStore.open(
            [node.disk.root],
            cluster_id=CLUSTER_ID,
            datanode_id=node.name,
            options=StoreOptions(
                reserve_bytes=0,
                lmdb_map_bytes=16 * 1024**2,
                now_ms=node.clock.now_ms,
                algorithm=ALGORITHM,
            ),
        )
        scheduler = node.scheduler
        self.tools = StoreScanDeps(
            store=self.store,
            leases=self.leases,
            guard=VerdictBreaker(Breaker(), node.clock),
            clock=node.clock,
        )
        self.executor = Executor(scheduler, 4, f"{node.name} fetch")
        self.reconciler = Reconciler(
            self.store,
            self.leases,
            self.executor,
            scan=lambda container_id: scan_container(self.tools, container_id),
            now_ms=node.clock.now_ms,
            confirm=lambda container_id, asked: node.confirm(container_id, asked),
        )
        self.replicator = Replicator(
            store=self.store,
            leases=self.leases,
            executor=self.executor,
            monotonic_s=node.clock.monotonic_s,
            scan=lambda container_id: scan_container(self.tools, container_id).committed,
            on_damage=lambda _id, _why: None,
        )
        importer = ReplicaImporter(
            store=self.store,
            leases=self.leases,
            executor=Executor(scheduler, 4, f"{node.name} import"),
            now_ms=node.clock.now_ms,
        )
        pins = DeletePins(node.clock)
        self.deletes = ReplicaDeleter(
            store=self.store,
            leases=self.leases,
            pins=pins,
            clock=node.clock,
            confirmed=lambda container_id, asked: node.confirm(container_id, asked).ordered,
            age_max_s=0.0,
        )
        limits = DatanodeServerLimits(lease_timeout_s=5.0)
        groups = [
            ReadHandlers(self.store, limits=limits),
            WriteHandlers(self.store, self.leases, limits=limits),
            ImportHandlers(importer),
            ProofHandlers(self.store, self._scanned, pins, node.clock),
        ]
        self.handlers = handlers_of(groups)

    def _scanned(
        self, container_id: ContainerId, _is_cancelled: Callable[[], bool], _mode: ScanMode
    ) -> Iterator[ScanStep]:
        """Scan a replica for a caller that waits; yield the result as the only step. Raise
        UnavailableError(BUSY) if the result is discarded."""
        report = scan_container(self.tools, container_id)
        if not report.committed:
            raise UnavailableError(Code.BUSY, f"the scan was discarded: {report.tripped_reason}")
        yield ScanStep(report.bytes_read, report.bytes_read, report.commit)


def handlers_of(groups: Sequence[object]) -> dict[str, object]:
    """Return the RPC methods of a datanode's service, wrapped to convert errors to statuses."""
    collected = Collected(ErrorStatusMiddleware())
    collected.add_service(DATANODE.full_name, method_handlers(DATANODE, groups))
    return collected.handlers


class Datanode(DiskHost):
    """A simulated datanode. `agent` is its agent; None while the datanode is down."""

    def __init__(
        self, number: int, root: Path, scheduler: Scheduler, kernel: Kernel, network: Network
    ) -> None:
        name = f"dn{number}"
        super().__init__(name, f"{name}:{PORT}", root, scheduler, kernel, network)
        self.agent: Agent | None = None
        self.confirm: Callable[[ContainerId, Sequence[BlockId]], ConfirmedDeletes] = (
            lambda _id, _asked: ConfirmedDeletes()
        )

    def boot(self, life: ProcessLifetime) -> None:
        """Open the store and serve it."""
        self.agent = Agent(self)
        self.network.listen(self.address, life, self.agent.handlers)

    def shut(self) -> None:
        """Close the store."""
        if self.agent is not None:
            self.agent.store.close()

    def forget(self) -> None:
        """Forget the agent and its memory."""
        self.agent = None

    @property
    def is_up(self) -> bool:
        """True if an agent runs and serves."""
        return self.agent is not None and super().is_up

    @property
    def store(self) -> ReplicaStore:
        """The store of the running agent."""
        assert self.agent is not None, f"{self.name} is down"
        return self.agent.store

    # What a process is asked for.

    def scan(self, container_id: ContainerId) -> ScanReport:
        """Scan the datanode's replica of a container; return the report."""
        assert self.agent is not None, f"{self.name} is down"
        return scan_container(self.agent.tools, container_id)

    def reconcile(self, container_id: ContainerId, others: "Sequence[Datanode]") -> ReconcileResult:
        """Reconcile the datanode's replica of a container with those of other datanodes."""
        assert self.agent is not None, f"{self.name} is down"
        peers = {
            other.name: Peer(other.address, timeouts=QUICK, security=PLAIN) for other in others
        }
        return self.agent.reconciler.reconcile(container_id, peers)

    def drop(self, container_id: ContainerId, others: "Sequence[Datanode]") -> None:
        """Delete the datanode's replica. `others` are the other datanodes with a replica."""
        assert self.agent is not None, f"{self.name} is down"
        peers = {
            other.name: Peer(other.address, timeouts=QUICK, security=PLAIN) for other in others
        }
        self.agent.deletes.delete(container_id, peers, force=True, timeout_s=PROOF_S)

    def block_file(self, container_id: ContainerId, block_id: BlockId) -> Path:
        """Return the path of a block's file, whether or not it exists."""
        layout = VolumeLayout(self.disk.root, CLUSTER_ID)
        return layout.replica(container_id).block_file(block_id)
