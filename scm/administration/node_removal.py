"""Removes the records of datanodes that will not return, and of their replicas.

- If a decommissioned datanode is dead, the control plane removes its replica records one by one. It
  keeps the record of a replica that its container still needs.
- If an operator removes a datanode, the control plane removes the datanode and all its replica
  records. The operator first sees the consequences. The removal is rejected if data needs the
  datanode.

Nothing is deleted on any disk. If the datanode returns, it registers and reports its replicas, and
the control plane records them again. Such a replica may contain blocks that were deleted in the
meantime. Its tombstones then differ from those of its peers, and a reconcile deletes these blocks
(`scm.replication.reconcile.auto_reconcile`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from itertools import islice
from typing import Final, Protocol

import numpy as np
import structlog

from health import words
from health.departure import FREE, obstacles
from health.judge import diagnose
from health.remaining import is_readable
from health.segmented_rows import Bools
from scm.administration.close_requests import ContainerCloser
from scm.administration.container_pages import ContainerPage, ContainerPages
from scm.administration.replica_orders import NodeDecision
from scm.cluster.decision_context import ControlComponent, DecisionContext
from scm.cluster.safemode import SafeMode
from scm.containers.state_updater import ContainerStateUpdater
from scm.replication.health.live_judge import LiveHealthJudge
from scm.state.audit_trail import AuditEntry
from scm.state.database import StateChange
from scm.state.entities import ContainerState, NodeHealthState, OpState, OutcomeState
from suture.errors import Code

LOOKS_PER_TURN: Final = 2_000  # replicas of one node while the lock is held
NAMED_MAX: Final = 10  # containers named in one message
NEEDED: Final = "PRECHECK_FAILED"

_GONE: Final = frozenset({ContainerState.DELETING, ContainerState.DELETED})

_log = structlog.get_logger("suture.scm")


class NodeMemory(Protocol):
    """A component that keeps facts about datanodes in memory."""

    def forget(self, datanode_id: str) -> None:
        """Delete all facts about a datanode."""


@dataclass(frozen=True, slots=True)
class RemovalLoss:
    """The replica records that the removal of a datanode deletes, and the affected containers."""

    replica_count: int
    needed: tuple[int, ...]  # containers that no other answering node can serve
    fewer: int  # containers still readable, but with fewer replicas than required


@dataclass(eq=False)
class NodeRemoval(ControlComponent):
    """Removes dead datanodes and their replica records."""

    _judge: LiveHealthJudge
    _safe_mode: SafeMode
    _pages: ContainerPages
    _closures: ContainerCloser
    _observer: ContainerStateUpdater
    memories: InitVar[Sequence[NodeMemory]]

    def __post_init__(self, basis: DecisionContext, memories: Sequence[NodeMemory]) -> None:
        super().__post_init__(basis)
        self._memories = (basis.nodes, *memories)
        self._needed = self._state.settled()  # checked containers that need the record

    def advance(self, change: StateChange) -> None:
        """Remove some replica records of dead decommissioned datanodes.

        Callers must hold the control plane's lock.
        """
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
            change.on_commit(
                _log.info, "replicas_deregistered", count=len(struck), why="decommissioned and dead"
            )
        self._observer.observe_struck(change, struck)

    def remove_nodes(
        self, datanode_ids: Sequence[str], *, is_forced: bool, is_dry_run: bool
    ) -> list[NodeDecision]:
        """Remove dead datanodes and their replica records, if no container needs them.

        Return one decision per datanode. The method works in portions. If a datanode contacts the
        SCM before its records are removed, it is kept. A caller can repeat an interrupted request,
        because a datanode that is already removed is no error.
        """
        with self.access.lock:
            refused = self._refused(datanode_ids)
            there = [node for node in datanode_ids if not self._is_gone(node)]
        if refused:
            return refused
        losses = {node: self._loss_of(node) for node in there}
        found = {node: _already_removed(node) for node in datanode_ids}
        found |= {d.datanode_id: d for d in judge(losses, is_forced=is_forced)}
        if not is_dry_run and all(d.code == "OK" for d in found.values()):
            with self.access.change() as change:
                self._closures.end_writes_on(change, there, "one of its nodes was removed")
            found |= {node: self._remove(found[node], losses[node]) for node in there}
        return list(found.values())

    def _remove(self, decision: NodeDecision, loss: RemovalLoss) -> NodeDecision:
        """Remove one datanode and its replica records in portions, and return the decision.

        If the datanode contacts the SCM in the meantime, keep it and return a decision with the
        reason.
        """
        datanode_id = decision.datanode_id
        is_begun = False
        while True:
            with self.access.change() as change:
                for refused in self._refused([datanode_id]):
                    return refused
                if self._is_gone(datanode_id):
                    return _already_removed(datanode_id)
                if not is_begun:  # from now on, the node must register and report all replicas
                    is_begun = True
                    for memory in self._memories:
                        memory.forget(datanode_id)
                struck = self._strike_some(change, datanode_id)
                self._observer.observe_struck(change, struck)
                if not struck:
                    self._finish(change, datanode_id, loss)
                    return decision

    def _loss_of(self, datanode_id: str) -> RemovalLoss:
        """Return the replica records that are lost if a dead datanode is removed.

        The containers of the datanode are evaluated page by page.
        """
        with self.access.lock:
            held = self._state.replicas.ids_on(datanode_id).copy()
        needed: list[int] = []
        fewer = 0
        for page in self._pages.of(held):
            is_readable, is_enough = _without_the_dead(page)
            needed += page.batch.containers.container_id[~is_readable].tolist()
            fewer += int(np.count_nonzero(is_readable & ~is_enough))
        return RemovalLoss(len(held), tuple(needed), fewer)

    def _refused(self, datanode_ids: Sequence[str]) -> list[NodeDecision]:
        """Return a decision for each of these datanodes that must not be removed now.

        The reason is safe mode, or a datanode that is not dead.
        """
        return [d for n in datanode_ids if (d := self._refusal(n)) is not None]

    def _is_gone(self, datanode_id: str) -> bool:
        return self._state.nodes.get(datanode_id) is None

    def _strike_some(self, change: StateChange, datanode_id: str) -> list[int]:
        """Remove some replica records of a datanode. Return the ids of their containers.

        Return an empty list if the datanode has no more replica records.
        """
        due = self._state.replicas.ids_on(datanode_id)[:LOOKS_PER_TURN].copy()
        struck: list[int] = change.remove_all(self._state.replicas, datanode_id, due).tolist()
        self._release(change, datanode_id, struck)
        return struck

    def _finish(self, change: StateChange, datanode_id: str, loss: RemovalLoss) -> None:
        """Remove the record of a datanode without replica records, and end its commands."""
        waiting = self._state.commands
        for command in [*waiting.of_node(datanode_id), *waiting.adds_to(datanode_id)]:
            if waiting.get(command.command_id) is not None:
                message = f"{datanode_id} was removed"
                self._commands.drop(change, command, OutcomeState.FAILED, Code.UNAVAILABLE, message)
        change.remove(self._state.nodes, datanode_id)
        self._nodes.forget(datanode_id)
        facts = {
            "who": "scm",
            "datanode_id": datanode_id,
            "replica_count": loss.replica_count,
            "needed_container_ids": list(loss.needed[:NAMED_MAX]),
            "needed_count": len(loss.needed),
        }
        change.add_audit_note(AuditEntry("node removed", "OK", facts))
        change.on_commit(
            _log.warning, "node_removed", datanode_id=datanode_id, replica_count=loss.replica_count
        )

    def _refusal(self, datanode_id: str) -> NodeDecision | None:
        if self._is_gone(datanode_id):
            return None
        if self._safe_mode.is_on:
            return NodeDecision(datanode_id, Code.SAFE_MODE, "in safe mode nothing is decided")
        health = self._nodes.health(datanode_id)
        if health is not NodeHealthState.DEAD:
            message = f"is {health}: it would register again; stop it, and wait until it is DEAD"
            return NodeDecision(datanode_id, Code.INELIGIBLE, message)
        return None

    def _strike(self, change: StateChange, container_id: int, datanode_id: str) -> None:
        change.remove(self._state.replicas, (container_id, datanode_id))
        self._release(change, datanode_id, [container_id])

    def _release(self, change: StateChange, datanode_id: str, container_ids: Iterable[int]) -> None:
        if len(self._state.holds):
            for key in [(number, datanode_id) for number in container_ids]:
                if self._state.holds.get(key) is not None:
                    change.remove(self._state.holds, key)

    def _may_go(self, container_id: int, datanode_id: str, *, is_needed: bool) -> bool:
        """Return True if the replica record of a dead datanode may be removed.

        That is the case if the container of the replica does not need the replica.
        """
        container = self._state.containers.get(container_id)
        if container is None or container.state in _GONE:
            return True
        if is_needed:
            return False
        mine = self._state.replicas.get((container_id, datanode_id))
        living = self._nodes.live_replicas(self._state.replicas.of(container_id))
        newest = max((r.bcsid for r in living), default=0)
        return container.state is ContainerState.CLOSED or mine is None or mine.bcsid <= newest


def _already_removed(datanode_id: str) -> NodeDecision:
    """Return the decision for a datanode that is already removed."""
    message = "is not in the books: it was removed before, or never registered"
    return NodeDecision(datanode_id, "OK", message)


def judge(losses: Mapping[str, RemovalLoss], *, is_forced: bool) -> list[NodeDecision]:
    """Return one decision per datanode on the request to remove these datanodes together. No I/O.

    Unless the request is forced, no datanode may be removed if the live datanodes cannot serve all
    data of some container. The message of each decision states the consequences.
    """
    is_needed = any(loss.needed for loss in losses.values()) and not is_forced
    code = NEEDED if is_needed else "OK"
    return [NodeDecision(name, code, _text(loss)) for name, loss in losses.items()]


def _without_the_dead(page: ContainerPage) -> tuple[Bools, Bools]:
    """Evaluate a page of containers without the dead datanodes. Return two boolean columns.

    The first column is True for containers that the other datanodes can serve completely. The
    second column is True for containers that have the required number of replicas on the other
    datanodes. Deleted containers are True in both columns.
    """
    found = diagnose(page.batch, page.rules)
    seen, containers, replicas = found.view, page.batch.containers, page.batch.replicas
    is_settled = np.isin(
        containers.state, (words.SharedState.CLOSED, words.SharedState.QUASI_CLOSED)
    )
    has_all = replicas.bcsid >= seen.of_container(containers.sequence_id)
    has_all |= seen.of_container(~is_settled)
    serves = seen.is_alive & has_all
    is_unwanted = ~containers.is_known | (containers.state >= words.ContainerOnlyState.DELETING)
    is_free = obstacles(seen, found.counts, found.flags) == FREE
    serves &= seen.is_present & ~seen.is_bad
    return is_readable(seen, serves) | is_unwanted, is_free | is_unwanted


def _text(loss: RemovalLoss) -> str:
    parts = [f"{loss.replica_count} replicas leave the books"]
    if loss.needed:
        named = ", ".join(map(str, loss.needed[:NAMED_MAX]))
        parts.append(f"{len(loss.needed)} containers can be read from nobody else: {named}")
    if loss.fewer:
        parts.append(f"{loss.fewer} containers have fewer replicas than they should")
    return "; ".join(parts)
