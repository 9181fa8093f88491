"""Nodes that are gone for good: what the books say of them ends, and nothing else does.

    dead and decommissioned ──► each replica that its container can do without is struck off
    removed by an operator  ──► all of them, and the node; shown first, refused where data needs it

Nothing is deleted on any disk. If the node returns it registers, names what it has, and that is in
the books again. Blocks that were deleted meanwhile are live in such a replica: its tombstones are
not those of the others, and a reconcile has it delete them, too
(`scm.replication.reconciling.healing`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import structlog

from agent.errors import Code
from merkle.replica import ReplicaState
from scm.administration.operator_commands import NodeDecision
from scm.cluster.basis import Basis
from scm.cluster.case import is_bad
from scm.cluster.safemode import SafeMode
from scm.replication.judging.live_judge import Judge
from scm.state.audit_trail import Note
from scm.state.database import Change
from scm.state.facts import Container, ContainerState, Health, OpState, OutcomeState, Replica

LOOKS_PER_TURN: Final = 2_000  # replicas of one node, while the lock is held
NAMED_MAX: Final = 10  # containers that a message names
NEEDED: Final = "PRECHECK_FAILED"

_GONE: Final = frozenset({ContainerState.DELETING, ContainerState.DELETED})

_log = structlog.get_logger("suture.scm")


@dataclass(frozen=True, slots=True)
class _Loss:
    """What the books would lose with nodes."""

    replica_count: int
    needed: tuple[int, ...]  # containers that nobody else who answers can give
    fewer: int  # containers that would still be readable, with fewer replicas than required


class NodeRemoval:
    """Strikes off replicas and nodes. Callers hold the control plane's lock."""

    def __init__(self, basis: Basis, judge: Judge, safe_mode: SafeMode) -> None:
        self._state = basis.state
        self._nodes = basis.nodes
        self._commands = basis.commands
        self._judge = judge
        self._safe_mode = safe_mode
        self._needed = self._state.settled()  # looked at: the books keep what a dead node said

    def turn(self, change: Change) -> set[int]:
        """Strike off what dead decommissioned nodes had; return the containers concerned."""
        struck: set[int] = set()
        for datanode_id in sorted(self._nodes.dead):
            node = self._state.nodes.get(datanode_id)
            if node is None or node.op_state is not OpState.DECOMMISSIONED:
                continue
            held = (i for i in self._state.replicas.on(datanode_id) if i not in self._needed)
            due = list(islice(held, LOOKS_PER_TURN))
            obstacles = self._judge.obstacles(due)
            for container_id in due:
                if self._may_go(container_id, datanode_id, is_needed=container_id in obstacles):
                    self._strike(change, container_id, datanode_id)
                    struck.add(container_id)
                elif self._state.containers.get(container_id) is not None:
                    self._needed.add(container_id)
        if struck:
            _log.info("replicas_struck_off", count=len(struck), why="decommissioned and dead")
        return struck

    def judge(self, datanode_ids: Sequence[str], *, is_forced: bool) -> list[NodeDecision]:
        """Say of nodes whether all of them may be removed, and what that would mean.

        Unless forced, none may while a container has nobody else to be read from.
        """
        refused = [d for n in datanode_ids if (d := self._refusal(n)) is not None]
        if refused:
            return refused
        leaving = frozenset(datanode_ids)
        losses = {n: self._loss(n, leaving) for n in datanode_ids}
        is_needed = any(loss.needed for loss in losses.values()) and not is_forced
        code = NEEDED if is_needed else "OK"
        return [NodeDecision(n, code, _text(losses[n])) for n in datanode_ids]

    def remove(self, change: Change, datanode_id: str) -> set[int]:
        """Remove a node that may be; return the containers of which it had replicas."""
        loss = self._loss(datanode_id, frozenset({datanode_id}))
        waiting = self._state.commands
        for command in [*waiting.of_node(datanode_id), *waiting.adds_to(datanode_id)]:
            if waiting.get(command.command_id) is not None:
                message = f"{datanode_id} was removed"
                self._commands.drop(change, command, OutcomeState.FAILED, Code.UNAVAILABLE, message)
        held = self._state.replicas.on(datanode_id)
        for container_id in held:
            self._strike(change, container_id, datanode_id)
        change.remove(self._state.nodes, datanode_id)
        self._nodes.forget(datanode_id)
        facts = {
            "who": "scm",
            "datanode_id": datanode_id,
            "replica_count": loss.replica_count,
            "needed_container_ids": list(loss.needed[:NAMED_MAX]),
            "needed_count": len(loss.needed),
        }
        change.note(Note("node removed", "OK", facts))
        _log.warning("node_removed", datanode_id=datanode_id, replica_count=loss.replica_count)
        return set(held)

    def _refusal(self, datanode_id: str) -> NodeDecision | None:
        if self._state.nodes.get(datanode_id) is None:
            return NodeDecision(datanode_id, Code.WRONG_DATANODE, "never registered")
        if self._safe_mode.is_on:
            return NodeDecision(datanode_id, Code.SAFE_MODE, "in safe mode nothing is decided")
        health = self._nodes.health(datanode_id)
        if health is not Health.DEAD:
            message = f"is {health}: it would register again; stop it, and wait until it is DEAD"
            return NodeDecision(datanode_id, Code.INELIGIBLE, message)
        return None

    def _loss(self, datanode_id: str, leaving: frozenset[str]) -> _Loss:
        needed, fewer = [], 0
        held = self._state.replicas.on(datanode_id)
        obstacles = self._judge.obstacles(held)
        for container_id in sorted(held):
            container = self._state.containers.get(container_id)
            if container is None or container.state in _GONE:
                continue
            if not self._is_readable(container, leaving):
                needed.append(container_id)
            elif container_id in obstacles:
                fewer += 1
        return _Loss(len(held), tuple(needed), fewer)

    def _is_readable(self, container: Container, without: frozenset[str]) -> bool:
        """Whether a container can be read, with all that was committed, from nodes not dead."""
        replicas = self._nodes.living(self._state.replicas.of(container.container_id))
        others = [r for r in replicas if r.datanode_id not in without]
        good = [r for r in others if not is_bad(container, r) and _has_all(container, r)]
        if container.scheme:
            return len({r.replica_index for r in good}) >= container.data_count
        return bool(good)

    def _strike(self, change: Change, container_id: int, datanode_id: str) -> None:
        change.remove(self._state.replicas, (container_id, datanode_id))
        if self._state.holds.get((container_id, datanode_id)) is not None:
            change.remove(self._state.holds, (container_id, datanode_id))

    def _may_go(self, container_id: int, datanode_id: str, *, is_needed: bool) -> bool:
        """Whether the books lose nothing that anybody may need."""
        container = self._state.containers.get(container_id)
        if container is None or container.state in _GONE:
            return True
        if is_needed:
            return False
        mine = self._state.replicas.get((container_id, datanode_id))
        living = self._nodes.living(self._state.replicas.of(container_id))
        newest = max((r.bcsid for r in living), default=0)
        return container.state is ContainerState.CLOSED or mine is None or mine.bcsid <= newest


def _has_all(container: Container, replica: Replica) -> bool:
    is_settled = container.state in {ContainerState.CLOSED, ContainerState.QUASI_CLOSED}
    is_being_rebuilt = replica.state is ReplicaState.RECOVERING
    return not is_being_rebuilt and (not is_settled or replica.bcsid >= container.sequence_id)


def _text(loss: _Loss) -> str:
    parts = [f"{loss.replica_count} replicas leave the books"]
    if loss.needed:
        named = ", ".join(map(str, loss.needed[:NAMED_MAX]))
        parts.append(f"{len(loss.needed)} containers can be read from nobody else: {named}")
    if loss.fewer:
        parts.append(f"{loss.fewer} containers have fewer replicas than they should")
    return "; ".join(parts)
