"""Checks each command again before it is sent, because the state may have changed.

`objections` returns the reasons against sending. `named_by` returns the other datanodes that a
command names. Callers must hold the control plane's lock.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from health.removal import Removals
from scm.cluster.decision_context import ControlComponent
from scm.replication.health.live_judge import LiveHealthJudge
from scm.replication.processors.reconstruction import Reconstructor
from scm.replication.reconcile.reconcile_scheduler import ReconcileScheduler
from scm.state.entities import CommandKind, CommandPriority, ContainerState, PendingCommand


@dataclass(eq=False)
class PreSendCheck(ControlComponent):
    """Finds reasons against sending a command, if the state has changed since it was queued."""

    _judge: LiveHealthJudge
    _reconciles: ReconcileScheduler
    _coding: Reconstructor

    def named_by(self, commands: Sequence[PendingCommand]) -> list[tuple[str, ...]]:
        """Return, for each command, the datanodes that it names.

        The datanode that receives the command is not included.
        """
        if not commands:
            return []
        deletes = {c.container_id for c in commands if c.kind is CommandKind.DELETE}
        removals = self._judge.removals(deletes)
        return [self._named_by(command, removals) for command in commands]

    def _named_by(self, command: PendingCommand, removals: Removals) -> tuple[str, ...]:
        match command.kind:
            case CommandKind.RECONCILE:
                return self._reconciles.peers_of(command)
            case CommandKind.REPLICATE:
                return (command.target_id,)
            case CommandKind.RECONSTRUCT:
                return tuple(node for _, node in command.shards + command.sources)
            case CommandKind.DELETE:
                return self._witnesses_of(command, removals)
            case _:
                return ()

    def _witnesses_of(self, command: PendingCommand, removals: Removals) -> tuple[str, ...]:
        """Return the datanodes that can confirm a delete of a replica.

        Before the delete, at least one of them must prove that it has the data (docs/PROOFS.md).
        Return an empty tuple if the data is no longer needed.
        """
        if self._state.containers.get(command.container_id) is None or not command.keep_count:
            return ()
        return tuple(removals.witnesses(command.container_id, command.datanode_id))

    def objections(self, commands: Sequence[PendingCommand]) -> dict[int, str]:
        """Return the reasons against sending, by command id. Commands without one are left out."""
        if not commands:
            return {}
        needed = self._coding.needed(commands) | self._readable(commands)
        kinds = (CommandKind.DELETE, CommandKind.REPLICATE)
        removals = self._judge.removals({c.container_id for c in commands if c.kind in kinds})
        found = {c.command_id: self._objection(c, needed, removals) for c in commands}
        return {number: reason for number, reason in found.items() if reason}

    def _readable(self, commands: Sequence[PendingCommand]) -> set[int]:
        """Return the ids of the copy commands whose source can be read.

        Commands for erasure-coded containers are not included.
        """
        copies = [
            c for c in commands if c.kind is CommandKind.REPLICATE and not self._coding.is_coded(c)
        ]
        able = self._judge.sources(
            {c.container_id for c in copies}, without={c.command_id for c in copies}
        )
        return {c.command_id for c in copies if c.datanode_id in able[c.container_id].sources}

    def _objection(
        self, command: PendingCommand, needed: Collection[int], removals: Removals
    ) -> str:
        match command.kind:
            case CommandKind.RECONCILE:
                if not self._reconciles.peers_of(command):
                    return "not eligible any more when its turn came"
            case CommandKind.REPLICATE:
                return self._replicate_objection(command, needed, removals)
            case CommandKind.DELETE:
                return self._delete_objection(command, removals)
            case CommandKind.RECONSTRUCT:
                if command.command_id not in needed:
                    return "what it would rebuild is not lost any more, or too few sources are left"
        return ""

    def _replicate_objection(
        self, command: PendingCommand, needed: Collection[int], removals: Removals
    ) -> str:
        if self._state.containers.get(command.container_id) is None:
            return "no such container any more"
        if command.priority is CommandPriority.LOW:  # a move only requires a whole replica
            is_source = removals.is_movable(command.container_id, command.datanode_id)
        else:
            is_source = command.command_id in needed
        if not is_source:
            return "its replica is no source any more"
        if self._state.replicas.get((command.container_id, command.target_id)) is not None:
            return f"{command.target_id} has a replica already"
        if not self._nodes.takes_replicas(command.target_id):
            return f"{command.target_id} cannot be reached, is to leave, or is read-only"
        return ""

    def _delete_objection(self, command: PendingCommand, removals: Removals) -> str:
        """Return the reason against a delete, or an empty string.

        The check runs again before the delete is sent, because other replicas may be lost by then.
        """
        container = self._state.containers.get(command.container_id)
        number, keep_count = command.container_id, command.keep_count
        if container is None or not keep_count:
            return ""
        if removals.may_remove(number, command.datanode_id, keep_count=keep_count):
            return ""
        if container.scheme:
            return "too few whole shards would stay"
        if container.state is ContainerState.QUASI_CLOSED:
            return "too few whole replicas of its origin would stay"
        return f"fewer than {keep_count} whole replicas would stay"
