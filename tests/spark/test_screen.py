"""The screen: it proves containers healthy in one shuffle, and never wrongly."""

import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from health.rules import Rules
from spark_verify.generate import Shape, generate
from spark_verify.manifest import read_manifest
from spark_verify.pipeline import Request, verify
from spark_verify.score import score
from spark_verify.screen import screen, screen_clustered
from spark_verify.snapshot import close_snapshot, open_snapshot
from tests.support.classifier import Case, classify
from tests.support.random_clusters import random_cluster
from tests.support.snapshots import OpRow, ReplicaRow, container, gather

pytestmark = pytest.mark.spark

RACKS = 4


def test_what_the_screen_calls_plain_the_reference_calls_healthy(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    On a random cluster every plain container has no flag, state HEALTHY, and the same class.
    """
    rows = random_cluster(random.Random(7), 6_000)
    directory = str(rows.write(tmp_path / "snapshot"))
    snapshot = open_snapshot(spark, directory, read_manifest(directory))

    plain = screen(snapshot, Rules(rack_count=RACKS)).filter("is_plain").collect()

    replicas: dict[int, list[ReplicaRow]] = defaultdict(list)
    ops: dict[int, list[OpRow]] = defaultdict(list)
    for replica in rows.replicas:
        replicas[replica.container_id].append(replica)
    for op in rows.pending_ops:
        ops[op.container_id].append(op)
    nodes = {node.datanode_id: node for node in rows.nodes}
    boxes = {box.container_id: box for box in rows.containers}
    for row in plain:
        i = row["container_id"]
        opinion = classify(Case(boxes[i], replicas[i], ops[i], nodes, RACKS))
        assert (opinion.state, opinion.flags) == ("HEALTHY", frozenset()), boxes[i]
        assert (row["checksum_class"], row["eligibility"]) == (
            opinion.checksum_class,
            opinion.eligibility,
        )
        assert row["replica_count"] == len(replicas[i])
    assert len(plain) > 50


def test_whatever_is_odd_is_left_to_the_judge(spark: SparkSession, tmp_path: Path) -> None:
    """
    One odd thing each: none of them is plain, and a container without one is.
    """
    odd = (
        "C=7x2 C=9",
        "C=7x2 C=7%5",
        "C=7x2",
        "C=7x4",
        "C=7x2 U=7",
        "C=7x2 C=7*1",
        "C=7x2 C!=7",
        "C=7x2 C=7?s",
        "C=7 C=7/mx2",
        "C=7x2 C=7/d",
        "C=7&a C=7&a C=7&a",
        "C=7x2 C=7~md5",
        "C=7 C=7~crc32c C=9~crc32c",
        "C=7%5x2 C=7%6",
        "C=7x2 C=7#1",
        "Q=7x3",
    )
    parts = [container(i, "R CLOSED", text) for i, text in enumerate(odd)]
    parts += [
        container(20, "R CLOSED", "C=7x3", ops="+"),
        container(21, "R CLOSED", "C=7x3", suppressed=True),
        container(22, "EC CLOSED", "C#1 C#2 C#3 C#4 C#4"),
        container(23, "R OPEN", "Ox3", pipeline_alive=False),
        container(24, "R OPEN", "Ox2 C"),
        container(29, "R CLOSED", "C=7x3", health_state="OVER_REPLICATED"),
        container(30, "R CLOSED", "C=7x3"),
        container(31, "R CLOSED", "C=0x3"),
        container(32, "EC CLOSED", "C#1 C#2 C#3 C#4 C#5"),
        container(33, "R OPEN", "Ox3"),
        container(34, "R CLOSED", "C=7x2 C=7/m"),
        container(35, "EC CLOSED", "C#1 C#2 C#3 C#4 C#5/e"),
        container(36, "R CLOSED", "C=7x2 C=9~crc32c"),
        container(37, "R CLOSED", "C=7x3", health_state="HEALTHY"),
    ]
    twice = container(25, "R CLOSED", "C=7x3")
    twice.replicas[1] = twice.replicas[0]
    crowd = container(27, "R CLOSED", "C=7x3")
    more = [replace(crowd.replicas[i % 3], state="CLOSED") for i in range(1_023)]
    crowd.replicas += [*more, replace(crowd.replicas[0], state="UNHEALTHY")]
    racks = " ".join(f"C=7&q{i}" for i in range(8))
    last_rack = container(28, "R CLOSED", f"{racks} C=7&zx8")
    orphan = container(26, "R CLOSED", "C=7x3")
    orphan.containers.clear()
    directory = str(gather([*parts, twice, crowd, last_rack, orphan]).write(tmp_path / "snapshot"))
    snapshot = open_snapshot(spark, directory, read_manifest(directory))

    for by_numbers in (screen, screen_clustered):
        plain = by_numbers(snapshot, Rules(rack_count=2)).filter("is_plain").collect()
        assert {row["container_id"] for row in plain} == {*range(30, 38)}


@pytest.fixture(scope="module", params=[0, 3], ids=["flat", "clustered"])
def snapshot(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    directory = tmp_path_factory.mktemp("generated") / "snapshot"
    shape = Shape(
        6_000,
        nodes=48,
        faults_per_million=60_000,
        bad_node=40,
        bad_per_million=900_000,
        buckets=request.param,
    )
    generate(spark, shape, directory)
    return directory


class TestGenerated:
    """Seeded clusters end to end, flat and clustered."""

    def test_every_seeded_fault_is_found_and_nothing_else(
        self, spark: SparkSession, snapshot: Path, tmp_path: Path
    ) -> None:
        """
        All thirteen faults classed as seeded; maintenance, EC, unscanned and old trees are none.
        """
        result = verify(Request(str(snapshot), tmp_path / "out", direct_rows=0))

        found = score(spark, str(snapshot), str(result.directory))
        assert found["wrong"] == []
        assert found["right"] == found["seeded"] > 200
        assert len(found["faults"]) == 13
        assert result.summary["exit_code"] == 3
        # The volume that damages what it holds is ranked before its node and its rack.
        first = result.summary["blame"][0]
        assert (first["attribute"], first["value"]) == ("volume", "dn-00040 v2")

    def test_replicas_are_shuffled_once_or_not_at_all(
        self, spark: SparkSession, snapshot: Path
    ) -> None:
        """
        One exchange by container when flat; none when the tables lie in buckets.
        """
        manifest = read_manifest(str(snapshot))
        tables = open_snapshot(spark, str(snapshot), manifest)
        spark.conf.set("spark.sql.adaptive.enabled", "false")
        spark.conf.set("spark.sql.shuffle.partitions", "4")

        screened = (screen_clustered if manifest.buckets else screen)(tables, Rules(rack_count=8))

        plan = screened._jdf.queryExecution().executedPlan().toString()
        close_snapshot(spark, manifest)
        shuffles = [
            line for line in plan.splitlines() if "Exchange hashpartitioning(container_id" in line
        ]
        busy = 1  # pending ops are a table of their own, and small
        assert len(shuffles) - busy == (0 if manifest.buckets else 1), plan
        assert "Python" not in plan
