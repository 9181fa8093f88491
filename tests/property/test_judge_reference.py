"""The judge and the plain-Python reference agree on every container."""

import os
import random
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from health.words import HealthState
from tests.support.verification.classifier import Case, Opinion, classify
from tests.support.verification.judged import judged
from tests.support.verification.random_clusters import random_cluster
from tests.support.verification.snapshots import OpRow, ReplicaRow, SnapshotRows

CONTAINERS = int(os.environ.get("SUTURE_JUDGED_CONTAINERS", "8000"))
"""Of one seeded cluster; docs/TESTING.md says how to try many more."""

RACKS = 4


def reference(rows: SnapshotRows) -> dict[int, Opinion]:
    """Ask the reference about every container."""
    replicas: dict[int, list[ReplicaRow]] = defaultdict(list)
    ops: dict[int, list[OpRow]] = defaultdict(list)
    nodes = {node.datanode_id: node for node in rows.nodes}
    for replica in rows.replicas:
        replicas[replica.container_id].append(replica)
    for op in rows.pending_ops:
        ops[op.container_id].append(op)
    return {
        box.container_id: classify(
            Case(box, replicas[box.container_id], ops[box.container_id], nodes, RACKS)
        )
        for box in rows.containers
    }


def opinions(rows: SnapshotRows) -> dict[int, Opinion]:
    """Ask the judge about every container."""
    return {number: row.opinion for number, row in judged([rows], rack_count=RACKS).items()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5])
def test_judge_and_reference_agree_on_random_clusters(seed: int) -> None:
    """Thousands of containers have every odd mix of states, nodes, origins, indexes and
    operations.
    """
    rows = random_cluster(random.Random(seed), CONTAINERS)

    found, expected = opinions(rows), reference(rows)

    wrong = [i for i in expected if found[i] != expected[i]]
    assert len(found) == len(expected) == CONTAINERS
    assert not wrong, (
        f"{len(wrong)} differ, first {wrong[0]}: {found[wrong[0]]} {expected[wrong[0]]}"
    )
    assert {state.name for state in HealthState} == {o.state for o in expected.values()}


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(draw=st.randoms(use_true_random=False), container_count=st.integers(1, 6))
def test_judge_and_reference_agree_on_drawn_clusters(
    draw: random.Random, container_count: int
) -> None:
    """Hypothesis draws every state, node and root itself, and other clusters at every run."""
    rows = random_cluster(draw, container_count)

    assert reference(rows) == opinions(rows)
