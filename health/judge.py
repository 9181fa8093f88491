"""Computes the health of all containers of a batch, and the actions that repair them.

    batch ─► view ─┬► counts (ratis, erasure, quasi-closed, placement) ─► verdicts ─► flags
                   └► comparison ─► reconciles                             └► actions

Only this module decides the health of a container. The control plane calls it for changed
containers and the Spark job for all containers, so both get the same result.
"""

from dataclasses import dataclass, fields

import numpy as np

from health.batch import BatchView, ContainerBatch, view
from health.conditions import flags
from health.ec_replication import count_erasure
from health.health_state import Counts, Verdicts, apply_handlers, is_empty
from health.plan.plan_input import PlanInput
from health.plan.plan_rows import PlanRows
from health.plan.planner import plan
from health.quasi_closed import judge_quasi_closed
from health.racks import is_misplaced, racks_required
from health.ratis_replication import count_ratis
from health.reconcile_eligibility import ReconcileEligibility, is_good, judge_reconcile
from health.root_comparison import RootComparison, compare
from health.rules import Rules
from health.segmented_rows import Ints
from health.source_issues import source_issues
from health.words import ROLES, UNHEALTHY, SharedState


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The health of a batch's containers, without actions."""

    view: BatchView
    counts: Counts
    verdicts: Verdicts
    compared: RootComparison
    flags: Ints
    reconciles: ReconcileEligibility
    source_issues: Ints
    """For each replica, the known problem that makes it a bad source of a copy, as a code of
    `SourceIssue`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthJudgement(Diagnosis):
    """The health of a batch's containers, and the actions that repair them."""

    actions: PlanRows


def diagnose(batch: ContainerBatch, rules: Rules) -> Diagnosis:
    """Return the health of every container of a batch, without actions. The function takes half the
    time of `judge`."""
    seen = view(batch)
    good = is_good(seen)
    misplaced, misplaced_after = is_misplaced(seen, rules)
    counts = Counts(
        ratis=count_ratis(seen, rules),
        erasure=count_erasure(seen, rules),
        quasi=judge_quasi_closed(seen, rules),
        is_misplaced=misplaced,
        is_misplaced_after=misplaced_after,
        racks_required=racks_required(
            batch.containers.factor, rules.rack_count, is_scattered=seen.is_ec
        ),
        is_empty=is_empty(seen),
    )
    verdicts = apply_handlers(seen, counts)
    compared = compare(seen, good)
    return Diagnosis(
        view=seen,
        counts=counts,
        verdicts=verdicts,
        compared=compared,
        flags=flags(seen, counts, verdicts, compared),
        reconciles=judge_reconcile(seen, counts, compared, good),
        source_issues=source_issues(seen),
    )


def scene_of(found: Diagnosis) -> PlanInput:
    """Return the part of a diagnosis that the rules of the plan use."""
    return PlanInput(found.view, found.counts, found.verdicts, found.compared, found.source_issues)


def judge(batch: ContainerBatch, rules: Rules) -> HealthJudgement:
    """Return the health of every container of a batch, and the actions that repair the
    containers."""
    found = diagnose(batch, rules)
    return HealthJudgement(
        **{field.name: getattr(found, field.name) for field in fields(found)},
        actions=plan(scene_of(found)),
    )


def roles(judgement: HealthJudgement) -> Ints:
    """Return the role of each replica in its container, as an index in `words.ROLES`."""
    seen = judgement.view
    replicas, containers = seen.batch.replicas, seen.batch.containers
    own = seen.of_container(containers.state)
    is_stale = (own == SharedState.CLOSED) & (replicas.state == SharedState.QUASI_CLOSED)
    is_stale &= replicas.bcsid != seen.of_container(containers.sequence_id)
    return np.select(
        [
            judgement.counts.quasi.is_vulnerable,
            replicas.state == UNHEALTHY,
            is_stale,
            replicas.state == own,
        ],
        [0, 1, 2, 3],
        ROLES.index("MISMATCHED"),
    )
