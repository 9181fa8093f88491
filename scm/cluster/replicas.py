"""The replica map, kept true by reports.

A full report names every replica of a datanode; it may come in pages of one report_id, and only
its last page may remove what it did not name. An incremental report names what changed. Between
the pages of a full report the datanode goes on living, so what it reports incrementally meanwhile
is neither removed for missing in the pages nor brought back by an older page.

A replica of a container that this SCM never made is recorded and shown, and nothing else is done
about it: deleting what one does not know is how data is lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import structlog

from merkle.replica import ReplicaState
from scm.state.database import Change, State
from scm.state.facts import Replica

_log = structlog.get_logger("suture.scm")


@dataclass(frozen=True, slots=True)
class Report:
    """One `ContainerReport` of a heartbeat; states of `replicas` may be DELETED."""

    is_full: bool
    report_id: int
    page: int
    is_last: bool
    replicas: tuple[Replica, ...]


@dataclass(slots=True)
class _Assembly:
    """A full report of which not all pages are here."""

    report_id: int
    next_page: int = 0
    seen: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)


class Reports:
    """Applies reports to the replica map. Callers hold the control plane's lock."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._assemblies: dict[str, _Assembly] = {}
        self.confirmed: set[str] = set()
        """Datanodes that named all their replicas since they registered with this process."""
        self.cut_off: set[str] = set()
        """Datanodes whose full report lost a page: nobody knows whether they named them all."""
        self.unknown_container_ids: set[int] = {
            container_id
            for container_id in state.replicas.container_ids()
            if state.containers.get(container_id) is None
        }

    def forget(self, datanode_id: str) -> None:
        """Believe nothing said before: the datanode has started anew and reports all again."""
        self._assemblies.pop(datanode_id, None)
        self.confirmed.discard(datanode_id)
        self.cut_off.discard(datanode_id)

    def apply(self, change: Change, datanode_id: str, report: Report) -> set[int]:
        """Apply one report; return the ids of the containers whose replicas changed."""
        if report.is_full:
            return self._apply_page(change, datanode_id, report)
        assembly = self._assemblies.get(datanode_id)
        if assembly is not None:
            for replica in report.replicas:
                is_deleted = replica.state is ReplicaState.DELETED
                (assembly.deleted if is_deleted else assembly.seen).add(replica.container_id)
                (assembly.seen if is_deleted else assembly.deleted).discard(replica.container_id)
        return self._record(change, report.replicas)

    def _apply_page(self, change: Change, datanode_id: str, report: Report) -> set[int]:
        assembly = self._assemblies.get(datanode_id)
        if assembly is not None:
            change.on_undo(partial(self._restore, datanode_id, assembly, assembly.next_page))
        if report.page == 0:
            assembly = _Assembly(report.report_id)
            self.cut_off.discard(datanode_id)
        elif (
            assembly is None
            or assembly.report_id != report.report_id
            or report.page > assembly.next_page  # a lower one is sent again: its answer was lost
        ):
            # A page was lost. What this one says is still true; what it does not say is not known.
            self._assemblies.pop(datanode_id, None)
            self.cut_off.add(datanode_id)
            _log.warning(
                "report_page_out_of_order",
                datanode_id=datanode_id,
                report_id=report.report_id,
                page=report.page,
            )
            return self._record(change, report.replicas)
        changed = self._record(
            change, (r for r in report.replicas if r.container_id not in assembly.deleted)
        )
        assembly.seen.update(replica.container_id for replica in report.replicas)
        assembly.next_page = report.page + 1
        if not report.is_last:
            self._assemblies[datanode_id] = assembly
            return changed
        self._assemblies.pop(datanode_id, None)
        if datanode_id not in self.confirmed:
            self.confirmed.add(datanode_id)
            change.on_undo(partial(self.confirmed.discard, datanode_id))
        for container_id in self._state.replicas.on(datanode_id) - assembly.seen:
            change.remove(self._state.replicas, (container_id, datanode_id))
            changed.add(container_id)
        return changed

    def _restore(self, datanode_id: str, assembly: _Assembly, next_page: int) -> None:
        assembly.next_page = next_page
        self._assemblies[datanode_id] = assembly

    def _record(self, change: Change, replicas: Iterable[Replica]) -> set[int]:
        changed = set()
        for replica in replicas:
            key = (replica.container_id, replica.datanode_id)
            if replica.state is ReplicaState.DELETED:
                if self._state.replicas.get(key) is not None:
                    change.remove(self._state.replicas, key)
                    changed.add(replica.container_id)
                continue
            self._note_unknown(replica)
            if not self._state.replicas.confirm(replica):  # else there is nothing for the disk
                change.put(self._state.replicas, replica)
                changed.add(replica.container_id)
        return changed

    def _note_unknown(self, replica: Replica) -> None:
        container_id = replica.container_id
        if self._state.containers.get(container_id) is not None:
            return
        if container_id not in self.unknown_container_ids:
            self.unknown_container_ids.add(container_id)
            _log.warning(
                "unknown_container_reported",
                container_id=container_id,
                datanode_id=replica.datanode_id,
            )
