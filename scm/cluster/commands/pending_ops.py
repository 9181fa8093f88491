"""Pending commands: queued once, sent within limits, answered, and confirmed or given up.

A heartbeat's answer carries queued commands to a datanode, which later reports the outcome. A
command that makes or removes replicas ends only when a replica report shows the effect. A command
is queued again if the heartbeat's answer was lost, if the datanode restarted, or if the command is
a delete whose deadline passed.

Every command is durable before its id is returned. A command is removed in the change that makes
its outcome durable. Callers hold the control plane's lock.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from merkle.replica import ReplicaState
from scm.cluster.commands import command_limits
from scm.cluster.commands.copy_rate import CopyRate
from scm.cluster.commands.failing_replicas import FailingReplicas
from scm.cluster.commands.failing_targets import FailingTargets
from scm.cluster.commands.node_loads import NodeLoads
from scm.cluster.commands.retry_pauses import RetryPauses
from scm.cluster.nodes import NodeManager
from scm.cluster.run_time_settings import pause_of
from scm.state import audit_trail
from scm.state.clock import ScmClock
from scm.state.database import OUTCOMES_MAX, OUTCOMES_SLACK, StateChange, StateDatabase
from scm.state.entities import (
    CommandKind,
    CommandOutcome,
    OutcomeState,
    PendingCommand,
    WorkControl,
)
from scm.state.options import ScmOptions
from suture.errors import Code

LOST_AFTER_S: Final = 10.0
LOST_AFTER_HEARTBEATS: Final = 5
WHY_CHARACTERS_MAX: Final = 200  # a plan's reasons come from another process

_REPAIRS: Final = frozenset({CommandKind.REPLICATE, CommandKind.RECONSTRUCT, CommandKind.RECONCILE})

# Codes with which a datanode skips a command that has not ended. A duplicate runs already. A
# command of an older term is sent again as if it was lost. If it were sent at once, a datanode that
# follows another control plane would refuse it again and again.
_NOT_ENDED: Final = frozenset({"DUPLICATE", Code.STALE_TERM})

# Codes that this SCM assigned without an answer of the datanode.
_GIVEN_UP: Final = frozenset({Code.DEADLINE_PASSED, Code.UNAVAILABLE})

# Kinds that end only when reports show their effect.
_SHOWN: Final = frozenset({CommandKind.REPLICATE, CommandKind.RECONSTRUCT, CommandKind.DELETE})

_log = structlog.get_logger("suture.scm")


class PendingOps:
    """The queued and unanswered commands of all datanodes."""

    def __init__(
        self, state: StateDatabase, nodes: NodeManager, clock: ScmClock, options: ScmOptions
    ) -> None:
        self._state = state
        self._nodes = nodes
        self._clock = clock
        self._options = options
        self.loads = NodeLoads(state, nodes, options)
        self.copy_rate = CopyRate()
        self._pauses = RetryPauses(clock, first_s=options.close_retry_ms / 1000)
        self._failing = FailingReplicas(state, clock, options)
        self.failing_targets = FailingTargets(clock)
        for command in state.commands.values():  # commands of an earlier term wait again
            queued = replace(command, queued_at_s=clock.monotonic_s())
            state.commands.apply(command.command_id, queued)
        self._first_id = state.counters["next_command_id"]  # the first id of this term
        self._began_s = clock.monotonic_s()

    def queue(
        self,
        change: StateChange,
        kind: CommandKind,
        container_id: int,
        datanode_id: str,
        *,
        why: str,
        is_kept: bool = True,
        **details: Any,
    ) -> int:
        """Queue a command for a datanode; return its id. `details` are fields of `PendingCommand`.

        `why` goes to the audit log. A command that is not `is_kept` is not stored on disk; after a
        restart it is created again from its cause.
        """
        command = PendingCommand(
            command_id=change.next_id("next_command_id"),
            kind=kind,
            container_id=container_id,
            datanode_id=datanode_id,
            created_at_ms=self._clock.wall_ms(),
            queued_at_s=self._clock.monotonic_s(),
            why=why[:WHY_CHARACTERS_MAX],
            **details,
        )
        (change.put if is_kept else change.set_volatile)(self._state.commands, command)
        self.loads.changed(datanode_id)
        return command.command_id

    def request_full_report(self, change: StateChange, datanode_id: str) -> None:
        """Order a datanode to register again and to report all its replicas, unless that is already
        ordered."""
        waiting = self._state.commands.of_node(datanode_id)
        if not any(command.kind is CommandKind.REREGISTER for command in waiting):
            why = "a page of its full report was lost"
            self.queue(change, CommandKind.REREGISTER, 0, datanode_id, why=why)

    def has_room(self, datanode_id: str) -> bool:
        """Return True if one more command may be queued for this datanode."""
        return self._state.commands.count_of_node(datanode_id) < command_limits.QUEUE_MAX

    def is_sendable(self, datanode_id: str) -> bool:
        """Return True if a command queued now would be sent soon: the datanode is reachable and has
        room."""
        return self._nodes.is_reachable(datanode_id) and self.has_room(datanode_id)

    def is_cooling(self, kind: CommandKind, container_id: int, datanode_id: str = "") -> bool:
        """Return True if commands of this kind for a container are paused after a failure."""
        return self._pauses.is_cooling(kind, container_id, datanode_id)

    def drain(
        self,
        change: StateChange,
        datanode_id: str,
        objections: Callable[[Sequence[PendingCommand]], Mapping[int, str]],
        kinds: Collection[CommandKind] = frozenset(CommandKind),
    ) -> list[PendingCommand]:
        """Return the commands to send with this heartbeat's answer, marked as sent.

        `objections` returns the reasons against commands by id. Such commands are dropped. Commands
        whose kind is not in `kinds` remain queued.
        """
        node = self._state.nodes.get(datanode_id)
        assert node is not None, "only registered datanodes are answered with commands"
        self._repeat_lost(change, datanode_id)
        pending = [
            c
            for c in self._state.commands.of_node(datanode_id)
            if not self._waits(c)
            and (c.sent_at_s is not None or (c.kind in kinds and self.pause_of(c) is None))
        ]
        leaving = command_limits.select_sendable(
            pending,
            reported=self._nodes.reported_queues(datanode_id),
            op_state=node.op_state,
            heard_at_s=self._nodes.last_heartbeat_at_s(datanode_id),
            replications=self.loads.service_limit(datanode_id),
        )
        now_s, now_ms = self._clock.monotonic_s(), self._clock.wall_ms()
        sending = []
        found = objections(leaving)
        for command in leaving:
            reason = found.get(command.command_id, "")
            if reason and self._is_rebuilding(command):
                continue
            if reason:
                self._refuse(change, command, reason)
                continue
            counted = self._counted(command)
            lifetime_ms = self._lifetime_ms(counted)
            sent = replace(
                counted,
                sent_at_s=now_s,
                lifetime_ms=lifetime_ms,
                deadline_ms=now_ms + lifetime_ms,
            )
            change.set_volatile(self._state.commands, sent)
            change.add_audit_note(audit_trail.sent(sent))
            sending.append(sent)
        return sending

    def pause_of(self, command: PendingCommand) -> WorkControl | None:
        """Return the setting that keeps a command from being sent, or None."""
        settings = self._state.settings.values()
        if not settings:
            return None
        named = [command.datanode_id, command.target_id, *dict(command.shards).values()]
        known = (self._state.nodes.get(name) for name in named if name)
        racks = {node.rack for node in known if node is not None}
        return pause_of(settings, command, racks, self._clock.wall_ms())

    def _counted(self, command: PendingCommand) -> PendingCommand:
        """Return a reconstruct command with its number of blocks added, from replica reports. The
        number affects the deadline, because a million small blocks take hours whatever their size.
        """
        if command.kind is not CommandKind.RECONSTRUCT:
            return command
        replicas = self._state.replicas.of(command.container_id)
        return replace(command, block_count=max((r.block_count for r in replicas), default=0))

    def _refuse(self, change: StateChange, command: PendingCommand, reason: str) -> None:
        """Drop a command that must not be sent because of an objection. Pause deletes of its
        container.

        Without the pause, a requester that does not know the objection would order the delete again
        at once, without end. Copies are not paused, because they are urgent.
        """
        self.drop(change, command, OutcomeState.SKIPPED, Code.INELIGIBLE, reason)
        if command.kind is CommandKind.DELETE:
            self._pauses.count(command)

    def _lifetime_ms(self, command: PendingCommand) -> int:
        """Return how long a datanode may work on a command, in milliseconds."""
        first_s = self._options.command_deadline_ms / 1000
        deadline_s = command_limits.deadline_s(command, first_s, self._options.deadline_bytes_per_s)
        return int((deadline_s - first_s / 2) * 1000)  # every command gets a deadline

    def _is_rebuilding(self, command: PendingCommand) -> bool:
        """Return True if a datanode may be rebuilding shards because of this command.

        A sent command cannot be cancelled. Therefore no other command rebuilds these shards until
        the sent one is answered or its lifetime is over.
        """
        if command.kind is not CommandKind.RECONSTRUCT or command.is_answered:
            return False
        if command.sent_at_s is None:
            is_earlier = command.command_id < self._first_id
            ends_at_s = self._began_s + self._lifetime_ms(self._counted(command)) / 1000
            return is_earlier and self._clock.monotonic_s() < ends_at_s
        return self._clock.monotonic_s() < command.sent_at_s + command.lifetime_ms / 1000

    def _waits(self, command: PendingCommand) -> bool:
        """Return True if a reconcile must wait for other reconciles of its container. The replicas
        whose root is in the minority are reconciled first, and read from the others meanwhile."""
        return command.is_second and any(
            other.kind is CommandKind.RECONCILE and not other.is_second
            for other in self._state.commands.of_container(command.container_id)
        )

    def record_outcome(self, change: StateChange, outcome: CommandOutcome) -> PendingCommand | None:
        """Record a datanode's outcome of a command. Return the command if the outcome is new,
        otherwise None."""
        pending = self._state.commands.get(outcome.command_id)
        if pending is None or pending.is_answered:
            self._correct(change, outcome)
            return None
        if pending.datanode_id != outcome.datanode_id:
            change.on_commit(
                _log.warning,
                "command_answer_from_wrong_datanode",
                command_id=outcome.command_id,
                datanode_id=outcome.datanode_id,
            )
            return None
        if outcome.state is OutcomeState.SKIPPED and outcome.code in _NOT_ENDED:
            return None
        outcome = replace(outcome, kind=pending.kind, container_id=pending.container_id)
        self._pauses.record_outcome(pending, outcome)
        self.copy_rate.record_copy(outcome)
        self._failing.record_outcome(change, pending, outcome)
        self.failing_targets.record_outcome(pending, outcome)
        if outcome.state is OutcomeState.EXECUTED and not self._is_shown(pending):
            change.put(self._state.outcomes, outcome)
            change.add_audit_note(audit_trail.ended(pending, outcome))
            change.set_volatile(self._state.commands, replace(pending, is_answered=True))
        else:
            self._finish(change, pending, outcome)
        return pending

    def waiting_bytes(self, datanode_id: str) -> int:
        """Return the bytes of the unanswered copies that a datanode makes before it starts another
        command."""
        return sum(
            command.size_bytes // 2
            for command in self._state.commands.of_node(datanode_id)
            if command.kind is CommandKind.REPLICATE and not command.is_answered
        )

    def complete_visible(self, change: StateChange, container_id: int) -> None:
        """Remove the answered commands of a container whose effect is visible in replica
        reports."""
        for command in self._state.commands.of_container(container_id):
            if command.is_answered and self._is_shown(command):
                change.remove(self._state.commands, command.command_id)

    def _is_shown(self, command: PendingCommand) -> bool:
        """Return True if reports show the effect of a command, or if its kind has no visible
        effect."""
        if command.kind not in _SHOWN:
            return True
        if command.kind is CommandKind.RECONSTRUCT:
            return all(self._has_shard(command.container_id, *shard) for shard in command.shards)
        key = (command.container_id, command.subject_id)
        is_there = self._state.replicas.get(key) is not None
        return is_there == (command.kind is CommandKind.REPLICATE)

    def _has_shard(self, container_id: int, index: int, datanode_id: str) -> bool:
        found = self._state.replicas.get((container_id, datanode_id))
        if found is None or found.state is ReplicaState.UNHEALTHY:  # the rebuilt shard replaces it
            return False
        return found.replica_index == index

    def expire(self, change: StateChange) -> None:
        """Give up unanswered commands past their deadline, and release old exclusions.

        A delete that was sent may still be executed. Therefore it is queued again, and never given
        up while the replica exists. A command that is paused waits for the end of its pause.
        """
        now_s = self._clock.monotonic_s()
        late = command_limits.expired(
            self._state.commands.values(),
            now_s=now_s,
            deadline_s=self._options.command_deadline_ms / 1000,
            bytes_per_s=self._options.deadline_bytes_per_s,
        )
        for command in late:
            if command.sent_at_s is None and self.pause_of(command) is not None:
                change.set_volatile(self._state.commands, replace(command, queued_at_s=now_s))
            elif _is_sent_delete(command) and not self._is_shown(command):
                again = replace(command, sent_at_s=None, deadline_ms=0, is_answered=False)
                change.set_volatile(self._state.commands, replace(again, queued_at_s=now_s))
            else:
                self.drop(change, command, OutcomeState.FAILED, Code.DEADLINE_PASSED, "no answer")
        self._pauses.forget_old()
        self.failing_targets.forget_old()
        self._failing.release_old(change)

    def node_restarted(self, change: StateChange, datanode_id: str) -> None:
        """Queue the unanswered commands of a datanode again, because its restart lost them."""
        for command in self._state.commands.of_node(datanode_id):
            if command.sent_at_s is not None and not command.is_answered:
                change.set_volatile(
                    self._state.commands, replace(command, sent_at_s=None, deadline_ms=0)
                )

    def node_died(self, change: StateChange, datanode_id: str) -> None:
        """Give up the commands of a dead node, and the commands of other nodes that would make
        replicas on the dead node.

        The lifetime of the dead node's own commands is usually over. A reconstruction that another
        node may still be running is kept. A delete that was sent remains pending, because it may
        have been executed.
        """
        commands = [
            *self._state.commands.of_node(datanode_id),
            *self._state.commands.adds_to(datanode_id),
        ]
        given_up = {
            command.command_id: command
            for command in commands
            if (command.kind in _REPAIRS and not self._is_rebuilding(command))
            or (command.kind is CommandKind.DELETE and not _is_sent_delete(command))
        }
        for command in given_up.values():
            message = f"{datanode_id} is dead"
            self.drop(change, command, OutcomeState.FAILED, Code.UNAVAILABLE, message)

    def node_leaves(self, change: StateChange, datanode_id: str) -> None:
        """Give up the commands that would bring replicas to a node that is going to leave.

        They are ordered again for other nodes. If such a replica arrives nevertheless, it is
        surplus and is deleted. Reconstructions that are running, or answered but not yet reported,
        are kept; their shards are later copied from the node.
        """
        coming = [
            command
            for command in self._state.commands.adds_to(datanode_id)
            if not self._is_rebuilding(command)
            and not (command.kind is CommandKind.RECONSTRUCT and command.is_answered)
        ]
        for command in coming:
            message = f"{datanode_id} is to leave"
            self.drop(change, command, OutcomeState.SKIPPED, Code.INELIGIBLE, message)

    def supersede(self, change: StateChange, command: PendingCommand) -> None:
        """End a command that another command replaces. The command gets an outcome, because a
        caller has its id."""
        message = "another command took its place"
        self.drop(change, command, OutcomeState.SKIPPED, Code.INELIGIBLE, message)

    def drop(
        self,
        change: StateChange,
        command: PendingCommand,
        state: OutcomeState,
        code: Code,
        message: str,
    ) -> None:
        """End a command without waiting for its datanode's answer. If the datanode has already
        answered, that answer remains the outcome."""
        if command.is_answered:  # no report will show its effect
            change.remove(self._state.commands, command.command_id)
            return
        outcome = CommandOutcome(
            command_id=command.command_id,
            datanode_id=command.datanode_id,
            reported_at_ms=self._clock.wall_ms(),
            state=state,
            kind=command.kind,
            container_id=command.container_id,
            code=code,
            message=message,
            detail=b"",
        )
        self._finish(change, command, outcome)

    def _repeat_lost(self, change: StateChange, datanode_id: str) -> None:
        patience_s = max(
            LOST_AFTER_S, LOST_AFTER_HEARTBEATS * self._options.heartbeat_interval_ms / 1000
        )
        for command in command_limits.commands_to_resend(
            self._state.commands.of_node(datanode_id),
            reported=self._nodes.reported_queues(datanode_id),
            now_s=self._clock.monotonic_s(),
            patience_s=patience_s,
        ):
            change.on_commit(
                _log.warning,
                "command_resent",
                command_id=command.command_id,
                datanode_id=datanode_id,
            )
            change.set_volatile(self._state.commands, command)

    def _finish(
        self, change: StateChange, command: PendingCommand, outcome: CommandOutcome
    ) -> None:
        change.remove(self._state.commands, command.command_id)
        change.put(self._state.outcomes, outcome)
        change.add_audit_note(audit_trail.ended(command, outcome))
        surplus = len(self._state.outcomes) - OUTCOMES_MAX
        if surplus > OUTCOMES_SLACK:
            for command_id in self._state.outcomes.oldest(surplus):
                change.remove(self._state.outcomes, command_id)

    def _correct(self, change: StateChange, outcome: CommandOutcome) -> None:
        """Replace the stored outcome by a late answer, if the stored outcome is "skipped", or if
        the SCM assigned it at the deadline or because the datanode seemed dead. Ignore repeated
        answers."""
        known = self._state.outcome(outcome.command_id)
        if known is None or known.datanode_id != outcome.datanode_id:
            return
        was_given_up = known.state is OutcomeState.SKIPPED or known.code in _GIVEN_UP
        if was_given_up and outcome.state is not OutcomeState.SKIPPED:
            change.put(
                self._state.outcomes,
                replace(outcome, kind=known.kind, container_id=known.container_id),
            )


def _is_sent_delete(command: PendingCommand) -> bool:
    """Return True if a datanode may have received this delete at least once."""
    was_sent = command.sent_at_s is not None or command.lifetime_ms > 0
    return command.kind is CommandKind.DELETE and was_sent
