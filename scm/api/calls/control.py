"""The control plane as one object, and its periodic work.

Datanodes, clients, operators and the timer (`tick`) call the control plane. A call that changes the
state acquires the lock (`scm.state.state_access`), calls a component, makes the change durable, and
returns the answer.

`scm.api.calls.components` creates the components. If a call needs several components, the modules
of this package define their order. The control plane never connects to a datanode: datanodes
receive their commands in the answers to heartbeats.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from scm.api.calls.client_calls import ClientCalls
from scm.api.calls.components import ControlPlaneComponents
from scm.api.calls.datanode_calls import DatanodeCalls
from scm.api.calls.queries import Queries
from scm.api.replication_report import LastVerification
from scm.state.clock import ScmClock
from scm.state.database import StateChange, StateDatabase
from scm.state.entities import NodeHealthState
from scm.state.options import ScmOptions
from scm.state.starts import ReportedStart
from scm.state.state_access import locked, state_change
from suture.wire.server.authorization import Audit

COUNTS_PER_TICK: Final = 20  # portions of the totals, some 10 ms each

T = TypeVar("T")


def _no_pause(_took_s: float) -> None:
    """Return at once. This is the default of the argument `pause`."""


def _no_look() -> None:
    """Return at once. This is the default of the argument `look_on`."""


class ControlPlane(ControlPlaneComponents):
    """The control plane, which runs as one process on one node and is not highly available.

    Callers use the components. The methods of this class are for the control plane's own worker
    threads.
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
        super().__init__(
            state, clock=clock, options=options, snapshots_path=snapshots_path, audit=audit
        )
        self.datanodes = DatanodeCalls(self)
        self.clients = ClientCalls(self)
        self.queries = Queries(self)

    @property
    def reported_start(self) -> ReportedStart:
        """Return the id and term of this start, and the state number, as datanodes receive them."""
        state = self.state
        return ReportedStart(state.lineage.start_id, state.term, state.number)

    def tick(
        self,
        pause: Callable[[float], object] = _no_pause,
        look_on: Callable[[], object] = _no_look,
    ) -> None:
        """Do the periodic work. The timer calls this method about once per heartbeat interval.

        The work runs in portions, so that other calls get the lock between them. After each
        portion, the method calls `pause` with the duration of the portion in seconds. Before it
        orders commands, it calls `look_on`, which checks as many due containers as time allows. The
        most urgent commands are ordered first.
        """
        while self._portion(pause, self._note_node):
            pass
        looked_at = self._portion(pause, self._begin_tick)
        if looked_at is None:
            return
        look_on()
        self._portion(pause, self._choose)
        for serve in (self.manager.order_next, self.healing.order_next):
            while self._portion(pause, serve):
                pass
        with self.access.change() as change:
            self.deletions.resend_deletes(change, self.manager.uneven)
            empty = dict.fromkeys([*looked_at, *self.deletions.unfinished()])
            self.observer.update_containers(
                change, self.deletions.delete_empty_containers(change, empty)
            )
            self.parting.advance(change)
            self.balancer.advance(change)

    def note_history(self, pause: Callable[[float], object] = _no_pause) -> None:
        """Recompute outdated container counts, and record a sample of the cluster if one is due.

        The method is called between ticks. After a start, it must count millions of containers, so
        the count runs in portions. After each portion, the method calls `pause` with the duration
        in seconds.
        """
        for _ in range(COUNTS_PER_TICK):
            began_s = self.clock.monotonic_s()
            with self.access.lock:
                is_counted = self.totals.recompute_some()
            if is_counted:
                break
            pause(self.clock.monotonic_s() - began_s)
        with self.access.lock:
            is_due = self.chronicle.is_due(self.clock.monotonic_s())
        if not is_due:
            return
        look, judgement = self.queries.judgement()
        with self.access.change() as change:
            self.chronicle.record_sample(
                change,
                look,
                judgement,
                done=self.progress.sums(),
                now_s=self.clock.monotonic_s(),
            )

    def _portion(self, pause: Callable[[float], object], step: Callable[[StateChange], T]) -> T:
        """Run one step of a tick as one change, and return the result of the step.

        Then call `pause` with the duration of the step in seconds.
        """
        began_s = self.clock.monotonic_s()
        with self.access.change() as change:
            found = step(change)
        pause(self.clock.monotonic_s() - began_s)
        return found

    def _note_node(self, change: StateChange) -> bool:
        """Process one datanode whose health changed. Return False if there was none.

        The containers of the datanode are scheduled for checks. If the datanode is dead, its
        commands end.
        """
        changed = self.nodes.note_health(change, count_max=1)
        for datanode_id in changed:
            held = self.state.replicas.ids_on(datanode_id)
            self.last_copies.recount_all(change, held)
            self.totals.recount(held)
            self._node_changed(datanode_id)
            is_dead = self.nodes.health(datanode_id) is NodeHealthState.DEAD
            self.manager.enqueue_node(datanode_id, is_urgent=is_dead)
            self.observer.update_containers(change, self._unsettled_on(datanode_id))
            if is_dead:
                self.commands.node_died(change, datanode_id)
        return bool(changed)

    def _begin_tick(self, change: StateChange) -> list[int] | None:
        """Do the part of a tick that orders no copies, and check some containers.

        Return the ids of the checked containers. Return None in safe mode.
        """
        self.commands.expire(change)
        self.totals.recompute_some()
        self.reconciles.forget_old()
        self.observer.update_containers(change, self.writers.end_idle(change))
        self.closes.close_due(change)
        if not self.safe_mode.reevaluate().is_open:
            return None
        for datanode_id in self.departures.advance(change):
            self._node_changed(datanode_id)
            self.manager.enqueue_node(datanode_id)
        self.closures.advance(change, self.manager.short)
        self.manager.begin_turn()
        return self.manager.check_next()

    def _choose(self, _change: StateChange) -> None:
        """Choose the containers for which this tick orders commands."""
        self.manager.choose()
        self.healing.begin_turn()

    @state_change
    def continue_round(self, change: StateChange) -> bool:
        """Check more containers that the last tick left unchecked.

        Return True if some are still unchecked. If a datanode dies, all its containers must be
        checked. The check runs in portions, so that other calls get the lock between them.
        """
        if not self.manager.is_behind or not self.safe_mode.reevaluate().is_open:
            return False
        looked_at = dict.fromkeys(self.manager.check_next())
        self.observer.update_containers(
            change, self.deletions.delete_empty_containers(change, looked_at)
        )
        return self.manager.is_behind

    @locked
    def pop_changed_nodes(self) -> list[str]:
        """Return the datanodes that joined, left or changed since the last call.

        The caller runs a Spark verification for them. The list is empty while containers wait for
        copies or deletes, so that the verification starts after this work. This delay lasts at most
        one check interval, because some containers may wait forever.
        """
        first_s = min(self.changed_nodes.values(), default=0.0)
        is_early = self.clock.monotonic_s() - first_s < self.options.check_interval_ms / 1000
        if is_early and (self.manager.under or self.removals.over):
            return []
        changed = sorted(self.changed_nodes)
        self.changed_nodes.clear()
        return [node for node in changed if self.state.nodes.get(node) is not None]

    @locked
    def nodes_changed(self, datanode_ids: Sequence[str]) -> None:
        """Record datanodes as changed again, because the Spark verification for them failed."""
        for datanode_id in datanode_ids:
            self._node_changed(datanode_id)

    def _node_changed(self, datanode_id: str) -> None:
        self.changed_nodes.setdefault(datanode_id, self.clock.monotonic_s())

    @state_change
    def note_verified(self, change: StateChange, decisions: Mapping[str, int], error: str) -> None:
        """Record the result of a Spark verification.

        `decisions` has the number of plan rows by the code of the decision. `error` is empty on
        success.
        """
        verified = LastVerification(self.clock.wall_ms(), dict(decisions), error)
        self.chronicle.verified(change, verified)

    def _unsettled_on(self, datanode_id: str) -> list[int]:
        """Return the containers that must be updated when the health of this datanode changes.

        These containers are closing or have pending block deletes, and the datanode has a replica
        of them or is in their pipeline.
        """
        closing = self.state.containers.closing
        waiting = closing.union(self.state.transactions.container_ids())
        if not waiting:  # usual after a start, when each node has tens of thousands of replicas
            return []
        found = waiting.intersection(self.state.replicas.on(datanode_id))
        for container_id in closing - found:
            container = self.state.containers.get(container_id)
            if container is not None and datanode_id in container.pipeline:
                found.add(container_id)
        return sorted(found)
