"""Measures a burst of commands at one agent: 10,000 in one heartbeat answer, while a client reads.

Agent, client and control plane are separate processes; the agent is the program that hosts run, and
only its control plane is scripted. Quiet times and bursts alternate, and the reads during all
bursts are compared with those during all quiet times.

    BENCH_COMMANDS          how many in one answer (10,000)
    BENCH_COMMANDS_ROUNDS   storms (3)
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.measure import Measure, at_most
from bench.scans.scan_world import CLUSTER, Shape, fill
from merkle.replica import ContainerId
from suture.wire.v1 import container_pb2, scm_pb2
from tests.support.control.scripted_scm import ScriptedScm
from tools.demo.cluster import Process

CONTAINER: Final = ContainerId(7)
SHAPE: Final = Shape(block_count=12, chunk_count=4, chunk_bytes=64 * 1024)
READS_PER_S: Final = 150.0
INTERVAL_MS: Final = 1_000
QUIET_S: Final = 12.0
SETTLE_S: Final = 1.0
P99_RATIO_MAX: Final = 1.5
GROWTH_MIB_MAX: Final = 64
LATE_MAX: Final = 2.0
WAIT_S: Final = 60.0


@dataclass
class Storms:
    """The observations: bursts and quiet times as spans of the monotonic clock."""

    ordered: int = 0
    storms_s: list[tuple[float, float]] = field(default_factory=list)
    quiet_s: list[tuple[float, float]] = field(default_factory=list)
    beat_gap_s: float = 0.0


def measures() -> list[Measure]:
    """Measure several bursts."""
    count = int(os.environ.get("BENCH_COMMANDS", "10000"))
    rounds = int(os.environ.get("BENCH_COMMANDS_ROUNDS", "3"))
    with (
        tempfile.TemporaryDirectory(prefix="suture-bench-") as directory,
        ScriptedScm(INTERVAL_MS, CLUSTER) as scm,
    ):
        folder = Path(directory)
        fill(folder / "volume", CONTAINER, SHAPE)
        agent = Process("agent", arguments(folder, scm.address), folder / "agent.log")
        agent.start()
        assert agent.popen is not None
        try:
            with reading(agent.address, folder / "reads", CONTAINER):
                seen = Storms()
                before_mib = resident_mib(agent.popen.pid)
                grown_mib = 0.0
                for _ in range(rounds):
                    raise_storm(scm, count, seen)
                    grown_mib = max(grown_mib, resident_mib(agent.popen.pid) - before_mib)
                reads = [
                    (float(at), float(took))
                    for at, took in map(str.split, (folder / "reads").read_text().splitlines()[:-1])
                ]
        finally:
            agent.stop()
        return results(seen, scm, reads, grown_mib)


def raise_storm(scm: ScriptedScm, count: int, seen: Storms) -> None:
    """Wait for a while, then send `count` commands at once and wait for the answers."""
    time.sleep(SETTLE_S)
    quiet_s = time.monotonic()
    time.sleep(QUIET_S)
    begun_s = time.monotonic()
    seen.quiet_s.append((quiet_s, begun_s))
    numbers = range(seen.ordered + 1, seen.ordered + count + 1)
    seen.ordered += count
    scm.order_all([order(number) for number in numbers])
    beats, heard_s = scm.heartbeats, begun_s
    while len(scm.statuses) < seen.ordered and heard_s - begun_s < WAIT_S:
        scm.wait_until(lambda: scm.heartbeats > beats, timeout_s=WAIT_S)  # noqa: B023 - waited for
        now_s = time.monotonic()
        seen.beat_gap_s = max(seen.beat_gap_s, now_s - heard_s)
        beats, heard_s = scm.heartbeats, now_s
    seen.storms_s.append((begun_s, heard_s))


def results(
    seen: Storms, scm: ScriptedScm, reads: list[tuple[float, float]], grown_mib: float
) -> list[Measure]:
    """Return the measures of the promises."""
    ran = sum(item.state != scm_pb2.CommandStatus.SKIPPED for item in scm.statuses.values())
    unexplained = sum(
        item.state != scm_pb2.CommandStatus.EXECUTED and not item.code
        for item in scm.statuses.values()
    )
    longest_s = statistics.median(end_s - begin_s for begin_s, end_s in seen.storms_s)
    idle_s, busy_s = (within(reads, spans) for spans in (seen.quiet_s, seen.storms_s))
    orders = f"of {seen.ordered:,} in {len(seen.storms_s)} storms"
    return [
        at_most("storm: unanswered", seen.ordered - len(scm.statuses), "", 0, compared_with=orders),
        at_most("storm: not done and no reason given", unexplained, "", 0, compared_with=orders),
        Measure("storm: ran, the others were refused", ran, "", orders),
        Measure("storm: until all were answered", longest_s, "s"),
        at_most("storm: growth of memory", grown_mib, "MiB", GROWTH_MIB_MAX),
        at_most(
            "storm: longest without a heartbeat", seen.beat_gap_s * 1000 / INTERVAL_MS, "intervals",
            LATE_MAX,
        ),
        Measure(
            "storm: reads", rate(busy_s, seen.storms_s), "1/s",
            f"quiet {rate(idle_s, seen.quiet_s):.0f} 1/s",
        ),
        Measure("storm: readChunk median", ratio(busy_s, idle_s, 50), "x", told(idle_s, 50)),
        at_most(
            "storm: readChunk p99", ratio(busy_s, idle_s, 99), "x", P99_RATIO_MAX,
            compared_with=told(idle_s, 99),
        ),
    ]  # fmt: skip


def within(reads: list[tuple[float, float]], spans: list[tuple[float, float]]) -> list[float]:
    """Return the durations of the reads that began within one of the spans."""
    return [took for at, took in reads if any(begin <= at < end for begin, end in spans)]


def rate(took_s: list[float], spans: list[tuple[float, float]]) -> float:
    """Return the reads a second within the spans."""
    return len(took_s) / sum(end - begin for begin, end in spans)


def ratio(busy_s: list[float], idle_s: list[float], percent: int) -> float:
    """Return the percentile during bursts divided by that of the quiet times."""
    return percentile(busy_s, percent) / percentile(idle_s, percent)


def told(idle_s: list[float], percent: int) -> str:
    """Return the percentile of the quiet times as text."""
    return f"quiet {percentile(idle_s, percent) * 1000:.2f} ms"


def percentile(values_s: list[float], percent: int) -> float:
    """Return a percentile."""
    return statistics.quantiles(values_s, n=100)[percent - 1]


def arguments(folder: Path, scm_address: str) -> list[str]:
    """Write an agent's config; return its command line."""
    config = folder / "agent.toml"
    config.write_text(
        f'[node]\nlisten = "127.0.0.1:0"\nscm = "{scm_address}"\n'
        f'[storage]\nvolumes = ["{folder / "volume"}"]\nreserve_bytes = 0\n'
        '[scan]\nenabled = false\nwatch = false\n[observe]\nlisten = ""\n'
    )
    return ["agent.main", "--config", str(config)]


@contextmanager
def reading(address: str, path: Path, container_id: ContainerId) -> Iterator[None]:
    """Run a client that reads a container throughout, with its output in the file."""
    program = ["-m", "tools.demo.child", str(os.getpid()), "bench.scans.steady_reader"]
    with path.open("wb") as file:
        words = [sys.executable, *program, address, str(container_id), str(READS_PER_S)]
        child = subprocess.Popen(words, stdout=file)
        try:
            while path.stat().st_size == 0 and child.poll() is None:
                time.sleep(0.05)
            yield
        finally:
            child.kill()
            child.wait()


def order(number: int) -> scm_pb2.Command:
    """Return one of the burst's commands: of all kinds, mostly for absent containers."""
    container_id = 1_000 + number
    fields: dict[str, object] = {}
    nobody = container_pb2.DatanodeEndpoint(datanode_id="nobody", address="127.0.0.1:1")
    match number % 4:
        case 0:
            fields["close"] = scm_pb2.CloseCommand(container_id=container_id)
        case 1:
            fields["delete"] = scm_pb2.DeleteCommand(container_id=container_id)
        case 2:
            fields["replicate"] = scm_pb2.ReplicateCommand(container_id=container_id, target=nobody)
        case _:
            fields["reconcile"] = scm_pb2.ReconcileCommand(
                container_id=container_id, peers=[nobody]
            )
    return scm_pb2.Command(command_id=number, term=1, lifetime_ms=60_000, **fields)  # type: ignore[arg-type]


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024**2
