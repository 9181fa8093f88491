"""Containers whose replicas differ or are damaged: reconciled by the control plane's own decision.

    look ──judge──► wanted ──settled, no delete owed──► reconcile, within the datanodes' limits

What the judge would have reconciled in a plan of Spark's is ordered here without Spark, as soon as
the reports that say so have settled: replicas differ for a moment while each of them does the same
one after the other. Replicas that differ only in tombstones wait longer; a delete that is still
owed explains that. The guard against loops is one for all
(`scm.replication.reconciling.attempts`): after a few commands that changed nothing only a person
tries again. A contradiction alone is for a person, too; other damage of the same container is
repaired.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from agent.errors import Code
from health.judge import Diagnosis
from health.reconcile_eligibility import REASONS
from scm.cluster.basis import Basis
from scm.replication.reconciling.attempts import COOLDOWN, Reconciles
from scm.replication.reconciling.plan_check import PlanRow
from scm.state.database import Change

ORDERS_PER_TURN: Final = 500
ORDERS_AT_ONCE: Final = 25  # while the lock is held

_CONTRADICT: Final = 1 << REASONS.index("replicas contradict each other")
_TOMBSTONES: Final = 1 << REASONS.index("tombstones differ")


class Healing:
    """Orders the reconciles. Callers hold the control plane's lock."""

    def __init__(self, basis: Basis, reconciles: Reconciles) -> None:
        self._cases = basis.cases
        self._clock = basis.clock
        self._is_on = basis.options.heal
        self._settle_s = basis.options.heal_after_ms / 1000
        self._patience_s = basis.options.check_interval_ms / 1000
        self._reconciles = reconciles
        self._due_s: dict[int, float] = {}
        self._reasons: dict[int, int] = {}
        self._chosen: list[int] = []  # of this turn: not tried yet

    def note(self, found: Diagnosis) -> None:
        """Remember which of these containers the judge would have reconciled, and why."""
        if not self._is_on:
            return
        now_s = self._clock.monotonic_s()
        ids, reasons = found.view.batch.containers.container_id, found.reconciles.reasons
        is_due = found.reconciles.is_wanted & (reasons != _CONTRADICT)
        if self._reasons:  # of nearly all containers there is nothing to forget either
            for container_id in self._reasons.keys() & set(ids[~is_due].tolist()):
                self._due_s.pop(container_id, None)
                del self._reasons[container_id]
        for container_id, mask in zip(ids[is_due].tolist(), reasons[is_due].tolist(), strict=True):
            if self._reasons.get(container_id) != mask:
                self._reasons[container_id] = mask
                self._due_s[container_id] = now_s + (
                    self._patience_s if mask == _TOMBSTONES else self._settle_s
                )

    def begin_turn(self) -> None:
        """Choose what is tried in this turn of what is due."""
        now_s = self._clock.monotonic_s()
        due = (number for number, due_s in self._due_s.items() if due_s <= now_s)
        self._chosen = list(islice(due, ORDERS_PER_TURN))

    def serve(self, change: Change) -> bool:
        """Order the next few; what cannot be ordered now is tried again. False: none is left."""
        portion = self._chosen[:ORDERS_AT_ONCE]
        del self._chosen[:ORDERS_AT_ONCE]
        for container_id in portion:
            if self._due_s.pop(container_id, None) is None:
                continue  # since the turn began it was seen well
            if self._order(change, container_id):
                self._reasons.pop(container_id)
            else:
                self._due_s[container_id] = self._clock.monotonic_s() + self._settle_s
        return bool(portion)

    def _order(self, change: Change, container_id: int) -> bool:
        """Order it; False if it is worth another try without any change of the replicas.

        One that may not be reconciled has no targets. It is looked at, and so due, again when a
        replica or the health of a node changes.
        """
        if self._cases.owes_deletes(container_id):
            return False
        participants = self._reconciles.participants(container_id)
        why = "control plane: " + "; ".join(_words(self._reasons[container_id]))
        row = PlanRow(container_id, (), why)
        decision = self._reconciles.order_planned(change, row, participants, why=why, dry_run=False)
        return decision.code not in {COOLDOWN, Code.BUSY}


def _words(reasons: int) -> Iterable[str]:
    return (word for place, word in enumerate(REASONS) if reasons >> place & 1)
