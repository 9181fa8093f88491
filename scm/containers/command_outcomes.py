"""Applies the outcome of a command to its container.

Callers hold the control plane's lock.
"""

from agent.errors import Code
from scm.cluster import lifecycle
from scm.cluster.basis import Basis
from scm.replication.reconciling.attempts import Reconciles
from scm.state.database import Change
from scm.state.facts import Container, Kind, Outcome, OutcomeState, Pending


class Outcomes:
    """Applies the outcomes of commands."""

    def __init__(self, basis: Basis, reconciles: Reconciles) -> None:
        self._state = basis.state
        self._commands = basis.commands
        self._reconciles = reconciles

    def take_in(self, change: Change, outcome: Outcome) -> Container | None:
        """Apply a command's outcome; return the container if the outcome affects it."""
        command = self._commands.settle(change, outcome)
        if command is None:
            return None
        if command.kind is Kind.RECONCILE:
            self._reconciles.ended(command, outcome)
        if outcome.state is OutcomeState.FAILED and outcome.code == Code.CONTAINER_NOT_FOUND:
            return self._without_replica(change, command)
        return self._state.containers.get(command.container_id)

    def _without_replica(self, change: Change, command: Pending) -> Container | None:
        """Apply a datanode's answer that it has no replica.

        A chosen datanode is removed from the pipeline; a recorded replica that a delete did not
        find is gone.
        """
        container = self._state.containers.get(command.container_id)
        if container is None:
            return None
        if command.kind is Kind.CLOSE:
            container = lifecycle.without_replica(container, command.datanode_id)
            change.put(self._state.containers, container)
        elif command.kind is Kind.DELETE:
            key = (command.container_id, command.datanode_id)
            if self._state.replicas.get(key) is not None:
                change.remove(self._state.replicas, key)
        return container
