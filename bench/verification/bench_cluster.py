"""The verification on a cluster of Spark, from a store and to it, beside the same on this machine.

A generated cluster of BENCH_CLUSTER_CONTAINERS containers is put into an S3-compatible store, or
into the HDFS that Hadoop ships for tests where BENCH_CLUSTER_STORE is `hdfs`, and verified by a
master and two workers, each a process with one core and nothing of this repository; its Python may
have BENCH_CLUSTER_PYTHON (Spark's notation) of address space. The tables must be those of a run of
Spark in one process, bit for bit. Prints what each stage did, by the event log.
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
from typing import Any

from bench.measure import Measure, at_most
from spark_verify.file_systems import Place
from spark_verify.result_tables import RESULTS
from spark_verify.runs import run_of, table_of
from tests.support.verification.hdfs.mini_hdfs import mini_hdfs
from tests.support.verification.object_store import object_store, put
from tests.support.verification.spark_cluster import SparkCluster, spark_cluster

CONTAINERS = os.environ.get("BENCH_CLUSTER_CONTAINERS", "1000000")
PYTHON = os.environ.get("BENCH_CLUSTER_PYTHON", "1g")
STORE = os.environ.get("BENCH_CLUSTER_STORE", "s3")
FOR_HDFS = ("fsspec", "requests", "urllib3", "idna", "certifi", "charset_normalizer")
NODES = ("--nodes", "5000", "--racks", "100")
CODES = (0, 2, 4)


def measures() -> list[Measure]:
    """Return seconds and rows of both, and how many files differ."""
    with tempfile.TemporaryDirectory(prefix="suture-cluster-") as name:
        root = Path(name)
        snapshot = _snapshot(root)
        rows = json.loads((snapshot / "manifest.json").read_text())["rows"]["replicas"]
        own_s = _verified_s([str(snapshot), str(root / "own"), "local[2]"])
        log = root / "log"
        is_hdfs = STORE == "hdfs"
        with (
            mini_hdfs(_made(root / "hdfs")) if is_hdfs else object_store() as store,
            spark_cluster(_made(root / "cluster"), FOR_HDFS if is_hdfs else ()) as cluster,
        ):
            put(snapshot, store.address("s"))
            there = store.address("out")
            job = [store.address("s"), there, cluster.address]
            cluster_s = _verified_s(job, _environment(cluster, log))
            differing = _differing(Place.of(root / "own"), Place.of(there))
        _print_stages(log, rows)
    return [
        Measure("cluster_local", own_s, "s", compared_with=f"{rows:,} replicas, one process"),
        Measure("cluster", cluster_s, "s", compared_with=f"two workers, {STORE} to {STORE}"),
        Measure("cluster_rows", rows / cluster_s, "replicas/s"),
        at_most("cluster_differing", differing, "files", 0, compared_with="those of one process"),
    ]


def _snapshot(root: Path) -> Path:
    """Return the generated cluster; in BENCH_SPARK_DIRECTORY it is kept."""
    kept = Path(os.environ.get("BENCH_SPARK_DIRECTORY", root))
    snapshot = kept / f"cluster-{CONTAINERS}"
    if not (snapshot / "manifest.json").is_file():
        shutil.rmtree(snapshot, ignore_errors=True)  # cut off while it was written
        command = ["generate", str(snapshot), "--containers", CONTAINERS, *NODES]
        _process_s(command, dict(os.environ), codes=(0,))
    return snapshot


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _environment(cluster: SparkCluster, log: Path) -> dict[str, str]:
    settings = cluster.settings(log, {"spark.executor.pyspark.memory": PYTHON})
    submit = shlex.join([*settings, "pyspark-shell"])
    return cluster.environment() | {"PYSPARK_SUBMIT_ARGS": submit}


def _verified_s(job: list[str], environment: Mapping[str, str] = os.environ) -> float:
    snapshot, out, master = job
    command = [snapshot, "--out", out, "--run-id", "bench", "--master", master]
    return _process_s(command, environment, codes=CODES)


def _process_s(
    arguments: Iterable[str], environment: Mapping[str, str], *, codes: Iterable[int]
) -> float:
    """Return how long the command took from its start to its end."""
    started_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "spark_verify.job", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode in codes, done.stderr
    return time.perf_counter() - started_s


def _differing(one: Place, other: Place) -> int:
    """Return how many files of the tables are not the same, byte by byte, in the same order."""
    count = 0
    for name in RESULTS:
        own, theirs = (
            [f.place for f in table_of(run_of(out, "bench"), name).listed() if f.is_file]
            for out in (one, other)
        )
        count += abs(len(own) - len(theirs))
        pairs = zip(own, theirs, strict=False)
        count += sum(a.opened().readall() != b.opened().readall() for a, b in pairs)
    return count


def _print_stages(log: Path, replicas: int) -> None:
    """Print seconds, tasks, the longest of them and what was exchanged of each stage."""
    events: list[dict[str, Any]] = [
        json.loads(line) for file in log.rglob("events*") for line in file.read_text().splitlines()
    ]
    tasks: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event["Event"] == "SparkListenerTaskEnd":
            tasks.setdefault(event["Stage ID"], []).append(event)
    print(
        f"{'stage':<6} {'s':>7} {'tasks':>6} {'longest s':>10} {'task s':>8} {'exchanged MB':>13}"
    )
    for stage, own in sorted(tasks.items()):
        infos = [task["Task Info"] for task in own]
        spans = [(i["Finish Time"] - i["Launch Time"]) / 1000 for i in infos]
        first, last = min(i["Launch Time"] for i in infos), max(i["Finish Time"] for i in infos)
        moved = sum(
            t["Task Metrics"]["Shuffle Write Metrics"]["Shuffle Bytes Written"] for t in own
        )
        print(
            f"{stage:<6} {(last - first) / 1000:>7.1f} {len(own):>6} {max(spans):>10.1f} "
            f"{sum(spans):>8.1f} {moved / 1e6:>13.1f}",
            flush=True,
        )
    total_s = sum(
        (t["Task Info"]["Finish Time"] - t["Task Info"]["Launch Time"]) / 1000
        for own in tasks.values()
        for t in own
    )
    print(
        f"{replicas:,} replicas: {1e6 * total_s / replicas:.1f} core seconds a million", flush=True
    )
