"""Compares the verification on a standalone Spark cluster with the same on this machine.

A generated cluster of BENCH_CLUSTER_CONTAINERS containers is verified by a master and two workers,
each a process with one core and without this repository; its Python may have BENCH_CLUSTER_PYTHON
(Spark's notation) of address space. All rows must equal those of a local run.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import duckdb

from bench.measure import Measure, at_most
from spark_verify.result_tables import RESULTS, RUNS
from tests.support.verification.spark_cluster import SparkCluster, spark_cluster

CONTAINERS = os.environ.get("BENCH_CLUSTER_CONTAINERS", "1000000")
PYTHON = os.environ.get("BENCH_CLUSTER_PYTHON", "1g")
NODES = ("--nodes", "5000", "--racks", "100")
CODES = (0, 2, 4)


def measures() -> list[Measure]:
    """Measure the verification on the Spark cluster and on this machine: seconds, rows, and the
    number of different rows."""
    with tempfile.TemporaryDirectory(prefix="suture-cluster-") as name:
        root = Path(name)
        snapshot = _snapshot(root)
        rows = json.loads((snapshot / "manifest.json").read_text())["rows"]["replicas"]
        own_s = _verified_s(snapshot, root / "own", "local[2]")
        directory = root / "cluster"
        directory.mkdir()
        with spark_cluster(directory) as cluster:
            environment = _environment(cluster, root / "log")
            cluster_s = _verified_s(snapshot, root / "there", cluster.address, environment)
        differing = _differing(root / "own", root / "there")
    return [
        Measure("cluster_local", own_s, "s", compared_with=f"{rows:,} replicas, this machine"),
        Measure("cluster", cluster_s, "s", compared_with="two workers"),
        Measure("cluster_rows", rows / cluster_s, "replicas/s"),
        at_most("cluster_differing", differing, "rows", 0, compared_with="those of a local run"),
    ]


def _snapshot(root: Path) -> Path:
    """Return the path of the generated cluster's snapshot. If BENCH_SPARK_DIRECTORY is set, the
    snapshot is kept there and used again."""
    kept = Path(os.environ.get("BENCH_SPARK_DIRECTORY", root))
    snapshot = kept / f"cluster-{CONTAINERS}"
    if not (snapshot / "manifest.json").is_file():
        shutil.rmtree(snapshot, ignore_errors=True)  # interrupted while it was written
        command = ["bench.verification.synthetic", "generate", str(snapshot)]
        command += ["--containers", CONTAINERS, *NODES]
        _process_s(command, dict(os.environ), codes=(0,))
    return snapshot


def _environment(cluster: SparkCluster, log: Path) -> dict[str, str]:
    settings = cluster.settings(log, {"spark.executor.pyspark.memory": PYTHON})
    submit = shlex.join([*settings, "pyspark-shell"])
    return cluster.environment() | {"PYSPARK_SUBMIT_ARGS": submit}


def _verified_s(
    snapshot: Path, out: Path, master: str, environment: Mapping[str, str] = os.environ
) -> float:
    command = [str(snapshot), "--out", str(out), "--run-id", "bench", "--master", master]
    return _process_s(["spark_verify.job", *command], environment, codes=CODES)


def _process_s(
    arguments: Iterable[str], environment: Mapping[str, str], *, codes: Iterable[int]
) -> float:
    """Run a Python module as a process; return its duration in seconds. Raise an error if its exit
    code is not in `codes`."""
    started_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode in codes, done.stderr
    return time.perf_counter() - started_s


def _differing(one: Path, other: Path) -> int:
    """Return how many rows of the tables are in only one of the results."""
    total = 0
    with duckdb.connect() as connection:
        for name in RESULTS:
            if name != RUNS:
                own, theirs = (
                    f"read_parquet('{out}/{name}/*/*/*.parquet', hive_partitioning = false)"
                    for out in (one, other)
                )
                query = f"""
                    SELECT count(*) FROM ((FROM {own} EXCEPT ALL FROM {theirs})
                      UNION ALL (FROM {theirs} EXCEPT ALL FROM {own}))
                    """  # noqa: S608 -- paths of our own
                row = connection.execute(query).fetchone()
                assert row is not None, "an aggregate has a row"
                total += int(row[0])
    return total
