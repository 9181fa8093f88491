"""Measures the effect of a scan on clients beside it, and its speed on an idle disk.

There are four parts: on a simulated disk with one head (`simulated_disk`); on a real disk that the
kernel limits (`limited_disk`), with a real agent, clients over gRPC, and a scan at the rate of the
closed loop; on the unlimited disk, beside the C program of the scan benchmark; and against a scan
in a separate process, to measure the cost of sharing an interpreter. The loop gets SETTLE_S to find
its rate, which is not counted. Then the scan is paused and resumed in alternation, like an operator
would, and neighbours are compared. BENCH_SCAN_FOLDER is the place of the data (the temporary
folder).
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.scan.throttle import STALE_S
from bench.measure import Measure, at_least, at_most
from bench.scans import scan_own
from bench.scans.bench_scan import compile_program, joined_list, run_c
from bench.scans.limited_disk import limited_disk, why_not
from bench.scans.real_agent import Agent, clients, running
from bench.scans.scan_world import WARM_UP, Shape, fill, repeat
from bench.scans.simulated_disk import simulated
from merkle.replica import ContainerId
from scanner.scan_rate_control import CALM_S, p99_of
from tests.support.faults.page_cache import drop_pages

MIB: Final = 1024**2
DISK_BYTES: Final = 3 * 1024 * MIB
DISK_BYTES_PER_S: Final = 100 * MIB
DISK_READS_PER_S: Final = 200
READ, SCANNED, FIRST_COPY = ContainerId(1), ContainerId(2), 10
READ_SHAPE: Final = Shape(440, 64, 64 * 1024)  # every chunk is read once at most
SCANNED_SHAPE: Final = Shape(4, 32, 4 * MIB)
IDLE_SHAPE: Final = Shape(8, 32, 4 * MIB)
COPIES: Final = 80  # enough that no run comes to the end of unread chunks
IDLE_COPIES: Final = 90
CLIENT_THREADS: Final = 4
CLIENT_READS_PER_S: Final = 100.0
SETTLE_S: Final = 30.0
TURN_S: Final = 6.0  # six of its some six hundred reads are slower than the p99
PAIRS: Final = 9
LEAD_S: Final = 1.0  # not counted at the start of a turn, so that reads of the last turn end
TURNS_IN_MEMORY: Final = 3
MEMORY_TURN_S: Final = 4.0
IDLE_TURN_S: Final = 1.5
IDLE_ROUNDS: Final = 5
P99_RATIO_MAX: Final = 1.2
IDLE_RATIO_MIN: Final = 0.9
DEFAULTS: Final = ""
AS_FAST_AS_IT_GOES: Final = f"volume_bytes_per_s = {16 * 1024 * MIB}\n"


@dataclass(frozen=True, slots=True)
class Turn:
    """A period of a few seconds with or without the scan."""

    begun_s: float
    ended_s: float
    scanned_bytes: int

    @property
    def bytes_per_s(self) -> float:
        """The speed of the scan during this period."""
        return self.scanned_bytes / (self.ended_s - self.begun_s)


def measures() -> list[Measure]:
    """Measure everything; takes some five minutes on two cores."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_SCAN_FOLDER")) as name:
        folder = Path(name)
        return [
            *simulated(),
            *beside_clients(folder),
            *idle_disk(folder),
            *thread_or_process(folder),
        ]


def beside_clients(folder: Path) -> list[Measure]:
    """Measure the p99 of clients' reads during a scan on a limited disk, relative to the p99 in an
    adjacent period without the scan."""
    reason = why_not()
    if reason:
        print(f"no limited disk: {reason}; measured on the simulated one only", file=sys.stderr)
        return []
    with limited_disk(
        folder,
        size_bytes=DISK_BYTES,
        bytes_per_s=DISK_BYTES_PER_S,
        reads_per_s=DISK_READS_PER_S,
    ) as disk:
        volume = disk.path / "volume"
        files = sorted(fill(volume, READ, READ_SHAPE).iterdir())
        fill(volume, SCANNED, SCANNED_SHAPE)
        repeat(volume, SCANNED, [ContainerId(FIRST_COPY + index) for index in range(COPIES)])

        @contextmanager
        def started(scan: str) -> Iterator[tuple[Agent, Path]]:
            for path in files:
                drop_pages(path)
            with (
                running(folder, volume, scan, disk) as agent,
                clients(
                    folder,
                    agent.address,
                    READ,
                    thread_count=CLIENT_THREADS,
                    reads_per_s=CLIENT_READS_PER_S,
                ) as reads,
            ):
                yield agent, reads

        with started(DEFAULTS) as (agent, reads):
            time.sleep(SETTLE_S)
            pairs = turns(agent, PAIRS)
            paced = p99_ratios(reads, pairs)
        with started(AS_FAST_AS_IT_GOES) as (agent, reads):
            unpaced = p99_ratios(reads, turns(agent, 1))
    speed = statistics.median(beside.bytes_per_s for beside, _ in pairs)
    alone = f"no scan, disk of {DISK_BYTES_PER_S // MIB} MiB/s"
    return [
        at_most(
            f"client p99, full-speed scan ({min(paced):.2f} to {max(paced):.2f})",
            statistics.median(paced),
            "x",
            P99_RATIO_MAX,
            compared_with=alone,
        ),
        Measure("client p99, unpaced scan on it", statistics.median(unpaced), "x", alone),
        Measure("scan speed beside clients on it", speed / MIB, "MiB/s", alone),
    ]


def turns(agent: Agent, count: int, turn_s: float = TURN_S) -> list[tuple[Turn, Turn]]:
    """Resume and pause the scan alternately; return pairs of periods, in each the one with the scan
    first."""

    def turn(*, reads: bool) -> Turn:
        (agent.resume if reads else agent.pause)()
        time.sleep(LEAD_S)
        before, begun_s = agent.status().scanned_bytes, time.monotonic()
        time.sleep(turn_s)
        return Turn(begun_s, time.monotonic(), agent.status().scanned_bytes - before)

    pairs = []
    for index in range(count):
        if index % 2:
            without = turn(reads=False)
            pairs.append((turn(reads=True), without))
        else:
            beside = turn(reads=True)
            pairs.append((beside, turn(reads=False)))
    for beside, without in pairs:
        assert beside.scanned_bytes, "nothing was scanned beside the clients"
        assert not without.scanned_bytes, "the scan did not pause"
    return pairs


def p99_ratios(reads: Path, pairs: list[tuple[Turn, Turn]]) -> list[float]:
    """Return, for each pair of periods, the clients' p99 with the scan divided by their p99 without
    it."""
    whole_lines = reads.read_text().rpartition("\n")[0].splitlines()
    samples = [(float(at_s), float(took_s)) for at_s, took_s in map(str.split, whole_lines)]

    def p99_s(turn: Turn) -> float:
        return p99_of(
            [
                took_s
                for at_s, took_s in samples
                if at_s - took_s >= turn.begun_s and at_s <= turn.ended_s
            ]
        )

    return [p99_s(beside) / p99_s(without) for beside, without in pairs]


def idle_disk(folder: Path) -> list[Measure]:
    """Measure the background scan's speed on an agent without clients, alternating with the C
    program on the same files.
    """
    compile_program()
    volume = folder / "idle"
    chunks = fill(volume, SCANNED, IDLE_SHAPE)
    repeat(volume, SCANNED, [ContainerId(FIRST_COPY + index) for index in range(IDLE_COPIES)])
    parent = joined_list([chunks])
    ratios, speeds, plain = [], [], []
    with running(folder, volume, DEFAULTS) as agent:
        run_up(agent)
        for _ in range(IDLE_ROUNDS):
            agent.resume()
            time.sleep(LEAD_S)
            before, begun_s = agent.status().scanned_bytes, time.monotonic()
            time.sleep(IDLE_TURN_S)
            scanned_bytes = agent.status().scanned_bytes - before
            speeds.append(scanned_bytes / (time.monotonic() - begun_s))
            agent.pause()
            plain.append(run_c(parent, threads=1).bytes_per_s)
            time.sleep(STALE_S)  # for the agent, the C program was another reader
            ratios.append(speeds[-1] / plain[-1])
    own = statistics.median(speeds) / 1e9
    compared = f"{statistics.median(plain) / 1e9:.2f}, C program, one thread"
    return [
        Measure("scan of an idle agent, one volume", own, "GB/s", compared),
        at_least(
            f"idle disk, agent by C ({min(ratios):.2f} to {max(ratios):.2f})",
            statistics.median(ratios),
            "x",
            IDLE_RATIO_MIN,
            compared_with="C program",
        ),
    ]


def thread_or_process(folder: Path) -> list[Measure]:
    """Measure the p99 of reads from memory beside an unpaced scan: in a thread of the agent, and in
    a separate process. The device is equally busy in both.
    """
    volume, other = folder / "served", folder / "other"
    files = sorted(fill(volume, READ, READ_SHAPE).iterdir())
    copies = [ContainerId(FIRST_COPY + index) for index in range(IDLE_COPIES)]
    for path in (volume, other):
        fill(path, SCANNED, IDLE_SHAPE)
        repeat(path, SCANNED, copies)
    fill(other, WARM_UP, Shape(2, 2, 4 * MIB))
    for path in files:
        path.read_bytes()
    in_thread: list[float] = []
    in_process: list[float] = []
    with (
        running(folder, volume, AS_FAST_AS_IT_GOES) as agent,
        clients(
            folder,
            agent.address,
            READ,
            thread_count=CLIENT_THREADS,
            reads_per_s=CLIENT_READS_PER_S,
        ) as reads,
    ):
        for _ in range(TURNS_IN_MEMORY):
            ((beside, alone),) = turns(agent, 1, MEMORY_TURN_S)
            in_thread += p99_ratios(reads, [(beside, alone)])
            command = [sys.executable, "-m", scan_own.__name__, str(other), "1", *map(str, copies)]
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            try:
                in_process += p99_ratios(reads, [(resting(), alone)])
                assert child.poll() is None, "the process had nothing left to scan"
            finally:
                child.kill()
                child.wait()
    return [
        Measure(
            f"client p99, reads from memory, {name} ({min(found):.2f} to {max(found):.2f})",
            statistics.median(found),
            "x",
            "no scan",
        )
        for name, found in (("scan thread", in_thread), ("scan process", in_process))
    ]


def resting() -> Turn:
    """Wait for a period in which the clients read; return the period. The caller controls the other
    work."""
    time.sleep(LEAD_S)
    begun_s = time.monotonic()
    time.sleep(MEMORY_TURN_S)
    return Turn(begun_s, time.monotonic(), 0)


def run_up(agent: Agent) -> None:
    """Wait until the rate is above the speed of the reads, or has not grown for CALM_S."""
    grew_at_s, highest = time.monotonic(), 0
    while time.monotonic() < grew_at_s + CALM_S + 2 * LEAD_S:
        rate = agent.status().rate_bytes_per_s
        if rate > 1.1 * highest:
            grew_at_s, highest = time.monotonic(), rate
        time.sleep(LEAD_S / 10)
    agent.pause()
