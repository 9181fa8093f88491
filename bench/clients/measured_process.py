"""Processes of the two sides of a benchmark, which are controlled by lines, and their costs."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.demo.cluster import Cluster, Process

CLOCK_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class BenchProcess:
    """A process that is controlled by lines.

    It has its own session, like the processes of test clusters and like services. The kernel
    divides the processors among sessions first (`sched_autogroup`), so a server in the session of
    its client would be scheduled differently.
    """

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.hello = self._answer()

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line, and return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def cpu_s(self) -> float:
        """Return the processor seconds used so far."""
        return float(self.ask("cpu")["s"])

    def close(self) -> None:
        """Kill the process, and wait for its end."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one run: seconds, and processor seconds of all processes of its side."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Pairs:
    """The costs of the product and of the floor, with one entry per round."""

    own: Sequence[Cost]
    floor: Sequence[Cost]

    def speed(self) -> float:
        """Return the product's speed divided by the floor's, as the median over the rounds."""
        return statistics.median(
            floor.wall_s / own.wall_s for own, floor in zip(self.own, self.floor, strict=True)
        )

    def cpu(self) -> float:
        """Return the product's processor time divided by the floor's, as the median over the
        rounds."""
        return statistics.median(
            own.cpu_s / floor.cpu_s for own, floor in zip(self.own, self.floor, strict=True)
        )


def process_cpu_s(pid: int) -> float:
    """Return the processor seconds that a process used, as the kernel counts them."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S


def node_cpu_s(process: Process) -> float:
    """Return the processor seconds of a process of a cluster."""
    assert process.popen is not None
    return process_cpu_s(process.popen.pid)


def cluster_cpu_s(cluster: Cluster) -> float:
    """Return the processor seconds of a cluster's control plane and datanodes."""
    return sum(node_cpu_s(process) for process in (cluster.scm, *cluster.nodes))


def paired(own: Callable[[], Cost], floor: Callable[[], Cost], rounds: int) -> Pairs:
    """Run both sides once in each round, in alternating order; return the costs."""
    own_costs: list[Cost] = []
    floor_costs: list[Cost] = []
    for index in range(rounds):
        turns = [(own, own_costs), (floor, floor_costs)]
        for put, costs in turns if index % 2 == 0 else reversed(turns):
            costs.append(put())
    return Pairs(own_costs, floor_costs)
