"""Close commands: queued for each replica that must be closed, and repeated until it is closed.

The lifecycle of a container, or an operator, decides that a replica must be closed. If the reports
of its datanode do not show the close, the command is sent again after a pause, which becomes longer
each time. Callers must hold the control plane's lock.
"""

from collections.abc import Collection
from dataclasses import dataclass

from scm.cluster import lifecycle
from scm.cluster.decision_context import ControlComponent, DecisionContext
from scm.state.container_queues import ContainerBitmap
from scm.state.database import StateChange
from scm.state.entities import CommandKind, Container, PendingCommand
from suture.runtime.backoff import backoff_s


@dataclass(frozen=True, slots=True)
class _Attempt:
    count: int
    not_before_s: float


class CloseCommands(ControlComponent):
    """Queues and repeats the close commands for replicas."""

    def __init__(self, basis: DecisionContext) -> None:
        super().__init__(basis)
        self._attempts: dict[int, dict[str, _Attempt]] = {}
        """The close commands whose effect no report has shown yet, by container and datanode."""
        self._closed: ContainerBitmap = self._state.settled()

    @property
    def under_way(self) -> Collection[int]:
        """Return the ids of the containers that wait for the effect of a close command."""
        return self._attempts.keys()

    def close_due(self, change: StateChange) -> None:
        """Queue the close commands that are due in all containers."""
        for container_id in self._state.containers.closing | self._state.replicas.unsettled:
            container = self._state.containers.get(container_id)
            if container is not None and container_id not in self._closed:
                self.close(change, container)

    def reset_attempts(self, container_id: int) -> None:
        """Reset the pause of a container's close commands, so that the next one is sent at once."""
        self._attempts.pop(container_id, None)

    def close(self, change: StateChange, container: Container) -> list[int]:
        """Queue the close commands of a container that are due.

        Return the ids of its pending close commands. A command is repeated after a growing pause
        until reports show its effect.
        """
        container_id = container.container_id
        now_s = self._clock.monotonic_s()
        due: list[lifecycle.CloseCommand] = []
        if container.pipeline or container_id in self._state.replicas.unsettled:
            is_sure = self._state.has_all_commits_of(container_id)
            last_bcsid = self._state.keys.last_bcsid_in(container_id) if is_sure else None
            living = self._cases.live_replicas(container_id)
            due = lifecycle.closes_due(container, living, acknowledged_bcsid=last_bcsid)
        if not due:
            self._attempts.pop(container_id, None)
            self._closed.add(container_id)
            return []
        attempts = self._attempts.setdefault(container_id, {})
        command_ids = []
        for command in due:
            node = command.datanode_id
            pending = self._state.commands.about(CommandKind.CLOSE, container_id, node)
            if pending is not None and self._is_superseded(pending, command):
                self._commands.supersede(change, pending)
                attempts.pop(node, None)
            elif pending is not None:
                command_ids.append(pending.command_id)
                continue
            attempt = attempts.get(node, _Attempt(0, 0.0))
            if now_s < attempt.not_before_s or not self._may_be_told(node):
                continue
            command_ids.append(
                self._commands.queue(
                    change,
                    CommandKind.CLOSE,
                    container_id,
                    node,
                    why=container.close_reason or f"the container is {container.state}",
                    bcsid=command.bcsid,
                    force=command.force,
                )
            )
            pause_s = backoff_s(attempt.count + 1, first_s=self._options.close_retry_ms / 1000)
            attempts[node] = _Attempt(attempt.count + 1, now_s + pause_s)
        return command_ids

    def _may_be_told(self, datanode_id: str) -> bool:
        return self._commands.is_sendable(datanode_id) and self._nodes.takes_commands(datanode_id)

    def _is_superseded(self, pending: PendingCommand, command: lifecycle.CloseCommand) -> bool:
        """Return True if `command` must replace the unsent close command `pending`.

        That is the case if they name different commits, or if only `pending` uses force.
        """
        is_other = pending.bcsid != command.bcsid or pending.force > command.force
        return pending.sent_at_s is None and is_other
