"""Detects from the reports of datanodes that the state of this control plane is outdated.

Each datanode reports its replicas, the starts of control planes that it has seen, and the highest
state number of each start. A state number grows with each committed change. The state is outdated
or duplicated in three cases:

- A datanode has seen a start of this state with a higher state number than the state has now. Then
  an operator installed an older copy of the state, or the disk lost committed changes.
- A datanode has seen a start that is not in the history of this state. Then two control planes run
  on copies of one state.
- Two datanodes have a container, or blocks in a container, that this state has not allocated. Only
  a later state can have allocated them. That later state may have ended before its first heartbeat,
  so that no datanode has seen its start. The report of a single datanode is not sufficient, because
  it may be wrong.

In all cases, clients may have stored keys that this state does not contain. The control plane
therefore treats the state like one that was restored from a backup. It deletes, copies and stores
nothing until an operator has recovered the state (`scm.administration.restore_recovery`).
"""

from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Final

import numpy as np
import structlog

from scm.cluster.decision_context import ControlComponent, DecisionContext
from scm.cluster.safemode import SafeMode
from scm.containers.open_containers import WriterSessions
from scm.state.audit_trail import AuditEntry
from scm.state.database import StateChange
from scm.state.entities import UNFINISHED, OutcomeState
from scm.state.starts import ReportedStart, Start
from scm.state.state_metadata import RestoreRecord, counters_anew
from suture.errors import Code

MADE_SINCE_MAX: Final = 4_000_000
"""Maximum number of containers that the SCM is assumed to have made since a backup.

It allows one container per second for more than a month. A container with a higher id was not made
by a control plane. It may be a stray directory, or a client may have asked a datanode to create it.
The limit matters because tables need a byte for every id up to the highest, and ids are never
reused.
"""
WITNESSES_MIN: Final = 2  # datanodes that must report the same

_WHY: Final = "datanodes have seen a later state than this one"
_log = structlog.get_logger("suture.scm")


class OlderStates(ControlComponent):
    """Detects from reports of datanodes that this state is outdated, for instance an old copy.

    Callers must hold the control plane's lock.
    """

    def __init__(
        self, basis: DecisionContext, safe_mode: SafeMode, writers: WriterSessions
    ) -> None:
        super().__init__(basis)
        self._safe_mode = safe_mode
        self._writers = writers
        self.trouble = ""
        """A text about the later state that datanodes have reported; empty if there is none."""
        self.term_seen = 0
        """The highest term of a later start that a datanode has reported."""

    def compare(self, change: StateChange, datanode_id: str, seen: Sequence[ReportedStart]) -> None:
        """Compare this state with the starts of control planes that a datanode has seen.

        If the datanode has seen a later state, treat this state as restored from a backup.
        """
        later = self._state.lineage.later(seen, self._state.number)
        if not later:
            return
        newest = max(later, key=attrgetter("term", "state_number"))
        self.term_seen = max(self.term_seen, newest.term)
        if not self.trouble:
            self.trouble = self._state_text(datanode_id, newest)
            change.on_commit(
                _log.error,
                "later_state_seen",
                datanode_id=datanode_id,
                start_id=newest.start_id,
                term=newest.term,
                state_number=newest.state_number,
            )
        if self._state.restored is None:
            self._distrust(change, self._state.lineage.since(later), newest.term)

    def compare_ids(self, change: StateChange, container_ids: Collection[int]) -> None:
        """Compare the reported replicas of these containers with the allocated ids.

        If datanodes have containers or blocks that only a later state can have allocated, treat
        this state as restored from a backup.
        """
        state = self._state
        if state.restored is not None or not container_ids:
            return
        next_id = state.counters["next_container_id"]
        ids = sorted(one for one in container_ids if one < next_id + MADE_SINCE_MAX)
        owner, rows = state.replicas.owned(ids)
        last = np.zeros(len(ids), np.int64)
        np.maximum.at(last, owner, rows["bcsid"].astype(np.int64))
        promised = np.array(state.containers.promised_counts(ids), np.int64)
        # A state that never had a container has no blocks to delete. The datanodes may have joined
        # a new cluster with containers of their own.
        is_new = np.isin(ids, state.containers.missing(ids)) & (np.array(ids) >= next_id)
        is_new &= next_id > 1
        for place in np.flatnonzero(((promised > 0) & (last > promised)) | is_new).tolist():
            container_id, count = ids[place], int(promised[place])
            holders = [one for one in state.replicas.of(container_id) if one.bcsid > count]
            container = state.containers.get(container_id)
            factor = self._options.replication_factor
            if container is not None:
                factor = container.replication_factor
                if not state.has_all_commits_of(container_id):
                    continue  # the recovery has examined this container
            if len(holders) >= min(WITNESSES_MIN, factor):
                self._distrust_ids(change, container_id, sorted(r.datanode_id for r in holders))
                return

    def _distrust_ids(
        self, change: StateChange, container_id: int, datanode_ids: Sequence[str]
    ) -> None:
        """Treat this state as restored, because datanodes have data that it has not allocated."""
        before = self.trouble
        change.on_undo(lambda: setattr(self, "trouble", before))
        self.trouble = (
            f"datanodes {' and '.join(datanode_ids)} have data of container {container_id} that "
            "this state has not allocated: an older copy of it was put in place, or its disk lost "
            "changes; nothing is deleted until it is recovered"
        )
        change.on_commit(
            _log.error,
            "state_older_than_datanodes",
            container_id=container_id,
            datanode_id=datanode_ids[0],
        )
        starts = self._state.lineage.starts
        after = (start for start in starts if start.first_container_id > container_id)
        self._distrust(change, next(after, starts[-1]), self._state.term)

    def finish_recovery(self, change: StateChange) -> None:
        """End the recovery of this state.

        The term (the number of starts) becomes higher than the term of any other control plane that
        datanodes have seen.
        """
        change.move_counter("term", self.term_seen + 1)
        before = self.trouble
        change.on_undo(lambda: setattr(self, "trouble", before))
        self.trouble = ""

    def _state_text(self, datanode_id: str, seen: ReportedStart) -> str:
        known = any(start.start_id == seen.start_id for start in self._state.lineage.starts)
        what = (
            f"this state to number {seen.state_number} in term {seen.term}, which it lacks: an "
            "older copy of it was put in place, or its disk lost changes"
            if known
            else f"another control plane in term {seen.term} that began on a copy of this state"
        )
        return f"datanode {datanode_id} has seen {what}; nothing is deleted until it is recovered"

    def _distrust(self, change: StateChange, since: Start, term: int) -> None:
        """Treat this state as restored from a backup, and enter safe mode.

        The recovery will examine all changes since the start `since`. `term` is the highest known
        term of a control plane.
        """
        state, now_ms = self._state, self._clock.wall_ms()
        unfinished = [
            one.container_id
            for one in state.containers.values()
            if one.state in UNFINISHED or one.state_since_ms >= since.began_at_ms
        ]
        first_id = since.first_container_id
        restored = RestoreRecord(
            taken_at_ms=0,
            first_new_container_id=first_id,
            unfinished=tuple(sorted(number for number in unfinished if number < first_id)),
        )
        change.begin_restore(restored)
        for counter, number in counters_anew(state.counters, now_ms).items():
            change.move_counter(counter, number)
        change.move_counter("term", term + 1)  # commands of an earlier term are stale
        for command in list(state.commands.values()):
            self._commands.drop(change, command, OutcomeState.SKIPPED, Code.SAFE_MODE, _WHY)
        for transaction in list(state.transactions.values()):
            if transaction.is_unproven:  # the later state may have a commit of these blocks
                key = transaction.container_id, transaction.transaction_id
                change.remove(state.transactions, key)
        for container in state.containers.open_all():
            self._writers.end(change, container, _WHY)
        self._safe_mode.begin_again(change)
        change.add_audit_note(
            AuditEntry("restore begun", "OK", {"who": "scm", "why": self.trouble})
        )
