"""From decisions to commands: queued once, sent within limits, answered or given up.

    lifecycle, operator, plan ──► queue (one per replica and kind) ──heartbeat──► datanode
                                     ▲                                               │
                                     └── lost, restarted there: again ◄── outcome ◄──┘

Every command is durable before anyone is told its id; a command is gone when its outcome is
durable. Callers hold the control plane's lock.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from agent.errors import Code
from scm import dispatch, lifecycle
from scm.clock import Clock
from scm.eligibility import Eligibility, Participants, judge
from scm.facts import Container, Kind, Outcome, OutcomeState, Pending
from scm.intake import Decision, PlanRow, check
from scm.nodes import Nodes
from scm.options import ScmOptions
from scm.state import OUTCOMES_MAX, OUTCOMES_SLACK, Change, State

LOST_AFTER_S: Final = 10.0
LOST_AFTER_HEARTBEATS: Final = 5

COOLDOWN: Final = "COOLDOWN"

# Words of a datanode that skips a command (`CommandStatus.code`).
DUPLICATE: Final = "DUPLICATE"
STALE_TERM: Final = "STALE_TERM"

_log = structlog.get_logger("suture.scm")


@dataclass(frozen=True, slots=True)
class _Attempt:
    count: int
    not_before_s: float


class Orders:
    """The commands of all datanodes."""

    def __init__(self, state: State, nodes: Nodes, clock: Clock, options: ScmOptions) -> None:
        self._state = state
        self._nodes = nodes
        self._clock = clock
        self._options = options
        self._close_attempts: dict[int, dict[str, _Attempt]] = {}
        self._reconciled_at_s: dict[int, float] = {}
        for command in state.commands.values():  # of an earlier term: their wait begins anew
            queued = replace(command, queued_at_s=clock.monotonic_s())
            state.commands.apply(command.command_id, queued)

    def close(self, change: Change, container: Container) -> list[int]:
        """Queue the close commands that are due; return the ids of all that are pending.

        The same command is repeated, with growing pauses, until reports show what it asked for.
        """
        container_id = container.container_id
        now_s = self._clock.monotonic_s()
        orders = lifecycle.close_orders(container, self._state.replicas.of(container_id))
        if not orders:
            self._close_attempts.pop(container_id, None)
            return []
        attempts = self._close_attempts.setdefault(container_id, {})
        command_ids = []
        for order in orders:
            node = order.datanode_id
            pending = self._state.commands.about(Kind.CLOSE, container_id, node)
            if pending is not None:
                command_ids.append(pending.command_id)
                continue
            attempt = attempts.get(node, _Attempt(0, 0.0))
            if now_s < attempt.not_before_s or not self._is_sendable(node):
                continue
            command_ids.append(
                self._queue(
                    change, Kind.CLOSE, container_id, node, bcsid=order.bcsid, force=order.force
                )
            )
            pause_s = dispatch.backoff_s(
                attempt.count + 1, first_s=self._options.close_retry_ms / 1000
            )
            attempts[node] = _Attempt(attempt.count + 1, now_s + pause_s)
        return command_ids

    def reconcile(self, change: Change, container_id: int) -> Decision:
        """Order a container reconciled because an operator says so."""
        participants = self._participants(container_id)
        if participants.eligibility is not Eligibility.OK:
            return Decision(container_id, participants.eligibility, participants.message)
        return self._order(change, container_id, participants)

    def apply_plan(
        self, change: Change, rows: Sequence[PlanRow], *, dry_run: bool
    ) -> list[Decision]:
        """Order what a plan asks for, row by row, as far as it still describes the world."""
        return [self._apply_row(change, row, dry_run=dry_run) for row in rows]

    def drain(self, change: Change, datanode_id: str) -> list[Pending]:
        """Return the commands that leave with this heartbeat's answer, marked as sent."""
        node = self._state.nodes.get(datanode_id)
        assert node is not None, "only registered datanodes are answered with commands"
        reported = self._nodes.reported_queues(datanode_id)
        self._repeat_lost(change, datanode_id)
        pending = self._state.commands.of_node(datanode_id)
        now_s, now_ms = self._clock.monotonic_s(), self._clock.wall_ms()
        lifetime_ms = self._options.command_deadline_ms - self._options.datanode_deadline_margin_ms
        sending = []
        for command in dispatch.drain(pending, reported=reported, op_state=node.op_state):
            if command.kind is Kind.RECONCILE and not self.peers_of(command):
                self._drop(
                    change,
                    command,
                    OutcomeState.SKIPPED,
                    Code.INELIGIBLE,
                    "not eligible any more when its turn came",
                )
                continue
            sent = replace(
                command,
                sent_at_s=now_s,
                lifetime_ms=lifetime_ms,
                deadline_ms=now_ms + lifetime_ms,
            )
            change.touch(self._state.commands, sent)
            sending.append(sent)
        return sending

    def peers_of(self, command: Pending) -> tuple[str, ...]:
        """Return the peers a reconcile command names, as the world is now."""
        participants = self._participants(command.container_id)
        if command.datanode_id not in participants.targets:
            return ()
        return participants.peers_of(command.datanode_id)

    def settle(self, change: Change, outcome: Outcome) -> Container | None:
        """Record what a datanode says became of a command.

        Returns the container, if the outcome says something about its pipeline.
        """
        pending = self._state.commands.get(outcome.command_id)
        if pending is None:
            self._correct(change, outcome)
            return None
        if pending.datanode_id != outcome.datanode_id:
            _log.warning(
                "command_answered_by_another",
                command_id=outcome.command_id,
                datanode_id=outcome.datanode_id,
            )
            return None
        if outcome.state is OutcomeState.SKIPPED and outcome.code in {DUPLICATE, STALE_TERM}:
            self._not_ended(change, pending, outcome.code)
            return None
        outcome = replace(outcome, kind=pending.kind, container_id=pending.container_id)
        self._finish(change, pending, outcome)
        return self._without_replica(change, outcome)

    def expire(self, change: Change) -> None:
        """Give up what was not answered in time; the next report or plan asks again if needed."""
        late = dispatch.expired(
            self._state.commands.values(),
            now_s=self._clock.monotonic_s(),
            deadline_s=self._options.command_deadline_ms / 1000,
        )
        for command in late:
            self._drop(change, command, OutcomeState.FAILED, Code.DEADLINE_PASSED, "no answer")
        cool_since_s = self._clock.monotonic_s() - self._options.reconcile_cooldown_ms / 1000
        self._reconciled_at_s = {
            container_id: at_s
            for container_id, at_s in self._reconciled_at_s.items()
            if at_s > cool_since_s
        }

    def node_restarted(self, change: Change, datanode_id: str) -> None:
        """Queue again what was sent to a datanode: its memory of it is gone."""
        for command in self._state.commands.of_node(datanode_id):
            if command.sent_at_s is not None:
                change.touch(self._state.commands, replace(command, sent_at_s=None, deadline_ms=0))

    def _apply_row(self, change: Change, row: PlanRow, *, dry_run: bool) -> Decision:
        verdict = check(
            row,
            self._state.containers.get(row.container_id),
            self._state.replicas.of(row.container_id),
            self._nodes.is_reachable,
        )
        if isinstance(verdict, Decision):
            return verdict
        ordered_at_s = self._reconciled_at_s.get(row.container_id)
        if ordered_at_s is not None:
            left_s = self._options.reconcile_cooldown_ms / 1000 - (
                self._clock.monotonic_s() - ordered_at_s
            )
            if left_s > 0:
                return Decision(
                    row.container_id, COOLDOWN, f"reconciled lately; again in {left_s:.0f} s"
                )
        if dry_run:
            return Decision(row.container_id, "OK", "would go to " + ", ".join(verdict.targets))
        return self._order(change, row.container_id, verdict)

    def _order(self, change: Change, container_id: int, participants: Participants) -> Decision:
        full = [node for node in participants.targets if not self._has_room(node)]
        if full:
            return Decision(container_id, Code.BUSY, f"the queue of {full[0]} is full")
        known, command_ids = 0, []
        for node in participants.targets:
            pending = self._state.commands.about(Kind.RECONCILE, container_id, node)
            known += pending is not None
            command_ids.append(
                self._queue(change, Kind.RECONCILE, container_id, node)
                if pending is None
                else pending.command_id
            )
        self._reconciled_at_s[container_id] = self._clock.monotonic_s()
        message = f"{known} of {len(command_ids)} were ordered before" if known else ""
        return Decision(container_id, "OK", message, tuple(command_ids))

    def _participants(self, container_id: int) -> Participants:
        return judge(
            self._state.containers.get(container_id),
            self._state.replicas.of(container_id),
            self._nodes.is_reachable,
        )

    def _has_room(self, datanode_id: str) -> bool:
        return self._state.commands.count_of_node(datanode_id) < dispatch.QUEUE_MAX

    def _is_sendable(self, datanode_id: str) -> bool:
        return self._nodes.is_reachable(datanode_id) and self._has_room(datanode_id)

    def _queue(
        self,
        change: Change,
        kind: Kind,
        container_id: int,
        datanode_id: str,
        *,
        bcsid: int = 0,
        force: bool = False,
    ) -> int:
        command = Pending(
            command_id=change.next_id("next_command_id"),
            kind=kind,
            container_id=container_id,
            datanode_id=datanode_id,
            bcsid=bcsid,
            force=force,
            created_at_ms=self._clock.wall_ms(),
            queued_at_s=self._clock.monotonic_s(),
        )
        change.put(self._state.commands, command)
        return command.command_id

    def _repeat_lost(self, change: Change, datanode_id: str) -> None:
        patience_s = max(
            LOST_AFTER_S, LOST_AFTER_HEARTBEATS * self._options.heartbeat_interval_ms / 1000
        )
        for command in dispatch.lost(
            self._state.commands.of_node(datanode_id),
            reported=self._nodes.reported_queues(datanode_id),
            now_s=self._clock.monotonic_s(),
            patience_s=patience_s,
        ):
            _log.warning(
                "command_sent_again", command_id=command.command_id, datanode_id=datanode_id
            )
            change.touch(self._state.commands, command)

    def _drop(
        self, change: Change, command: Pending, state: OutcomeState, code: Code, message: str
    ) -> None:
        outcome = Outcome(
            command_id=command.command_id,
            datanode_id=command.datanode_id,
            reported_at_ms=self._clock.wall_ms(),
            state=state,
            kind=command.kind,
            container_id=command.container_id,
            code=code,
            message=message,
            reconcile=b"",
        )
        self._finish(change, command, outcome)

    def _finish(self, change: Change, command: Pending, outcome: Outcome) -> None:
        change.remove(self._state.commands, command.command_id)
        change.put(self._state.outcomes, outcome)
        if command.kind is Kind.RECONCILE:
            self._reconciled_at_s[command.container_id] = self._clock.monotonic_s()
        surplus = len(self._state.outcomes) - OUTCOMES_MAX
        if surplus > OUTCOMES_SLACK:
            for command_id in self._state.outcomes.oldest(surplus):
                change.remove(self._state.outcomes, command_id)

    def _not_ended(self, change: Change, pending: Pending, code: str) -> None:
        """Keep a command that was skipped for a reason of ours.

        A duplicate is one we sent again while the first is running: its answer will come. A stale
        term means that it was sent before this SCM's start: it is sent again under ours.
        """
        if code == STALE_TERM and pending.sent_at_s is not None:
            change.touch(self._state.commands, replace(pending, sent_at_s=None, deadline_ms=0))

    def _correct(self, change: Change, outcome: Outcome) -> None:
        """Take a later answer over "skipped" and over our own giving up; ignore repetitions."""
        known = self._state.outcome(outcome.command_id)
        if known is None or known.datanode_id != outcome.datanode_id:
            return
        was_given_up = known.state is OutcomeState.SKIPPED or known.code == Code.DEADLINE_PASSED
        if was_given_up and outcome.state is not OutcomeState.SKIPPED:
            change.put(
                self._state.outcomes,
                replace(outcome, kind=known.kind, container_id=known.container_id),
            )

    def _without_replica(self, change: Change, outcome: Outcome) -> Container | None:
        """Strike a datanode off the pipeline when it says it never had the replica."""
        container = self._state.containers.get(outcome.container_id)
        if (
            container is None
            or outcome.kind != Kind.CLOSE
            or outcome.code != Code.CONTAINER_NOT_FOUND
        ):
            return None
        container = lifecycle.without_replica(container, outcome.datanode_id)
        change.put(self._state.containers, container)
        return container
