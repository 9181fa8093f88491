"""The control plane as one object: every call is one locked, atomic, durable change.

    call ──lock──► decide (nodes, reports, writers, lifecycle, orders) ──► commit ──► answer

The modules named decide; this one says in which order. It sends nothing: datanodes fetch commands.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from agent.errors import Code, Refused, Unavailable
from agent.rpc.access import Audit, Unrecorded
from scm import snapshot, trail
from scm.admin import Admin, NodeDecision
from scm.balancing import Balance, Balancer
from scm.calls import Endpoint, Heartbeat, HeartbeatAnswer, PromisedBlock, Queues
from scm.cases import Cases
from scm.clock import Clock
from scm.coding import Coding
from scm.commands import Commands
from scm.deletions import Deletions, KeyDeletion
from scm.departures import Departure, Departures, Request
from scm.facts import Health, Hold, Key, Kind, OpState, Outcome, Pending
from scm.holding import Holding
from scm.intake import Decision, PlanRow
from scm.last_copies import LastCopies
from scm.nodes import Nodes, Registration
from scm.observer import Observer
from scm.options import ScmOptions
from scm.orders import Orders
from scm.plans import Plans
from scm.previews import Previews
from scm.reconciles import Reconciles
from scm.replicas import Reports
from scm.report import RmReport, Verified, rm_report
from scm.safemode import Gate, SafeMode
from scm.state import Change, State
from scm.upkeep import Upkeep
from scm.views import ContainerView, NodeView, Views, key_containers
from scm.writers import Writers


class ControlPlane:
    """Single node, not highly available: the state directory has one owner."""

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
        self._lock = threading.Lock()
        self._export_lock = threading.Lock()
        self._nodes = Nodes(state, clock, options)
        self._reports = Reports(state)
        cases = Cases(state, self._nodes, self._reports, clock, options)
        self._commands = Commands(state, self._nodes, clock, options)
        self._deletions = Deletions(state, self._commands, clock)
        self._writers = Writers(state, self._nodes, cases, self._deletions, clock, options)
        self._reconciles = Reconciles(state, self._nodes, self._commands, clock, options)
        self._coding = Coding(state, self._nodes, self._commands, cases, clock, options)
        self._upkeep = Upkeep(
            state, self._nodes, self._commands, self._coding, cases, clock, options
        )
        self._orders = Orders(
            state,
            self._nodes,
            self._commands,
            self._reconciles,
            self._coding,
            cases,
            clock,
            options,
        )
        self._changed_nodes: set[str] = set()
        self._verified = Verified()
        self._safe_mode = SafeMode(state, clock, options)
        self._departures = Departures(state, self._nodes, self._commands, cases, clock, options)
        self._admin = Admin(
            state, self._nodes, self._commands, cases, self._upkeep, self._safe_mode
        )
        self._plans = Plans(
            state, self._nodes, self._reconciles, self._admin, cases, self._safe_mode, clock
        )
        self._previews = Previews(state, cases, self._commands, self._reconciles, clock)
        self._observer = Observer(
            state,
            self._commands,
            self._deletions,
            self._orders,
            self._upkeep,
            self._writers,
            self._plans,
            self._previews,
            clock,
        )
        self._holding = Holding(state, self._upkeep, clock)
        self._balancer = Balancer(
            state, self._commands, cases, self._upkeep, self._safe_mode, clock, options
        )
        self._views = Views(state, self._nodes, self._reports)
        self._last_copies = LastCopies(state, self._nodes)

    @property
    def term(self) -> int:
        """How often this control plane has started."""
        return self._state.term

    @property
    def cluster_id(self) -> str:
        """The id every datanode of this cluster carries on its volumes."""
        return self._state.cluster_id

    def register(self, registration: Registration) -> None:
        """Let a datanode in. Raises Refused(WRONG_CLUSTER)."""
        with self._change() as change:
            is_new_process = self._nodes.register(change, registration)
            self._reports.forget(registration.datanode_id)
            if is_new_process:
                self._commands.node_restarted(change, registration.datanode_id)

    def heartbeat(
        self, call: Heartbeat, is_awaited: Callable[[], bool] = lambda: True
    ) -> HeartbeatAnswer:
        """Take in what a datanode reports and hand out its commands.

        A call of a process that did not register last is not believed at all. One whose caller
        has given up waiting (`is_awaited`) changes nothing: the next call may have been taken in
        before it, and it would put an older world over a newer one. Raises Unavailable then.
        """
        with self._change() as change:
            if not is_awaited():
                raise Unavailable(Code.CANCELLED, f"{call.datanode_id} has given up waiting")
            if not self._nodes.is_current(call.datanode_id, call.boot_id):
                return HeartbeatAnswer(is_known=False)
            self._nodes.hear(call.datanode_id, call.volumes, call.queues)
            changed: set[int] = set()
            for outcome in call.outcomes:
                self._deletions.acknowledge(change, outcome)
                container = self._orders.settle(change, outcome)
                if container is not None:
                    changed.add(container.container_id)
            for report in call.reports:
                changed |= self._reports.apply(change, call.datanode_id, report)
            self._observer.observe(change, changed)
            self._last_copies.recount(change, changed)
            if self._safe_mode.look(self._reports.confirmed).is_open:
                self._observer.observe(change, self._deletions.tidy(change, changed))
            self._deletions.offer(change, call.datanode_id)
            self._departures.hear(change, call.datanode_id, call.op_state, call.op_expiry_ms)
            sending = self._commands.drain(change, call.datanode_id, self._orders.objection)
            return HeartbeatAnswer(
                is_known=True,
                commands=tuple(
                    (c, self._named_by(c)) for c in map(self._coding.addressed, sending)
                ),
                last_copies=self._last_copies.on(call.datanode_id),
            )

    def tick(self) -> None:
        """Do what time alone makes necessary; called about every heartbeat interval."""
        with self._change() as change:
            for datanode_id in self._nodes.note_health(change):
                self._last_copies.recount(change, self._state.replicas.on(datanode_id))
                self._changed_nodes.add(datanode_id)
                self._upkeep.look_at_node(datanode_id)
                if self._nodes.health(datanode_id) is Health.DEAD:
                    self._upkeep.look_at(self._commands.node_died(change, datanode_id))
            self._upkeep.look_at(self._commands.expire(change))
            self._reconciles.forget_old()
            self._observer.observe(change, self._writers.end_idle(change))
            for container_id in self._state.containers.closing | self._state.replicas.unsettled:
                container = self._state.containers.get(container_id)
                if container is not None:
                    self._orders.close(change, container)
            if self._safe_mode.look(self._reports.confirmed).is_open:
                for datanode_id in self._departures.turn(change):
                    self._changed_nodes.add(datanode_id)
                    self._upkeep.look_at_node(datanode_id)
                looked_at = self._upkeep.turn(change)
                self._observer.observe(change, self._deletions.tidy(change, looked_at))
                self._balancer.turn(change)

    # Clients.

    def allocate(
        self, client_id: str, sizes: Sequence[int], names: Sequence[str] = (), *, scheme: str = ""
    ) -> list[PromisedBlock]:
        """Promise a writer one block per size, in order; `names` are the new keys they are for.

        `scheme` is the erasure code of the containers; their replicas come in the order of index.
        """
        with self._change() as change:
            containers_before = {c.container_id for c in self._state.containers.open_of(client_id)}
            promises = self._writers.allocate(change, client_id, sizes, names, scheme=scheme)
            self._observer.observe(change, containers_before)  # a full one may be closing now
            return [
                PromisedBlock(
                    promise.allocation.container_id,
                    promise.allocation.local_id,
                    promise.allocation.bcsid,
                    self._endpoints(promise.datanode_ids),
                )
                for promise in promises
            ]

    def commit(
        self,
        client_id: str,
        keys: Sequence[Key],
        *,
        may_replace: bool,
        failed: Sequence[tuple[int, str]],
    ) -> None:
        """Record keys; all or none."""
        now_ms = self._clock.wall_ms()
        stamped = [
            key if key.created_at_ms else Key(key.name, key.size_bytes, now_ms, key.blocks)
            for key in keys
        ]
        with self._change() as change:
            closing = self._writers.commit(
                change, client_id, stamped, may_replace=may_replace, failed=failed
            )
            self._observer.observe(change, closing)

    def finish(self, client_id: str, *, close: bool) -> list[int]:
        """End a writer's session; return the ids of its open containers."""
        with self._change() as change:
            container_ids = self._writers.finish(change, client_id, close=close)
            self._observer.observe(change, container_ids)
            return container_ids

    def lookup(self, name: str) -> tuple[Key, list[tuple[int, tuple[Endpoint, ...], str]]]:
        """Return a key, where its containers are, and their erasure codes.

        Raises Refused(KEY_NOT_FOUND).
        """
        with self._lock:
            key = self._state.keys.get(name)
            if key is None:
                raise Refused(Code.KEY_NOT_FOUND, f"no key {name}")
            return key, [
                (
                    container_id,
                    self._endpoints(self._views.locations(container_id)),
                    container.scheme if container is not None else "",
                )
                for container_id in key_containers(key)
                for container in [self._state.containers.get(container_id)]
            ]

    def list_keys(self, *, prefix: str, start_after: str, count: int) -> tuple[list[Key], str]:
        """Return a page of keys and the name to go on after (empty: no more)."""
        with self._lock:
            keys = self._state.keys.page(prefix=prefix, start_after=start_after, count=count + 1)
        if len(keys) <= count:
            return keys, ""
        return keys[:count], keys[count - 1].name

    # Operators.

    def nodes(self) -> list[NodeView]:
        """Return all nodes by id."""
        with self._lock:
            return self._views.nodes()

    def containers(self, start: int, count: int) -> tuple[list[ContainerView], int]:
        """Return a page of containers and the id to go on from (0: no more)."""
        with self._lock:
            return self._views.containers(start, count)

    def container(self, container_id: int) -> ContainerView:
        """Return one container. Raises Refused(CONTAINER_NOT_FOUND)."""
        with self._lock:
            view = self._views.container(container_id)
        if view is None:
            raise Refused(
                Code.CONTAINER_NOT_FOUND,
                f"no container {container_id}",
                container_id=container_id,
            )
        return view

    def close_containers(
        self, container_ids: Sequence[int], *, worlds: Sequence[int] = (), dry_run: bool = False
    ) -> list[Decision]:
        """Close containers now, whatever their writers have in mind; `worlds` as below."""
        with self._change() as change:
            do = self._previews.close if dry_run else partial(self._observer.close, change)
            return self._previews.each(container_ids, worlds, do)

    def reconcile_containers(
        self, container_ids: Sequence[int], *, worlds: Sequence[int] = (), dry_run: bool = False
    ) -> list[Decision]:
        """Order containers reconciled, as far as they are eligible; `worlds` as below."""
        with self._change() as change:
            do = self._previews.reconcile if dry_run else partial(self._reconciles.order, change)
            return self._previews.each(container_ids, worlds, do)

    def apply_plan(self, rows: Sequence[PlanRow], *, dry_run: bool) -> list[Decision]:
        """Order what a plan asks for, row by row, if the world is still as the plan saw it."""
        with self._change() as change:
            return [
                self._observer.close_planned(change, row, dry_run=dry_run)
                if row.action == Kind.CLOSE
                else self._plans.apply(change, row, dry_run=dry_run)
                for row in rows
            ]

    def replicate_containers(
        self, container_ids: Sequence[int], *, target_id: str, worlds: Sequence[int], dry_run: bool
    ) -> list[Decision]:
        """Copy containers once more each; the containers' `worlds` are those of a dry run."""
        with self._change() as change:
            return self._admin.replicate(
                change, container_ids, target_id=target_id, worlds=worlds, dry_run=dry_run
            )

    def delete_replicas(
        self,
        container_ids: Sequence[int],
        *,
        datanode_id: str,
        worlds: Sequence[int],
        dry_run: bool,
    ) -> list[Decision]:
        """Remove one datanode's replicas of containers."""
        with self._change() as change:
            return self._admin.delete(
                change, container_ids, datanode_id=datanode_id, worlds=worlds, dry_run=dry_run
            )

    def order_nodes(self, datanode_ids: Sequence[str], kind: Kind) -> list[NodeDecision]:
        """Order datanodes to measure their volumes, or to register again."""
        with self._change() as change:
            return self._admin.order_nodes(change, datanode_ids, kind)

    def set_operational_states(self, request: Request) -> list[NodeDecision]:
        """Let nodes leave, rest or return; what is being written on those that go is closed."""
        with self._change() as change:
            decisions = self._departures.request(change, request)
            is_done = not request.is_dry_run and all(d.code == "OK" for d in decisions)
            if is_done and request.op_state is not OpState.IN_SERVICE:
                opened = self._departures.open_containers_on(request.datanode_ids)
                for container in opened:
                    self._writers.end(change, container, "one of its nodes is to leave")
                self._observer.observe(change, [container.container_id for container in opened])
            for datanode_id in request.datanode_ids if is_done else ():
                self._upkeep.look_at_node(datanode_id)
            return decisions

    def departures(self) -> list[Departure]:
        """Return the nodes that are not in service, and what they wait for."""
        with self._lock:
            return self._departures.departures()

    def hold(
        self, container_ids: Sequence[int], datanode_id: str, *, release: bool
    ) -> list[Decision]:
        """Suppress containers or exclude replicas; or release them."""
        with self._change() as change:
            do = self._holding.release if release else self._holding.hold
            return do(change, container_ids, datanode_id)

    def holds(self) -> list[Hold]:
        """Return what is suppressed or excluded."""
        with self._lock:
            return sorted(
                self._state.holds.values(), key=lambda hold: (hold.container_id, hold.datanode_id)
            )

    def balance(self, threshold_percent: float, iteration_count: int, *, dry_run: bool) -> Balance:
        """Begin to move replicas from full nodes to empty ones. Raises Refused."""
        with self._lock:
            return self._balancer.start(threshold_percent, iteration_count, dry_run=dry_run)

    def balance_status(self, *, stop: bool = False) -> Balance:
        """Return how far the balancer is; `stop` ends it."""
        with self._lock:
            return self._balancer.stop() if stop else self._balancer.status()

    def take_changed_nodes(self) -> list[str]:
        """Return the nodes that came, went or changed since the last call.

        None while containers wait for commands: what they need is known already (W62).
        """
        with self._lock:
            if self._upkeep.under or self._upkeep.over:
                return []
            changed, self._changed_nodes = sorted(self._changed_nodes), set()
            return changed

    def note_verified(self, decisions: Mapping[str, int], error: str) -> None:
        """Remember what the last verification came to."""
        with self._lock:
            self._verified = Verified(self._clock.wall_ms(), dict(decisions), error)

    def report(self) -> RmReport:
        """Return the replication manager's report of its last round."""
        with self._lock:
            return rm_report(self._state.containers.values(), self._upkeep, self._verified)

    def queues(self) -> Queues:
        """Return what waits where."""
        with self._lock:
            return Queues(
                self._admin.queues(),
                self._state.commands.add_count,
                self._upkeep.in_flight_limit(),
                len(self._upkeep.under),
                len(self._upkeep.over),
                len(self._state.transactions),
            )

    def safe_mode(self) -> Gate:
        """Say whether decisions are made yet, and whom they wait for."""
        with self._lock:
            return self._safe_mode.look(self._reports.confirmed)

    def leave_safe_mode(self) -> Gate:
        """Begin to decide at once."""
        with self._lock:
            return self._safe_mode.leave()

    def delete_keys(self, names: Sequence[str], *, dry_run: bool) -> list[KeyDeletion]:
        """Delete keys and, as datanodes get to it, their blocks."""
        with self._change() as change:
            return self._deletions.delete_keys(change, names, dry_run=dry_run)

    def outcomes(self, command_ids: Sequence[int], count: int) -> tuple[list[Outcome], list[int]]:
        """Return outcomes (of these commands, or the newest) and what is still pending."""
        with self._lock:
            wanted = list(command_ids) or self._state.outcomes.newest(count)
            found = [self._state.outcome(i) for i in wanted if i in self._state.outcomes]
            asked = set(command_ids)
            pending = sorted(
                command.command_id
                for command in self._state.commands.values()
                if not command.is_answered and (not asked or command.command_id in asked)
            )
        return [outcome for outcome in found if outcome is not None], pending

    def export_snapshot(self) -> snapshot.Exported:
        """Write what is known now as Parquet; the lock is held only to take it, not to write.

        Raises Unavailable(BUSY) while another export runs.
        """
        if not self._export_lock.acquire(blocking=False):
            raise Unavailable(Code.BUSY, "another snapshot is being exported")
        try:
            with self._lock:
                world = snapshot.World(
                    as_of_ms=self._clock.wall_ms(),
                    term=self._state.term,
                    cluster_id=self._state.cluster_id,
                    nodes=self._views.nodes(),
                    containers=self._state.containers.values(),
                    replicas=self._state.replicas.values(),
                    pending=self._state.commands.values(),
                    suppressed=frozenset(
                        h.container_id for h in self._state.holds.values() if not h.datanode_id
                    ),
                )
            return snapshot.export(
                world, self._snapshots_path, keep_count=self._options.snapshot_keep_count
            )
        finally:
            self._export_lock.release()

    # Shared steps; the lock is held.

    @contextmanager
    def _change(self) -> Iterator[Change]:
        with self._lock, self._state.change() as change:
            yield change
        trail.write(self._audit, change.notes)

    def _named_by(self, command: Pending) -> tuple[Endpoint, ...]:
        """Return the datanodes a command names, with their addresses of now."""
        return self._endpoints(self._orders.named_by(command))

    def _endpoints(self, datanode_ids: Iterable[str]) -> tuple[Endpoint, ...]:
        return tuple(Endpoint(node, self._views.address(node)) for node in datanode_ids)
