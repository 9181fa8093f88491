"""The verification against DuckDB, a small cluster, and many suspects: whole processes.

Each is a process of its own from its start to its end, cold, as an operator starts it. DuckDB's
(`duckdb_verify`) does the same work on the same files; the tables of both must be equal, row
by row, before any time counts, and the seeded faults must have been classed as seeded.

    small      30 containers, on Spark: seconds, and its jobs; and as an operator gets it, without
    flat       BENCH_SPARK_CONTAINERS containers (1,000,000) as the control plane writes them;
               Spark is started with BENCH_SPARK_MASTER
    suspects   200,000 containers with which something is the matter, of a million

Ten million containers take long on two cores, much of it to generate them. Kept in a directory,
they are generated once (1.2 GB), and BENCH_SPARK_STEPS runs some of the steps, or generate-flat and
generate-suspects:

    BENCH_SPARK_CONTAINERS=10000000 BENCH_SPARK_DIRECTORY=/data/clusters BENCH_TIMEOUT_S=7200 \\
        BENCH_SPARK_STEPS=flat make bench NAME=spark
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import duckdb

from bench.measure import Measure, at_least, at_most

LARGE = int(os.environ.get("BENCH_SPARK_CONTAINERS", "1000000"))  # minutes on two cores
SHAPES = {
    "small": ("--containers", "30", "--faults-per-million", "300000"),
    "flat": ("--containers", str(LARGE)),
    "suspects": ("--containers", "1000000", "--faults-per-million", "270000"),
}
WIDE = ("--nodes", "1000", "--bad-node", "40")
"""A thousand nodes, one volume of which damages what it holds."""

LOCAL = "local[*]"
ROUNDS = {"small": 3}
"""What takes seconds is run more than once, and the fastest counts."""

SMALL_S_MAX = 12.0
SMALL_JOBS_MAX = 12
SUSPECTS_MIN = 200_000
SUSPECTS_S_MAX = 60.0
RATIO_MAX = 2.5
"""Seconds of Spark over those of DuckDB, both from their processes' start."""

RATIO_MANY_MAX = 1.3
"""The same where the start of a JVM counts for little: MANY containers and more."""

MANY = 10_000_000
SPILL_MAX = 2.0
"""Bytes spilled to disk over the bytes of the snapshot's files."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the job."""

    directory: Path
    seconds: float
    cpu_s: float
    jobs: int
    spilled_bytes: int

    def table(self, name: str) -> Path:
        """The directory of its rows of a table."""
        return self.directory.parent / name / self.directory.name


def measures() -> list[Measure]:
    """Return seconds, jobs, ratios to DuckDB and the score of the seeded faults."""
    steps = os.environ.get("BENCH_SPARK_STEPS", ",".join(SHAPES)).split(",")
    unknown = sorted(set(steps) - set(SHAPES) - {f"generate-{name}" for name in SHAPES})
    assert not unknown, f"BENCH_SPARK_STEPS names no step: {', '.join(unknown)}"
    found: list[Measure] = []
    with tempfile.TemporaryDirectory(prefix="suture-bench-") as name:
        root = Path(name)
        for step in steps:
            if step.startswith("generate-"):
                _snapshot(root, step.removeprefix("generate-"))
                continue
            snapshot = _snapshot(root, step)
            master = LOCAL if step == "small" else os.environ.get("BENCH_SPARK_MASTER", "")
            run = _fastest(step, root, snapshot, master)
            found += {"small": _small, "suspects": _suspects}.get(step, _versus)(
                step, snapshot, run
            )
            found += _score(step, snapshot, run)
    return found


def _fastest(step: str, root: Path, snapshot: Path, master: str) -> Run:
    """Return the fastest of some runs: what else is going on only adds."""
    name = f"{step}-{'spark' if master else 'any'}"
    runs = [_run(root / f"{name}{i}", snapshot, master) for i in range(ROUNDS.get(step, 1))]
    return min(runs, key=lambda run: run.seconds)


def _small(step: str, snapshot: Path, run: Run) -> list[Measure]:
    own = _fastest(step, run.directory.parents[1], snapshot, "")
    return [
        Measure(f"verify_{step}", own.seconds, "s", compared_with="whole process, no Spark"),
        at_most(f"spark_{step}", run.seconds, "s", SMALL_S_MAX, compared_with="whole process"),
        at_most(f"spark_{step}_jobs", run.jobs, "Spark jobs", SMALL_JOBS_MAX),
    ]


def _suspects(step: str, _snapshot: Path, run: Run) -> list[Measure]:
    (count,) = _row(
        "SELECT count(*) FROM '$table/*.parquet' "
        "WHERE flags <> 0 OR checksum_class LIKE 'MISMATCH%'",
        table=run.table("health"),
    )
    return [
        at_least(f"spark_{step}_told", count, "containers", SUSPECTS_MIN),
        at_most(f"spark_{step}", run.seconds, "s", SUSPECTS_S_MAX, compared_with="whole process"),
    ]


def _versus(step: str, snapshot: Path, run: Run) -> list[Measure]:
    rows = json.loads((snapshot / "manifest.json").read_text())["rows"]
    out = run.directory.parent / "duckdb"
    opponent = ["-m", "bench.verification.duckdb_verify", str(snapshot), str(out)]
    duckdb_s, duckdb_cpu_s = _process_s(opponent, codes=(0,))
    for table in ("health", "replica_class", "divergent", "reconcile_plan", "plan"):
        assert _differing(run.table(table), out / table) == 0, f"{table}/ differs"
    input_bytes = sum(path.stat().st_size for path in snapshot.rglob("*.parquet"))
    phases = json.loads((run.directory / "manifest.json").read_text())["seconds"]
    print(f"{step}: {run.seconds:.1f} s of which {phases}, DuckDB {duckdb_s:.1f} s", flush=True)
    return [
        Measure(f"spark_{step}", rows["containers"] / run.seconds, "containers/s"),
        Measure(f"spark_{step}_rows", rows["replicas"] / run.seconds, "replicas/s"),
        at_most(
            f"spark_{step}_vs_duckdb",
            run.seconds / duckdb_s,
            "x",
            RATIO_MANY_MAX if rows["containers"] >= MANY else RATIO_MAX,
            compared_with=f"{run.seconds:.1f} s, DuckDB {duckdb_s:.1f} s",
        ),
        Measure(
            f"spark_{step}_cpu_vs_duckdb",
            run.cpu_s / duckdb_cpu_s,
            "x",
            compared_with=f"{run.cpu_s:.1f} s of processors, DuckDB {duckdb_cpu_s:.1f} s",
        ),
        at_most(
            f"spark_{step}_spilled_vs_input",
            run.spilled_bytes / input_bytes,
            "x",
            SPILL_MAX,
            compared_with=f"input {input_bytes / 1e6:.0f} MB",
        ),
    ]


def _score(step: str, snapshot: Path, run: Run) -> list[Measure]:
    """Return how many seeded faults were classed as seeded, and what was flagged beside them."""
    seeded, right, clean, wrong = _row(
        """
        SELECT count_if(fault <> ''), count_if(fault <> '' AND coalesce(flags = expected_flags
            AND checksum_class = expected_class, false)), count_if(fault = ''), count_if(
            fault = '' AND NOT coalesce(flags = 0 AND checksum_class NOT LIKE 'MISMATCH%', false))
        FROM '$truth/*.parquet' LEFT JOIN '$health/*.parquet' USING (container_id)
        """,
        truth=snapshot / "truth",
        health=run.table("health"),
    )
    return [
        at_least(
            f"spark_{step}_seeded_faults_found",
            100 * right / seeded,
            "%",
            100,
            compared_with=f"{right:,} of {seeded:,}",
        ),
        at_most(
            f"spark_{step}_false_positives",
            wrong,
            "containers",
            0,
            compared_with=f"of {clean:,} without a fault",
        ),
    ]


def _snapshot(root: Path, step: str) -> Path:
    """Return the generated cluster's directory; one that is kept is not generated again."""
    kept = Path(os.environ.get("BENCH_SPARK_DIRECTORY", root))
    shape = SHAPES[step]
    snapshot = kept / f"{step}-{shape[1]}"
    if not (snapshot / "manifest.json").is_file():
        shutil.rmtree(snapshot, ignore_errors=True)  # cut off while it was written
        wide = () if step == "small" else WIDE
        command = ["-m", "spark_verify.job", "generate", str(snapshot), *shape, *wide]
        _process_s(command, codes=(0,))
    return snapshot


def _run(out: Path, snapshot: Path, master: str) -> Run:
    """Run the job; what Spark did is read from its event log."""
    log = out / "log"
    log.mkdir(parents=True)
    conf = {"enabled": "true", "dir": log.as_uri(), "compress": "false"}
    options = " ".join(f"--conf spark.eventLog.{name}={value}" for name, value in conf.items())
    seconds, cpu_s = _process_s(
        [
            *("-m", "spark_verify.start", str(snapshot), "--out", str(out), "--run-id", "spark"),
            *(("--master", master) if master else ()),
        ],
        codes=(0, 2, 4),
        PYSPARK_SUBMIT_ARGS=f"{options} pyspark-shell",
    )
    events = [json.loads(line) for file in log.rglob("events*") for line in file.open()]
    names = [event["Event"] for event in events]
    spilled = sum(
        event["Task Metrics"]["Disk Bytes Spilled"]
        for event in events
        if event["Event"] == "SparkListenerTaskEnd"
    )
    return Run(out / "run_id=spark", seconds, cpu_s, names.count("SparkListenerJobStart"), spilled)


def _process_s(
    arguments: Sequence[str], *, codes: Sequence[int], **environment: str
) -> tuple[float, float]:
    """Return how long a Python process took from its start to its end, and how many seconds of
    processors it and those that it started used."""
    started_s, cpu_s = time.perf_counter(), _cpu_s()
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode in codes, done.stderr
    return time.perf_counter() - started_s, _cpu_s() - cpu_s


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _differing(one: Path, other: Path) -> int:
    """Return how many rows of two tables are in one of them only, but for the id of the run."""
    (count,) = _row(
        """
        WITH mine AS (SELECT * FROM read_parquet('$one', hive_partitioning = false)),
          theirs AS (SELECT * FROM read_parquet('$other', hive_partitioning = false))
        SELECT count(*) FROM ((FROM mine EXCEPT ALL FROM theirs)
          UNION ALL (FROM theirs EXCEPT ALL FROM mine))
        """,
        one=f"{one}/*.parquet",
        other=f"{other}/*.parquet",
    )
    return int(count)


def _row(sql: str, **blanks: object) -> tuple[Any, ...]:
    connection = duckdb.connect()
    found = connection.execute(Template(sql).substitute(blanks)).fetchone()
    connection.close()
    assert found is not None, "an aggregate without groups has one row"
    return tuple(found)
