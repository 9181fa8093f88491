"""The control plane as one object: every call is one locked, atomic, durable change.

    call ──lock──► decide (nodes, reports, writers, lifecycle, orders) ──► commit ──► answer

The modules named decide; this one says in which order. It sends nothing: datanodes fetch commands.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from agent.errors import Code, Refused, Unavailable
from scm.cluster.dispatch import HARMLESS, OF_THE_NODE
from scm.cluster.nodes import Registration
from scm.cluster.replicas import Report
from scm.edge.calls import Endpoint, Heartbeat, HeartbeatAnswer, Located, PromisedBlock
from scm.edge.operators import Operators
from scm.edge.overview.progress import is_news
from scm.edge.overview.verdict import judged
from scm.edge.report import Verified
from scm.edge.views import key_containers
from scm.state.database import Change
from scm.state.facts import Health, Key, Kind, Outcome, Pending

REPORTED_AT_ONCE: Final = 5_000  # replicas, while the lock is held: some 0.03 s if all are new
COUNTS_PER_TICK: Final = 20  # portions of the totals, some 10 ms each

T = TypeVar("T")


def _no_pause(_took_s: float) -> None:
    """Go on at once."""


def _no_look() -> None:
    """Look at no more than one portion before orders are made."""


class ControlPlane(Operators):
    """Single node, not highly available: the state directory has one owner."""

    def register(self, registration: Registration) -> None:
        """Let a datanode in. Raises Refused(WRONG_CLUSTER)."""
        with self._change() as change:
            is_new_process = self._nodes.register(change, registration)
            self._reports.forget(registration.datanode_id)
            self._deletions.registered(registration.datanode_id)
            self._state.stir(self._state.replicas.ids_on(registration.datanode_id))  # a new rack?
            if is_new_process:
                self._commands.node_restarted(change, registration.datanode_id)
            node = self._state.nodes.get(registration.datanode_id)
            if node is not None and not self._nodes.takes_commands(node.datanode_id):
                why = "read-only" if node.is_read_only else "not managed"
                self._end_writes_on(change, [node.datanode_id], f"one of its nodes is {why}")

    def heartbeat(
        self, call: Heartbeat, is_awaited: Callable[[], bool] = lambda: True
    ) -> HeartbeatAnswer:
        """Take in what a datanode reports and hand out its commands.

        A call of a process that did not register last is not believed at all. One whose caller
        has given up waiting (`is_awaited`) changes nothing: the next call may have been taken in
        before it, and it would put an older world over a newer one. Raises Unavailable then.
        """
        parts = [part for report in call.reports for part in report.parts(REPORTED_AT_ONCE)]
        outcomes = call.outcomes
        while len(parts) > 1 and sum(len(part.replicas) for part in parts) > REPORTED_AT_ONCE:
            with self._change() as change:
                if not self._is_heard(call, is_awaited):
                    return HeartbeatAnswer(is_known=False)
                self._take_in(change, call, outcomes, [parts.pop(0)])
            outcomes = ()
        with self._change() as change:
            if not self._is_heard(call, is_awaited):
                return HeartbeatAnswer(is_known=False)
            is_open = self._take_in(change, call, outcomes, parts)
            if is_open:
                self._deletions.offer(change, call.datanode_id)
            if call.datanode_id in self._reports.cut_off:
                self._commands.ask_for_all(change, call.datanode_id)
            self._anchoring.note(change, call.datanode_id, call.volumes)
            self._departures.hear(change, call.datanode_id, call.op_state, call.op_expiry_ms)
            kinds = frozenset(Kind) if is_open else HARMLESS
            if not self._nodes.takes_commands(call.datanode_id):
                kinds = OF_THE_NODE
            sending = self._commands.drain(
                change, call.datanode_id, self._last_look.objections, kinds
            )
            return HeartbeatAnswer(
                is_known=True,
                commands=tuple(
                    (c, self._named_by(c))
                    for c in [self._addressed(change, one) for one in sending]
                ),
                last_copies=self._last_copies.on(call.datanode_id),
                task_percent=self._commands.boost_percent,
            )

    def _is_heard(self, call: Heartbeat, is_awaited: Callable[[], bool]) -> bool:
        """Hear a datanode; False: it is not known as the process that calls."""
        if not is_awaited():
            raise Unavailable(Code.CANCELLED, f"{call.datanode_id} has given up waiting")
        if not self._nodes.is_current(call.datanode_id, call.boot_id):
            return False
        self._nodes.hear(call.datanode_id, call.volumes, call.queues)
        return True

    def _take_in(
        self,
        change: Change,
        call: Heartbeat,
        outcomes: Iterable[Outcome],
        reports: Iterable[Report],
    ) -> bool:
        """Take in some of what a datanode tells; return whether decisions are made yet."""
        changed: set[int] = set()
        for outcome in outcomes:
            self._deletions.acknowledge(change, outcome)
            if is_news(self._state.commands.get(outcome.command_id), outcome):
                self._progress.note(outcome, self._clock.monotonic_s())
            container = self._outcomes.take_in(change, outcome)
            if container is not None:
                changed.add(container.container_id)
        for report in reports:
            changed |= self._reports.apply(change, call.datanode_id, report)
        self._observer.observe_all(change, changed)
        self._last_copies.recount(change, changed)
        is_open = self._safe_mode.look(self._reports.confirmed).is_open
        if is_open and changed:
            self._observer.observe(change, self._deletions.tidy(change, changed))
        return is_open

    def tick(
        self,
        pause: Callable[[float], object] = _no_pause,
        look_on: Callable[[], object] = _no_look,
    ) -> None:
        """Do what time alone makes necessary; called about every heartbeat interval.

        In portions, so that others have the lock in between: after each `pause` is told the
        seconds it took. Before orders are made, of which the most urgent come first, `look_on`
        is to look at as much of what is due as there is time for (`look_on`).
        """
        while self._portion(pause, self._note_node):
            pass
        looked_at = self._portion(pause, self._begin_tick)
        if looked_at is None:
            return
        look_on()
        self._portion(pause, self._choose)
        for serve in (self._manager.serve, self._healing.serve):
            while self._portion(pause, serve):
                pass
        with self._change() as change:
            empty = dict.fromkeys([*looked_at, *self._deletions.unfinished()])
            self._observer.observe(change, self._deletions.tidy(change, empty))
            self._struck(change, self._parting.turn(change))
            self._balancer.turn(change)

    def note_history(self, pause: Callable[[float], object] = _no_pause) -> None:
        """Count on, and write down how the cluster is if it is time; called between ticks.

        After a start there are millions to count; after each portion `pause` is told the seconds
        it took.
        """
        for _ in range(COUNTS_PER_TICK):
            began_s = self._clock.monotonic_s()
            with self._lock:
                is_counted = self._totals.turn()
            if is_counted:
                break
            pause(self._clock.monotonic_s() - began_s)
        with self._lock:
            is_due = self._chronicle.is_due(self._clock.monotonic_s())
        if not is_due:
            return
        look, _nodes = self.look()
        with self._change() as change:
            self._chronicle.note(
                change,
                look,
                judged(look),
                done=self._progress.sums(),
                now_s=self._clock.monotonic_s(),
            )

    def _portion(self, pause: Callable[[float], object], step: Callable[[Change], T]) -> T:
        """Take a step of a tick; return what it returns."""
        began_s = self._clock.monotonic_s()
        with self._change() as change:
            found = step(change)
        pause(self._clock.monotonic_s() - began_s)
        return found

    def _note_node(self, change: Change) -> bool:
        """Have all looked at that a node holds which came, fell silent or died; False: none did."""
        changed = self._nodes.note_health(change, count_max=1)
        for datanode_id in changed:
            self._last_copies.recount(change, self._state.replicas.on(datanode_id))
            self._changed_nodes.add(datanode_id)
            self._manager.look_at_node(datanode_id)
            self._observer.observe(change, self._unsettled_on(datanode_id))
            if self._nodes.health(datanode_id) is Health.DEAD:
                self._manager.look_at(self._commands.node_died(change, datanode_id))
        return bool(changed)

    def _begin_tick(self, change: Change) -> list[int] | None:
        """Do what makes no orders; return what was looked at, None in safe mode."""
        self._manager.look_at(self._commands.expire(change))
        self._totals.turn()
        self._reconciles.forget_old()
        self._observer.observe(change, self._writers.end_idle(change))
        self._closes.close_due(change)
        if not self._safe_mode.look(self._reports.confirmed).is_open:
            return None
        for datanode_id in self._departures.turn(change):
            self._changed_nodes.add(datanode_id)
            self._manager.look_at_node(datanode_id)
        self._closures.turn(change)
        self._manager.begin_turn()
        return self._manager.look_on()

    def _choose(self, _change: Change) -> None:
        """Choose for what is ordered in this turn."""
        self._manager.choose()
        self._healing.begin_turn()

    def look_on(self) -> bool:
        """Look at more of what a tick left; whether anything is left still.

        After a node died all its containers are due: in portions, so that others have the lock
        in between.
        """
        with self._change() as change:
            if (
                not self._manager.is_behind
                or not self._safe_mode.look(self._reports.confirmed).is_open
            ):
                return False
            looked_at = dict.fromkeys(self._manager.look_on())
            self._observer.observe(change, self._deletions.tidy(change, looked_at))
            return self._manager.is_behind

    def confirm_deletes(
        self, container_id: int, local_ids: Sequence[int]
    ) -> tuple[frozenset[int], frozenset[int]]:
        """Return which of these blocks were ordered deleted, now or ever, and which a key names.

        What would take long is done without the lock, over values that do not change.
        """
        asked = frozenset(local_ids)
        with self._lock:
            ordered = self._deletions.being_deleted(container_id)
            has_keys = self._state.keys.blocks_in(container_id) > 0
            keys = self._state.keys.values() if has_keys else []
        for deleted in self._state.deleted_in(container_id):
            ordered |= asked.intersection(deleted.local_ids)
        named = frozenset(
            block.local_id
            for key in keys
            for block in key.blocks
            if block.container_id == container_id and block.local_id in asked
        )
        return ordered & asked, named

    # Clients.

    def allocate(
        self, client_id: str, sizes: Sequence[int], names: Sequence[str] = (), *, scheme: str = ""
    ) -> list[PromisedBlock]:
        """Promise a writer one block per size, in order; `names` are the new keys they are for.

        `scheme` is the erasure code of the containers; their replicas come in the order of index.
        """
        with self._change() as change:
            self._refuse_in_safe_mode("no block is allocated")
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
            if keys:  # what a writer had to leave behind may be told at any time
                self._refuse_in_safe_mode("no key is written")
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

    def lookup(self, name: str) -> tuple[Key, list[Located]]:
        """Return a key, and where its containers are.

        Raises Refused(KEY_NOT_FOUND), or Refused(KEY_LOST) if a container of it was given up.
        """
        with self._lock:
            key = self._state.keys.get(name)
            if key is None:
                raise Refused(Code.KEY_NOT_FOUND, f"no key {name}")
            lost = self._state.forgotten.lost_of(key)
            if lost:
                named = ", ".join(map(str, lost))
                raise Refused(
                    Code.KEY_LOST,
                    f"key {name} is lost: its data was in container {named}, which was given up",
                    hint="store it again with --replace, or remove the key",
                )
            return key, [self._located(container_id) for container_id in key_containers(key)]

    def _located(self, container_id: int) -> Located:
        container = self._state.containers.get(container_id)
        datanode_ids, equal_count = self._views.locations(container_id)
        return Located(
            container_id,
            self._endpoints(datanode_ids),
            "" if container is None else container.scheme,
            equal_count,
        )

    def list_keys(
        self, *, prefix: str, start_after: str, count: int, container_ids: Collection[int] = ()
    ) -> tuple[list[Key], str]:
        """Return a page of keys and the name to go on after (empty: no more).

        With `container_ids` only those of the page that have a block in one of these.
        """
        with self._lock:
            keys = self._state.keys.page(prefix=prefix, start_after=start_after, count=count + 1)
        next_start_after = keys[count - 1].name if len(keys) > count else ""
        wanted = frozenset(container_ids)
        return [
            key
            for key in keys[:count]
            if not wanted or any(block.container_id in wanted for block in key.blocks)
        ], next_start_after

    def lost_of(self, key: Key) -> list[int]:
        """Return the containers of a key that were given up; none: it is not lost."""
        with self._lock:
            return self._state.forgotten.lost_of(key)

    # The loop with Spark.

    def take_changed_nodes(self) -> list[str]:
        """Return the nodes that came, went or changed since the last call.

        None while containers wait for commands: what they need is known already.
        """
        with self._lock:
            if self._manager.under or self._removals.over:
                return []
            changed, self._changed_nodes = sorted(self._changed_nodes), set()
            return [node for node in changed if self._state.nodes.get(node) is not None]

    def note_verified(self, decisions: Mapping[str, int], error: str) -> None:
        """Remember what the last verification came to."""
        with self._change() as change:
            self._verified = Verified(self._clock.wall_ms(), dict(decisions), error)
            self._chronicle.verified(change, self._verified)

    # Shared steps; the lock is held.

    def _addressed(self, change: Change, command: Pending) -> Pending:
        """Return a command with what it says only when it is sent; who is read is remembered."""
        addressed = self._reconciles.addressed(self._coding.addressed(command))
        if addressed.sources:
            change.touch(self._state.commands, addressed)
        return addressed

    def _refuse_in_safe_mode(self, what: str) -> None:
        gate = self._safe_mode.look(self._reports.confirmed)
        if not gate.is_open:
            raise Unavailable(
                Code.SAFE_MODE,
                f"in safe mode {what}: {gate.reason}",
                hint="wait until it ends; suture scm safemode shows whom it waits for",
            )

    def _unsettled_on(self, datanode_id: str) -> list[int]:
        """Return the containers that may have waited for a node, or must wait for it again."""
        closing = self._state.containers.closing
        waiting = closing.union(self._state.transactions.container_ids())
        found = waiting.intersection(self._state.replicas.on(datanode_id))
        for container_id in closing - found:
            container = self._state.containers.get(container_id)
            if container is not None and datanode_id in container.pipeline:
                found.add(container_id)
        return sorted(found)

    def _named_by(self, command: Pending) -> tuple[Endpoint, ...]:
        """Return the datanodes a command names, with their addresses of now."""
        return self._endpoints(self._last_look.named_by(command))

    def _endpoints(self, datanode_ids: Iterable[str]) -> tuple[Endpoint, ...]:
        return tuple(Endpoint(node, self._views.address(node)) for node in datanode_ids)
