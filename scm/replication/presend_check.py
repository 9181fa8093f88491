"""The final check of a command before it is sent: does it still serve its purpose?

    pending ──objections──► the objection to each command;  named_by ──► other datanodes it names

Callers hold the control plane's lock.
"""

from collections.abc import Collection, Sequence

from scm.cluster.container_context import ContainerContext, PlacedReplica
from scm.cluster.decision_context import ControlComponent, DecisionContext
from scm.replication.guards import quasi_closed_guard
from scm.replication.guards.delete_safety import is_whole, movable
from scm.replication.guards.shard_guard import equivalent_shards, may_delete
from scm.replication.health.live_judge import LiveHealthJudge
from scm.replication.processors.reconstruction import Reconstructor
from scm.replication.reconcile.reconcile_scheduler import ReconcileScheduler
from scm.state.entities import CommandKind, CommandPriority, ContainerState, PendingCommand


class PreSendCheck(ControlComponent):
    """Finds objections to commands that are no longer right."""

    def __init__(
        self,
        basis: DecisionContext,
        judge: LiveHealthJudge,
        reconciles: ReconcileScheduler,
        coding: Reconstructor,
    ) -> None:
        super().__init__(basis)
        self._judge = judge
        self._reconciles = reconciles
        self._coding = coding

    def named_by(self, command: PendingCommand) -> tuple[str, ...]:
        """Return the datanodes that a command names beside its receiver."""
        match command.kind:
            case CommandKind.RECONCILE:
                return self._reconciles.peers_of(command)
            case CommandKind.REPLICATE:
                return (command.target_id,)
            case CommandKind.RECONSTRUCT:
                return tuple(node for _, node in command.shards + command.sources)
            case CommandKind.DELETE:
                return self._witnesses_of(command)
            case _:
                return ()

    def _witnesses_of(self, command: PendingCommand) -> tuple[str, ...]:
        """Return the datanodes that hold the same data as a replica to be deleted. The guards
        approved the delete because of these, and one of them must first prove that it has the data
        (docs/PROOFS.md).

        Empty if the data is no longer needed. It is also empty for a shard that no other node has:
        it is computed from the others, so no single datanode could prove it.
        """
        container = self._state.containers.get(command.container_id)
        if container is None or not command.keep_count:
            return ()
        case = self._cases.case(container)
        victim = next((p for p in case.placed if p.datanode_id == command.datanode_id), None)
        if victim is None:
            return ()
        return tuple(p.datanode_id for p in _others_with(case, victim))

    def objections(self, commands: Sequence[PendingCommand]) -> dict[int, str]:
        """Return the objections to commands that could be sent now, by id."""
        needed = self._coding.needed(commands) | self._readable(commands)
        found = {c.command_id: self._objection(c, needed) for c in commands}
        return {number: reason for number, reason in found.items() if reason}

    def _readable(self, commands: Sequence[PendingCommand]) -> set[int]:
        """Return the ids of the copies of whole replicas whose source is still good."""
        copies = [
            c for c in commands if c.kind is CommandKind.REPLICATE and not self._coding.is_coded(c)
        ]
        able = self._judge.sources(
            {c.container_id for c in copies}, without={c.command_id for c in copies}
        )
        return {c.command_id for c in copies if c.datanode_id in able[c.container_id].sources}

    def _objection(self, command: PendingCommand, needed: Collection[int]) -> str:
        match command.kind:
            case CommandKind.RECONCILE:
                if not self._reconciles.peers_of(command):
                    return "not eligible any more when its turn came"
            case CommandKind.REPLICATE:
                return self._replicate_objection(command, needed)
            case CommandKind.DELETE:
                return self._delete_objection(command)
            case CommandKind.RECONSTRUCT:
                if command.command_id not in needed:
                    return "what it would rebuild is not lost any more, or too few sources are left"
        return ""

    def _replicate_objection(self, command: PendingCommand, needed: Collection[int]) -> str:
        container = self._state.containers.get(command.container_id)
        if container is None:
            return "no such container any more"
        case = self._cases.case(container)
        if command.priority is CommandPriority.LOW:  # a move only requires a whole replica
            is_source = command.datanode_id in movable(case)
        else:
            is_source = command.command_id in needed
        if not is_source:
            return "its replica is no source any more"
        if self._state.replicas.get((command.container_id, command.target_id)) is not None:
            return f"{command.target_id} has a replica already"
        if not self._nodes.takes_replicas(command.target_id):
            return f"{command.target_id} cannot be reached, is to leave, or is read-only"
        return ""

    def _delete_objection(self, command: PendingCommand) -> str:
        """Return the objection to a delete, which is checked again because replicas may be gone by
        now.
        """
        container = self._state.containers.get(command.container_id)
        if container is None or not command.keep_count:
            return ""
        case, keep_count = self._cases.case(container), command.keep_count
        if may_delete(case, command.datanode_id, keep_count=keep_count, rules=self._judge.rules()):
            return ""
        if container.scheme:
            return "too few whole shards would stay"
        if container.state is ContainerState.QUASI_CLOSED:
            return "too few whole replicas of its origin would stay"
        return f"fewer than {keep_count} whole replicas would stay"


def _others_with(case: ContainerContext, victim: PlacedReplica) -> list[PlacedReplica]:
    if case.container.state is ContainerState.QUASI_CLOSED:
        return quasi_closed_guard.others_with(case, victim)
    index = victim.replica.replica_index
    whole = [
        p
        for p in case.placed
        if p is not victim and p.replica.replica_index == index and is_whole(case, p)
    ]
    return whole + equivalent_shards(case, victim) if case.container.scheme else whole
