"""Measures the verification on Spark against plain Spark jobs: whole cold processes, same files.

    small      30 containers
    healthy    BENCH_SPARK_CONTAINERS containers (1,000,000), nearly all of them obviously healthy;
               beside a job that only aggregates the replicas by container and writes a row for each
    generated  as many with every kind of container, nearly half of them not obviously healthy;
               beside the identity function on the judge's path (`floors`)

Seeded faults must have been classified as seeded before any time counts. BENCH_SPARK_MASTER names a
cluster. Clusters are generated once if BENCH_SPARK_DIRECTORY keeps them; BENCH_SPARK_STEPS names
the steps to run, by default all.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb

from bench.measure import Measure, at_least, at_most
from tests.support.verification.spark_cluster import tree

LARGE = os.environ.get("BENCH_SPARK_CONTAINERS", "1000000")  # minutes on two cores
WIDE = ("--nodes", "1000", "--bad-node", "40")
"""Options for a cluster of a thousand nodes, with one volume that damages its replicas."""

HEALTHY: tuple[str, ...] = (
    *("--faults-per-million", "500", "--unscanned-per-million", "0", "--old-every", "0"),
    *("--maintenance-every", "0", "--nodes", "1000"),
)
SHAPES = {
    "small": ("--containers", "30", "--faults-per-million", "300000"),
    "healthy": ("--containers", LARGE, *HEALTHY),
    "generated": ("--containers", LARGE, *WIDE),
}
FLOORS = {"healthy": "aggregate", "generated": "identity"}

SMALL_S_MAX = 20.0
SMALL_CPU_S_MAX = 12.0
HEALTHY_RATIO_MAX = 2.0
GENERATED_CPU_RATIO_MAX = 1.0
MEMORY_MAX = 3 << 30
SAMPLE_S = 0.2
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of a process, including all processes that it started."""

    seconds: float
    cpu_s: float
    memory_bytes: int


def measures() -> list[Measure]:
    """Measure seconds, CPU seconds and memory, the ratios to the floors, and how many faults were
    classified correctly."""
    steps = os.environ.get("BENCH_SPARK_STEPS", ",".join(SHAPES)).split(",")
    assert set(steps) <= set(SHAPES), f"BENCH_SPARK_STEPS: {steps} are not all of {list(SHAPES)}"
    found: list[Measure] = []
    with tempfile.TemporaryDirectory(prefix="suture-bench-") as name:
        for step in steps:
            snapshot = _snapshot(Path(name), step)
            out = Path(name) / step
            spent = _verified(snapshot, out)
            found += _score(step, snapshot, out)
            found += _small(spent) if step == "small" else _versus(step, snapshot, out, spent)
    return found


def _small(spent: Spent) -> list[Measure]:
    return [
        at_most("spark_small", spent.seconds, "s", SMALL_S_MAX, compared_with="whole process"),
        at_most("spark_small_cpu", spent.cpu_s, "CPU s", SMALL_CPU_S_MAX),
    ]


def _versus(step: str, snapshot: Path, out: Path, spent: Spent) -> list[Measure]:
    floor = _process([*_floor(step), str(snapshot), str(out / "floor")], codes=(0,))
    told = f"{spent.seconds:.1f} s and {spent.cpu_s:.1f} CPU s; floor {floor.seconds:.1f} s"
    told += f" and {floor.cpu_s:.1f} CPU s"
    ratio = spent.seconds / floor.seconds
    cpu_ratio = spent.cpu_s / floor.cpu_s
    memory = at_most(f"spark_{step}_memory", spent.memory_bytes, "B", MEMORY_MAX)
    if step == "healthy":
        return [at_most(f"spark_{step}", ratio, "x", HEALTHY_RATIO_MAX, compared_with=told), memory]
    name = f"spark_{step}_cpu"
    return [at_most(name, cpu_ratio, "x", GENERATED_CPU_RATIO_MAX, compared_with=told), memory]


def _floor(step: str) -> list[str]:
    return ["-m", "bench.verification.floors", FLOORS[step]]


def _verified(snapshot: Path, out: Path) -> Spent:
    master = os.environ.get("BENCH_SPARK_MASTER", "")
    command = ["-m", "spark_verify.start", str(snapshot), "--out", str(out), "--run-id", "bench"]
    return _process([*command, *(("--master", master) if master else ())], codes=(0, 2, 4))


def _score(step: str, snapshot: Path, out: Path) -> list[Measure]:
    """Measure how many seeded faults were classified as seeded, and how many containers without a
    fault were flagged."""
    health = f"{out}/health/*/*/*.parquet"
    query = f"""
        SELECT count_if(fault <> ''), count_if(fault <> '' AND coalesce(flags = expected_flags
            AND checksum_class = expected_class, false)), count_if(fault = ''), count_if(
            fault = '' AND NOT coalesce(flags = 0 AND checksum_class NOT LIKE 'MISMATCH%', false))
        FROM '{snapshot}/truth/*.parquet' LEFT JOIN '{health}' USING (container_id)
        """  # noqa: S608 -- paths of our own
    with duckdb.connect() as connection:
        row = connection.execute(query).fetchone()
    assert row is not None, "an aggregate without groups has one row"
    seeded, right, clean, wrong = row
    shown = f"{right:,} of {seeded:,}"
    found = 100 * right / max(seeded, 1)
    return [
        at_least(f"spark_{step}_faults_found", found, "%", 100, compared_with=shown),
        at_most(
            f"spark_{step}_false_positives", wrong, "containers", 0, compared_with=f"of {clean:,}"
        ),
    ]


def _snapshot(root: Path, step: str) -> Path:
    """Return the directory of the generated cluster's snapshot. An existing snapshot is used
    again."""
    kept = Path(os.environ.get("BENCH_SPARK_DIRECTORY", root))
    shape = SHAPES[step]
    snapshot = kept / f"{step}-{shape[1]}"
    if not (snapshot / "manifest.json").is_file():
        shutil.rmtree(snapshot, ignore_errors=True)  # interrupted while it was written
        command = ["-m", "bench.verification.synthetic", "generate", str(snapshot), *shape]
        _process(command, codes=(0,))
    return snapshot


def _process(arguments: Sequence[str], *, codes: Sequence[int]) -> Spent:
    """Run a Python process to its end; return its cost."""
    started_s = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        most, cpu_s = [0], dict[int, float]()
        sampler = threading.Thread(target=_sample, args=(process, most, cpu_s), daemon=True)
        sampler.start()
        _, said = process.communicate()
        sampler.join()
    assert process.returncode in codes, said
    return Spent(time.perf_counter() - started_s, sum(cpu_s.values()), most[0])


def _sample(process: "subprocess.Popen[str]", most: list[int], cpu_s: dict[int, float]) -> None:
    """Record the peak memory of all processes together, and the last processor time of each. The
    kernel does not add the time of Spark's Java to a parent, because Java ends after the Python
    process that started it.
    """
    while process.poll() is None:
        pids = tree(process.pid)
        most[0] = max(most[0], sum(map(_resident_bytes, pids)))
        cpu_s.update((pid, seconds) for pid in pids if (seconds := _cpu_s(pid)))
        time.sleep(SAMPLE_S)


def _resident_bytes(pid: int) -> int:
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    return 0


def _cpu_s(pid: int) -> float:
    with suppress(OSError, IndexError, ValueError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0
