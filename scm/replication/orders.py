"""What the control plane's decisions become: close orders, and a last look at every command.

    lifecycle, operator, plan, replication manager ──► commands ──heartbeat──► datanode

Callers hold the control plane's lock.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from agent.errors import Code
from scm.cluster import dispatch, lifecycle
from scm.cluster.basis import Basis
from scm.replication.delete_safety import movable
from scm.replication.judge import Judge
from scm.replication.origins import may_be_removed
from scm.replication.reconciles import Reconciles
from scm.replication.reconstruction import Reconstructor
from scm.replication.shards import may_lose_shard, may_remove_shard, operator_keep_count
from scm.state.database import Change
from scm.state.facts import Container, Kind, Outcome, OutcomeState, Pending, Priority
from scm.state.settled import Settled


@dataclass(frozen=True, slots=True)
class _Attempt:
    count: int
    not_before_s: float


class Orders:
    """Orders that follow from a container's state."""

    def __init__(
        self, basis: Basis, judge: Judge, reconciles: Reconciles, coding: Reconstructor
    ) -> None:
        self._state = basis.state
        self._nodes = basis.nodes
        self._commands = basis.commands
        self._cases = basis.cases
        self._clock = basis.clock
        self._options = basis.options
        self._judge = judge
        self._reconciles = reconciles
        self._coding = coding
        self.close_attempts: dict[int, dict[str, _Attempt]] = {}
        """By container and datanode: closes that were ordered and are not seen to be done."""
        self._closed: Settled = self._state.settled()

    def close_due(self, change: Change) -> None:
        """Queue the close commands that are due in any container; no look where none can be."""
        for container_id in self._state.containers.closing | self._state.replicas.unsettled:
            container = self._state.containers.get(container_id)
            if container is not None and container_id not in self._closed:
                self.close(change, container)

    def ask_again(self, container_id: int) -> None:
        """Forget how often a close was ordered: the next order does not wait for its pause."""
        self.close_attempts.pop(container_id, None)

    def close(self, change: Change, container: Container) -> list[int]:
        """Queue the close commands that are due; return the ids of all that are pending.

        The same command is repeated, with growing pauses, until reports show what it asked for.
        """
        container_id = container.container_id
        now_s = self._clock.monotonic_s()
        orders: list[lifecycle.CloseOrder] = []
        if container.pipeline or container_id in self._state.replicas.unsettled:
            orders = lifecycle.close_orders(container, self._cases.living(container_id))
        if not orders:
            self.close_attempts.pop(container_id, None)
            self._closed.add(container_id)
            return []
        attempts = self.close_attempts.setdefault(container_id, {})
        command_ids = []
        for order in orders:
            node = order.datanode_id
            pending = self._state.commands.about(Kind.CLOSE, container_id, node)
            if pending is not None and self._is_superseded(pending, order):
                change.remove(self._state.commands, pending.command_id)
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
                    Kind.CLOSE,
                    container_id,
                    node,
                    why=container.close_reason or f"the container is {container.state}",
                    bcsid=order.bcsid,
                    force=order.force,
                )
            )
            pause_s = dispatch.backoff_s(
                attempt.count + 1, first_s=self._options.close_retry_ms / 1000
            )
            attempts[node] = _Attempt(attempt.count + 1, now_s + pause_s)
        return command_ids

    def _may_be_told(self, datanode_id: str) -> bool:
        return self._commands.is_sendable(datanode_id) and self._nodes.takes_orders(datanode_id)

    def _is_superseded(self, pending: Pending, order: lifecycle.CloseOrder) -> bool:
        """Whether a close that has not left names another commit, or more force, than is right."""
        is_other = pending.bcsid != order.bcsid or pending.force > order.force
        return pending.sent_at_s is None and is_other

    def named_by(self, command: Pending) -> tuple[str, ...]:
        """Return the datanodes that a command names beside the one it goes to."""
        match command.kind:
            case Kind.RECONCILE:
                return self._reconciles.peers_of(command)
            case Kind.REPLICATE:
                return (command.target_id,)
            case Kind.RECONSTRUCT:
                return tuple(node for _, node in command.shards + command.sources)
            case _:
                return ()

    def objections(self, commands: Sequence[Pending]) -> dict[int, str]:
        """Say what speaks against commands now that their turn has come, by id."""
        needed = self._coding.needed(commands) | self._readable(commands)
        found = {c.command_id: self._objection(c, needed) for c in commands}
        return {number: reason for number, reason in found.items() if reason}

    def _readable(self, commands: Sequence[Pending]) -> set[int]:
        """Return the ids of the copies of whole replicas whose source is still a good one."""
        copies = [c for c in commands if c.kind is Kind.REPLICATE and not self._coding.is_coded(c)]
        able = self._judge.sources(
            {c.container_id for c in copies}, without={c.command_id for c in copies}
        )
        return {c.command_id for c in copies if c.datanode_id in able[c.container_id].sources}

    def _objection(self, command: Pending, needed: Collection[int]) -> str:
        match command.kind:
            case Kind.RECONCILE:
                if not self._reconciles.peers_of(command):
                    return "not eligible any more when its turn came"
            case Kind.REPLICATE:
                return self._replicate_objection(command, needed)
            case Kind.DELETE:
                return self._delete_objection(command)
            case Kind.RECONSTRUCT:
                if command.command_id not in needed:
                    return "what it would rebuild is not lost any more, or too few sources are left"
        return ""

    def settle(self, change: Change, outcome: Outcome) -> Container | None:
        """Take in what became of a command; return the container if that says something of it."""
        command = self._commands.settle(change, outcome)
        if command is None:
            return None
        if command.kind is Kind.RECONCILE:
            self._reconciles.ended(command)
        if outcome.state is OutcomeState.FAILED and outcome.code == Code.CONTAINER_NOT_FOUND:
            return self._without_replica(change, command)
        return self._state.containers.get(command.container_id)

    def _replicate_objection(self, command: Pending, needed: Collection[int]) -> str:
        container = self._state.containers.get(command.container_id)
        if container is None:
            return "no such container any more"
        case = self._cases.case(container)
        if command.priority is Priority.LOW:  # a move, which needs no reason but a whole replica
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

    def _delete_objection(self, command: Pending) -> str:
        """Deletes are decided once and looked at again: replicas may have gone meanwhile."""
        container = self._state.containers.get(command.container_id)
        if container is None or not command.keep_count:
            return ""
        case = self._cases.case(container)
        if container.scheme:
            is_asked_for = command.keep_count == operator_keep_count(container)
            may_go = may_lose_shard if is_asked_for else may_remove_shard
            is_safe = may_go(case, command.datanode_id)
            return "" if is_safe else "too few whole shards would stay"
        if not may_be_removed(case, command.datanode_id, keep_count=command.keep_count):
            return f"fewer than {command.keep_count} whole replicas would stay"
        return ""

    def _without_replica(self, change: Change, command: Pending) -> Container | None:
        """Take a datanode's word that it has no replica.

        A chosen one is struck off the pipeline; a recorded one that a delete did not find is gone.
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
