"""Measures the rate of puts while the datanodes are killed one after another, and afterwards.

    before    20 s, all datanodes are up
    faults    120 s: every 6 s one of three agents is killed (SIGKILL) and started again at once
    after     20 s, from when the last one answers again

The control plane, the agents and the client are separate processes. The client puts one small file
after another, and retries after an error. A second cluster runs without faults at the same time.
Each rate is divided by the rate of the second cluster, so that other work of the machine has no
effect. Acknowledged keys are read back at the end.

    BENCH_OUTAGES_S=60 make bench NAME=outages     a shorter time of faults
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.measure import Measure, at_least, at_most
from bench.reliability.put_client import DONE, content
from suture.client.cluster_client import ClusterClient
from tools.demo.cluster import Cluster

AGENTS: Final = 3
FAULTS_S: Final = float(os.environ.get("BENCH_OUTAGES_S", "120"))
KILL_EVERY_S: Final = 6.0
QUIET_S: Final = 20.0
WINDOW_S: Final = 10.0
DURING_MIN: Final = 0.5  # the last quarter of the faults relative to the first
AFTER_MIN: Final = 0.7  # relative to before


@dataclass(frozen=True, slots=True)
class Put:
    """An attempt to put a key. `error` is "" if it succeeded."""

    at_s: float
    key: str
    error: str


@dataclass(frozen=True, slots=True)
class Times:
    """The start times of the three parts of the run, and the end of the run, on the monotonic
    clock."""

    quiet_s: float
    faults_s: float
    healed_s: float
    end_s: float


def measures() -> list[Measure]:
    """Put while agents are killed; compare the rates within one run."""
    with tempfile.TemporaryDirectory(prefix="suture-bench-") as directory, ExitStack() as stack:
        struck, whole = (
            stack.enter_context(Cluster(Path(directory) / name, agents=AGENTS, volumes=1))
            for name in ("struck", "whole")
        )
        with putting(struck) as path, putting(whole) as whole_path:
            time.sleep(WINDOW_S)  # the first containers are allocated meanwhile
            quiet_s = time.monotonic()
            time.sleep(QUIET_S)
            faults_s = time.monotonic()
            kills = strike(struck, faults_s + FAULTS_S)
            healed_s = time.monotonic()
            time.sleep(QUIET_S)
            times = Times(quiet_s, faults_s, healed_s, time.monotonic())
        puts = read(path)
        stored = [put for put in puts if not put.error]
        lost = unreadable(struck.scm.address, [put.key for put in stored])
        beside = [put for put in read(whole_path) if not put.error]
    return [
        *rates([put.at_s for put in stored], [put.at_s for put in beside], times),
        Measure("outages: agents killed", kills, "times"),
        Measure("outages: tries that failed", len(puts) - len(stored), "puts"),
        at_most("outages: stored, not read back", lost, "puts", 0),
    ]


def strike(cluster: Cluster, until_s: float) -> int:
    """Kill and restart one agent after another until `until_s`; return the number of kills."""
    count = 0
    while (now_s := time.monotonic()) < until_s:
        cluster.nodes[count % AGENTS].kill()
        cluster.start_again(count % AGENTS)
        count += 1
        time.sleep(max(0.0, min(now_s + KILL_EVERY_S, until_s) - time.monotonic()))
    return count


@contextmanager
def putting(cluster: Cluster) -> Iterator[Path]:
    """Run a client that puts files, during the block; yield the path of its output, which has a
    line for each attempt."""
    path = cluster.root / "puts"
    program = ("tools.demo.child", str(os.getpid()), "bench.reliability.put_client")
    arguments = [*program, cluster.scm.address, str(cluster.root)]
    with path.open("wb") as file:
        child = subprocess.Popen([sys.executable, "-m", *arguments], stdout=file)
        try:
            yield path
        finally:
            child.kill()
            child.wait()


def read(path: Path) -> list[Put]:
    """Return the attempts in the client's output, without a last incomplete line."""
    whole = path.read_text().rpartition("\n")[0]
    words = [line.split() for line in whole.splitlines()]
    return [Put(float(at), key, "" if ended == DONE else ended) for at, key, ended in words]


def unreadable(scm_address: str, keys: Sequence[str]) -> int:
    """Return how many keys cannot be read back as they were put."""
    with ClusterClient(scm_address) as client:
        return sum(b"".join(client.get(key)) != content(key) for key in keys)


def rates(struck_s: Sequence[float], whole_s: Sequence[float], times: Times) -> list[Measure]:
    """Return puts per second in windows, by completion time, and the two promises about them."""

    def rate(ended_s: Sequence[float], from_s: float, to_s: float) -> float:
        return sum(from_s <= at_s < to_s for at_s in ended_s) / (to_s - from_s)

    def beside(from_s: float, to_s: float) -> float:
        return rate(struck_s, from_s, to_s) / max(rate(whole_s, from_s, to_s), 1e-9)

    windows = []
    for number in range(int((times.end_s - times.quiet_s) / WINDOW_S)):
        from_s = times.quiet_s + number * WINDOW_S
        there, here = (rate(ended, from_s, from_s + WINDOW_S) for ended in (whole_s, struck_s))
        name = f"outages: puts from {number * WINDOW_S - QUIET_S:+.0f} s"
        windows.append(Measure(name, here, "/s", f"{there:.1f}/s where nothing is killed"))
    quarter_s = (times.healed_s - times.faults_s) / 4
    first = beside(times.faults_s, times.faults_s + quarter_s)
    last = beside(times.healed_s - quarter_s, times.healed_s)
    before = beside(times.quiet_s, times.faults_s)
    after = beside(times.healed_s, times.healed_s + WINDOW_S)
    return [
        *windows,
        at_least(
            "outages: last quarter of the faults",
            last / max(first, 1e-9),
            "x",
            DURING_MIN,
            compared_with=f"the first: {first:.2f}",
        ),
        at_least(
            f"outages: {WINDOW_S:.0f} s after the faults",
            after / max(before, 1e-9),
            "x",
            AFTER_MIN,
            compared_with=f"before: {before:.2f}",
        ),
    ]
