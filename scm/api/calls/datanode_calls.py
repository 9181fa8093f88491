"""Calls of datanodes: registrations, heartbeats, and the confirmation of deletes.

A heartbeat call applies the datanode's reports and command outcomes, updates the changed
containers, and returns the commands that are due.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from scm.api.call_values import Heartbeat, HeartbeatAnswer
from scm.api.calls.components import ControlPlaneComponents
from scm.api.cluster_status.progress import is_news
from scm.cluster.commands.command_limits import HARMLESS, OF_THE_NODE
from scm.cluster.nodes import Registration
from scm.cluster.replica_map import NodeReplicaReport, replicas_max
from scm.state.database import StateChange
from scm.state.entities import CommandKind, CommandOutcome, PendingCommand
from scm.state.state_access import state_change
from suture.errors import Code, RefusedError, UnavailableError

REPORTED_AT_ONCE: Final = 5_000  # replicas while the lock is held: some 0.03 s if all are new


class DatanodeCalls:
    """Calls of datanodes. A call with a very long report makes several durable changes."""

    def __init__(self, parts: ControlPlaneComponents) -> None:
        self.access = parts.access
        self._parts = parts

    def register(self, registration: Registration) -> None:
        """Register a datanode.

        Raise RefusedError(WRONG_CLUSTER) if the datanode belongs to another cluster.
        """
        try:
            self._register(registration)
        except RefusedError as error:
            with self.access.lock:
                self._parts.refused_parts.mark_unknown(registration.datanode_id, str(error))
            raise

    @state_change
    def _register(self, change: StateChange, registration: Registration) -> None:
        self._parts.older_states.compare(change, registration.datanode_id, registration.seen_starts)
        is_new_process = self._parts.nodes.register(change, registration)
        self._parts.reports.forget(registration.datanode_id)
        self._parts.refused_parts.admit(registration.datanode_id)
        self._parts.refused_parts.record(registration.datanode_id, registration.refused)
        self._parts.state.mark_dirty(
            self._parts.state.replicas.ids_on(registration.datanode_id)
        )  # the rack may have changed
        if is_new_process:
            self._parts.commands.node_restarted(change, registration.datanode_id)
        node = self._parts.state.nodes.get(registration.datanode_id)
        if node is not None and not self._parts.nodes.takes_commands(node.datanode_id):
            why = "read-only" if node.is_read_only else "not managed"
            self._parts.closures.end_writes_on(
                change, [node.datanode_id], f"one of its nodes is {why}"
            )

    def heartbeat(
        self, call: Heartbeat, is_awaited: Callable[[], bool] = lambda: True
    ) -> HeartbeatAnswer:
        """Apply the reports of a datanode, and return its commands.

        If another process of this datanode registered later, apply nothing and return an answer
        with `is_known=False`. Raise UnavailableError without any change if the caller no longer
        waits (`is_awaited`). The next heartbeat of the datanode may then be applied already, and
        this call would replace its newer facts with older ones.
        """
        parts = [part for report in call.reports for part in report.parts(REPORTED_AT_ONCE)]
        outcomes, refused = call.outcomes, list(call.refused)
        while len(parts) > 1 and sum(len(part.replicas) for part in parts) > REPORTED_AT_ONCE:
            with self.access.change() as change:
                if not self._is_heard(call, is_awaited):
                    return HeartbeatAnswer(is_known=False)
                self._apply_report_part(change, call, outcomes, [parts.pop(0)], refused)
            outcomes = ()
        with self.access.change() as change:
            if not self._is_heard(call, is_awaited):
                return HeartbeatAnswer(is_known=False)
            self._parts.older_states.compare(change, call.datanode_id, call.seen_starts)
            is_open = self._apply_report_part(change, call, outcomes, parts, refused)
            self._parts.refused_parts.record(call.datanode_id, refused)
            if is_open:
                self._parts.deletions.queue_for_datanode(change, call.datanode_id)
            if call.datanode_id in self._parts.reports.cut_off:
                self._parts.commands.request_full_report(change, call.datanode_id)
            self._parts.anchoring.record_heads(change, call.datanode_id, call.volumes)
            self._parts.departures.sync_op_state(
                change, call.datanode_id, call.op_state, call.op_expiry_ms
            )
            kinds = frozenset(CommandKind) if is_open else HARMLESS
            if not self._parts.nodes.takes_commands(call.datanode_id):
                kinds = OF_THE_NODE
            sending = self._parts.commands.drain(
                change, call.datanode_id, self._parts.last_look.objections, kinds
            )
            commands = [self._addressed(change, one) for one in sending]
            named = map(self._parts.endpoints, self._parts.last_look.named_by(commands))
            return HeartbeatAnswer(
                is_known=True,
                commands=tuple(zip(commands, named, strict=True)),
                last_copies=self._parts.last_copies.on(call.datanode_id),
                rates=self._parts.run_time.rates(),
            )

    def _is_heard(self, call: Heartbeat, is_awaited: Callable[[], bool]) -> bool:
        """Record the time of a heartbeat.

        Return False if another process of the datanode registered later. Raise
        UnavailableError(CANCELLED) if the caller no longer waits.
        """
        if not is_awaited():
            raise UnavailableError(Code.CANCELLED, f"{call.datanode_id} timed out")
        if not self._parts.nodes.is_current(call.datanode_id, call.boot_id):
            return False
        self._parts.nodes.record_heartbeat(call.datanode_id, call.volumes, call.queues)
        return True

    def _apply_report_part(
        self,
        change: StateChange,
        call: Heartbeat,
        outcomes: Iterable[CommandOutcome],
        reports: Iterable[NodeReplicaReport],
        refused: list[str],
    ) -> bool:
        """Apply a part of a heartbeat. Return True if the control plane is not in safe mode.

        The method appends a message to `refused` for each invalid part that it ignores.
        """
        changed: set[int] = set()
        for outcome in outcomes:
            self._parts.deletions.acknowledge(change, outcome)
            if is_news(self._parts.state.commands.get(outcome.command_id), outcome):
                self._parts.progress.record_outcome(outcome, self._parts.clock.monotonic_s())
            container = self._parts.outcomes.apply(change, outcome)
            if container is not None:
                changed.add(container.container_id)
        capacity_bytes = sum(one.capacity_bytes for one in call.volumes if not one.failed)
        count_max = replicas_max(capacity_bytes)
        for report in reports:
            within = self._parts.reports.within(call.datanode_id, report, count_max)
            if within is not report:
                refused.append(within.refused)
            changed |= self._parts.reports.apply(change, call.datanode_id, within)
        self._parts.older_states.compare_ids(change, changed)
        self._parts.observer.update_many(change, changed)
        self._parts.last_copies.recount(change, changed)
        is_open = self._parts.safe_mode.reevaluate().is_open
        if is_open and changed:
            self._parts.observer.update_containers(
                change, self._parts.deletions.delete_empty_containers(change, changed)
            )
        return is_open

    def confirm_deletes(
        self, container_id: int, local_ids: Sequence[int]
    ) -> tuple[frozenset[int], frozenset[int]]:
        """Return which of these blocks were ordered to be deleted, and which of them a key needs.

        The first set contains the blocks that the control plane has ever ordered to delete. The
        long part of the search runs without the lock, on immutable values.
        """
        asked = frozenset(local_ids)
        with self.access.lock:
            ordered = self._parts.deletions.being_deleted(container_id)
            has_keys = self._parts.state.keys.blocks_in(container_id) > 0
            keys = self._parts.state.keys.values() if has_keys else []
        for deleted in self._parts.state.deleted_in(container_id):
            ordered |= asked.intersection(deleted.local_ids)
        named = frozenset(
            block.local_id
            for key in keys
            for block in key.blocks
            if block.container_id == container_id and block.local_id in asked
        )
        return ordered & asked, named

    def _addressed(self, change: StateChange, command: PendingCommand) -> PendingCommand:
        """Return a command with the details that are added when it is sent, such as its sources.

        Record the source datanodes in the pending command, in memory only.
        """
        addressed = self._parts.reconciles.addressed(self._parts.coding.addressed(command))
        if addressed.sources:
            change.set_volatile(self._parts.state.commands, addressed)
        return addressed
