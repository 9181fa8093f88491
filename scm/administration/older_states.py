"""Detects that this state is outdated, from the control plane starts that datanodes report.

A datanode reports which starts of control planes it has seen, and the highest state number of each.
There are two cases:

- A datanode has seen a start of this state with a higher state number than this state has. Then an
  older copy of the state was put in place, or the disk lost acknowledged changes.
- A datanode has seen a start that is not in the history of this state. Then two control planes run
  on copies of one state.

In both cases keys may have been stored that this state does not contain. The state is therefore
treated like one restored from a backup. Nothing is deleted, copied or stored until it is recovered
(`scm.administration.restore_recovery`).
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

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

_WHY: Final = "datanodes have seen a later state than this one"
_log = structlog.get_logger("suture.scm")


class OlderStates(ControlComponent):
    """Detects outdated states. Callers hold the control plane's lock."""

    def __init__(
        self, basis: DecisionContext, safe_mode: SafeMode, writers: WriterSessions
    ) -> None:
        super().__init__(basis)
        self._safe_mode = safe_mode
        self._writers = writers
        self.trouble = ""
        """The later state that a datanode has seen, as text; "" if there is none."""
        self.term_seen = 0
        """The highest term of a later start that a datanode has seen."""

    def compare(self, change: StateChange, datanode_id: str, seen: Sequence[ReportedStart]) -> None:
        """Compare this state with the starts that a datanode has seen; if the state is outdated,
        treat it as restored."""
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
            self._distrust(change, self._state.lineage.since(later), newest)

    def finish_recovery(self, change: StateChange) -> None:
        """End the recovery: continue with a term above those of the other control planes that were
        seen."""
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

    def _distrust(self, change: StateChange, since: Start, newest: ReportedStart) -> None:
        """Treat this state as restored: schedule the recovery of all changes since it may have
        become outdated, and enter safe mode."""
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
        change.move_counter("term", newest.term + 1)  # commands of an earlier term are stale
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
