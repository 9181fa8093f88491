"""Read-only calls of operators. Each call holds the state lock only for short periods."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from health.cluster_verdict import Judgement
from scm.administration.affected_keys import KeyPage, keys_in
from scm.administration.restore_recovery import RecoveryBacklog
from scm.api.call_values import QueueTotals
from scm.api.calls.components import ControlPlaneComponents
from scm.api.cluster_status.cluster_look import Look, judged
from scm.api.cluster_status.datanode_totals import NodeTotals, summed
from scm.api.cluster_status.page_facts import ClusterOverview, CommandBacklog, FlaggedContainers
from scm.api.health_totals import NAMED, Flag, HealthCounts
from scm.api.metrics import ClusterMetrics
from scm.api.replication_report import RmReport, rm_report
from scm.api.spark import snapshot_export
from scm.api.views import NodeView
from scm.cluster.run_time_settings import text_of
from scm.replication.health.health_batches import op_rows
from scm.replication.health.health_states import NOT_KNOWN
from scm.state.entities import CommandKind, CommandOutcome, OpState
from scm.state.state_access import locked
from suture.errors import Code, UnavailableError

NODES_AT_ONCE: Final = 1_000  # nodes per hold of the lock, which lasts about 5 ms
COUNTS_PER_LOOK: Final = 25  # steps of the totals: enough for a tick's changes, not for a start's
DEPARTURES_SHOWN_MAX: Final = 20
CONTAINERS_NAMED_MAX: Final = 12  # of each problem


class Queries:
    """Read-only calls of operators."""

    def __init__(self, parts: ControlPlaneComponents) -> None:
        self.access = parts.access
        self._parts = parts
        self._export_lock = threading.Lock()
        self._watches: list[Callable[[], list[str]]] = []

    def nodes(self) -> list[NodeView]:
        """Return all datanodes, sorted by id.

        The lock is acquired once per NODES_AT_ONCE datanodes.
        """
        with self.access.lock:
            names = sorted(node.datanode_id for node in self._parts.state.nodes.values())
        views: list[NodeView] = []
        for start in range(0, len(names), NODES_AT_ONCE):
            with self.access.lock:
                views += self._parts.views.nodes(names[start : start + NODES_AT_ONCE])
        return views

    def watch(self, troubles: Callable[[], list[str]]) -> None:
        """Register a function that returns the problems of a part of this process, one per line.

        `troubles()` calls the function.
        """
        self._watches.append(troubles)

    def troubles(self) -> list[str]:
        """Return the problems of the control plane itself, one per line."""
        trouble = self._parts.state.writability.trouble
        found = [trouble] if trouble else []
        return found + [line for troubles in self._watches for line in troubles()]

    def _refused(self) -> list[str]:
        """Return one line for each datanode whose calls had invalid parts.

        If a datanode has seen a later state of the SCM than the present one, the first line reports
        this.
        """
        older = self._parts.older_states.trouble
        return [*([older] if older else []), *self._parts.refused_parts.lines()]

    def count_containers(self) -> HealthCounts:
        """Recompute the outdated flags of all containers, and return the container counts.

        The lock is released between the steps.
        """
        while True:
            with self.access.lock:
                if self._parts.totals.recompute_some():
                    return self._parts.totals.counts()

    def judgement(self) -> tuple[Look, Judgement]:
        """Return the facts about the cluster, and the verdict on its data."""
        look, _nodes = self.cluster_facts()
        return look, judged(look, self.troubles())

    def to_recover(self) -> RecoveryBacklog:
        """Return the containers that `scm recover` must examine.

        A container must be examined after a restore, if the state does not contain it, or if it
        lacks blocks that keys need.
        """
        self.count_containers()
        with self.access.lock:
            return self._parts.recovery.to_recover(self._incomplete())

    def _incomplete(self) -> list[int]:
        totals = self._parts.totals
        return totals.named(Flag.LACKING, totals.count_of(Flag.LACKING))

    def report(self) -> RmReport:
        """Return the replication manager's report about the states of all containers."""
        parts = self._parts
        with self.access.lock:
            counts = dict(parts.state.containers.states)
            states, round_at_ms = parts.manager.states(), parts.manager.round_at_ms
            verified, recovering = (
                parts.chronicle.last_verified(),
                parts.state.replicas.recovering_count,
            )
        report = rm_report(counts, states, round_at_ms, verified, recovering)
        sampled = {n for _count, ids in report.conditions.values() for n in ids}
        waits = []
        for container_id in sorted(sampled):
            with self.access.lock:
                waits.append(parts.waits.of(container_id))
        return replace(report, waits=tuple(wait for wait in waits if wait is not None))

    def keys_in(
        self, container_ids: Sequence[int], *, is_at_risk: bool, start_after: str, count: int
    ) -> KeyPage:
        """Return a page of the keys that have blocks in `container_ids`.

        With `is_at_risk`, also include the keys of all containers at risk. The search runs without
        the lock, on immutable values.
        """
        with self.access.lock:
            keys = self._parts.state.keys.values()
            at_risk = [*self._parts.manager.at_risk(), *self._incomplete()] if is_at_risk else ()
        return keys_in(keys, {*container_ids, *at_risk}, start_after=start_after, count=count)

    @locked
    def queues(self) -> QueueTotals:
        """Return the load and the queued commands of each datanode, and the totals."""
        parts = self._parts
        return QueueTotals(
            parts.admin.queues(),
            parts.state.commands.add_count,
            parts.manager.in_flight_limit(),
            len(parts.manager.under),
            len(parts.removals.over),
            len(parts.state.transactions),
            parts.state.commands.delete_count,
        )

    def figures(self) -> ClusterMetrics:
        """Return the values of the control plane's metrics, for a scrape by Prometheus."""
        parts = self._parts
        look, views = self.cluster_facts()
        judgement = judged(look, self.troubles())
        with self.access.lock:
            counts = look.counts
            is_unwritable = bool(parts.state.writability.trouble)
            return ClusterMetrics(
                term=parts.state.term,
                is_safe_mode=parts.safe_mode.is_on,
                nodes=Counter((view.health, view.node.op_state) for view in views),
                containers={s: n for s, n in parts.state.containers.states.items() if n},
                unhealthy=parts.manager.conditions(),
                differ=counts.differ,
                contradict=counts.contradict,
                lost=counts.lost,
                missing_blocks=counts.missing_blocks,
                stray=counts.stray,
                uncounted=parts.totals.due_count,
                commands={kind: n for kind, n in parts.state.commands.kinds.items() if n},
                outcomes=dict(parts.progress.done),
                moved_bytes=dict(parts.progress.moved_bytes),
                under_replicated=len(parts.manager.under),
                over_replicated=len(parts.removals.over),
                verified_at_s=parts.chronicle.last_verified().at_ms / 1000,
                has_verify_failed=bool(parts.chronicle.last_verified().error),
                is_unwritable=is_unwritable,
                is_older=bool(parts.older_states.trouble),
                refusing=parts.refused_parts.count,
                verdict=judgement.verdict,
                waiting=parts.waits.counts(),
                sums=look.sums,
            )

    def cluster_facts(self) -> tuple[Look, list[NodeView]]:
        """Return the facts from which the verdict is computed, and all datanodes, sorted by id.

        The lock is released between the steps.
        """
        parts = self._parts
        nodes = self.nodes()
        for _ in range(COUNTS_PER_LOOK):
            with self.access.lock:
                if parts.totals.recompute_some():
                    break
        with self.access.lock:
            is_behind = parts.manager.is_behind or not parts.manager.round_at_ms
            look = Look(
                now_ms=parts.clock.wall_ms(),
                gate=parts.safe_mode.reevaluate(),
                sums=NodeTotals(),
                counts=parts.totals.counts(),
                uncounted_count=parts.totals.due_count,
                conditions=parts.manager.conditions(),
                unlooked_count=parts.manager.unlooked_count() if is_behind else 0,
                refused=tuple(self._refused()),
            )
        return replace(look, sums=summed(nodes)), nodes

    def survey(self) -> ClusterOverview:
        """Return the facts that the web pages show.

        The lock is released between the steps, so that no other call waits for long.
        """
        parts = self._parts
        look, nodes = self.cluster_facts()
        leaving = [n.node for n in nodes if n.node.op_state is not OpState.IN_SERVICE]
        departures = []
        for node in leaving[:DEPARTURES_SHOWN_MAX]:
            with self.access.lock:
                departures += parts.departures.departure_of(node.datanode_id)
        named = []
        for flag in NAMED:
            with self.access.lock:
                ids = parts.totals.named(flag, CONTAINERS_NAMED_MAX)
                count = parts.totals.count_of(flag)
                views = [view for n in sorted(ids) if (view := parts.views.find_container(n))]
            named.append(FlaggedContainers(flag, count, views))
        with self.access.lock:
            now_s = parts.clock.monotonic_s()
            return ClusterOverview(
                look=look,
                cluster_id=parts.state.cluster_id,
                term=parts.state.term,
                started_at_ms=parts.started_at_ms,
                nodes=nodes,
                works=[
                    CommandBacklog(
                        kind,
                        parts.state.commands.kinds[kind],
                        parts.progress.rate(kind, now_s),
                    )
                    for kind in CommandKind
                ],
                under_count=len(parts.manager.under),
                over_count=len(parts.removals.over),
                departures=departures,
                departing_count=len(leaving),
                named=named,
                past=parts.chronicle.past(),
                settings=[text_of(setting) for setting in parts.run_time.current()],
                hold_count=len(parts.state.holds),
                forgotten_count=len(parts.state.forgotten),
            )

    def outcomes(
        self, command_ids: Sequence[int], count: int, *, before_id: int = 0
    ) -> tuple[list[CommandOutcome], list[int]]:
        """Return the outcomes of these commands, and the ids of those that are still pending.

        If `command_ids` is empty, return the `count` newest outcomes, and the ids of all pending
        commands. If `before_id` is not 0, these are the newest outcomes of commands with lower ids.
        """
        parts = self._parts
        with self.access.lock:
            wanted = list(command_ids) or parts.state.outcomes.newest(count, before_id=before_id)
            found = [parts.state.outcome(i) for i in wanted if i in parts.state.outcomes]
            asked = set(command_ids)
            pending = sorted(
                command.command_id
                for command in parts.state.commands.values()
                if not command.is_answered and (not asked or command.command_id in asked)
            )
        return [outcome for outcome in found if outcome is not None], pending

    def export_snapshot(self) -> snapshot_export.SnapshotExport:
        """Write the current state as Parquet files, and return the export.

        The lock is held while the state is copied, but not while the files are written. Raise
        UnavailableError(BUSY) if another export is running.
        """
        parts = self._parts
        if not self._export_lock.acquire(blocking=False):
            raise UnavailableError(Code.BUSY, "cannot export a snapshot: another export is running")
        try:
            with self.access.lock:
                at_risk = parts.manager.at_risk()
                world = snapshot_export.SnapshotData(
                    as_of_ms=parts.clock.wall_ms(),
                    term=parts.state.term,
                    cluster_id=parts.state.cluster_id,
                    nodes=parts.views.nodes(),
                    containers=parts.state.containers.values(),
                    replicas=parts.state.replicas.values(),
                    pending=[
                        snapshot_export.PendingOp(command, *row)
                        for command in parts.state.commands.values()
                        for row in op_rows(command, parts.state)
                    ],
                    suppressed=frozenset(
                        h.container_id for h in parts.state.holds.values() if not h.datanode_id
                    ),
                    # After a change of a node's health, the states of the last check are outdated.
                    states=NOT_KNOWN
                    if parts.nodes.nodes_with_changed_health()
                    else parts.manager.states(),
                    acknowledged=parts.state.keys.last_bcsids(),
                    rules=parts.batches.rules(),
                    containers_with_unacknowledged_deletes=parts.cases.containers_with_unacknowledged_deletes(),
                    barred_nodes=frozenset(
                        node.datanode_id
                        for node in parts.state.nodes.values()
                        if not parts.nodes.takes_commands(node.datanode_id)
                    ),
                    barred=frozenset(
                        (h.container_id, h.datanode_id)
                        for h in parts.state.holds.values()
                        if h.datanode_id
                    ),
                    healable_holders=parts.cases.all_hopeful(),
                    keys=parts.state.keys.values() if at_risk else (),  # all keys may be millions
                    at_risk=at_risk,
                )
            return snapshot_export.export(
                world,
                parts.snapshots_path,
                keep_count=parts.options.snapshot_keep_count,
                address=parts.options.snapshot_address,
            )
        finally:
            self._export_lock.release()
