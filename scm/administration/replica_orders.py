"""Commands on replicas that operators and plans request, with a preview before each command.

A dry run returns the expected commands and a fingerprint of the state. To confirm, the operator
sends the fingerprint back, and the command is rejected if the state has changed. Every request is
checked against the current state, no matter who sends it. A replica is removed only if enough
complete and equal replicas remain, and a copy is ordered only to a datanode with free space.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from scm.administration.previews import Previews
from scm.cluster.commands.loads import DELETE_LIMIT
from scm.cluster.container_context import (
    ContainerContext,
    container_fingerprint,
    needed_bytes,
    neighbours,
)
from scm.cluster.decision_context import ControlComponent
from scm.cluster.safemode import SafeMode
from scm.replication.health.live_judge import HealthRow, LiveHealthJudge
from scm.replication.reconcile.eligibility import Eligibility
from scm.replication.reconcile.plan_check import ASKED_FOR, ContainerDecision, PlannedCommand
from scm.replication.reconcile.reconcile_scheduler import ReconcileScheduler
from scm.replication.replication_manager import PlannedCopy, ReplicationManager
from scm.state.database import StateChange
from scm.state.entities import CommandKind, Container, ContainerState, Node, NodeHealthState
from scm.state.state_access import state_change
from suture.errors import Code

INELIGIBLE_STATE: Final = "INELIGIBLE_CONTAINER_STATE"
NOT_ENOUGH_REPLICAS: Final = "NOT_ENOUGH_REPLICAS"
NO_SOURCE: Final = "NO_SOURCE"
KEEP_MIN: Final = 2  # complete replicas that remain when an operator removes one

_CLOSED: Final = frozenset({ContainerState.CLOSED, ContainerState.QUASI_CLOSED})
_UNTIL_NODES_CALL: Final = frozenset({Eligibility.NO_REPLICAS_FOUND, Eligibility.NO_REACHABLE_PEER})
_NODE_KINDS: Final = frozenset({CommandKind.REFRESH_VOLUME_USAGE, CommandKind.REREGISTER})

Decide = Callable[[StateChange, ContainerContext], ContainerDecision]


@dataclass(frozen=True, slots=True)
class NodeDecision:
    """The outcome of a command to a datanode that concerns no replica."""

    datanode_id: str
    code: str
    message: str = ""
    command_id: int = 0


@dataclass(frozen=True, slots=True)
class DatanodeQueue:
    """The number of commands of one datanode, by kind, and its limits.

    `reported` are the queued commands that the datanode reported. `sent` and `waiting` are commands
    without an answer that the control plane has sent, or not yet sent.
    """

    node: Node
    replication_load: int
    replication_limit: int
    delete_load: int
    delete_limit: int
    reported: tuple[tuple[str, int], ...]
    sent: tuple[tuple[str, int], ...]
    waiting: tuple[tuple[str, int], ...]

    @property
    def is_excluded(self) -> bool:
        """Return True if the datanode has reached its limit of copies.

        It is then neither source nor target of new copies until it has finished some commands.
        """
        return self.replication_load >= self.replication_limit


@dataclass(eq=False)
class OperatorCommands(ControlComponent):
    """Orders the commands on replicas and datanodes that operators request.

    Callers of `copy` and `remove` must hold the control plane's lock.
    """

    _judge: LiveHealthJudge
    _manager: ReplicationManager
    _safe_mode: SafeMode
    _reconciles: ReconcileScheduler
    _previews: Previews

    @state_change
    def reconcile(
        self,
        change: StateChange,
        container_ids: Sequence[int],
        *,
        worlds: Sequence[int] = (),
        dry_run: bool = False,
    ) -> list[ContainerDecision]:
        """Order a reconcile of each eligible container. Return one decision per container.

        In safe mode, a decision that replicas or peers are missing gets the code SAFE_MODE, because
        their datanodes may not have sent a heartbeat yet.
        """
        order = partial(self._reconciles.order, change)
        decisions = self._previews.each(
            container_ids, worlds, self._previews.reconcile if dry_run else order
        )
        if not self._safe_mode.is_on:
            return decisions
        return [
            replace(one, code=Code.SAFE_MODE) if one.code in _UNTIL_NODES_CALL else one
            for one in decisions
        ]

    @state_change
    def replicate(
        self,
        change: StateChange,
        container_ids: Sequence[int],
        *,
        target_id: str,
        worlds: Sequence[int],
        dry_run: bool,
    ) -> list[ContainerDecision]:
        """Order one more copy of each container. Return one decision per container.

        The copy goes to `target_id`. If `target_id` is empty, the placement rules choose the
        datanode.
        """

        def decide(now: StateChange, case: ContainerContext) -> ContainerDecision:
            number = case.container.container_id
            row = self._judge.sources([number])[number]
            return self.copy(
                now, case, row, why=ASKED_FOR, count=1, target_id=target_id, dry_run=dry_run
            )

        return self._each(change, container_ids, worlds, decide)

    @state_change
    def delete(
        self,
        change: StateChange,
        container_ids: Sequence[int],
        *,
        datanode_id: str,
        worlds: Sequence[int],
        dry_run: bool,
    ) -> list[ContainerDecision]:
        """Remove the replicas of these containers from one datanode.

        Return one decision per container. A replica is removed only if at least `KEEP_MIN` complete
        replicas remain. Of an erasure-coded container, one shard more than a read needs must
        remain, because the removed shard is rebuilt from the others.
        """

        def decide(now: StateChange, case: ContainerContext) -> ContainerDecision:
            keep_count = min(KEEP_MIN, case.container.replication_factor)
            if case.container.scheme:
                keep_count = case.container.data_count + 1
            return self.remove(
                now,
                case,
                datanode_id,
                why=ASKED_FOR,
                keep_count=keep_count,
                force=True,
                dry_run=dry_run,
            )

        return self._each(change, container_ids, worlds, decide, is_for_shards=True)

    @state_change
    def command_nodes(
        self, change: StateChange, datanode_ids: Sequence[str], kind: CommandKind
    ) -> list[NodeDecision]:
        """Send datanodes a command that concerns no replica, for instance to register again."""
        assert kind in _NODE_KINDS
        decisions = []
        for datanode_id in datanode_ids:
            if self._state.nodes.get(datanode_id) is None:
                decisions.append(NodeDecision(datanode_id, Code.WRONG_DATANODE, "never registered"))
            elif self._nodes.health(datanode_id) is NodeHealthState.DEAD:
                decisions.append(NodeDecision(datanode_id, Code.INELIGIBLE, "is DEAD"))
            elif not self._commands.is_sendable(datanode_id):
                decisions.append(NodeDecision(datanode_id, Code.UNAVAILABLE, "cannot be reached"))
            else:
                command_id = self._commands.queue(change, kind, 0, datanode_id, why=ASKED_FOR)
                decisions.append(NodeDecision(datanode_id, "OK", "", command_id))
        return decisions

    def queues(self) -> list[DatanodeQueue]:
        """Return the load and the commands of each datanode, sorted by datanode id."""
        return [
            self._queue(node)
            for node in sorted(self._state.nodes.values(), key=lambda node: node.datanode_id)
        ]

    def copy(
        self,
        change: StateChange,
        case: ContainerContext,
        row: HealthRow,
        *,
        why: str,
        count: int,
        target_id: str = "",
        from_ids: Sequence[str] = (),
        dry_run: bool,
    ) -> ContainerDecision:
        """Order up to `count` copies of a container, or return the reason why none is ordered.

        `row` lists the datanodes to copy from. If `from_ids` is not empty, only datanodes in it are
        used.
        """
        allowed = [node for node in row.sources if not from_ids or node in from_ids]
        if not allowed:
            return self._decision(case, NO_SOURCE, "no replica can be copied from a reachable node")
        if target_id:
            why_not = self._target_objection(case, target_id)
            if why_not:
                return self._decision(case, Code.INELIGIBLE, why_not)
        targets = [target_id] if target_id else self._manager.targets(case, count)
        if not targets:
            return self._decision(
                case, Code.NOT_ENOUGH_NODES, "no node in service without a replica has room for one"
            )
        copies = self._manager.pairs(allowed, targets)
        if not copies:
            return self._decision(case, Code.BUSY, "every source has all it may have to do")
        commands = tuple(self._copy_command(case, copy) for copy in copies)
        command_ids: tuple[int, ...] = ()
        if not dry_run:
            command_ids = tuple(
                self._manager.order_copy(
                    change, case, copy, why=why + row.objection_text(copy.source_id)
                )
                for copy in copies
            )
        doubt = row.objection_text(*sorted({copy.source_id for copy in copies})).removeprefix("; ")
        decision = self._decision(case, "OK", doubt, commands=commands, command_ids=command_ids)
        return replace(decision, copies_after=decision.copies_before + len(copies))

    def remove(
        self,
        change: StateChange,
        case: ContainerContext,
        datanode_id: str,
        *,
        why: str,
        keep_count: int,
        force: bool,
        dry_run: bool,
    ) -> ContainerDecision:
        """Order the removal of the replica on one datanode, or return why it is not ordered.

        At least `keep_count` complete replicas must remain.
        """
        held = next((p for p in case.placed if p.datanode_id == datanode_id), None)
        if held is None:
            message = f"{datanode_id} has no replica"
            return self._decision(case, Code.CONTAINER_NOT_FOUND, message)
        if datanode_id in case.deletes:
            return self._decision(case, "OK", "was ordered before")
        number = case.container.container_id
        removals = self._judge.removals([number])
        if not removals.may_remove(number, datanode_id, keep_count=keep_count):
            what = " shards" if case.container.scheme else ", equal and confirmed replicas"
            message = f"fewer than {keep_count} whole{what} would stay"
            return self._decision(case, NOT_ENOUGH_REPLICAS, message)
        if self._commands.loads.delete_load(datanode_id) >= DELETE_LIMIT:
            message = f"{datanode_id} has {DELETE_LIMIT} deletes to do"
            return self._decision(case, Code.BUSY, message)
        command = PlannedCommand(
            CommandKind.DELETE, datanode_id, size_bytes=held.replica.used_bytes
        )
        decision = self._decision(case, "OK", "", commands=(command,))
        left_count = removals.copy_count(number, without=[datanode_id])
        decision = replace(decision, copies_after=left_count)
        if dry_run:
            return decision
        command_id = self._commands.queue(
            change,
            CommandKind.DELETE,
            number,
            datanode_id,
            why=why,
            force=force,
            keep_count=keep_count,
        )
        return replace(decision, command_ids=(command_id,))

    def _each(
        self,
        change: StateChange,
        container_ids: Sequence[int],
        worlds: Sequence[int],
        decide: Decide,
        *,
        is_for_shards: bool = False,
    ) -> list[ContainerDecision]:
        decisions = []
        for i, container_id in enumerate(container_ids):
            container = self._state.containers.get(container_id)
            if container is None:
                decision = ContainerDecision(
                    container_id, Code.CONTAINER_NOT_FOUND, "no such container"
                )
            else:
                expected = worlds[i] if worlds else None
                decision = (
                    self._one(change, container, expected, decide)
                    if is_for_shards or not container.scheme
                    else _coded(container)
                )
            decisions.append(decision)
        return decisions

    def _one(
        self, change: StateChange, container: Container, expected: int | None, decide: Decide
    ) -> ContainerDecision:
        container_id = container.container_id
        if self._safe_mode.is_on:
            return ContainerDecision(
                container_id, Code.SAFE_MODE, "in safe mode nothing is ordered"
            )
        if container.state not in _CLOSED:
            message = f"container is {container.state}, must be CLOSED or QUASI_CLOSED"
            return ContainerDecision(container_id, INELIGIBLE_STATE, message)
        case = self._cases.case(container)
        if expected is not None and expected != container_fingerprint(case):
            message = "its replicas are not as they were when this was shown"
            return self._decision(case, Code.STALE_PLAN, message)
        return decide(change, case)

    def _decision(
        self,
        case: ContainerContext,
        code: str,
        message: str,
        *,
        commands: tuple[PlannedCommand, ...] = (),
        command_ids: tuple[int, ...] = (),
    ) -> ContainerDecision:
        copies = self._judge.copy_count(case.container.container_id)
        return ContainerDecision(
            case.container.container_id,
            code,
            message,
            command_ids,
            commands,
            copies,
            copies,
            container_fingerprint(case),
        )

    def _target_objection(self, case: ContainerContext, target_id: str) -> str:
        used, excluded = neighbours(case)
        if target_id in used | excluded:
            return f"{target_id} has or gets a replica"
        for candidate in self._cases.candidates():
            if candidate.datanode_id == target_id:
                room = candidate.has_room(needed_bytes(case))
                return "" if room else f"{target_id} has no room for it"
        return f"{target_id} is not in service or cannot be reached"

    def _copy_command(self, case: ContainerContext, copy: PlannedCopy) -> PlannedCommand:
        size_bytes = max((p.replica.used_bytes for p in case.placed), default=0)
        return PlannedCommand(
            CommandKind.REPLICATE,
            copy.source_id,
            copy.target_id,
            size_bytes,
            self._commands.copy_rate.estimate_ms(size_bytes),
            self._commands.copy_rate.estimate_ms(self._commands.waiting_bytes(copy.source_id)),
        )

    def _queue(self, node: Node) -> DatanodeQueue:
        node_id = node.datanode_id
        sent: dict[str, int] = {}
        waiting: dict[str, int] = {}
        for command in self._state.commands.of_node(node_id):
            if not command.is_answered:
                counts = waiting if command.sent_at_s is None else sent
                counts[command.kind] = counts.get(command.kind, 0) + 1
        return DatanodeQueue(
            node,
            self._commands.loads.replication_load(node_id),
            self._commands.loads.replication_limit(node_id),
            self._commands.loads.delete_load(node_id),
            DELETE_LIMIT,
            tuple(sorted(self._nodes.reported_queues(node_id).items())),
            tuple(sorted(sent.items())),
            tuple(sorted(waiting.items())),
        )


def _coded(container: Container) -> ContainerDecision:
    message = f"container is erasure-coded ({container.scheme}): its shards are rebuilt"
    return ContainerDecision(container.container_id, "INELIGIBLE_REPLICATION_TYPE", message)
