"""What the judge plans of random clusters is what a second, slow implementation allows."""

import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.verification.classifier import Case
from tests.support.verification.judged import judged
from tests.support.verification.planned import reconciled, wrongs
from tests.support.verification.random_clusters import random_cluster
from tests.support.verification.snapshots import SnapshotRows

CONTAINERS = int(os.environ.get("SUTURE_JUDGED_CONTAINERS", "3000"))
RACKS = 4


def odd_cluster(draw: random.Random, container_count: int) -> SnapshotRows:
    """Return a random cluster in which some replicas are barred, and some nodes have not named all
    that they hold."""
    rows = random_cluster(draw, container_count)
    rows.nodes = [replace(node, has_reported=draw.random() < 0.9) for node in rows.nodes]
    rows.replicas = [replace(row, is_barred=draw.random() < 0.04) for row in rows.replicas]
    return rows


def cases(rows: SnapshotRows) -> dict[int, Case]:
    """Return every container with its surroundings."""
    replicas, ops = defaultdict(list), defaultdict(list)
    nodes = {node.datanode_id: node for node in rows.nodes}
    for replica in rows.replicas:
        replicas[replica.container_id].append(replica)
    for op in rows.pending_ops:
        ops[op.container_id].append(op)
    return {
        box.container_id: Case(box, replicas[box.container_id], ops[box.container_id], nodes, RACKS)
        for box in rows.containers
    }


def all_wrongs(
    known: Mapping[int, Case],
    picked: Mapping[int, str],
    plan: Mapping[int, Iterable[dict[str, Any]]],
) -> list[str]:
    """Return what is wrong with a plan, container by container; `picked` has what is reconciled,
    and why."""
    found = []
    for number, case in known.items():
        expected = reconciled(case)
        if picked.get(number) != expected:
            found.append(f"{number}: reconciled for {picked.get(number)!r}, not {expected!r}")
        found += [f"{number}: {wrong}" for wrong in wrongs(case, plan.get(number, ()))]
    return found


def judged_wrongs(rows: SnapshotRows, count: Counter[str] | None = None) -> list[str]:
    """Ask the judge about a cluster; return what is wrong with what it plans."""
    found, known = judged([rows], rack_count=RACKS), cases(rows)
    picked = {i: "; ".join(one.reasons) for i, one in found.items() if one.is_wanted}
    plan = {i: [asdict(row) for row in one.plan] for i, one in found.items()}
    if count is not None:
        count["reconcile"] += len(picked)
        count["EC"] += sum(known[i].box.replication_type == "EC" for i in picked)
        count.update(row["action"] for own in plan.values() for row in own)
    return all_wrongs(known, picked, plan)


@pytest.mark.slow
def test_plan_of_a_random_cluster_agrees_with_the_reference() -> None:
    """For thousands of containers, the reference checks which are reconciled and why, the
    sources of copies and reconstructions, and that no delete takes a needed replica.
    """
    count: Counter[str] = Counter()

    wrong = judged_wrongs(odd_cluster(random.Random(7), CONTAINERS), count)

    assert not wrong, f"{len(wrong)}, first: {wrong[:3]}"
    kinds = ("reconcile", "EC", "replicate", "reconstruct", "delete")
    assert all(count[kind] > CONTAINERS / 200 for kind in kinds), count


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(draw=st.randoms(use_true_random=False), container_count=st.integers(1, 5))
def test_plan_of_a_drawn_cluster_agrees_with_the_reference(
    draw: random.Random, container_count: int
) -> None:
    """Hypothesis draws every fact itself, and other clusters at every run."""
    assert judged_wrongs(odd_cluster(draw, container_count)) == []
