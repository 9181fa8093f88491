"""The Spark job and the plain-Python reference agree on every container."""

import random
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row, SparkSession

from spark_verify.case import build_cases
from spark_verify.compare import compare
from spark_verify.health import STATES, flag_names, judge_health
from spark_verify.plan import judge_reconcile
from spark_verify.rules import Rules
from spark_verify.snapshot import open_snapshot, read_manifest
from tests.support.classifier import Case, Opinion, classify
from tests.support.random_clusters import random_cluster
from tests.support.snapshots import OpRow, ReplicaRow, SnapshotRows

pytestmark = pytest.mark.spark

COLUMNS = (
    "container_id",
    "checksum_class",
    "eligibility",
    "minority",
    "health_state",
    "queue",
    "is_qc_stuck",
    "flags",
)


def opinions(rows: SnapshotRows, rack_count: int) -> dict[int, Opinion]:
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
            Case(box, replicas[box.container_id], ops[box.container_id], nodes, rack_count)
        )
        for box in rows.containers
    }


def opinion(row: Row) -> Opinion:
    """Return a judged row as the reference would put it."""
    names = {number: name for name, number in STATES.items()}
    return Opinion(
        row["checksum_class"],
        row["eligibility"],
        frozenset(row["minority"]),
        names[row["health_state"]],
        row["queue"],
        row["is_qc_stuck"],
        frozenset(flag_names(row["flags"])),
    )


def both(
    spark: SparkSession, directory: Path, rows: SnapshotRows
) -> tuple[dict[int, Opinion], dict[int, Opinion]]:
    """Return what the job and what the reference says of every container."""
    path = str(rows.write(directory))
    cases = build_cases(open_snapshot(spark, path, read_manifest(path)))
    judged = judge_reconcile(judge_health(compare(cases), Rules(rack_count=RACKS)))
    found = {row["container_id"]: opinion(row) for row in judged.select(*COLUMNS).collect()}
    return found, opinions(rows, RACKS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_both_agree_on_every_container_of_a_random_cluster(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """
    A hundred thousand containers in every odd mix of states, nodes, origins, indexes and ops.
    """
    found, expected = both(
        spark, tmp_path / "snapshot", random_cluster(random.Random(seed), CONTAINERS)
    )

    wrong = [i for i in expected if found[i] != expected[i]]
    assert len(found) == len(expected) == CONTAINERS
    assert not wrong, (
        f"{len(wrong)} differ, first {wrong[0]}: {found[wrong[0]]} {expected[wrong[0]]}"
    )
    assert set(STATES) - {o.state for o in expected.values()} == set()


# Each example is a Spark job of a second or two: few of them, each of many containers.
@settings(
    max_examples=6,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(draw=st.randoms(use_true_random=False), container_count=st.integers(1, 25))
def test_both_agree_on_whatever_small_cluster_is_drawn(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    draw: random.Random,
    container_count: int,
) -> None:
    """
    Hypothesis draws every state, node, root and op itself; other clusters at every run.
    """
    directory = tmp_path_factory.mktemp("drawn") / "snapshot"

    found, expected = both(spark, directory, random_cluster(draw, container_count))

    assert expected == found


CONTAINERS = 100_000
RACKS = 4
