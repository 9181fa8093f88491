"""What operators ask of the control plane, and the answers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from agent.errors import Code, Refused, Unavailable
from scm.administration.admin import NodeDecision
from scm.administration.decommission import LEAVING, RESTING, Departure, Request
from scm.administration.foresight import Foreseen, Foresight, Question
from scm.administration.forgetting import Fate
from scm.administration.needs import Page, keys_in
from scm.administration.recovery import ToRecover
from scm.cluster.safemode import Gate
from scm.containers.block_deletion import KeyDeletion
from scm.edge import snapshot
from scm.edge.calls import Queues, Recovered, RecoveryCall
from scm.edge.metrics import Figures
from scm.edge.overview.fleet import Sums, summed
from scm.edge.overview.survey import Named, Survey, Work
from scm.edge.overview.verdict import Look
from scm.edge.parts import Parts
from scm.edge.report import RmReport, rm_report
from scm.edge.totals import NAMED, Counts
from scm.edge.views import ContainerView, NodeView
from scm.replication.balancing.balancer import Balance
from scm.replication.judging.batches import op_rows
from scm.replication.judging.health_states import NOT_KNOWN
from scm.replication.reconciling.intake import Decision, PlanRow
from scm.state.facts import Hold, Kind, OpState, Outcome
from scm.state.history.anchors import Anchored


class _DryRun(Exception):
    """Ends a change that was only to be looked at: all of it is undone."""

    def __init__(self, made: Recovered) -> None:
        super().__init__()
        self.made = made


def _end_if(is_dry_run: bool, made: Recovered) -> None:
    if is_dry_run:
        raise _DryRun(made)


NODES_AT_ONCE: Final = 1_000  # looked at while the lock is held, some 5 ms
COUNTS_PER_LOOK: Final = 25  # turns of the totals: what changed since the last tick, not a start
DEPARTURES_SHOWN_MAX: Final = 20
CONTAINERS_NAMED_MAX: Final = 12  # of each trouble


class Operators(Parts):
    """Every call is one locked, atomic, durable change, or one look."""

    def nodes(self) -> list[NodeView]:
        """Return all nodes by id; in portions."""
        return self._nodes_in_portions()

    def now_ms(self) -> int:
        """Return the time by the clock of the control plane."""
        return self._clock.wall_ms()

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

    def count_containers(self) -> Counts:
        """Return how many containers are how; what is still to count, a part at a time."""
        while True:
            with self._lock:
                if self._totals.turn():
                    return self._totals.counts()

    def close_containers(
        self,
        container_ids: Sequence[int],
        *,
        worlds: Sequence[int] = (),
        force: bool = False,
        dry_run: bool = False,
    ) -> list[Decision]:
        """Close containers now, whatever their writers have in mind; `worlds` as below.

        With `force` commits are given up that no closed replica has, acknowledged or not.
        """
        with self._change() as change:
            closures = self._closures
            do = closures.preview if dry_run else partial(closures.close, change)
            return self._previews.each(container_ids, worlds, partial(do, force=force))

    def reconcile_containers(
        self, container_ids: Sequence[int], *, worlds: Sequence[int] = (), dry_run: bool = False
    ) -> list[Decision]:
        """Order containers reconciled, as far as they are eligible; `worlds` as below."""
        with self._change() as change:
            do = self._previews.reconcile if dry_run else partial(self._reconciles.order, change)
            return self._previews.each(container_ids, worlds, do)

    def apply_plan(
        self, rows: Sequence[PlanRow], *, worlds: Sequence[int] = (), dry_run: bool
    ) -> list[Decision]:
        """Order what a plan asks for, row by row, if the world is still as the plan saw it.

        `worlds` are those of a dry run of the same rows: if any changed since, nothing is ordered.
        """
        with self._change() as change:
            return self._plans.apply_all(change, rows, worlds, dry_run=dry_run)

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
                self._end_writes_on(change, request.datanode_ids, "one of its nodes is to leave")
            for datanode_id in request.datanode_ids if is_done else ():
                self._manager.look_at_node(datanode_id)
                if request.op_state is not OpState.IN_SERVICE:
                    self._manager.look_at(self._commands.node_leaves(change, datanode_id))
            return decisions

    def remove_nodes(
        self, datanode_ids: Sequence[str], *, is_forced: bool, is_dry_run: bool
    ) -> list[NodeDecision]:
        """Strike dead nodes and all they had off the books, as far as nobody needs that."""
        with self._change() as change:
            decisions = self._parting.judge(datanode_ids, is_forced=is_forced)
            if not is_dry_run and all(d.code == "OK" for d in decisions):
                self._end_writes_on(change, datanode_ids, "one of its nodes was removed")
                for datanode_id in datanode_ids:
                    self._departures.forget(datanode_id)
                    self._reports.forget(datanode_id)
                    self._struck(change, self._parting.remove(change, datanode_id))
            return decisions

    def forget_containers(
        self, container_ids: Sequence[int], *, worlds: Sequence[int], is_dry_run: bool
    ) -> list[Fate]:
        """Give up containers that are missing; the keys in them are lost."""
        with self._change() as change:
            fates = self._forgetting.forget(
                change, container_ids, worlds=worlds, is_dry_run=is_dry_run
            )
            self._manager.look_at(container_ids)
            return fates

    def recall_containers(self, container_ids: Sequence[int], *, is_dry_run: bool) -> list[Fate]:
        """Take forgotten containers back: a replica has turned up."""
        with self._change() as change:
            fates = self._forgetting.recall(change, container_ids, is_dry_run=is_dry_run)
            self._struck(change, container_ids)
            return fates

    def to_recover(self) -> ToRecover:
        """Say what must be looked into after a restore."""
        with self._lock:
            return self._recovery.to_recover()

    def recover(self, call: RecoveryCall, *, is_dry_run: bool) -> Recovered:
        """Bring back what was found after a restore; at its end let decisions begin."""
        try:
            with self._change() as change:
                adopted = self._recovery.adopt(change, call.looked)
                deleted = self._recovery.finish_deletes(change, call.looked)
                brought = self._recovery.bring_back(change, call.keys)
                made = Recovered(adopted, deleted, brought)
                _end_if(is_dry_run, made)
                needed = {block.container_id for key in call.keys for block in key.blocks}
                self._observer.observe(change, sorted(needed.union(adopted)))
                if call.is_end:
                    self._recovery.finish(
                        change, last_local_id=call.last_local_id, is_forced=call.is_forced
                    )
        except _DryRun as dry_run:
            return dry_run.made
        return made

    def departures(self) -> list[Departure]:
        """Return the nodes that are not in service, and what they wait for."""
        with self._lock:
            return self._departures.departures()

    def locked_together(self) -> tuple[int, int]:
        """Return how many containers nobody could read without all nodes that leave, and without
        all that rest."""
        with self._lock:
            leaving, resting = map(self._departures.locked_together, (LEAVING, RESTING))
            return leaving, resting

    def foresee(self, question: Question) -> Foreseen:
        """Say what would be if datanodes or volumes were off; the lock is held page by page."""
        asked = Foresight(self._basis, self._batches, self._safe_mode, self._lock)
        return asked.ask(question)

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

    def anchors(self, datanode_id: str = "", volume_id: str = "") -> list[Anchored]:
        """Return the anchors of logs, by datanode and volume; of all datanodes, the newest each."""
        with self._lock:
            found = self._state.anchors.values()
        chosen = [
            one if datanode_id else Anchored(one.datanode_id, one.volume_id, one.anchors[-1:])
            for one in found
            if datanode_id in {"", one.datanode_id} and volume_id in {"", one.volume_id}
        ]
        return sorted(chosen, key=lambda one: (one.datanode_id, one.volume_id))

    def balance(self, threshold_percent: float, iteration_count: int, *, dry_run: bool) -> Balance:
        """Begin to move replicas from full nodes to empty ones. Raises Refused."""
        with self._lock:
            return self._balancer.start(threshold_percent, iteration_count, dry_run=dry_run)

    def balance_status(self, *, stop: bool = False) -> Balance:
        """Return how far the balancer is; `stop` ends it."""
        with self._lock:
            return self._balancer.stop() if stop else self._balancer.status()

    def report(self) -> RmReport:
        """Return the replication manager's report of its last round."""
        with self._lock:
            counts = dict(self._state.containers.states)
            states, round_at_ms = self._manager.states(), self._manager.round_at_ms
            verified, recovering = self._verified, self._state.replicas.recovering_count
        return rm_report(counts, states, round_at_ms, verified, recovering)

    def keys_in(
        self, container_ids: Sequence[int], *, is_at_risk: bool, start_after: str, count: int
    ) -> Page:
        """Return a page of keys that have blocks in containers, or in those that are at risk.

        They are looked for without the lock, over values that do not change.
        """
        with self._lock:
            keys = self._state.keys.values()
            at_risk = self._manager.at_risk() if is_at_risk else ()
        return keys_in(keys, {*container_ids, *at_risk}, start_after=start_after, count=count)

    def queues(self) -> Queues:
        """Return what waits where."""
        with self._lock:
            return Queues(
                self._admin.queues(),
                self._state.commands.add_count,
                self._manager.in_flight_limit(),
                len(self._manager.under),
                len(self._removals.over),
                len(self._state.transactions),
                self._state.commands.delete_count,
                self._options.delete_count_max,
            )

    def figures(self) -> Figures:
        """Return the control plane in numbers; nothing is counted for it while others wait."""
        views = self._nodes_in_portions()
        sums = summed(views)
        with self._lock:
            counts = self._totals.counts()
            return Figures(
                term=self._state.term,
                is_safe_mode=self._safe_mode.is_on,
                nodes=Counter((view.health, view.node.op_state) for view in views),
                containers={s: n for s, n in self._state.containers.states.items() if n},
                unwell=self._manager.conditions(),
                differ=counts.differ,
                contradict=counts.contradict,
                lost=counts.lost,
                uncounted=self._totals.due_count,
                commands={kind: n for kind, n in self._state.commands.kinds.items() if n},
                outcomes=dict(self._progress.done),
                moved_bytes=dict(self._progress.moved_bytes),
                under_replicated=len(self._manager.under),
                over_replicated=len(self._removals.over),
                verified_at_s=self._verified.at_ms / 1000,
                has_verify_failed=bool(self._verified.error),
                verdict=self._chronicle.verdict(),
                sums=sums,
            )

    def look(self) -> tuple[Look, list[NodeView]]:
        """Return what the verdict follows from, and all nodes by id; in portions."""
        nodes = self._nodes_in_portions()
        for _ in range(COUNTS_PER_LOOK):
            with self._lock:
                if self._totals.turn():
                    break
        with self._lock:
            is_behind = self._manager.is_behind or not self._manager.round_at_ms
            look = Look(
                now_ms=self._clock.wall_ms(),
                gate=self._safe_mode.look(self._reports.confirmed),
                sums=Sums(),
                counts=self._totals.counts(),
                uncounted_count=self._totals.due_count,
                conditions=self._manager.conditions(),
                unlooked_count=self._manager.unlooked_count() if is_behind else 0,
            )
        return replace(look, sums=summed(nodes)), nodes

    def survey(self) -> Survey:
        """Return all that the pages show; in portions, so that no call waits for long."""
        look, nodes = self.look()
        leaving = [n.node for n in nodes if n.node.op_state is not OpState.IN_SERVICE]
        departures = []
        for node in leaving[:DEPARTURES_SHOWN_MAX]:
            with self._lock:
                departures += self._departures.departure_of(node.datanode_id)
        named = []
        for flag in NAMED:
            with self._lock:
                ids = self._totals.named(flag, CONTAINERS_NAMED_MAX)
                count = self._totals.count_of(flag)
                views = [view for n in sorted(ids) if (view := self._views.container(n))]
            named.append(Named(flag, count, views))
        with self._lock:
            now_s = self._clock.monotonic_s()
            return Survey(
                look=look,
                cluster_id=self._state.cluster_id,
                term=self._state.term,
                started_at_ms=self._started_at_ms,
                nodes=nodes,
                works=[
                    Work(kind, self._state.commands.kinds[kind], self._progress.rate(kind, now_s))
                    for kind in Kind
                ],
                under_count=len(self._manager.under),
                over_count=len(self._removals.over),
                departures=departures,
                departing_count=len(leaving),
                named=named,
                past=self._chronicle.past(),
                hold_count=len(self._state.holds),
                forgotten_count=len(self._state.forgotten),
            )

    def _nodes_in_portions(self) -> list[NodeView]:
        """Return all nodes by id, some at a time."""
        with self._lock:
            names = sorted(node.datanode_id for node in self._state.nodes.values())
        views: list[NodeView] = []
        for start in range(0, len(names), NODES_AT_ONCE):
            with self._lock:
                views += self._views.nodes(names[start : start + NODES_AT_ONCE])
        return views

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

    def outcomes(
        self, command_ids: Sequence[int], count: int, *, before_id: int = 0
    ) -> tuple[list[Outcome], list[int]]:
        """Return outcomes (of these commands, or the newest) and what is still pending.

        Of the newest only commands before `before_id` count, unless it is 0.
        """
        with self._lock:
            wanted = list(command_ids) or self._state.outcomes.newest(count, before_id=before_id)
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
                    nodes=[
                        replace(v, node=replace(v.node, op_state=self._nodes.counted_as(v.node)))
                        for v in self._views.nodes()
                    ],
                    containers=self._state.containers.values(),
                    replicas=self._state.replicas.values(),
                    pending=[
                        snapshot.PendingOp(command, *row)
                        for command in self._state.commands.values()
                        for row in op_rows(command, self._state)
                    ],
                    suppressed=frozenset(
                        h.container_id for h in self._state.holds.values() if not h.datanode_id
                    ),
                    # What was judged by a health that a node no longer has is not known now.
                    states=NOT_KNOWN if self._nodes.unnoted() else self._manager.states(),
                    acknowledged=self._state.keys.last_bcsids(),
                    rules=self._batches.rules(),
                    owing=self._cases.owing(),
                    barred_nodes=frozenset(
                        node.datanode_id
                        for node in self._state.nodes.values()
                        if not self._nodes.takes_commands(node.datanode_id)
                    ),
                    barred=frozenset(
                        (h.container_id, h.datanode_id)
                        for h in self._state.holds.values()
                        if h.datanode_id
                    ),
                    hopeful=self._cases.all_hopeful(),
                )
            return snapshot.export(
                world,
                self._snapshots_path,
                keep_count=self._options.snapshot_keep_count,
                address=self._options.snapshot_address,
            )
        finally:
            self._export_lock.release()
