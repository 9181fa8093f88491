"""Marks missing containers as lost, if an operator accepts the loss of their data.

A container is missing if no live datanode has its data. The operator first sees the consequences
and then confirms. Then the control plane removes the container from its state: the keys in the
container are lost, and its pending deletes and commands end. The operator can undo the mark. The
container then returns to its earlier state, and its keys can be read again if a datanode reports
its data.

The control plane treats a container that is marked as lost like a container that it never created.
If a datanode reports a replica of it, the status shows the replica. The control plane sends no
command for this replica and deletes nothing of it.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from merkle.replica import ReplicaState
from scm.cluster.container_context import is_bad
from scm.cluster.decision_context import ControlComponent
from scm.cluster.replica_map import ReportProcessor
from scm.cluster.safemode import SafeMode
from scm.containers.state_updater import ContainerStateUpdater
from scm.state.audit_trail import AuditEntry
from scm.state.database import StateChange
from scm.state.entities import (
    Container,
    ContainerState,
    DeletedBlocks,
    ForgottenContainer,
    OutcomeState,
    Replica,
)
from scm.state.state_access import state_change
from suture.errors import Code

KEYS_NAMED_MAX: Final = 1_000

_ENDED: Final = frozenset({ContainerState.DELETING, ContainerState.DELETED})

_log = structlog.get_logger("suture.scm")


@dataclass(frozen=True, slots=True)
class ForgetResult:
    """The outcome, or the predicted outcome, of marking one container as lost.

    `world` is the fingerprint of the container's state.
    """

    container_id: int
    code: str
    message: str = ""
    world: int = 0
    key_count: int = 0
    keys: tuple[str, ...] = ()  # the first ones by name


@dataclass(eq=False)
class MarkContainersLost(ControlComponent):
    """Marks missing containers as lost, and removes these marks on request."""

    _reports: ReportProcessor
    _safe_mode: SafeMode
    _observer: ContainerStateUpdater

    @state_change
    def forget(
        self,
        change: StateChange,
        container_ids: Sequence[int],
        *,
        worlds: Sequence[int],
        is_dry_run: bool,
    ) -> list[ForgetResult]:
        """Mark containers as lost, each only if no live datanode has its data.

        `worlds` contains the fingerprints of an earlier preview, or nothing. A container that has
        changed since the preview is not marked. The keys in the marked containers are lost.
        """
        fates = []
        for i, container_id in enumerate(container_ids):
            fate = self._judge(container_id, worlds[i] if worlds else None)
            if fate.code == "OK" and not is_dry_run:
                self._let_go(change, container_id, fate)
            fates.append(fate)
        return fates

    @state_change
    def recall(
        self, change: StateChange, container_ids: Sequence[int], *, is_dry_run: bool
    ) -> list[ForgetResult]:
        """Return containers that were marked as lost to their earlier states."""
        fates = []
        for container_id in container_ids:
            forgotten = self._state.forgotten.get(container_id)
            if forgotten is None:
                message = "is not marked as lost"
                fates.append(ForgetResult(container_id, Code.CONTAINER_NOT_FOUND, message))
                continue
            if not is_dry_run:
                change.remove(self._state.forgotten, container_id)
                change.put(self._state.containers, forgotten.container)
                self._reports.note_known(change, container_id)
                change.add_audit_note(
                    _audit_entry("container recalled", container_id, forgotten.key_count)
                )
                change.on_commit(
                    _log.warning, "container_lost_mark_removed", container_id=container_id
                )
            fates.append(ForgetResult(container_id, "OK", f"was {forgotten.container.state}"))
        self._observer.observe_struck(change, container_ids)
        return fates

    def _judge(self, container_id: int, expected: int | None) -> ForgetResult:
        container = self._state.containers.get(container_id)
        if container is None:
            is_done = self._state.forgotten.get(container_id) is not None
            message = "is already marked as lost" if is_done else "no such container"
            return ForgetResult(container_id, Code.CONTAINER_NOT_FOUND, message)
        if self._safe_mode.is_on:
            message = "in safe mode nobody knows what is missing"
            return ForgetResult(container_id, Code.SAFE_MODE, message)
        why_not = self._objection(container)
        if why_not:
            return ForgetResult(container_id, Code.INELIGIBLE, why_not)
        names = self._names(container_id)
        world = self._fingerprint(container, names)
        if expected is not None and expected != world:
            message = "it is not as it was when this was shown"
            return ForgetResult(container_id, Code.STALE_PLAN, message, world)
        message = self._words(container)
        return ForgetResult(
            container_id, "OK", message, world, len(names), tuple(names[:KEYS_NAMED_MAX])
        )

    def _objection(self, container: Container) -> str:
        if container.state in _ENDED:
            return f"container is {container.state}: it ends by itself"
        if container.state is ContainerState.OPEN:
            return "container is OPEN: close it first"
        awaited = [n for n in container.pipeline if not self._nodes.is_gone(n)]
        if awaited and container.state is ContainerState.CLOSING:
            return f"{', '.join(awaited)} may still report a replica"
        found = [r for r in self._live_replicas(container) if not r.load_error]
        is_needed = self._state.keys.blocks_in(container.container_id) > 0
        good = {r.replica_index for r in found if not is_bad(container, r)}
        if not is_needed and len(good) < container.data_count:
            return ""  # unreadable, but no key needs it: nothing is lost
        if not container.scheme:
            nodes = ", ".join(r.datanode_id for r in found)
            return f"it is not missing: {nodes} has a replica" if found else ""
        indexes = {r.replica_index for r in found if r.state is not ReplicaState.RECOVERING}
        if len(indexes) >= container.data_count:
            return f"it is not missing: shards {sorted(indexes)} are there"
        return ""

    def _live_replicas(self, container: Container) -> list[Replica]:
        replicas = self._state.replicas.of(container.container_id)
        return [r for r in replicas if not self._nodes.is_gone(r.datanode_id)]

    def _words(self, container: Container) -> str:
        """Return a text that names the dead datanodes that had a replica of the container.

        The operator may be able to bring one of these datanodes back.
        """
        replicas = self._state.replicas.of(container.container_id)
        gone = [r.datanode_id for r in replicas if self._nodes.is_gone(r.datanode_id)]
        owed = len(self._state.transactions.of(container.container_id))
        had = f"; {', '.join(gone)} had a replica and is DEAD" if gone else ""
        return f"container is {container.state}, {owed} deletes are owed in it{had}"

    def _names(self, container_id: int) -> list[str]:
        if not self._state.keys.blocks_in(container_id):
            return []
        return sorted({name for _block, name in self._state.keys.blocks_behind(container_id, -1)})

    def _fingerprint(self, container: Container, names: Sequence[str]) -> int:
        replicas = self._state.replicas.of(container.container_id)
        facts = [(r.datanode_id, r.state, self._nodes.health(r.datanode_id)) for r in replicas]
        return zlib.crc32(repr((container.state, facts, names)).encode())

    def _let_go(self, change: StateChange, container_id: int, fate: ForgetResult) -> None:
        container = self._state.containers.get(container_id)
        assert container is not None
        for command in self._state.commands.of_container(container_id):
            message = "the container was marked as lost"
            self._commands.drop(change, command, OutcomeState.SKIPPED, Code.INELIGIBLE, message)
        for transaction in self._state.transactions.of(container_id):
            key = (container_id, transaction.transaction_id)
            change.remove(self._state.transactions, key)
            deleted = DeletedBlocks(*key, tuple(sorted(transaction.local_ids)))
            change.put(self._state.deleted, deleted)  # kept in case the container is recalled
        for allocation in self._state.allocations.of(container_id):
            change.remove(self._state.allocations, (container_id, allocation.local_id))
        for hold in self._state.holds.of(container_id):
            change.remove(self._state.holds, (container_id, hold.datanode_id))
        change.put(
            self._state.forgotten,
            ForgottenContainer(container, self._clock.wall_ms(), fate.key_count),
        )
        change.remove(self._state.containers, container_id)
        self._reports.mark_unknown(change, container_id)
        change.add_audit_note(_audit_entry("container forgotten", container_id, fate.key_count))
        change.on_commit(
            _log.warning,
            "container_marked_lost",
            container_id=container_id,
            key_count=fate.key_count,
        )


def _audit_entry(action: str, container_id: int, key_count: int) -> AuditEntry:
    return AuditEntry(
        action, "OK", {"who": "scm", "container_id": container_id, "key_count": key_count}
    )
