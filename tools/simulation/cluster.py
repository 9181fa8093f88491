"""Datanodes of a simulation: the real store, scans, reconciler and service, started and killed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final

from agent.errors import SutureError
from agent.plan.actions import Deletes
from agent.plan.outcome import ReconcileResult
from agent.reconcile.reconciler import Reconciler
from agent.rpc.calls.peer import Peer, Timeouts
from agent.rpc.datanode.arriving import ImportHandlers
from agent.rpc.datanode.limits import Limits
from agent.rpc.datanode.reading import ReadHandlers
from agent.rpc.datanode.server import codecs_of, composed
from agent.rpc.datanode.writing import WriteHandlers
from agent.rpc.security.tls import Security
from agent.rpc.v1 import datanode_pb2_grpc
from agent.rpc.wire.errors import ErrorEdge
from agent.runtime.lease import Leases
from agent.scan.scanning import MarkingGuard, ScanReport, ScanTools, scan_container
from agent.store.files.layout import Layout
from agent.store.options import StoreOptions
from agent.store.replica_store import ReplicaStore
from agent.transfer.incoming import Importer
from agent.transfer.replicate import Replicator
from merkle.checksum import Algorithm
from merkle.replica import BlockId, ContainerId
from scanner.breaker import Breaker
from tools.simulation.outside.disk import Disk
from tools.simulation.outside.fibers import Died, Life, Scheduler
from tools.simulation.outside.kernel import Kernel
from tools.simulation.outside.network import Collected, Network
from tools.simulation.outside.primitives import Executor

CLUSTER_ID: Final = "CID-simulation"
PORT: Final = 9859
QUICK: Final = Timeouts(call_s=5.0, tree_s=8.0, chunk_s=8.0)
ALGORITHM: Final = Algorithm.XXH3_64
PLAIN: Final = Security(allow_plaintext=True)


class Clock:
    """The clocks of one host: they drift and jump apart from the true time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.offset_ms = 0
        self.drift = 0.0

    def now_ms(self) -> int:
        """Return wall time in milliseconds."""
        true_s = 1_700_000_000 + self._scheduler.now_s
        return int((true_s + self._scheduler.now_s * self.drift) * 1000) + self.offset_ms

    def monotonic_s(self) -> float:
        """Return monotonic time in seconds."""
        return self._scheduler.now_s * (1 + self.drift)


class Agent:
    """What runs in one process of a datanode."""

    def __init__(self, node: "Datanode", life: Life) -> None:
        self.life = life
        self.leases = Leases(clock=node.clock)
        self.store = ReplicaStore.open(
            [node.disk.root],
            cluster_id=CLUSTER_ID,
            datanode_id=node.name,
            options=StoreOptions(
                reserve_bytes=0,
                lmdb_map_bytes=16 * 1024**2,
                now_ms=node.clock.now_ms,
                packed_count_min=node.packed_count_min,
                algorithm=ALGORITHM,
            ),
        )
        scheduler = node.scheduler
        self.tools = ScanTools(
            store=self.store,
            leases=self.leases,
            algorithm=ALGORITHM,
            guard=MarkingGuard(Breaker(), node.clock),
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
            cluster_id=CLUSTER_ID,
            datanode_id=node.name,
            monotonic_s=node.clock.monotonic_s,
            scan=lambda container_id: scan_container(self.tools, container_id).committed,
            on_damage=lambda _id, _why: None,
        )
        importer = Importer(
            store=self.store,
            leases=self.leases,
            executor=Executor(scheduler, 4, f"{node.name} import"),
            cluster_id=CLUSTER_ID,
            algorithm=ALGORITHM,
            now_ms=node.clock.now_ms,
        )
        limits = Limits(lease_timeout_s=5.0)
        groups = [
            ReadHandlers(self.store, limits=limits),
            WriteHandlers(self.store, self.leases, limits=limits),
            ImportHandlers(importer),
        ]
        self.handlers = handlers_of(groups)


def handlers_of(groups: Sequence[object]) -> dict[str, object]:
    """Return the methods of a datanode's service, behind the edge that makes statuses of errors."""
    collected = Collected(ErrorEdge(codecs_of(groups, "decoders"), codecs_of(groups, "encoders")))
    datanode_pb2_grpc.add_DatanodeServicer_to_server(composed(groups), collected)  # type: ignore[no-untyped-call]
    return collected.handlers


class Datanode:
    """One host: a disk, clocks, and the process that runs on it, if one does."""

    def __init__(
        self, number: int, root: Path, scheduler: Scheduler, kernel: Kernel, network: Network
    ) -> None:
        self.name = f"dn{number}"
        self.address = f"{self.name}:{PORT}"
        self.scheduler = scheduler
        self.kernel = kernel
        self.network = network
        self.clock = Clock(scheduler)
        self.disk = Disk(root / self.name)
        kernel.disks.append(self.disk)
        self.agent: Agent | None = None
        self.life: Life | None = None
        self.packed_count_min = 1024
        self.ordered_deletes: set[BlockId] = set()
        self.confirm: Callable[[ContainerId, Sequence[BlockId]], Deletes] = lambda _id, _asked: (
            Deletes()
        )
        self.start_count = 0
        self.last_refusal = ""

    @property
    def is_up(self) -> bool:
        """Whether a process runs and serves."""
        return self.agent is not None and self.life is not None and not self.life.is_dead

    @contextmanager
    def running(self) -> Iterator[Life]:
        """Run the body as code of this datanode's process."""
        assert self.life is not None, f"{self.name} is down"
        fiber = self.scheduler.current
        fiber.lives.append(self.life)
        try:
            yield self.life
        finally:
            fiber.lives.pop()

    def start(self) -> bool:
        """Start a process, which recovers its volume; return whether it serves. It may die."""
        assert self.life is None, f"{self.name} runs already"
        life = self.life = Life(f"{self.name}")
        self.start_count += 1
        try:
            with self.running():
                self.agent = Agent(self, life)
        except Died:
            return False
        except SutureError as error:
            self.last_refusal = str(error)
            life.is_dead = True
            return False
        self.network.listen(self.address, life, self.agent.handlers)
        return True

    def kill(self) -> None:
        """Kill the process. Its fibers end at their next step; then `bury` it."""
        if self.life is not None:
            self.life.is_dead = True

    def is_still(self) -> bool:
        """Whether no fiber works for the dead process any more."""
        return not any(self.life in fiber.lives for fiber in self.scheduler.fibers)

    def bury(self, dice: Random | None) -> None:
        """Take away what is left of the process; with `dice`, the power was cut."""
        assert self.life is not None, "nothing died"
        self.scheduler.block(self.is_still)
        self.agent = None
        self.kernel.died(self.life)
        self.life = None
        if dice is not None:
            self.disk.cut(dice)

    def stop(self) -> None:
        """Stop as an operator does."""
        if self.agent is not None:
            with self.running(), suppress(Died):
                self.agent.store.close()
        self.kill()
        self.bury(None)

    # What a process is asked for.

    def scan(self, container_id: ContainerId) -> ScanReport:
        """Scan a container."""
        assert self.agent is not None, f"{self.name} is down"
        return scan_container(self.agent.tools, container_id)

    def reconcile(self, container_id: ContainerId, others: "Sequence[Datanode]") -> ReconcileResult:
        """Reconcile a container with others."""
        assert self.agent is not None, f"{self.name} is down"
        peers = {
            other.name: Peer(other.address, timeouts=QUICK, security=PLAIN) for other in others
        }
        return self.agent.reconciler.reconcile(container_id, peers)

    def block_file(self, container_id: ContainerId, block_id: BlockId) -> Path:
        """Return where the bytes of a block are, or would be."""
        layout = Layout(self.disk.root, CLUSTER_ID)
        return layout.replica(container_id).block_file(block_id)
