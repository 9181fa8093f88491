"""Seeded clusters end to end, verified by this process and by Spark."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark_verify.exits import Exit
from spark_verify.pipeline import Request, verify
from spark_verify.snapshot import snapshot_reading as snapshot
from spark_verify.synthetic.generate import Shape, generate
from spark_verify.synthetic.score import score
from spark_verify.tasks import distribution, judge_batches, row_exchange
from spark_verify.tasks.distribution import Counted
from spark_verify.tasks.judging import Job

pytestmark = pytest.mark.spark

TABLES = ("health", "replica_class", "divergent", "reconcile_plan", "plan")


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("generated") / "snapshot"
    shape = Shape(6_000, faults_per_million=60_000, bad_node=40, bad_per_million=900_000)
    generate(spark, shape, directory)
    return directory


def test_every_seeded_fault_is_found_and_nothing_else(
    spark: SparkSession, cluster: Path, tmp_path: Path, here_rows: int
) -> None:
    """
    All thirteen faults classed as seeded; maintenance, EC, unscanned and old trees are none.
    """
    result = verify(Request(str(cluster), tmp_path / "out", here_rows=here_rows))

    found = score(spark, str(cluster), str(result.directory))
    assert found["wrong"] == []
    assert found["right"] == found["seeded"] > 200
    assert len(found["faults"]) == 13
    assert result.summary["exit_code"] == Exit.DATA_AT_RISK
    # The volume that damages what it holds is ranked before its node and its rack.
    first = result.summary["blame"][0]
    assert (first["attribute"], first["value"]) == ("volume", "dn-00040 v2")


@pytest.mark.usefixtures("spark")
def test_tasks_of_spark_find_what_one_process_finds(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Row by row and number by number, also when the rows travel in many parts, partitions and slices.
    """
    here = verify(Request(str(cluster), tmp_path / "here", run_id="r"))
    monkeypatch.setattr(snapshot, "ROWS_PER_PART", 3_000)
    monkeypatch.setattr(row_exchange, "ROWS_PER_PARTITION", 4_000)
    monkeypatch.setattr(judge_batches, "ROWS_PER_SLICE", 500)
    there = verify(Request(str(cluster), tmp_path / "there", run_id="r", here_rows=0))

    assert here.summary == there.summary
    for name in TABLES:
        own, other = (pq.read_table(run.table(name)).to_pylist() for run in (here, there))
        assert sorted(map(str, own)) == sorted(map(str, other))
        files = list((there.table(name)).glob("*"))
        assert len(files) > 3, "one a partition"
        assert [path for path in files if not path.name.startswith("part-")] == []


@pytest.mark.usefixtures("spark")
def test_the_driver_collects_the_numbers_of_each_volume_once(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    However many partitions there are: tasks add up what those counted, each of other datanodes.
    """
    here = verify(Request(str(cluster), tmp_path / "here", run_id="r"))
    monkeypatch.setattr(row_exchange, "ROWS_PER_PARTITION", 2_000)
    monkeypatch.setattr(distribution, "SUMMED_HERE", 3)
    told, read = [], distribution._told

    def seen(rows: pa.Table, job: Job) -> Iterator[tuple[int, Counted]]:
        told.extend(read(rows, job))
        return iter(told)

    monkeypatch.setattr(distribution, "_told", seen)
    there = verify(Request(str(cluster), tmp_path / "there", run_id="r", here_rows=0))

    rows = pq.read_table(cluster / "replicas", columns=["datanode_id", "volume_id"])
    volumes = rows.group_by(["datanode_id", "volume_id"]).aggregate([]).num_rows
    assert volumes == sum(counted.sums.volumes.num_rows for _, counted in told)
    assert len(told) > 2
    assert here.summary == there.summary
