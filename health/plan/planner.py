"""Plans all actions except reconciles: replicate, reconstruct, delete, close.

The plan names no target node and applies no limits. The control plane does both, with its current
state.
"""

from collections.abc import Callable, Iterable

from health.plan.closing import close
from health.plan.copies import (
    move_indexes,
    reconstruct,
    replicate,
    replicate_origins,
    replicate_vulnerable,
    spread_indexes,
)
from health.plan.deletes import (
    delete_empty,
    delete_excess,
    delete_spare_of_origin,
    delete_spare_shard,
)
from health.plan.plan_input import PlanInput
from health.plan.plan_rows import PlanRows, concatenate_rows


def plan(scene: PlanInput) -> PlanRows:
    """Return the rows of the plan for a batch, in arbitrary order."""
    rules: Iterable[Callable[[PlanInput], Iterable[PlanRows]]] = (
        replicate,
        replicate_origins,
        replicate_vulnerable,
        reconstruct,
        move_indexes,
        spread_indexes,
        delete_excess,
        delete_spare_of_origin,
        delete_spare_shard,
        delete_empty,
        close,
    )
    return concatenate_rows([rows for rule in rules for rows in rule(scene)])
