"""Orders reconciles of differing or damaged replicas without a plan of the Spark job.

The health check decides which containers need a reconcile, as it does for a plan. An order waits
until the reports of the replicas have not changed for a while, because replicas differ temporarily
while their datanodes execute the same command one after the other. An order also waits while a
delete is pending. If replicas differ only in tombstones, the order waits longer, because a pending
delete explains such a difference.

The limit of retries is shared with plans (`scm.replication.reconcile.reconcile_scheduler`). After a
few reconciles without effect, only an operator can order another one. If the only problem is a
contradiction (replicas differ, and each is intact), an operator must decide. Other damage of the
same container is repaired.
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
    """Orders reconciles that no plan of the Spark job requests.

    Callers must hold the control plane's lock.
    """

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
        """Record which of the checked containers need a reconcile, and for which reasons."""
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
        """Choose the due containers for which this step orders reconciles."""
        now_s = self._clock.monotonic_s()
        due = (number for number, due_s in self._due_s.items() if due_s <= now_s)
        self._chosen = list(islice(due, ORDERS_PER_TURN))

    def order_next(self, change: StateChange) -> bool:
        """Order reconciles of the next few chosen containers. Return False if none is left.

        If a reconcile cannot be ordered now, a later step tries it again.
        """
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
        """Try to order a reconcile of one container. Return False if a later step must try again.

        A later step must try again if deletes are pending, if the last reconcile was too recent, or
        if the datanode is busy. Otherwise, the container needs no further try before its replicas
        or the health of a datanode change.
        """
        if self._cases.has_unacknowledged_deletes(container_id):
            return False
        participants = self._reconciles.participants(container_id)
        why = "control plane: " + "; ".join(_words(self._reasons[container_id]))
        row = PlanRow(container_id, (), why)
        decision = self._reconciles.order_planned(change, row, participants, why=why, dry_run=False)
        return decision.code not in {COOLDOWN, Code.BUSY}


def _words(reasons: int) -> Iterable[str]:
    return (word for place, word in enumerate(REASONS) if reasons >> place & 1)
