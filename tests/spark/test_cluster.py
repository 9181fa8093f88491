"""The job on a cluster of Spark: workers that are processes of their own, with a GiB each, and have
nothing of this repository."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_verify.pipeline import VerifyRequest, VerifyResult, verify
from spark_verify.result_tables import RESULTS, RUNS
from tests.support.packaging.wheel import built_wheel
from tests.support.verification.java import skip_without_java
from tests.support.verification.snapshots import NodeRow, container, gather
from tests.support.verification.spark_cluster import (
    SparkCluster,
    home,
    kill_tree,
    spark_cluster,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
RUN_S_MAX = 600.0  # beside other work
CROWD = 10_000  # replicas of one container
CONTAINERS = 3_000  # with a replica on one node


def with_more(table: pa.Table, columns: dict[str, list[Any]]) -> pa.Table:
    """Return a table with more rows, which are its first one but for some columns."""
    count = len(columns["container_id"])
    more = table.slice(0, 1).take(pa.array([0] * count))
    for name, values in columns.items():
        field = table.schema.field(name)
        more = more.set_column(
            table.schema.get_field_index(name), field, pa.array(values, field.type)
        )
    return pa.concat_tables([table, more])


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    skip_without_java()
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def cluster(started: SparkCluster) -> SparkCluster:
    """A master with two workers, whatever an earlier test did to them."""
    started.add_workers(2 - len(started.workers))
    return started


@pytest.fixture(scope="module")
def local(spark: object, tmp_path_factory: pytest.TempPathFactory) -> VerifyResult:
    """Containers of all kinds, verified by Spark in this process. One has ten thousand replicas,
    all but three of them different from the others; one node has a replica of most."""
    assert spark
    directory = tmp_path_factory.mktemp("local")
    kinds = [
        ("R CLOSED 10", "C=7x3"),
        ("R CLOSED 10", "C=7x2 C=9"),
        ("R CLOSED 10", "C=7x2"),
        ("R CLOSED 10", "C=7x4"),
        ("R CLOSED 10", "U=7x3"),
        ("EC CLOSED", "C#1=7 C#1=9 C#2=2 C#3=3 C#4=4"),
        ("R QUASI_CLOSED 10", "Q@10x2 Q@9"),
    ]
    crowd = container(1, "R CLOSED 10", f"C=7x3 C=8x{CROWD - 3}")
    rows = gather([crowd, *(container(i, *kinds[i % len(kinds)]) for i in range(2, 301))])
    rows.nodes.append(NodeRow("dn-big"))
    ids = [i for i in range(301, CONTAINERS + 301) for _ in range(3)]
    others = [f"dn-1-{i % CROWD}" for i in range(len(ids))]
    names = [name if i % 3 else "dn-big" for i, name in enumerate(others)]
    columns = {"container_id": ids, "datanode_id": names}
    change = {
        "containers": lambda table: with_more(table, {"container_id": ids[::3]}),
        "replicas": lambda table: with_more(table, columns),
    }
    counts = {
        "containers": len(rows.containers) + CONTAINERS,
        "replicas": len(rows.replicas) + len(ids),
        "nodes": len(rows.nodes),
        "pending_ops": 0,
    }
    snapshot = rows.write(directory / "s", change=change, manifest={"rows": counts})
    result = verify(VerifyRequest(str(snapshot), directory / "out", run_id="r"))
    assert result.summary["rows"]["replicas"] > CROWD + 3 * CONTAINERS
    return result


def snapshot_of(result: VerifyResult) -> Path:
    """Return the snapshot that a result of these fixtures is about."""
    return result.directory.parents[1] / "s"


def contents(out: Path) -> dict[str, list[str]]:
    """Return the rows of run `r` by table, but that of `runs`, which names the attempt."""
    return {
        name: sorted(
            str(row)
            for path in (out / name / "run_id=r").rglob("*.parquet")
            for row in pq.read_table(path, partitioning=None).to_pylist()
        )
        for name in RESULTS
        if name != RUNS
    }


def events(log: Path) -> list[dict[str, Any]]:
    """Return what a driver logged."""
    return [
        json.loads(line) for file in log.rglob("events*") for line in file.read_text().splitlines()
    ]


def test_spark_submit_on_a_cluster_that_loses_a_worker_gives_the_local_result(
    cluster: SparkCluster, local: VerifyResult, tmp_path: Path
) -> None:
    """The results agree row by row, although one of two workers is killed after the judge has
    started. The workers have only numpy, pyarrow and pyspark, and the rest comes in suture.zip.
    Ten thousand replicas of one container fit into the 512 MiB of a task's Python.
    """
    shutil.copy(ROOT / "spark_verify" / "job.py", tmp_path)
    log, out = tmp_path / "log", tmp_path / "out"
    package = built_wheel(tmp_path / "wheel").rename(tmp_path / "suture.zip")
    options = ["--master", cluster.address, "--py-files", package, *cluster.settings(log)]
    job = [tmp_path / "job.py", snapshot_of(local), "--out", out, "--run-id", "r"]
    bare = [cluster.python, "-c", "import numpy, pyarrow; import spark_verify"]

    strange = subprocess.run(bare, cwd=tmp_path, capture_output=True, text=True, check=False)
    with (tmp_path / "said").open("wb") as said:
        submitted = subprocess.Popen(
            [home() / "bin" / "spark-submit", *options, *job],
            cwd=tmp_path,
            env=cluster.environment(),
            stdout=said,
            stderr=said,
        )
    try:
        wait_until(
            lambda: any(out.glob(".attempt=*/judged")) or submitted.poll() is not None,
            within_s=RUN_S_MAX,
        )
        is_running = submitted.poll() is None
        kill_tree(cluster.workers[0])
        code = submitted.wait(RUN_S_MAX)
    finally:
        kill_tree(submitted.pid)

    assert "No module named 'spark_verify'" in strange.stderr
    assert local.summary["exit_code"] == code, (tmp_path / "said").read_text()[-3000:]
    assert is_running
    assert contents(local.directory.parent) == contents(out)
    assert local.summary == json.loads((out / "run_id=r" / "summary.json").read_text())
    assert "SparkListenerExecutorRemoved" in {event["Event"] for event in events(log)}
    ran = {e["Task Info"]["Executor ID"] for e in events(log) if e["Event"].endswith("TaskEnd")}
    assert {"0", "1"} == ran


JUDGED_THERE = """
import sys
from spark_verify.session import open_session

def judged(batches):
    import os
    import pyarrow as pa
    from spark_verify.tasks import judge_cases
    for batch in batches:
        row = {"at": judge_cases.__file__, "kib": os.environ["MIMALLOC_ARENA_RESERVE"]}
        yield pa.RecordBatch.from_pylist([row] * len(batch))

session = open_session(row_count=0, master=sys.argv[1])
rows = session.range(2, numPartitions=2).mapInArrow(judged, "at string, kib string").collect()
assert all(".zip/spark_verify" in row.at for row in rows), rows
assert ["65536"] * 2 == [row.kib for row in rows], rows
"""


def test_session_of_a_master_sends_the_workers_what_tasks_import(
    cluster: SparkCluster, tmp_path: Path
) -> None:
    """The tasks import the judge from the archive that the session sent, and their Python reserves
    little memory."""
    settings = shlex.join([*cluster.settings(tmp_path / "log"), "pyspark-shell"])

    done = subprocess.run(
        [sys.executable, "-c", JUDGED_THERE, cluster.address],
        cwd=tmp_path,
        env=cluster.environment() | {"PYSPARK_SUBMIT_ARGS": settings},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )

    assert 0 == done.returncode, done.stderr[-3000:]
