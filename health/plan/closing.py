"""The rules of the plan that close replicas."""

from collections.abc import Iterable

import numpy as np

from health.plan.plan_input import PlanInput
from health.plan.plan_rows import MISPLACED_PRIORITY, PlanRows, rows_of
from health.words import Action, HealthState, SharedState


def close(scene: PlanInput) -> Iterable[PlanRows]:
    """Yield plan rows that close the replicas whose container already has a later state.

    The rules are those of Ozone's handlers for open, closing, quasi-closed and mismatched replicas.
    """
    view, replicas, containers = scene.view, scene.view.batch.replicas, scene.view.batch.containers
    state, is_ec = containers.state, view.is_ec
    is_quasi = view.is_present & (replicas.state == SharedState.QUASI_CLOSED)
    open_ones = view.is_present & (replicas.state <= SharedState.CLOSING)
    late = is_quasi & (replicas.bcsid == view.of_container(containers.sequence_id))
    leading = is_quasi & (replicas.bcsid == view.of_container(scene.counts.quasi.last))
    unwritable = scene.verdicts.state == HealthState.OPEN_UNHEALTHY
    unwritable |= scene.verdicts.state == HealthState.OPEN_WITHOUT_PIPELINE
    is_closed, is_quasi_box = state == SharedState.CLOSED, state == SharedState.QUASI_CLOSED
    never, always = np.zeros_like(is_ec), np.ones_like(is_ec)
    may_force = is_quasi_box & ~is_ec & scene.counts.quasi.is_closable
    cases = (
        (unwritable, open_ones, never, "open container is not writable"),
        (state == SharedState.CLOSING, open_ones | is_quasi, is_ec, "container is closing"),
        (is_closed | is_quasi_box, open_ones, is_ec, "replica is behind its container"),
        (is_closed & ~is_ec, late, always, "quasi-closed at the final BCSID"),
        (may_force, leading, always, "most origins seen, highest BCSID"),
    )
    for when, who, forced, reason in cases:
        box, targets = scene.concerned(when, who)
        yield rows_of(
            Action.CLOSE,
            box,
            priority=MISPLACED_PRIORITY,
            reason=reason,
            targets=targets,
            is_forced=forced[box],
        )
