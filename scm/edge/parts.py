"""What the control plane consists of, put together once, behind one lock."""

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent.rpc.serving.access import Audit, Unrecorded
from scm.administration.admin import Admin
from scm.administration.closures import Closures
from scm.administration.decommission import Decommissioning
from scm.administration.forgetting import Forgetting
from scm.administration.holding import Holding
from scm.administration.node_removal import NodeRemoval
from scm.administration.plans import Plans
from scm.administration.previews import Previews
from scm.administration.recovery import Recovery
from scm.cluster.anchoring import Anchoring
from scm.cluster.basis import Basis
from scm.cluster.cases import Cases
from scm.cluster.last_copies import LastCopies
from scm.cluster.nodes import Nodes
from scm.cluster.pending_ops import PendingOps
from scm.cluster.replicas import Reports
from scm.cluster.safemode import SafeMode
from scm.containers.block_deletion import BlockDeletion
from scm.containers.closes import Closes
from scm.containers.observer import Observer
from scm.containers.outcomes import Outcomes
from scm.containers.writers import Writers
from scm.edge.metrics import Meters
from scm.edge.overview.chronicle import Chronicle
from scm.edge.overview.progress import Progress
from scm.edge.totals import Totals
from scm.edge.views import Views
from scm.replication.balancing.balancer import Balancer
from scm.replication.judging.batches import Batches
from scm.replication.judging.judge import Judge
from scm.replication.last_look import LastLook
from scm.replication.reconciling.healing import Healing
from scm.replication.reconciling.reconciles import Reconciles
from scm.replication.repairing.reconstruction import Reconstructor
from scm.replication.repairing.removals import Removals
from scm.replication.replication_manager import ReplicationManager
from scm.state import trail
from scm.state.clock import Clock
from scm.state.database import Change, State
from scm.state.metered_lock import MeteredLock
from scm.state.options import ScmOptions


class Parts:
    """The modules that decide. Who calls one of them holds the lock, by `_change` or itself."""

    def __init__(
        self,
        state: State,
        *,
        clock: Clock,
        options: ScmOptions,
        snapshots_path: Path,
        audit: Audit | None = None,
    ) -> None:
        self._audit = audit or Unrecorded()
        self._state = state
        self._clock = clock
        self._options = options
        self._snapshots_path = snapshots_path
        self.meters = Meters()
        self._lock = MeteredLock(self.meters.lock_held)
        self._export_lock = threading.Lock()
        self._nodes = Nodes(state, clock, options)
        self._reports = Reports(state)
        cases = Cases(state, self._nodes, self._reports, clock, options)
        self._commands = PendingOps(state, self._nodes, clock, options)
        basis = self._basis = Basis(state, self._nodes, self._commands, cases, clock, options)
        self._deletions = BlockDeletion(state, self._nodes, cases, self._commands, clock, options)
        self._writers = Writers(state, self._nodes, cases, self._deletions, clock, options)
        self._reconciles = Reconciles(state, self._nodes, self._commands, clock, options)
        self._cases = cases
        self._batches = Batches(state, self._nodes, cases, options)
        judge = self._judge = Judge(self._batches)
        self._coding = Reconstructor(basis, judge)
        self._removals = Removals(basis, judge)
        self._healing = Healing(basis, self._reconciles)
        self._manager = ReplicationManager(
            basis, judge, self._coding, self._removals, self._healing
        )
        self._last_look = LastLook(basis, judge, self._reconciles, self._coding)
        self._closes = Closes(basis)
        self._outcomes = Outcomes(basis, self._reconciles)
        self._changed_nodes: set[str] = set()
        self._safe_mode = SafeMode(state, clock, options)
        self._departures = Decommissioning(basis, judge)
        self._anchoring = Anchoring(state, clock)
        self._admin = Admin(basis, judge, self._manager, self._safe_mode)
        self._previews = Previews(state, cases, self._commands, self._reconciles)
        self._observer = Observer(basis, self._deletions, self._closes, self._manager)
        self._closures = Closures(
            basis, self._observer, self._closes, self._writers, self._previews, self._safe_mode
        )
        self._plans = Plans(
            basis,
            judge,
            self._reconciles,
            self._admin,
            self._safe_mode,
            self._closures,
            self._previews,
        )
        self._forgetting = Forgetting(basis, self._reports, self._safe_mode)
        self._recovery = Recovery(basis, self._reports, self._safe_mode, self._deletions)
        self._parting = NodeRemoval(basis, judge, self._safe_mode)
        self._holding = Holding(state, self._manager, clock)
        self._balancer = Balancer(basis, judge, self._manager, self._removals, self._safe_mode)
        self._last_copies = LastCopies(state, self._nodes)
        self._begin_to_watch()
        if state.restored is not None:
            self._end_all_writes()

    def _begin_to_watch(self) -> None:
        """Put together what only looks, counts and remembers."""
        self._started_at_ms = self._clock.wall_ms()
        self._views = Views(self._state, self._nodes, self._reports)
        self._totals = Totals(self._state)
        self._progress = Progress(self._clock.monotonic_s())
        self._chronicle = Chronicle(self._state, started_at_ms=self._started_at_ms)
        self._verified = self._chronicle.last_verified()

    @property
    def term(self) -> int:
        """How often this control plane has started."""
        return self._state.term

    @property
    def cluster_id(self) -> str:
        """The id every datanode of this cluster carries on its volumes."""
        return self._state.cluster_id

    def _end_all_writes(self) -> None:
        """Close what was being written at the time of a backup: its writers have gone on."""
        with self._change() as change:
            for container in self._state.containers.open_all():
                self._writers.end(change, container, "the control plane was restored")

    def _end_writes_on(self, change: Change, datanode_ids: Sequence[str], reason: str) -> None:
        """Close the containers that are being written on these nodes."""
        opened = self._departures.open_containers_on(datanode_ids)
        for container in opened:
            self._writers.end(change, container, reason)
        self._observer.observe(change, [container.container_id for container in opened])

    def _struck(self, change: Change, container_ids: Collection[int]) -> None:
        """Look again at containers of which replicas were struck off the books."""
        self._last_copies.recount(change, container_ids)
        self._observer.observe(change, container_ids)

    @contextmanager
    def _change(self) -> Iterator[Change]:
        with self._lock, self._state.change() as change:
            yield change
        trail.write(self._audit, change.notes)
