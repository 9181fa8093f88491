"""Spark calls a container obviously healthy only where the judge finds nothing to say or to do."""

import os
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from health.batch import violations
from health.judge import judge
from health.rules import Rules
from health.words import HealthState
from spark_verify.frames.facts import Inputs, container_facts, node_facts, well_health
from spark_verify.session import open_session
from spark_verify.snapshot.checks import checked_nodes
from spark_verify.snapshot.manifest import read_manifest
from spark_verify.snapshot.tables import open_snapshot
from spark_verify.storage import LocalStorage
from spark_verify.tasks.verdict_rows import judged_tables, votes
from tests.support.verification.classifier import Case, classify
from tests.support.verification.judged import cut
from tests.support.verification.nearly_well import nearly_well
from tests.support.verification.random_clusters import random_cluster
from tests.support.verification.snapshots import ReplicaRow, SnapshotRows

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

CONTAINERS = int(os.environ.get("SUTURE_WELL_CONTAINERS", "4000"))
"""Of each cluster; docs/TESTING.md says how to try many more."""

DRAWN = {"nearly well": nearly_well, "all kinds": random_cluster}


def accepted(spark: SparkSession, directory: Path, rules: Rules) -> dict[int, dict[str, Any]]:
    """Return the rows of `health/` that Spark makes without asking the judge."""
    manifest = read_manifest(LocalStorage(str(directory)))
    snapshot = open_snapshot(spark, str(directory))
    inputs = Inputs(snapshot, manifest, checked_nodes(snapshot["nodes"], manifest), rules)
    facts = container_facts(inputs, node_facts(spark, inputs))
    found = well_health(facts).collect()
    return {row["container_id"]: row.asDict() for row in found}


def sound(rows: SnapshotRows) -> SnapshotRows:
    """Return the cluster without containers whose rows contradict each other, of which the judge is
    not asked."""
    wrong = {number for number, _ in violations(cut(rows).batch, str)}
    return SnapshotRows(
        [row for row in rows.containers if row.container_id not in wrong],
        [row for row in rows.replicas if row.container_id not in wrong],
        rows.nodes,
        [row for row in rows.pending_ops if row.container_id not in wrong],
    )


def test_container_of_unknown_state_keeps_none_in_generated_code(spark: SparkSession) -> None:
    """Large inputs use generated code, in which Spark 4.3 returns the last element of an array for
    the index null."""
    facts = spark.range(2).selectExpr(
        *("id AS container_id", "1 AS state", "0 AS kind", "3L AS replicas", "0 AS parity"),
        "true AS is_well",
        f"CASE WHEN id = 1 THEN {int(HealthState.MISSING)} END AS told_state",
    )
    generated = {"wholeStage": "true", "factoryMode": "CODEGEN_ONLY"}
    former = {name: spark.conf.get(f"spark.sql.codegen.{name}") for name in generated}
    for name, value in generated.items():
        spark.conf.set(f"spark.sql.codegen.{name}", value)
    try:
        found = {
            row["container_id"]: row["scm_health_state"] for row in well_health(facts).collect()
        }
    finally:
        for name, was in former.items():
            spark.conf.set(f"spark.sql.codegen.{name}", was)

    assert {0: None, 1: "MISSING"} == found


@pytest.mark.parametrize("kind", DRAWN)
def test_containers_accepted_by_spark_are_healthy_for_the_judge(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """The judge writes the same row, with no plan, no divergence, no departure and no lost vote,
    and the plain reference reports nothing either.
    """
    assert spark
    drawn = DRAWN[kind](random.Random(CONTAINERS), CONTAINERS)
    rows, racks = sound(drawn), len({n.rack for n in drawn.nodes if n.health != "DEAD"})
    rules = Rules(rack_count=racks)
    batch = cut(rows)
    judgement = judge(batch.batch, rules)
    tables = judged_tables(judgement, batch)
    tables["votes"] = votes(judgement, batch, [node.version for node in _by_name(rows)])

    found = accepted(open_session(row_count=0), drawn.write(tmp_path / "s"), rules)

    health = {row["container_id"]: row for row in tables["health"].to_pylist()}
    assert not found.keys() - health.keys(), "a container whose rows contradict each other"
    assert {number: health[number] for number in found} == found
    for name in ("replica_class", "divergent", "plan"):
        assert not found.keys() & set(tables[name]["container_id"].to_pylist()), name
    assert_votes(found, tables["votes"], rows)
    assert_reference(found, rows, racks)
    if kind == "nearly well":
        assert len(found) > CONTAINERS / 5


def _by_name(rows: SnapshotRows) -> list[Any]:
    return sorted(rows.nodes, key=lambda node: node.datanode_id)


def assert_votes(found: dict[int, dict[str, Any]], cast: pa.Table, rows: SnapshotRows) -> None:
    """Assert that all replicas of an accepted container with one root voted, and none of others."""
    own = [vote for vote in cast.to_pylist() if vote["container_id"] in found]
    assert not any(vote["is_lost"] or vote["against"] for vote in own)
    counted = Counter(vote["container_id"] for vote in own)
    expected = {
        number: row["replica_count"]
        for number, row in found.items()
        if row["checksum_class"] == "MATCH"
    }
    assert expected == dict(counted)
    by_rule = Counter(
        row.container_id
        for row in rows.replicas
        if row.container_id in found
        and row.replica_index == 0
        and row.state == "CLOSED"
        and row.root is not None
    )
    assert expected == dict(by_rule)


def assert_reference(found: dict[int, dict[str, Any]], rows: SnapshotRows, racks: int) -> None:
    """Assert that the plain reference has nothing to say of accepted containers."""
    replicas: dict[int, list[ReplicaRow]] = defaultdict(list)
    for row in rows.replicas:
        replicas[row.container_id].append(row)
    busy = {op.container_id for op in rows.pending_ops}
    nodes = {node.datanode_id: node for node in rows.nodes}
    for box in rows.containers:
        if box.container_id in found:
            own = found[box.container_id]
            assert box.container_id not in busy
            opinion = classify(Case(box, replicas[box.container_id], [], nodes, racks))
            assert (HealthState.HEALTHY.name, "-", False) == (
                opinion.state,
                opinion.queue,
                opinion.stuck,
            )
            assert (own["checksum_class"], own["eligibility"]) == (
                opinion.checksum_class,
                opinion.eligibility,
            )
            assert not opinion.flags
            assert not opinion.minority
