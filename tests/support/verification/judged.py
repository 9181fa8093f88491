"""Calls the judge in process, for containers in the notation of `snapshots`."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from health.batch import violations
from health.judge import Diagnosis, HealthJudgement, judge
from health.reconcile_eligibility import REASONS
from health.rules import Rules
from health.words import CLASSES, ELIGIBILITY, QUEUES, HealthState, flag_names
from spark_verify.tasks.judge_batches import BatchSlice, cut_of, nodes_of
from spark_verify.tasks.verdict_rows import judged_tables
from tests.support.verification.classifier import Opinion
from tests.support.verification.snapshots import SnapshotRows, gather


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One row of the plan, as it is written to the file."""

    action: str
    sources: tuple[str, ...]
    doubts: tuple[str, ...]
    targets: tuple[str, ...]
    indexes: tuple[int, ...]
    copies: int
    priority: int
    reason: str
    is_forced: bool
    bytes_estimated: int


@dataclass(frozen=True, slots=True)
class Judged:
    """The judge's result for one container."""

    opinion: Opinion
    tombstones_differ: bool
    is_unreachable_different: bool
    reasons: tuple[str, ...]
    is_wanted: bool
    is_known: bool
    need: int
    need_after: int
    plan: tuple[PlanRow, ...]


def cut(rows: SnapshotRows) -> BatchSlice:
    """Return a batch for the judge with all containers of a snapshot."""
    containers, replicas, ops, nodes = map(
        rows.table, ("containers", "replicas", "pending_ops", "nodes")
    )
    return cut_of(containers, replicas, ops, nodes_of(nodes))


def judged(
    parts: Iterable[SnapshotRows], *, rack_count: int = 1, rules: Rules | None = None
) -> dict[int, Judged]:
    """Judge the containers of `parts` in one batch; return the results by container id."""
    batch = cut(gather(parts))
    assert violations(batch.batch, str) == []
    judgement = judge(batch.batch, rules or Rules(rack_count=rack_count))
    ids = batch.batch.containers.container_id.tolist()
    plans = _plans(judgement, batch)
    return {number: _judged(judgement, i, plans.get(i, [])) for i, number in enumerate(ids)}


def opinion_of(diagnosis: Diagnosis, i: int) -> Opinion:
    """Return the result for the i-th container of a batch."""
    view, compared = diagnosis.view, diagnosis.compared
    replicas, names = view.batch.replicas, view.batch.nodes.names
    lost = np.flatnonzero(compared.is_minority & (replicas.container == i))
    return Opinion(
        CLASSES[compared.checksum_class[i]],
        ELIGIBILITY[diagnosis.reconciles.eligibility[i]],
        frozenset(names[node] for node in replicas.node[lost].tolist()),
        HealthState(int(diagnosis.verdicts.state[i])).name,
        QUEUES[diagnosis.verdicts.queue[i]],
        bool(diagnosis.verdicts.is_stuck[i]),
        frozenset(flag_names(int(diagnosis.flags[i]))),
    )


def need_of(diagnosis: Diagnosis, i: int) -> tuple[int, int]:
    """Return how many replicas the i-th container lacks, now and after the pending commands."""
    ratis = diagnosis.counts.ratis
    return int(ratis.need[i]), int(ratis.need_after[i])


def _judged(judgement: HealthJudgement, i: int, plan: list[PlanRow]) -> Judged:
    view, compared, reconciles = judgement.view, judgement.compared, judgement.reconciles
    reasons = int(reconciles.reasons[i])
    need, need_after = need_of(judgement, i)
    return Judged(
        opinion_of(judgement, i),
        tombstones_differ=bool(compared.tombstones_differ[i]),
        is_unreachable_different=bool(compared.is_unreachable_different[i]),
        reasons=tuple(word for place, word in enumerate(REASONS) if reasons >> place & 1),
        is_wanted=bool(reconciles.is_wanted[i]),
        is_known=bool(view.batch.containers.is_known[i]),
        need=need,
        need_after=need_after,
        plan=tuple(plan),
    )


def _plans(judgement: HealthJudgement, batch: BatchSlice) -> dict[int, list[PlanRow]]:
    """Return the rows of the plan by the position of their container in the batch. They are read
    back from the Arrow table."""
    table = judged_tables(judgement, batch)["plan"]
    ids = batch.batch.containers.container_id
    places = np.searchsorted(ids, table["container_id"].to_numpy()).tolist()
    found: dict[int, list[PlanRow]] = {}
    for place, row in zip(places, table.to_pylist(), strict=True):
        found.setdefault(place, []).append(_plan_row(row))
    return found


def _plan_row(row: dict[str, Any]) -> PlanRow:
    known: dict[str, Any] = {field.name: row[field.name] for field in fields(PlanRow)}
    for name, value in known.items():
        known[name] = tuple(value) if isinstance(value, list) else value
    return PlanRow(**known)
