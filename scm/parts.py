"""What the control plane consists of, put together once, behind one lock."""

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent.rpc.access import Audit, Unrecorded
from scm import trail
from scm.admin import Admin
from scm.balancing import Balancer
from scm.basis import Basis
from scm.batches import Batches
from scm.cases import Cases
from scm.clock import Clock
from scm.closures import Closures
from scm.coding import Coding
from scm.commands import Commands
from scm.deletions import Deletions
from scm.departures import Departures
from scm.forgetting import Forgetting
from scm.healing import Healing
from scm.holding import Holding
from scm.judge import Judge
from scm.last_copies import LastCopies
from scm.metered_lock import MeteredLock
from scm.metrics import Meters
from scm.nodes import Nodes
from scm.observer import Observer
from scm.options import ScmOptions
from scm.orders import Orders
from scm.parting import Parting
from scm.plans import Plans
from scm.previews import Previews
from scm.reconciles import Reconciles
from scm.removals import Removals
from scm.replicas import Reports
from scm.report import Verified
from scm.safemode import SafeMode
from scm.state import Change, State
from scm.totals import Totals
from scm.upkeep import Upkeep
from scm.views import Views
from scm.writers import Writers


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
        self._commands = Commands(state, self._nodes, clock, options)
        basis = Basis(state, self._nodes, self._commands, cases, clock, options)
        self._deletions = Deletions(state, self._nodes, cases, self._commands, clock)
        self._writers = Writers(state, self._nodes, cases, self._deletions, clock, options)
        self._reconciles = Reconciles(state, self._nodes, self._commands, clock, options)
        self._cases = cases
        self._batches = Batches(state, self._nodes, cases, options)
        self._judge = Judge(self._batches)
        self._coding = Coding(basis, self._judge)
        self._removals = Removals(basis, self._judge)
        self._healing = Healing(basis, self._reconciles)
        self._upkeep = Upkeep(basis, self._judge, self._coding, self._removals, self._healing)
        self._orders = Orders(basis, self._judge, self._reconciles, self._coding)
        self._changed_nodes: set[str] = set()
        self._verified = Verified()
        self._safe_mode = SafeMode(state, clock, options)
        self._departures = Departures(basis, self._judge)
        self._admin = Admin(basis, self._judge, self._upkeep, self._safe_mode)
        self._previews = Previews(state, cases, self._commands, self._reconciles)
        self._observer = Observer(
            state,
            self._nodes,
            self._commands,
            self._deletions,
            self._orders,
            self._upkeep,
            cases,
            clock,
        )
        self._closures = Closures(
            basis, self._observer, self._orders, self._writers, self._previews, self._safe_mode
        )
        self._plans = Plans(
            basis,
            self._judge,
            self._reconciles,
            self._admin,
            self._safe_mode,
            self._closures,
            self._previews,
        )
        self._forgetting = Forgetting(basis, self._reports, self._safe_mode)
        self._parting = Parting(basis, self._judge, self._safe_mode)
        self._holding = Holding(state, self._upkeep, clock)
        self._balancer = Balancer(basis, self._judge, self._upkeep, self._removals, self._safe_mode)
        self._views = Views(state, self._nodes, self._reports)
        self._last_copies = LastCopies(state, self._nodes)
        self._totals = Totals(state)

    @property
    def term(self) -> int:
        """How often this control plane has started."""
        return self._state.term

    @property
    def cluster_id(self) -> str:
        """The id every datanode of this cluster carries on its volumes."""
        return self._state.cluster_id

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
