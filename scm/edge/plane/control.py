"""The control plane as one object: every call is one locked, atomic, durable change.

    datanodes ─┐
    clients ───┼─► one lock ─► decide (`assembly.py`) ─► commit ─► answer
    operators ─┤
    time ──────┘   (`tick`)

The components in `assembly.py` decide; this module and those beside it define the order of steps.
Nothing is pushed: datanodes fetch their commands.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from agent.rpc.serving.access import Audit
from scm.edge.metrics import ScmMetrics
from scm.edge.plane.assembly import ControlPlaneComponents
from scm.edge.plane.client_calls import ClientCalls
from scm.edge.plane.datanode_calls import DatanodeCalls
from scm.edge.plane.operator_calls import OperatorCalls
from scm.edge.plane.queries import Queries
from scm.edge.replication_report import LastVerification
from scm.state.clock import ScmClock
from scm.state.database import StateChange, StateDatabase
from scm.state.facts import NodeHealthState
from scm.state.options import ScmOptions
from scm.state.starts import ReportedStart

COUNTS_PER_TICK: Final = 20  # portions of the totals, some 10 ms each

T = TypeVar("T")


def _no_pause(_took_s: float) -> None:
    """Continue at once."""


def _no_look() -> None:
    """Check no more than one portion before commands are sent."""


class ControlPlane:
    """A single node, not highly available: the state directory has one owner.

    Its calls are grouped by caller; those defined here are for its own loops.
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
        self._parts = ControlPlaneComponents(
            state, clock=clock, options=options, snapshots_path=snapshots_path, audit=audit
        )
        self.datanodes = DatanodeCalls(self._parts)
        self.clients = ClientCalls(self._parts)
        self.operators = OperatorCalls(self._parts)
        self.queries = Queries(self._parts)

    @property
    def term(self) -> int:
        """Number of starts of a control plane on this state."""
        return self._parts.state.term

    @property
    def shown(self) -> ReportedStart:
        """This start and its state number, as datanodes see them."""
        state = self._parts.state
        return ReportedStart(state.lineage.start_id, state.term, state.number)

    @property
    def cluster_id(self) -> str:
        """The cluster id, which is on every volume of its datanodes."""
        return self._parts.state.cluster_id

    @property
    def meters(self) -> ScmMetrics:
        """Metrics recorded during operation."""
        return self._parts.meters

    def tick(
        self,
        pause: Callable[[float], object] = _no_pause,
        look_on: Callable[[], object] = _no_look,
    ) -> None:
        """Do the periodic work; called about every heartbeat interval.

        It works in portions, so that other calls get the lock in between; after each, `pause`
        receives the seconds it took. Before commands are ordered, most urgent first, `look_on`
        checks as many due containers as time allows.
        """
        while self._portion(pause, self._note_node):
            pass
        looked_at = self._portion(pause, self._begin_tick)
        if looked_at is None:
            return
        look_on()
        self._portion(pause, self._choose)
        for serve in (self._parts.manager.serve, self._parts.healing.serve):
            while self._portion(pause, serve):
                pass
        with self._parts.change() as change:
            self._parts.deletions.tell_again(change, self._parts.manager.uneven)
            empty = dict.fromkeys([*looked_at, *self._parts.deletions.unfinished()])
            self._parts.observer.observe(change, self._parts.deletions.tidy(change, empty))
            self._parts.struck(change, self._parts.parting.turn(change))
            self._parts.balancer.turn(change)

    def note_history(self, pause: Callable[[float], object] = _no_pause) -> None:
        """Continue counting, and record a sample if one is due; called between ticks.

        After a start there are millions to count; after each portion `pause` receives the seconds
        it took.
        """
        for _ in range(COUNTS_PER_TICK):
            began_s = self._parts.clock.monotonic_s()
            with self._parts.lock:
                is_counted = self._parts.totals.turn()
            if is_counted:
                break
            pause(self._parts.clock.monotonic_s() - began_s)
        with self._parts.lock:
            is_due = self._parts.chronicle.is_due(self._parts.clock.monotonic_s())
        if not is_due:
            return
        look, judgement = self.queries.judgement()
        with self._parts.change() as change:
            self._parts.chronicle.note(
                change,
                look,
                judgement,
                done=self._parts.progress.sums(),
                now_s=self._parts.clock.monotonic_s(),
            )

    def _portion(self, pause: Callable[[float], object], step: Callable[[StateChange], T]) -> T:
        """Run one step of a tick; return its result."""
        began_s = self._parts.clock.monotonic_s()
        with self._parts.change() as change:
            found = step(change)
        pause(self._parts.clock.monotonic_s() - began_s)
        return found

    def _note_node(self, change: StateChange) -> bool:
        """Schedule the containers of a node whose health changed; return False if none did."""
        changed = self._parts.nodes.note_health(change, count_max=1)
        for datanode_id in changed:
            held = self._parts.state.replicas.ids_on(datanode_id)
            self._parts.last_copies.recount_all(change, held)
            self._parts.totals.recount(held)
            self._node_changed(datanode_id)
            is_dead = self._parts.nodes.health(datanode_id) is NodeHealthState.DEAD
            self._parts.manager.look_at_node(datanode_id, is_urgent=is_dead)
            self._parts.observer.observe(change, self._unsettled_on(datanode_id))
            if is_dead:
                self._parts.commands.node_died(change, datanode_id)
        return bool(changed)

    def _begin_tick(self, change: StateChange) -> list[int] | None:
        """Do the work that orders nothing; return the checked containers, or None in safe mode."""
        self._parts.commands.expire(change)
        self._parts.totals.turn()
        self._parts.reconciles.forget_old()
        self._parts.observer.observe(change, self._parts.writers.end_idle(change))
        self._parts.closes.close_due(change)
        if not self._parts.safe_mode.look(self._parts.reports.confirmed).is_open:
            return None
        for datanode_id in self._parts.departures.turn(change):
            self._node_changed(datanode_id)
            self._parts.manager.look_at_node(datanode_id)
        self._parts.closures.turn(change, self._parts.manager.short)
        self._parts.manager.begin_turn()
        return self._parts.manager.look_on()

    def _choose(self, _change: StateChange) -> None:
        """Select the containers to order for in this step."""
        self._parts.manager.choose()
        self._parts.healing.begin_turn()

    def look_on(self) -> bool:
        """Check more of the containers that a tick left; return True if some are still left.

        After a node died all its containers are due. They are checked in portions, so that other
        calls get the lock in between.
        """
        with self._parts.change() as change:
            if (
                not self._parts.manager.is_behind
                or not self._parts.safe_mode.look(self._parts.reports.confirmed).is_open
            ):
                return False
            looked_at = dict.fromkeys(self._parts.manager.look_on())
            self._parts.observer.observe(change, self._parts.deletions.tidy(change, looked_at))
            return self._parts.manager.is_behind

    def take_changed_nodes(self) -> list[str]:
        """Return the nodes that joined, left or changed since the last call.

        None while containers wait for commands, because their needs are known already. But not for
        longer than a round: a container that no node can take waits for ever.
        """
        parts = self._parts
        with parts.lock:
            first_s = min(parts.changed_nodes.values(), default=0.0)
            is_early = parts.clock.monotonic_s() - first_s < parts.options.check_interval_ms / 1000
            if is_early and (parts.manager.under or parts.removals.over):
                return []
            changed = sorted(parts.changed_nodes)
            parts.changed_nodes.clear()
            return [node for node in changed if parts.state.nodes.get(node) is not None]

    def nodes_changed(self, datanode_ids: Sequence[str]) -> None:
        """Put nodes back, because handling their change failed."""
        with self._parts.lock:
            for datanode_id in datanode_ids:
                self._node_changed(datanode_id)

    def _node_changed(self, datanode_id: str) -> None:
        self._parts.changed_nodes.setdefault(datanode_id, self._parts.clock.monotonic_s())

    def note_verified(self, decisions: Mapping[str, int], error: str) -> None:
        """Record the result of the last verification."""
        with self._parts.change() as change:
            verified = LastVerification(self._parts.clock.wall_ms(), dict(decisions), error)
            self._parts.chronicle.verified(change, verified)

    def _unsettled_on(self, datanode_id: str) -> list[int]:
        """Return the containers that may have waited for a node, or must wait for it again."""
        closing = self._parts.state.containers.closing
        waiting = closing.union(self._parts.state.transactions.container_ids())
        if not waiting:  # usual after a start: each node holds tens of thousands
            return []
        found = waiting.intersection(self._parts.state.replicas.on(datanode_id))
        for container_id in closing - found:
            container = self._parts.state.containers.get(container_id)
            if container is not None and datanode_id in container.pipeline:
                found.add(container_id)
        return sorted(found)
