"""Applies the outcomes of commands to the containers.

Callers must hold the control plane's lock.
"""

from scm.cluster import lifecycle
from scm.cluster.decision_context import ControlComponent, DecisionContext
from scm.replication.reconcile.reconcile_scheduler import ReconcileScheduler
from scm.state.database import StateChange
from scm.state.entities import CommandKind, CommandOutcome, Container, OutcomeState, PendingCommand
from suture.errors import Code


class OutcomeProcessor(ControlComponent):
    """Applies the outcomes of commands to the containers."""

    def __init__(self, basis: DecisionContext, reconciles: ReconcileScheduler) -> None:
        super().__init__(basis)
        self._reconciles = reconciles

    def apply(self, change: StateChange, outcome: CommandOutcome) -> Container | None:
        """Apply the outcome of a command.

        Return the container if the outcome affects one, otherwise None.
        """
        command = self._commands.record_outcome(change, outcome)
        if command is None:
            return None
        if command.kind is CommandKind.RECONCILE:
            self._reconciles.ended(command, outcome)
        if outcome.state is OutcomeState.FAILED and outcome.code == Code.CONTAINER_NOT_FOUND:
            return self._without_replica(change, command)
        return self._state.containers.get(command.container_id)

    def _without_replica(self, change: StateChange, command: PendingCommand) -> Container | None:
        """Apply the answer of a datanode that it has no replica of the container.

        After a close command, remove the datanode from the pipeline of the container. After a
        delete command, remove the record of the replica. Return the container.
        """
        container = self._state.containers.get(command.container_id)
        if container is None:
            return None
        if command.kind is CommandKind.CLOSE:
            container = lifecycle.without_replica(container, command.datanode_id)
            change.put(self._state.containers, container)
        elif command.kind is CommandKind.DELETE:
            key = (command.container_id, command.datanode_id)
            if self._state.replicas.get(key) is not None:
                change.remove(self._state.replicas, key)
        return container
