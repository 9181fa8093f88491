"""Moves datanodes out of service, for decommissioning or maintenance, and back into service.

`DatanodeAdminMonitor` checks the containers of each leaving datanode in small portions. If a
container still needs the datanode, the monitor checks it again when it changes. If a container does
not need the datanode, the monitor does not check it again before the final pass. When no container
needs the datanode, the monitor checks all of them once more, because some may have changed since
their check.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

import structlog

from health.words import ServiceState
from scm.administration.decommission_rules import DONE, DepartureCheck, Violation
from scm.administration.replica_orders import NodeDecision
from scm.cluster.decision_context import ControlComponent, DecisionContext
from scm.replication.health.live_judge import LiveHealthJudge
from scm.state.database import StateChange
from scm.state.entities import CommandKind, Node, NodeHealthState, OpState, PendingCommand
from scm.state.state_access import locked
from suture.errors import Code

REQUESTED_STATES: Final = frozenset(
    {OpState.IN_SERVICE, OpState.DECOMMISSIONING, OpState.ENTERING_MAINTENANCE}
)
"""Operational states that an operator may request. The monitor sets the other states itself."""

VIOLATED: Final = "PRECHECK_FAILED"
OTHERS_CAME: Final = "other datanodes began to leave or to return meanwhile: ask again"
LEAVING: Final = frozenset({OpState.DECOMMISSIONING, OpState.DECOMMISSIONED})
RESTING: Final = frozenset({OpState.ENTERING_MAINTENANCE, OpState.IN_MAINTENANCE})
LOOKS_PER_TURN: Final = 2_000  # containers per leaving node while the lock is held
SHOWN_MAX: Final = 20  # containers named in the progress of one node

_log = structlog.get_logger("suture.scm")


@dataclass(frozen=True, slots=True)
class OpStateRequest:
    """An operator's request to change the operational state of datanodes."""

    datanode_ids: tuple[str, ...]
    op_state: OpState
    op_expiry_ms: int = 0
    is_forced: bool = False
    skipped_checks: Collection[DepartureCheck] = ()
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True)
class DepartureAssessment:
    """The consequences of a request to change the operational state of datanodes.

    `against` lists the objections. A request with objections is rejected, unless it is forced or
    skips the checks that failed.
    """

    against: tuple[Violation, ...]
    notes: tuple[str, ...]  # facts to report even if there is no objection
    service: Mapping[str, ServiceState]  # of all nodes, when the check began


@dataclass(frozen=True, slots=True)
class DepartureStatus:
    """Progress of a datanode that is not in service."""

    node: Node
    health: NodeHealthState
    container_count: int
    copying_count: int
    required: tuple[int, ...]  # containers that still need the node; others are safe or unchecked
    unclosed_count: int
    locked_count: int  # containers that are unreadable without the node
    is_safe_to_stop: bool
    is_persisted: bool


@dataclass(slots=True)
class _Watch:
    """The progress of the check of one leaving datanode's containers.

    `todo` are the containers that are not checked yet in this pass. `is_last_look` is True during
    the final pass, after one pass in which no container needed the datanode.
    """

    todo: set[int]
    is_last_look: bool = False
    blocked: dict[int, str] = field(default_factory=dict)  # container id -> why it needs the node


class DatanodeAdminMonitor(ControlComponent):
    """Moves datanodes out of service and back.

    Callers must hold the control plane's lock, except for methods decorated with `@locked` or
    `@state_change`.
    """

    def __init__(self, basis: DecisionContext, judge: LiveHealthJudge) -> None:
        super().__init__(basis)
        self._judge = judge
        self._watches: dict[str, _Watch] = {}
        self._told: dict[str, tuple[OpState | None, int]] = {}
        self._seen = self._state.settled()  # containers that need a node and have not changed since

    def sync_op_state(
        self, change: StateChange, datanode_id: str, op_state: OpState | None, op_expiry_ms: int
    ) -> None:
        """Send a datanode its operational state if the datanode has stored a different one.

        `op_state` and `op_expiry_ms` are the values that the datanode has reported.
        """
        self._told[datanode_id] = (op_state, op_expiry_ms)
        node = self._state.nodes.get(datanode_id)
        if node is None or self._is_persisted(node):
            return
        if self._commands.is_cooling(CommandKind.SET_OPERATIONAL_STATE, 0, datanode_id):
            return
        for command in self._state.commands.of_node(datanode_id):
            if command.kind is CommandKind.SET_OPERATIONAL_STATE:
                if (command.op_state, command.op_expiry_ms) == (node.op_state, node.op_expiry_ms):
                    return
                self._commands.supersede(change, command)  # the new command replaces it
        self._commands.queue(
            change,
            CommandKind.SET_OPERATIONAL_STATE,
            0,
            datanode_id,
            why=f"the datanode says {op_state or 'nothing'}, the control plane {node.op_state}",
            op_state=node.op_state,
            op_expiry_ms=node.op_expiry_ms,
        )

    def request(
        self,
        change: StateChange,
        request: OpStateRequest,
        prospect: DepartureAssessment,
        *,
        is_current: bool,
    ) -> list[NodeDecision]:
        """Set the operational state of datanodes, or return the objections to it.

        Nothing is changed if a check fails that the request does not skip. Nothing is changed
        either if `is_current` is False, that is, if other datanodes began to leave or return after
        `prospect` was computed. A forced request is carried out in both cases.
        """
        unknown = [n for n in request.datanode_ids if self._state.nodes.get(n) is None]
        if unknown:
            return [NodeDecision(n, Code.WRONG_DATANODE, "never registered") for n in unknown]
        skipped = request.skipped_checks
        failed = [f"{text} ({check})" for check, text in prospect.against if check not in skipped]
        failed += [] if is_current else [OTHERS_CAME]
        if failed and not request.is_forced:
            return [NodeDecision(n, VIOLATED, "; ".join(failed)) for n in request.datanode_ids]
        if not request.is_dry_run:
            for datanode_id in request.datanode_ids:
                self._set(change, datanode_id, request.op_state, request.op_expiry_ms)
        ignored = failed + [text for check, text in prospect.against if check in skipped]
        notes = ["in spite of: " + "; ".join(ignored)] if ignored else []
        note = "; ".join([*notes, *prospect.notes])
        return [NodeDecision(n, "OK", note) for n in request.datanode_ids]

    def advance(self, change: StateChange) -> list[str]:
        """Check some containers of the leaving datanodes, and end maintenance that has expired.

        Return the ids of the datanodes whose operational state changed.
        """
        self._look_again()
        changed = []
        now_ms = self._clock.wall_ms()
        for node in self._state.nodes.values():
            if node.op_expiry_ms and now_ms >= node.op_expiry_ms:
                change.on_commit(_log.info, "maintenance_expired", datanode_id=node.datanode_id)
                self._set(change, node.datanode_id, OpState.IN_SERVICE, 0)
                changed.append(node.datanode_id)
            elif node.op_state in DONE and self._is_done(node):
                self._finish(change, node)
                changed.append(node.datanode_id)
        return changed

    def forget(self, datanode_id: str) -> None:
        """Delete all records of the monitor about a datanode that was removed."""
        self._watches.pop(datanode_id, None)
        self._told.pop(datanode_id, None)

    @locked
    def departures(self) -> list[DepartureStatus]:
        """Return the progress of all datanodes that are not in service, sorted by datanode id."""
        return [
            self._departure(node)
            for node in sorted(self._state.nodes.values(), key=lambda node: node.datanode_id)
            if node.op_state is not OpState.IN_SERVICE
        ]

    def departure_of(self, datanode_id: str) -> list[DepartureStatus]:
        """Return the progress of one datanode. The list is empty if it is in service or unknown."""
        node = self._state.nodes.get(datanode_id)
        if node is None or node.op_state is OpState.IN_SERVICE:
            return []
        return [self._departure(node)]

    def _set(
        self, change: StateChange, datanode_id: str, op_state: OpState, op_expiry_ms: int
    ) -> None:
        node = self._state.nodes.get(datanode_id)
        assert node is not None
        is_there = DONE.get(op_state) is node.op_state  # requested again: the node keeps its state
        after = node.op_state if is_there else op_state
        change.put(self._state.nodes, replace(node, op_state=after, op_expiry_ms=op_expiry_ms))
        self._watches.pop(datanode_id, None)
        change.on_commit(
            _log.info, "node_op_state_changed", datanode_id=datanode_id, op_state=after
        )

    def _finish(self, change: StateChange, node: Node) -> None:
        change.put(self._state.nodes, replace(node, op_state=DONE[node.op_state]))
        self._watches.pop(node.datanode_id, None)
        change.on_commit(
            _log.info,
            "node_safe_to_stop",
            datanode_id=node.datanode_id,
            address=node.address,
            op_state=DONE[node.op_state],
        )

    def _is_done(self, node: Node) -> bool:
        """Check some containers of a leaving datanode. Return True if the datanode may be stopped.

        That is the case after two complete passes in a row in which no container needed the
        datanode.
        """
        watch = self._watches.get(node.datanode_id)
        if watch is None:
            watch = _Watch(set(self._state.replicas.on(node.datanode_id)))
            self._watches[node.datanode_id] = watch
        due = list(islice(watch.todo, LOOKS_PER_TURN))
        watch.todo.difference_update(due)
        blocked = self._judge.obstacles(due)
        watch.blocked |= blocked
        watch.is_last_look &= not blocked
        if watch.todo or watch.blocked:
            return False
        is_dead = self._nodes.health(node.datanode_id) is NodeHealthState.DEAD
        if not is_dead and not self._is_persisted(node):
            return False
        if not watch.is_last_look:
            watch.is_last_look = True
            watch.todo = set(self._state.replicas.on(node.datanode_id))
            return not watch.todo
        return True

    def _look_again(self) -> None:
        """Check those containers again that needed a leaving datanode and have changed since."""
        stirred = (
            number
            for watch in self._watches.values()
            for number in watch.blocked
            if number not in self._seen
        )
        due = dict.fromkeys(islice(stirred, LOOKS_PER_TURN * len(self._watches)))
        obstacles = self._judge.obstacles(due)
        for container_id in due:
            self._seen.add(container_id)
            why = obstacles.get(container_id)
            for watch in self._watches.values():
                if container_id not in watch.blocked:
                    continue
                if why is None:
                    del watch.blocked[container_id]
                else:
                    watch.blocked[container_id] = why

    def _is_persisted(self, node: Node) -> bool:
        op_state, op_expiry_ms = self._told.get(node.datanode_id, (None, 0))
        kept = (op_state or OpState.IN_SERVICE, op_expiry_ms)
        return kept == (node.op_state, node.op_expiry_ms)

    def _locked_count(self, node: Node, container_ids: Iterable[int]) -> int:
        """Return how many of these containers would be unreadable if the datanode was off."""
        return self._locked([node], container_ids)

    @locked
    def locked_together(self, states: Collection[OpState]) -> int:
        """Return how many containers would be unreadable without all datanodes in these states."""
        group = [node for node in self._state.nodes.values() if node.op_state in states]
        watches = (self._watches.get(node.datanode_id) for node in group)
        return self._locked(group, {n for w in watches if w is not None for n in w.blocked})

    def _locked(self, group: Sequence[Node], container_ids: Iterable[int]) -> int:
        if not group:
            return 0
        some = list(islice(container_ids, LOOKS_PER_TURN))
        return self._judge.locked_out(some, {node.datanode_id for node in group})

    def _departure(self, node: Node) -> DepartureStatus:
        watch = self._watches.get(node.datanode_id)
        blocked = {} if watch is None else watch.blocked
        held = self._state.replicas.on(node.datanode_id)
        return DepartureStatus(
            node,
            self._nodes.health(node.datanode_id),
            len(held),
            sum(command.container_id in held for command in self._copies()),
            tuple(sorted(blocked)),
            list(blocked.values()).count("unclosed"),
            self._locked_count(node, blocked),
            is_safe_to_stop=node.op_state in DONE.values(),
            is_persisted=self._is_persisted(node),
        )

    def _copies(self) -> list[PendingCommand]:
        return [c for c in self._state.commands.values() if c.kind is CommandKind.REPLICATE]
