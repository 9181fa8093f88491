"""Creates the components of the control plane, which share one lock."""

from collections.abc import Iterable
from pathlib import Path

from scm.administration.close_requests import ContainerCloser
from scm.administration.container_pages import ContainerPages
from scm.administration.decommission import DatanodeAdminMonitor
from scm.administration.departure_requests import DepartureRequests
from scm.administration.holds import HoldManager
from scm.administration.mark_containers_lost import MarkContainersLost
from scm.administration.node_removal import NodeRemoval
from scm.administration.older_states import OlderStates
from scm.administration.plan_applier import PlanApplier
from scm.administration.previews import Previews
from scm.administration.replica_orders import OperatorCommands
from scm.administration.restore_recovery import RestoreRecovery
from scm.administration.run_time_control import RunTimeControl
from scm.administration.shutdown_impact import StopImpactAnalyzer
from scm.api.call_values import DatanodeAddress
from scm.api.cluster_status.progress import CommandProgress
from scm.api.cluster_status.status_history import StatusHistory
from scm.api.health_totals import HealthTotals
from scm.api.metrics import ScmMetrics
from scm.api.read_preference import ReadPreference
from scm.api.views import ViewBuilder
from scm.cluster.commands.pending_ops import PendingOps
from scm.cluster.container_contexts import ContainerContexts
from scm.cluster.decision_context import DecisionContext
from scm.cluster.last_copies import LastReplicaTracker
from scm.cluster.log_anchors import AnchorKeeper
from scm.cluster.nodes import NodeManager
from scm.cluster.rejected_reports import RejectedReportParts
from scm.cluster.replica_map import ReportProcessor
from scm.cluster.safemode import SafeMode
from scm.containers.block_deletion import BlockDeletion
from scm.containers.close_commands import CloseCommands
from scm.containers.command_outcomes import OutcomeProcessor
from scm.containers.open_containers import WriterSessions
from scm.containers.state_updater import ContainerStateUpdater
from scm.replication.balancer.balancer import Balancer
from scm.replication.container_waits import ContainerWaits
from scm.replication.health.health_batches import HealthBatchBuilder
from scm.replication.health.live_judge import LiveHealthJudge
from scm.replication.presend_check import PreSendCheck
from scm.replication.processors.reconstruction import Reconstructor
from scm.replication.processors.removals import OverReplicatedProcessor
from scm.replication.reconcile.auto_reconcile import AutoReconcile
from scm.replication.reconcile.reconcile_scheduler import ReconcileScheduler
from scm.replication.replication_manager import ReplicationManager
from scm.state.clock import ScmClock
from scm.state.database import StateDatabase
from scm.state.options import ScmOptions
from scm.state.state_access import StateAccess
from suture.wire.server.authorization import Audit, NullAudit


class ControlPlaneComponents:
    """The components of the control plane.

    Callers must hold the control plane's lock, except for methods decorated with `@locked` or
    `@state_change` (`scm.state.state_access`).
    """

    def __init__(
        self,
        state: StateDatabase,
        *,
        clock: ScmClock,
        options: ScmOptions,
        snapshots_path: Path,
        audit: Audit | None = None,
    ) -> None:
        self.state = state
        self.clock = clock
        self.options = options
        self.snapshots_path = snapshots_path
        self.meters = ScmMetrics()
        self.access = StateAccess(state, audit or NullAudit(), self.meters.lock_held)
        self.nodes = NodeManager(state, clock, options)
        self.reports = ReportProcessor(state)
        self.refused_parts = RejectedReportParts(clock)
        self.cases = ContainerContexts(state, self.nodes, self.reports, clock, options)
        self.commands = PendingOps(state, self.nodes, clock, options)
        basis = self.basis = DecisionContext(
            self.access, state, self.nodes, self.commands, self.cases, clock, options
        )
        self.deletions = BlockDeletion(basis)
        self.writers = WriterSessions(basis, self.deletions)
        self.reconciles = ReconcileScheduler(basis)
        self.batches = HealthBatchBuilder(basis)
        judge = self.judge = LiveHealthJudge(self.batches)
        self.coding = Reconstructor(basis, judge)
        self.removals = OverReplicatedProcessor(basis, judge)
        self.healing = AutoReconcile(basis, self.reconciles)
        self.manager = ReplicationManager(basis, judge, self.coding, self.removals, self.healing)
        self.last_look = PreSendCheck(basis, judge, self.reconciles, self.coding)
        self.closes = CloseCommands(basis)
        self.outcomes = OutcomeProcessor(basis, self.reconciles)
        self.changed_nodes: dict[str, float] = {}  # node not reported yet -> time of its change
        self.safe_mode = SafeMode(basis, self.reports.confirmed)
        self.anchoring = AnchorKeeper(basis)
        self.last_copies = LastReplicaTracker(state, self.nodes)
        self.observer = ContainerStateUpdater(basis, self.deletions, self.closes, self.last_copies)
        self._begin_to_administer()
        self._begin_to_watch()
        if state.restored is not None:
            self.closures.end_all_writes()

    def _begin_to_administer(self) -> None:
        """Create the components that carry out requests of operators and plans."""
        basis, judge, safe_mode = self.basis, self.judge, self.safe_mode
        pages = ContainerPages(basis, self.batches)
        previews = Previews(basis, judge, self.reconciles)
        self.admin = OperatorCommands(
            basis, judge, self.manager, safe_mode, self.reconciles, previews
        )
        self.closures = ContainerCloser(
            basis, self.observer, self.closes, self.writers, previews, safe_mode
        )
        self.plans = PlanApplier(
            basis, judge, self.reconciles, self.admin, safe_mode, self.closures, previews
        )
        self.departures = DatanodeAdminMonitor(basis, judge)
        self.departure_requests = DepartureRequests(
            basis, pages, self.departures, self.closures, self.manager
        )
        self.parting = NodeRemoval(
            basis,
            judge,
            safe_mode,
            pages,
            self.closures,
            self.observer,
            (self.departures, self.reports, self.refused_parts),
        )
        self.impacts = StopImpactAnalyzer(basis, pages, safe_mode)
        self.forgetting = MarkContainersLost(basis, self.reports, safe_mode, self.observer)
        self.older_states = OlderStates(basis, safe_mode, self.writers)
        self.recovery = RestoreRecovery(
            basis, self.reports, safe_mode, self.deletions, self.older_states, self.observer
        )
        self.holding = HoldManager(basis)
        self.run_time = RunTimeControl(basis)
        self.balancer = Balancer(basis, judge, self.manager, self.removals, safe_mode)

    def _begin_to_watch(self) -> None:
        """Create the components that compute status, counts and history."""
        self.started_at_ms = self.clock.wall_ms()
        self.waits = ContainerWaits(
            self.basis, self.manager, self.removals, self.healing, self.safe_mode
        )
        self.views = ViewBuilder(self.basis, self.reports, self.waits)
        self.read_preference = ReadPreference(self.state, self.nodes)
        self.totals = HealthTotals(self.state, self.nodes)
        self.progress = CommandProgress(self.clock.monotonic_s())
        self.chronicle = StatusHistory(self.state, started_at_ms=self.started_at_ms)

    def endpoints(self, datanode_ids: Iterable[str]) -> tuple[DatanodeAddress, ...]:
        """Return these datanodes with their current addresses, in the given order."""
        return tuple(DatanodeAddress(node, self.views.address(node)) for node in datanode_ids)
