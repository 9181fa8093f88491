"""Reconciles differing or damaged replicas without a plan, on the control plane's own decision.

The orders are the same that the judge writes into a plan of Spark. An order waits until the reports
that caused it have settled, because replicas differ for a moment while they carry out the same
command one after the other. An order also waits while a delete is pending. Replicas that differ
only in tombstones wait longer, because a pending delete explains such a difference.

The limit of retries is shared with plans (`scm.replication.reconcile.reconcile_scheduler`). After a
few commands that changed nothing, only an operator can retry. A contradiction alone also needs an
operator; other damage of the same container is repaired.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from health.judge import Diagnosis
from health.reconcile_eligibility import REASONS
from scm.cluster.decision_context import ControlComponent, DecisionContext
from scm.replication.reconcile.plan_check import PlanRow
from scm.replication.reconcile.reconcile_scheduler import COOLDOWN, ReconcileScheduler
from scm.state.database import StateChange
from suture.errors import Code

ORDERS_PER_TURN: Final = 500
ORDERS_AT_ONCE: Final = 25  # containers per portion, while the lock is held

_CONTRADICT: Final = 1 << REASONS.index("replicas contradict each other")
_TOMBSTONES: Final = 1 << REASONS.index("tombstones differ")


class AutoReconcile(ControlComponent):
    """Orders reconciles that no plan of Spark requests. Callers hold the control plane's lock."""

    def __init__(self, basis: DecisionContext, reconciles: ReconcileScheduler) -> None:
        super().__init__(basis)
        self._is_on = basis.options.heal
        self._settle_s = basis.options.heal_after_ms / 1000
        self._patience_s = basis.options.check_interval_ms / 1000
        self._reconciles = reconciles
        self._due_s: dict[int, float] = {}
        self._reasons: dict[int, int] = {}
        self._chosen: list[int] = []  # containers of this step that were not tried yet

    def record_candidates(self, found: Diagnosis) -> None:
        """Record which of these containers the judge would reconcile, and why."""
        if not self._is_on:
            return
        now_s = self._clock.monotonic_s()
        ids, reasons = found.view.batch.containers.container_id, found.reconciles.reasons
        is_due = found.reconciles.is_wanted & (reasons != _CONTRADICT)
        if self._reasons:  # avoids a set of nearly all containers
            for container_id in self._reasons.keys() & set(ids[~is_due].tolist()):
                self._due_s.pop(container_id, None)
                del self._reasons[container_id]
        for container_id, mask in zip(ids[is_due].tolist(), reasons[is_due].tolist(), strict=True):
            if self._reasons.get(container_id) != mask:
                self._reasons[container_id] = mask
                self._due_s[container_id] = now_s + (
                    self._patience_s if mask == _TOMBSTONES else self._settle_s
                )

    def is_due(self, container_id: int) -> bool:
        """Return True if a container waits for a reconcile that this component orders."""
        return container_id in self._due_s

    def begin_turn(self) -> None:
        """Choose the due containers to try in this step."""
        now_s = self._clock.monotonic_s()
        due = (number for number, due_s in self._due_s.items() if due_s <= now_s)
        self._chosen = list(islice(due, ORDERS_PER_TURN))

    def order_next(self, change: StateChange) -> bool:
        """Order reconciles of the next few containers. Those that cannot be ordered now are
        retried. Return False if no container is left."""
        portion = self._chosen[:ORDERS_AT_ONCE]
        del self._chosen[:ORDERS_AT_ONCE]
        for container_id in portion:
            if self._due_s.pop(container_id, None) is None:
                continue  # found healthy since this step began
            if self._order(change, container_id):
                self._reasons.pop(container_id)
            else:
                self._due_s[container_id] = self._clock.monotonic_s() + self._settle_s
        return bool(portion)

    def _order(self, change: StateChange, container_id: int) -> bool:
        """Order one reconcile. Return True if the container needs no further try before a replica
        or the health of a node changes. Return False if the container must be tried again without
        such a change, because deletes are pending, the last reconcile was too recent, or the
        datanode is busy."""
        if self._cases.has_unacknowledged_deletes(container_id):
            return False
        participants = self._reconciles.participants(container_id)
        why = "control plane: " + "; ".join(_words(self._reasons[container_id]))
        row = PlanRow(container_id, (), why)
        decision = self._reconciles.order_planned(change, row, participants, why=why, dry_run=False)
        return decision.code not in {COOLDOWN, Code.BUSY}


def _words(reasons: int) -> Iterable[str]:
    return (word for place, word in enumerate(REASONS) if reasons >> place & 1)
