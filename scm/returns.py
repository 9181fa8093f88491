"""Replicas that come back with blocks that were deleted while they were gone.

The control plane need not remember such deletes: the others have tombstones, whose checksum is in
each report. Where replicas of a closed container differ in that for a while, and no delete is owed
that would explain it, they are ordered to reconcile, and each takes over the tombstones of the
others. A plan may ask for the same; the guard against loops is one for both (`scm.reconciles`).
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from agent.errors import Code
from merkle.diff import Comparison, compare
from scm.basis import Basis
from scm.eligibility import ELIGIBLE_STATES, Eligibility
from scm.intake import PlanRow
from scm.reconciles import COOLDOWN, Reconciles
from scm.state import Change

LOOKS_PER_TURN: Final = 500
WHY: Final = "a replica has blocks that are deleted in others"


class Returns:
    """Orders the reconciles. Callers hold the control plane's lock."""

    def __init__(self, basis: Basis, reconciles: Reconciles) -> None:
        self._state = basis.state
        self._nodes = basis.nodes
        self._cases = basis.cases
        self._clock = basis.clock
        self._patience_s = basis.options.check_interval_ms / 1000
        self._reconciles = reconciles
        self._since_s: dict[int, float] = {}  # of containers that differ

    def look_at(self, container_ids: Iterable[int]) -> None:
        """Remember which of these containers differ: something about them changed."""
        now_s = self._clock.monotonic_s()
        for container_id in container_ids:
            if self._differs(container_id):
                self._since_s.setdefault(container_id, now_s)
            else:
                self._since_s.pop(container_id, None)

    def turn(self, change: Change) -> None:
        """Order what has differed long enough; what cannot be ordered now is tried again."""
        now_s = self._clock.monotonic_s()
        late = (i for i, since_s in self._since_s.items() if now_s - since_s >= self._patience_s)
        for container_id in list(islice(late, LOOKS_PER_TURN)):
            del self._since_s[container_id]
            if self._differs(container_id) and not self._order(change, container_id):
                self._since_s[container_id] = now_s

    def _differs(self, container_id: int) -> bool:
        container = self._state.containers.get(container_id)
        if container is None or container.scheme or container.state not in ELIGIBLE_STATES:
            return False
        if self._state.holds.is_suppressed(container_id) or self._cases.owes_deletes(container_id):
            return False
        living = self._nodes.living(self._state.replicas.of(container_id))
        trees = [r.tree for r in living if r.tree is not None and not r.load_error]
        return any(compare(trees[0], tree) is Comparison.TOMBSTONES_DIFFER for tree in trees[1:])

    def _order(self, change: Change, container_id: int) -> bool:
        """Order it; False if it is worth another try without any change of the replicas."""
        participants = self._reconciles.participants(container_id)
        if participants.eligibility is Eligibility.NO_REACHABLE_PEER:
            return False
        if participants.eligibility is not Eligibility.OK:
            return True
        row = PlanRow(container_id, (), WHY)
        decision = self._reconciles.order_planned(change, row, participants, why=WHY, dry_run=False)
        return decision.code not in {COOLDOWN, Code.BUSY}
