"""The replica map: which datanode has which replicas, according to the reports of the datanodes.

A full report lists all replicas of a datanode. It may consist of several pages with the same
report_id. When the last page arrives, the replicas that no page listed are removed from the map. An
incremental report lists changes, and may arrive between the pages of a full report. A replica that
it adds is kept, even if no page lists it. A replica that it removes is not added again by a later
page, because the page may be older.

A replica of a container that this SCM did not create is recorded and shown, but no command is sent
for it. A delete of unknown data could destroy the last copy.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

import numpy as np
import structlog

from scm.state.database import StateChange, StateDatabase
from scm.state.entities import Replica
from scm.state.replicas.arena import Rows, picked
from scm.state.replicas.holders import Ids
from scm.state.replicas.reported_replicas import ReportedReplicas

REPLICAS_MIN: Final = 20_000  # minimum for any datanode, however small or empty
BYTES_PER_REPLICA: Final = 256 * 1024**2  # disk space per replica; containers have 5 GB
REPLICAS_MAX: Final = 500_000  # maximum whatever capacity it reports: a row takes some 650 bytes

_log = structlog.get_logger("suture.scm")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class NodeReplicaReport:
    """A `ContainerReport` or `ColumnReport` of a heartbeat.

    The state of an item in `replicas` may be DELETED. A large report is applied in parts. Each part
    except the first has `is_continued`, and each part except the last has `is_unfinished`.
    """

    is_full: bool
    report_id: int
    page: int
    is_last: bool
    replicas: Sequence[Replica]
    is_continued: bool = False
    is_unfinished: bool = False
    refused_ids: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    """Containers with an invalid entry in the report.

    Their replicas exist, and the map keeps the earlier facts about them.
    """
    refused: str = ""  # the first reason for leaving replicas out

    def parts(self, count_max: int) -> Iterator["NodeReplicaReport"]:
        """Yield the report in parts of at most `count_max` replicas.

        An empty report is one part.
        """
        count = len(self.replicas)
        for start in range(0, max(1, count), count_max):
            yield replace(
                self,
                replicas=self.replicas[start : start + count_max],
                is_continued=start > 0,
                is_unfinished=start + count_max < count,
            )


@dataclass(slots=True)
class _Assembly:
    """A full report that has not arrived completely yet."""

    report_id: int
    next_page: int = 0
    seen: list[Ids] = field(default_factory=list)
    """Containers that the pages listed so far, one array per page. Arrays are only appended."""
    deleted: set[int] = field(default_factory=set)

    @property
    def named_count(self) -> int:
        """Return the number of entries in the pages so far. A container may be listed twice."""
        return sum(map(len, self.seen))


def replicas_max(capacity_bytes: int) -> int:
    """Return the maximum number of replicas that a datanode with this capacity may report."""
    return min(max(capacity_bytes // BYTES_PER_REPLICA, REPLICAS_MIN), REPLICAS_MAX)


class ReportProcessor:
    """Applies reports of datanodes to the replica map.

    Callers must hold the control plane's lock.
    """

    def __init__(self, state: StateDatabase) -> None:
        self._state = state
        self._assemblies: dict[str, _Assembly] = {}
        self.confirmed: set[str] = set()
        """Datanodes that have reported all their replicas to this process."""
        self.cut_off: set[str] = set()
        """Datanodes whose full report lost a page. Some of their replicas may be unknown."""
        self.unknown_container_ids: set[int] = set(
            state.containers.missing(state.replicas.container_ids().tolist())
        )

    def forget(self, datanode_id: str) -> None:
        """Delete the pages of an unfinished report, because the datanode starts a new one."""
        self._assemblies.pop(datanode_id, None)
        self.confirmed.discard(datanode_id)
        self.cut_off.discard(datanode_id)

    def note_known(self, change: StateChange, container_id: int) -> None:
        """Remove a container from the unknown containers, because the state now contains it."""
        _discard_undoably(change, self.unknown_container_ids, container_id)

    def mark_unknown(self, change: StateChange, container_id: int) -> None:
        """Add a container to the unknown containers, because the state does not contain it."""
        _put_in(change, self.unknown_container_ids, container_id)

    def within(
        self, datanode_id: str, report: NodeReplicaReport, count_max: int
    ) -> NodeReplicaReport:
        """Return a report without the replicas that exceed a datanode's maximum `count_max`.

        Replicas that the map already contains are never left out. If replicas are left out,
        `refused` of the result states how many.
        """
        assembly = self._assemblies.get(datanode_id)
        if assembly is not None and assembly.named_count > 2 * count_max:
            why = f"reports: more than {2 * count_max:,} replicas in one full report"
            return replace(report, replicas=(), refused=why)
        known = self._state.replicas.count_on(datanode_id)
        if known + len(report.replicas) <= count_max:
            return report
        told = report.replicas
        if not isinstance(told, ReportedReplicas):
            told = ReportedReplicas.of(datanode_id, told)
        is_new = ~np.isin(told.rows["container_id"], self._state.replicas.ids_on(datanode_id))
        is_over = is_new & (np.cumsum(is_new) > max(count_max - known, 0))
        if not is_over.any():
            return report
        why = (
            f"reports: more than {count_max:,} replicas, which is what its volumes can hold; "
            f"{int(is_over.sum()):,} in this call are left out"
        )
        return replace(report, replicas=told.where(~is_over), refused=why)

    def apply(self, change: StateChange, datanode_id: str, report: NodeReplicaReport) -> set[int]:
        """Apply a report to the replica map.

        Return the ids of the containers whose replicas changed.
        """
        told = report.replicas
        if not isinstance(told, ReportedReplicas):
            told = ReportedReplicas.of(datanode_id, told)
        take = self._apply_page if report.is_full else self._apply_some
        return set(take(change, report, told).tolist())

    def _apply_some(
        self, change: StateChange, report: NodeReplicaReport, told: ReportedReplicas
    ) -> Ids:
        datanode_id = told.datanode_id
        there, gone = told.settled()
        assembly = self._assemblies.get(datanode_id)
        if assembly is not None:
            assembly.seen += [there["container_id"], report.refused_ids]
            assembly.deleted.difference_update(there["container_id"].tolist())
            assembly.deleted.update(gone["container_id"].tolist())
        return self._record(change, told, there, gone)

    def _apply_page(
        self, change: StateChange, report: NodeReplicaReport, told: ReportedReplicas
    ) -> Ids:
        datanode_id = told.datanode_id
        there, gone = told.settled()
        assembly = self._assemblies.get(datanode_id)
        if assembly is not None:
            change.on_undo(partial(self._restore, datanode_id, assembly, assembly.next_page))
        if report.page == 0 and not report.is_continued:
            assembly = _Assembly(report.report_id)
            _discard_undoably(change, self.cut_off, datanode_id)
        elif (
            assembly is None
            or assembly.report_id != report.report_id
            or report.page > assembly.next_page  # a lower page is a repetition after a lost answer
        ):
            # A page was lost. Record the replicas of this page, but remove none: a replica that it
            # lacks may be in the lost page.
            self._assemblies.pop(datanode_id, None)
            _put_in(change, self.cut_off, datanode_id)
            change.on_commit(
                _log.warning,
                "report_page_out_of_order",
                datanode_id=datanode_id,
                report_id=report.report_id,
                page=report.page,
            )
            return self._record(change, told, there, gone)
        assembly.seen += [there["container_id"], report.refused_ids]
        if assembly.deleted:
            there = picked(there, ~np.isin(there["container_id"], list(assembly.deleted)))
        changed = self._record(change, told, there, gone)
        assembly.next_page = report.page + (not report.is_unfinished)
        if report.is_unfinished or not report.is_last:
            self._assemblies[datanode_id] = assembly
            return changed
        self._assemblies.pop(datanode_id, None)
        _put_in(change, self.confirmed, datanode_id)
        missing = self._state.replicas.ids_besides(datanode_id, np.concatenate(assembly.seen))
        removed = change.remove_all(self._state.replicas, datanode_id, missing)
        return np.concatenate((changed, removed))

    def _restore(self, datanode_id: str, assembly: _Assembly, next_page: int) -> None:
        assembly.next_page = next_page
        self._assemblies[datanode_id] = assembly

    def _record(self, change: StateChange, told: ReportedReplicas, there: Rows, gone: Rows) -> Ids:
        changed = change.apply_report(self._state.replicas, there, told)
        self._note_unknown(change, told.datanode_id, changed.tolist())
        if not len(gone):
            return changed
        ids = gone["container_id"]
        removed = change.remove_all(self._state.replicas, told.datanode_id, ids)
        return np.concatenate((changed, removed))

    def _note_unknown(
        self, change: StateChange, datanode_id: str, container_ids: Collection[int]
    ) -> None:
        """Record the containers that this SCM did not create. Log each of them once."""
        for container_id in self._state.containers.missing(container_ids):
            if container_id not in self.unknown_container_ids:
                self.mark_unknown(change, container_id)
                change.on_commit(
                    _log.warning,
                    "unknown_container_reported",
                    container_id=container_id,
                    datanode_id=datanode_id,
                )


def _put_in(change: StateChange, noted: set[T], one: T) -> None:
    """Add an item to a set. If the change is rolled back, the item is removed again."""
    if one not in noted:
        noted.add(one)
        change.on_undo(partial(noted.discard, one))


def _discard_undoably(change: StateChange, noted: set[T], one: T) -> None:
    """Remove an item from a set. If the change is rolled back, the item is added again."""
    if one in noted:
        noted.discard(one)
        change.on_undo(partial(noted.add, one))
