"""Commands that the SCM has queued or sent and that have not ended.

The answer to a heartbeat sends queued commands to a datanode, and the datanode later reports their
outcomes. A command that makes or removes replicas ends only when a replica report shows the effect.
A command is queued again in three cases: the answer to the heartbeat was lost, the datanode
restarted, or the command is a delete whose deadline has passed.

A command is stored on disk before its id is returned, and removed in the change that stores its
outcome. Callers must hold the control plane's lock.
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
        """Queue a command for a datanode, and return the id of the command.

        `details` are further fields of `PendingCommand`. The audit log records `why`. If `is_kept`
        is False, the command is kept in memory only. After a restart, the cause of such a command
        creates it again.
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
        """Order a datanode to register again, so that it reports all its replicas.

        Do nothing if such a command is already queued.
        """
        waiting = self._state.commands.of_node(datanode_id)
        if not any(command.kind is CommandKind.REREGISTER for command in waiting):
            why = "a page of its full report was lost"
            self.queue(change, CommandKind.REREGISTER, 0, datanode_id, why=why)

    def has_room(self, datanode_id: str) -> bool:
        """Return True if fewer than QUEUE_MAX commands are pending for this datanode."""
        return self._state.commands.count_of_node(datanode_id) < command_limits.QUEUE_MAX

    def is_sendable(self, datanode_id: str) -> bool:
        """Return True if a new command for this datanode would be sent soon.

        The datanode must be reachable, and its queue must not be full.
        """
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
        """Return the commands to send with the answer to this heartbeat, and mark them as sent.

        `objections` returns the reasons against sending, by command id. Commands with such a reason
        are dropped. Commands of other kinds than `kinds` remain queued.
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
        """Return the run-time setting that prevents sending a command, or None if there is none."""
        settings = self._state.settings.values()
        if not settings:
            return None
        named = [command.datanode_id, command.target_id, *dict(command.shards).values()]
        known = (self._state.nodes.get(name) for name in named if name)
        racks = {node.rack for node in known if node is not None}
        return pause_of(settings, command, racks, self._clock.wall_ms())

    def _counted(self, command: PendingCommand) -> PendingCommand:
        """Return a reconstruct command with the number of its blocks, taken from replica reports.

        The number increases the deadline, because the rebuild of a million small blocks takes
        hours. Other commands are returned unchanged.
        """
        if command.kind is not CommandKind.RECONSTRUCT:
            return command
        replicas = self._state.replicas.of(command.container_id)
        return replace(command, block_count=max((r.block_count for r in replicas), default=0))

    def _refuse(self, change: StateChange, command: PendingCommand, reason: str) -> None:
        """Drop a command that must not be sent for a given reason.

        If the command is a delete, pause deletes of its container. Without this pause, a component
        that does not check the reason would order the delete again immediately. Copies are not
        paused, because they are urgent.
        """
        self.drop(change, command, OutcomeState.SKIPPED, Code.INELIGIBLE, reason)
        if command.kind is CommandKind.DELETE:
            self._pauses.count(command)

    def _lifetime_ms(self, command: PendingCommand) -> int:
        """Return the time in ms for which a datanode may work on a command."""
        first_s = self._options.command_deadline_ms / 1000
        deadline_s = command_limits.deadline_s(command, first_s, self._options.deadline_bytes_per_s)
        return int((deadline_s - first_s / 2) * 1000)  # every command gets a deadline

    def _is_rebuilding(self, command: PendingCommand) -> bool:
        """Return True if a datanode may currently rebuild shards because of this command.

        A sent command cannot be cancelled. Therefore, no other command rebuilds these shards before
        this command is answered or its lifetime is over.
        """
        if command.kind is not CommandKind.RECONSTRUCT or command.is_answered:
            return False
        if command.sent_at_s is None:
            is_earlier = command.command_id < self._first_id
            ends_at_s = self._began_s + self._lifetime_ms(self._counted(command)) / 1000
            return is_earlier and self._clock.monotonic_s() < ends_at_s
        return self._clock.monotonic_s() < command.sent_at_s + command.lifetime_ms / 1000

    def _waits(self, command: PendingCommand) -> bool:
        """Return True if a reconcile must wait for other reconciles of its container.

        The replicas whose root is in the minority are reconciled first. These reconciles read from
        the other replicas, which are reconciled afterwards.
        """
        return command.is_second and any(
            other.kind is CommandKind.RECONCILE and not other.is_second
            for other in self._state.commands.of_container(command.container_id)
        )

    def record_outcome(self, change: StateChange, outcome: CommandOutcome) -> PendingCommand | None:
        """Record the outcome of a command that a datanode reported.

        Return the command. Return None if the outcome is not new.
        """
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
        """Return the number of bytes that a datanode must copy for its unanswered copy commands.

        `size_bytes` of a copy command is the space that the target needs, which is twice the number
        of bytes to copy.
        """
        return sum(
            command.size_bytes // 2
            for command in self._state.commands.of_node(datanode_id)
            if command.kind is CommandKind.REPLICATE and not command.is_answered
        )

    def complete_visible(self, change: StateChange, container_id: int) -> None:
        """Remove the answered commands of a container if replica reports show their effect."""
        for command in self._state.commands.of_container(container_id):
            if command.is_answered and self._is_shown(command):
                change.remove(self._state.commands, command.command_id)

    def _is_shown(self, command: PendingCommand) -> bool:
        """Return True if replica reports show the effect of a command.

        Also return True for kinds of commands whose effect is not visible in replica reports.
        """
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
        """End the commands whose deadline has passed without an answer, and release old exclusions.

        A sent delete may still be executed. Therefore, it is queued again as long as the replica
        exists. The deadline of a queued command that a run-time setting pauses is extended.
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
        """End the commands of a dead datanode, and the commands that create replicas on it.

        Reconstructions that another datanode may still run remain. A sent delete remains too,
        because the datanode may have executed it.
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
        """End the commands that would create replicas on a datanode that is going to leave.

        The SCM orders them again for other datanodes. If such a replica arrives nevertheless, it is
        surplus and is deleted. Reconstructions that are running, or answered but not yet reported,
        remain. Their shards are later copied to other datanodes.
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
        """End a command that a new command replaces.

        The ended command gets an outcome, because a caller may ask for the outcome by its id.
        """
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
        """End a command without waiting for the answer of its datanode.

        If the datanode has already answered, that answer remains the outcome.
        """
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
        """Replace the stored outcome of a command by a late answer of its datanode.

        This happens if the stored outcome is SKIPPED, or if the SCM assigned it because the
        deadline had passed or the datanode seemed dead. Repeated answers are ignored.
        """
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
    """Return True if a command is a delete that its datanode may have received."""
    was_sent = command.sent_at_s is not None or command.lifetime_ms > 0
    return command.kind is CommandKind.DELETE and was_sent
