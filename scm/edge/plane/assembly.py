"""Assembles the control plane's components once, behind one lock."""

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent.rpc.serving.access import Audit, NullAudit
from scm.administration.after_restore import RestoreRecovery
from scm.administration.close_requests import ContainerCloser
from scm.administration.container_pages import ContainerPages
from scm.administration.decommission import DatanodeAdminMonitor
from scm.administration.departure_needs import DepartureNeeds
from scm.administration.forgetting import ForgetContainers
from scm.administration.holds import HoldManager
from scm.administration.node_removal import NodeRemoval, RemovalLossCalculator
from scm.administration.older_states import OlderStates
from scm.administration.operator_commands import OperatorCommands
from scm.administration.plan_execution import PlanApplier
from scm.administration.previews import Previews
from scm.cluster.anchoring import AnchorKeeper
from scm.cluster.basis import DecisionContext
from scm.cluster.cases import ContainerContexts
from scm.cluster.commands.pending_ops import PendingOps
from scm.cluster.last_copies import LastReplicaTracker
from scm.cluster.nodes import NodeManager
from scm.cluster.refused_parts import RejectedReportParts
from scm.cluster.replica_map import ReportProcessor
from scm.cluster.safemode import SafeMode
from scm.containers.block_deletion import BlockDeletion
from scm.containers.close_commands import CloseCommands
from scm.containers.command_outcomes import OutcomeProcessor
from scm.containers.observer import ContainerStateUpdater
from scm.containers.open_containers import WriterSessions
from scm.edge.call_values import DatanodeAddress
from scm.edge.health_totals import HealthTotals
from scm.edge.metrics import ScmMetrics
from scm.edge.overview.chronicle import StatusHistory
from scm.edge.overview.progress import CommandProgress
from scm.edge.read_preference import ReadPreference
from scm.edge.views import ViewBuilder
from scm.replication.balancing.balancer import Balancer
from scm.replication.judging.judge_input import HealthBatchBuilder
from scm.replication.judging.live_judge import LiveHealthJudge
from scm.replication.last_look import PreSendCheck
from scm.replication.reconciling.attempts import ReconcileScheduler
from scm.replication.reconciling.healing import AutoReconcile
from scm.replication.repairing.reconstruction import Reconstructor
from scm.replication.repairing.removals import OverReplicatedProcessor
from scm.replication.replication_manager import ReplicationManager
from scm.state import audit_trail
from scm.state.clock import ScmClock
from scm.state.database import StateChange, StateDatabase
from scm.state.metered_lock import MeteredLock
from scm.state.options import ScmOptions


class ControlPlaneComponents:
    """The control plane's components. Callers must hold the lock (`change()` takes it)."""

    def __init__(
        self,
        state: StateDatabase,
        *,
        clock: ScmClock,
        options: ScmOptions,
        snapshots_path: Path,
        audit: Audit | None = None,
    ) -> None:
        self.audit = audit or NullAudit()
        self.state = state
        self.clock = clock
        self.options = options
        self.snapshots_path = snapshots_path
        self.meters = ScmMetrics()
        self.lock = MeteredLock(self.meters.lock_held)
        self.export_lock = threading.Lock()
        self.nodes = NodeManager(state, clock, options)
        self.reports = ReportProcessor(state)
        self.refused_parts = RejectedReportParts(clock)
        cases = ContainerContexts(state, self.nodes, self.reports, clock, options)
        self.commands = PendingOps(state, self.nodes, clock, options)
        basis = self.basis = DecisionContext(
            state, self.nodes, self.commands, cases, clock, options
        )
        self.deletions = BlockDeletion(state, self.nodes, cases, self.commands, clock)
        self.writers = WriterSessions(state, self.nodes, cases, self.deletions, clock, options)
        self.reconciles = ReconcileScheduler(state, self.nodes, self.commands, clock, options)
        self.cases = cases
        self.batches = HealthBatchBuilder(state, self.nodes, cases, options)
        judge = self.judge = LiveHealthJudge(self.batches)
        self.coding = Reconstructor(basis, judge)
        self.removals = OverReplicatedProcessor(basis, judge)
        self.healing = AutoReconcile(basis, self.reconciles)
        self.manager = ReplicationManager(basis, judge, self.coding, self.removals, self.healing)
        self.last_look = PreSendCheck(basis, judge, self.reconciles, self.coding)
        self.closes = CloseCommands(basis)
        self.outcomes = OutcomeProcessor(basis, self.reconciles)
        self.changed_nodes: dict[str, float] = {}  # not reported yet -> time of the change
        self.safe_mode = SafeMode(state, self.nodes, clock, options)
        self.pages = ContainerPages(state, self.batches, self.lock)
        self.departure_needs = DepartureNeeds(basis, self.pages, self.lock)
        self.departures = DatanodeAdminMonitor(basis, judge)
        self.anchoring = AnchorKeeper(state, clock)
        self.admin = OperatorCommands(basis, judge, self.manager, self.safe_mode)
        self.previews = Previews(state, cases, self.commands, self.reconciles)
        self.observer = ContainerStateUpdater(basis, self.deletions, self.closes)
        self.closures = ContainerCloser(
            basis, self.observer, self.closes, self.writers, self.previews, self.safe_mode
        )
        self.plans = PlanApplier(
            basis, judge, self.reconciles, self.admin, self.safe_mode, self.closures, self.previews
        )
        self.forgetting = ForgetContainers(basis, self.reports, self.safe_mode)
        self.older_states = OlderStates(basis, self.safe_mode, self.writers)
        self.recovery = RestoreRecovery(
            basis, self.reports, self.safe_mode, self.deletions, self.older_states
        )
        self.parting = NodeRemoval(basis, judge, self.safe_mode)
        self.node_losses = RemovalLossCalculator(state, self.pages, self.lock)
        self.holding = HoldManager(state, clock)
        self.balancer = Balancer(basis, judge, self.manager, self.removals, self.safe_mode)
        self.last_copies = LastReplicaTracker(state, self.nodes)
        self._begin_to_watch()
        if state.restored is not None:
            self._end_all_writes()

    def _begin_to_watch(self) -> None:
        """Create the components that only observe, count and record."""
        self.started_at_ms = self.clock.wall_ms()
        self.views = ViewBuilder(self.state, self.nodes, self.reports)
        self.read_preference = ReadPreference(self.state, self.nodes)
        self.totals = HealthTotals(self.state, self.nodes)
        self.progress = CommandProgress(self.clock.monotonic_s())
        self.chronicle = StatusHistory(self.state, started_at_ms=self.started_at_ms)

    def endpoints(self, datanode_ids: Iterable[str]) -> tuple[DatanodeAddress, ...]:
        """Return datanodes with their current addresses."""
        return tuple(DatanodeAddress(node, self.views.address(node)) for node in datanode_ids)

    def _end_all_writes(self) -> None:
        """Close the containers open at the time of a backup: their writers have moved on."""
        with self.change() as change:
            for container in self.state.containers.open_all():
                self.writers.end(change, container, "the control plane was restored")

    def end_writes_on(self, change: StateChange, datanode_ids: Sequence[str], reason: str) -> None:
        """Close the containers that are being written on these nodes."""
        opened = self.departures.open_containers_on(datanode_ids)
        for container in opened:
            self.writers.end(change, container, reason)
        self.observer.observe(change, [container.container_id for container in opened])

    def struck(self, change: StateChange, container_ids: Collection[int]) -> None:
        """Re-evaluate containers after some of their replica records were removed."""
        self.last_copies.recount(change, container_ids)
        self.observer.observe(change, container_ids)

    @contextmanager
    def change(self) -> Iterator[StateChange]:
        """Yield a locked, atomic, durable change of the state, and write it to the audit log."""
        with self.lock, self.state.change() as change:
            yield change
        audit_trail.write(self.audit, change.notes)
