"""Plans of the Spark job, applied row by row as far as they still describe the world."""

from collections.abc import Sequence

from scm.intake import Decision, PlanRow, check
from scm.nodes import Nodes
from scm.reconciles import Reconciles
from scm.state import Change, State


class Plans:
    """Applies plans. Callers hold the control plane's lock."""

    def __init__(self, state: State, nodes: Nodes, reconciles: Reconciles) -> None:
        self._state = state
        self._nodes = nodes
        self._reconciles = reconciles

    def apply(self, change: Change, rows: Sequence[PlanRow], *, dry_run: bool) -> list[Decision]:
        """Order what a plan asks for, row by row, as far as it still describes the world."""
        return [self._apply_row(change, row, dry_run=dry_run) for row in rows]

    def _apply_row(self, change: Change, row: PlanRow, *, dry_run: bool) -> Decision:
        verdict = check(
            row,
            self._state.containers.get(row.container_id),
            self._state.replicas.of(row.container_id),
            self._nodes.is_reachable,
        )
        if isinstance(verdict, Decision):
            return verdict
        return self._reconciles.order_planned(change, row.container_id, verdict, dry_run=dry_run)
