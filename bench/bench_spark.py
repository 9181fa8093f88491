"""The Spark verification: containers per second, constancy, and Spark against DuckDB.

Both engines read the same generated Parquet files and write flags and checksum class of every
container to Parquet; the two results must be equal before any time counts. Spark's start is not
counted; what its `seconds` say about screen and judge is. DuckDB gets hand-written SQL for exactly
the conditions that the generator seeds, Spark runs the job as it is shipped, with all its rules,
its validation of every row, and its suspects judged replica by replica.

Ten million containers take long on two cores, much of it to generate them. Kept in a directory,
they are generated once (1.2 GB), and BENCH_SPARK_STEPS runs some of the steps generate-flat,
generate-clustered, flat and clustered:

    BENCH_SPARK_CONTAINERS=10000000 BENCH_SPARK_DIRECTORY=/data/clusters BENCH_TIMEOUT_S=7200 \\
        BENCH_SPARK_STEPS=clustered make bench NAME=spark
"""

import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from string import Template

from pyspark.sql import SparkSession

from bench.measure import Measure, at_least, at_most
from health.words import flag_bit
from spark_verify.generate import FAULTS, Shape, generate
from spark_verify.manifest import read_manifest
from spark_verify.pipeline import Request, verify
from spark_verify.score import score
from spark_verify.session import open_session

CONTAINERS_DEFAULT = 1_000_000  # some three minutes on two cores
BUCKETS = {"flat": 0, "clustered": 16}
RATIO_MAX = {"flat": 4.0, "clustered": 2.0}
"""Seconds of Spark over those of DuckDB."""

SPILL_MAX = 2.0
"""Bytes spilled to disk over the bytes of the snapshot's files."""

CONSTANCY_MAX = 1.25
"""Seconds per container over those in a cluster of a tenth; below one is welcome."""

WARM_CONTAINERS = 100_000
SHOWN = "container_id, flags, checksum_class"


@dataclass(frozen=True, slots=True)
class Timing:
    """One layout, both engines."""

    containers: int
    replicas: int
    spark_s: float
    duckdb_s: float
    right: int
    seeded: int
    false_positives: int
    input_bytes: int
    spilled_bytes: int


def measures() -> list[Measure]:
    """Return rates, constancy, ratios to DuckDB and the score of the seeded faults."""
    large = int(os.environ.get("BENCH_SPARK_CONTAINERS", CONTAINERS_DEFAULT))
    steps = os.environ.get("BENCH_SPARK_STEPS", ",".join(BUCKETS)).split(",")
    unknown = sorted(set(steps) - set(BUCKETS) - {f"generate-{layout}" for layout in BUCKETS})
    assert not unknown, f"BENCH_SPARK_STEPS names no step: {', '.join(unknown)}"
    spark = open_session(replica_count=4 * large)
    found: list[Measure] = []
    with tempfile.TemporaryDirectory(prefix="suture-bench-") as name:
        root = Path(name)
        for layout in BUCKETS:
            for containers in (large // 10, large) if f"generate-{layout}" in steps else ():
                _snapshot(root, layout, containers)
            if layout in steps:
                found += _measures_of(root, layout, large)
    spark.stop()
    return found


def _measures_of(root: Path, layout: str, large: int) -> list[Measure]:
    """Return what one layout promises, measured on a large cluster and on one of a tenth."""
    _timing(root, layout, WARM_CONTAINERS)  # the JVM compiles on these
    tenth = _timing(root, layout, large // 10)
    whole = _timing(root, layout, large)
    growth = (whole.spark_s / whole.containers) / (tenth.spark_s / tenth.containers)
    return [
        Measure(f"spark_{layout}", whole.containers / whole.spark_s, "containers/s"),
        Measure(f"spark_{layout}_rows", whole.replicas / whole.spark_s, "replicas/s"),
        at_most(f"spark_{layout}_cost_per_container_growth", growth, "x", CONSTANCY_MAX),
        at_most(
            f"spark_{layout}_vs_duckdb",
            whole.spark_s / whole.duckdb_s,
            "x",
            RATIO_MAX[layout],
            compared_with=f"DuckDB {whole.duckdb_s:.1f} s",
        ),
        at_most(
            f"spark_{layout}_spilled_vs_input",
            whole.spilled_bytes / whole.input_bytes,
            "x",
            SPILL_MAX,
            compared_with=f"input {whole.input_bytes / 1e6:.0f} MB",
        ),
        at_least(
            f"spark_{layout}_seeded_faults_found",
            100 * whole.right / whole.seeded,
            "%",
            100,
            compared_with=f"{whole.right:,} of {whole.seeded:,}",
        ),
        at_most(
            f"spark_{layout}_false_positives",
            whole.false_positives,
            "containers",
            0,
            compared_with=f"of {whole.containers - whole.seeded:,} without a fault",
        ),
    ]


def _snapshot(root: Path, layout: str, containers: int) -> Path:
    """Return the generated cluster's directory; one that is kept is not generated again."""
    snapshot = Path(os.environ.get("BENCH_SPARK_DIRECTORY", root)) / f"{layout}-{containers}"
    if (snapshot / "manifest.json").is_file():
        return snapshot
    shutil.rmtree(snapshot, ignore_errors=True)  # cut off while it was written
    shape = Shape(
        containers,
        nodes=1000,
        bad_node=40,
        maintenance_every=200,  # five nodes in a thousand rest, six run an older release
        old_every=160,
        buckets=BUCKETS[layout],
    )
    generate(open_session(replica_count=4 * containers), shape, snapshot)
    return snapshot


def _timing(root: Path, layout: str, containers: int) -> Timing:
    snapshot = _snapshot(root, layout, containers)
    spark = open_session(replica_count=4 * containers)
    counts = read_manifest(str(snapshot)).rows
    spilled_before = _spilled_bytes(spark)
    started_s = time.perf_counter()
    out = Path(tempfile.mkdtemp(prefix=f"{layout}-", dir=root))
    result = verify(Request(str(snapshot), out))
    whole_s = time.perf_counter() - started_s
    spilled = _spilled_bytes(spark) - spilled_before
    seconds = json.loads((result.directory / "manifest.json").read_text())["seconds"]
    found = score(
        open_session(replica_count=counts["replicas"]), str(snapshot), str(result.directory)
    )
    duckdb_s = _duckdb_s(snapshot, out / "duckdb.parquet", result.directory)
    spark_s = seconds["screen"] + seconds["judge"]
    print(
        f"{layout}: {containers:,} containers, {counts['replicas']:,} replicas: classified in "
        f"{spark_s:.1f} s, DuckDB {duckdb_s:.1f} s, with plan and report {whole_s:.1f} s, "
        f"{spilled:,} bytes spilled",
        flush=True,
    )
    return Timing(
        counts["containers"],
        counts["replicas"],
        spark_s,
        duckdb_s,
        found["right"],
        found["seeded"],
        found["false_positives"],
        sum(path.stat().st_size for path in snapshot.rglob("*.parquet")),
        spilled,
    )


def _spilled_bytes(spark: SparkSession) -> int:
    """Return what all stages of the session so far have spilled to disk, as Spark counted it."""
    java, gateway = spark._jvm, spark.sparkContext._gateway
    assert java is not None, "the bench has a JVM of its own"
    assert gateway is not None, "the bench has a JVM of its own"
    any_state = java.java.util.ArrayList()
    no_quantiles = gateway.new_array(java.double, 0)  # type: ignore[no-untyped-call]
    store = spark._jsparkSession.sparkContext().statusStore()
    stages = store.stageList(any_state, False, False, no_quantiles, java.java.util.ArrayList())
    return sum(stages.apply(i).diskBytesSpilled() for i in range(stages.size()))


def _duckdb_s(snapshot: Path, answer: Path, run: Path) -> float:
    import duckdb  # only this bench needs it

    connection = duckdb.connect()
    started_s = time.perf_counter()
    classified = connection.sql(_sql("spark_in_duckdb.sql", snapshot=snapshot))
    classified.write_parquet(str(answer), compression="zstd")
    taken_s = time.perf_counter() - started_s
    mine = connection.read_parquet(f"{run}/health/*.parquet").project(SHOWN)
    theirs = connection.read_parquet(str(answer)).project(SHOWN)
    different = len(mine.except_(theirs)) + len(theirs.except_(mine))
    connection.close()
    assert different == 0, f"{different} containers differ: the comparison would be unfair"
    return taken_s


def _sql(name: str, **values: object) -> str:
    """Return a statement of bench/spark_in_duckdb.sql with its blanks filled in."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    bits = {flag: flag_bit(flag) for flags, _ in FAULTS.values() for flag in flags}
    return Template(text).substitute(bits, **values)
