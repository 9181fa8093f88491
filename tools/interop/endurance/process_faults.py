"""Kills agents, Ozone's datanodes and its SCM (kill -9). A seed determines the times and the
order.
"""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tools.interop.agents import Agent, awaited
from tools.interop.site import OzoneProcessCluster

WEIGHTS: Final = {"agent": 4, "datanode": 4, "SCM": 2}
BETWEEN_S: Final = (4.0, 20.0)
AWAY_S: Final = (0.5, 15.0)
LONG_S: Final = (62.0, 80.0)  # long enough for the SCM to consider it dead and copy its replicas
LONG: Final = 0.12  # share of the faults
DEAD_S: Final = 55.0  # wait until all are healthy again: the SCM may have considered it dead
HEALTHY_S: Final = 400.0
TWO: Final = 0.2  # share of the faults that hit a second process as well


@dataclass
class ProcessFaults:
    """Kills and restarts processes until `stop` is set. At the end, all processes run."""

    site: OzoneProcessCluster
    agents: Sequence[Agent]
    chance: random.Random
    stop: threading.Event
    is_healthy: Callable[[], bool]
    counts: Counter[str] = field(default_factory=Counter)
    returned_s: list[float] = field(default_factory=list)
    """Times at which processes returned that the SCM may have considered dead, on the monotonic
    clock."""

    def run(self) -> None:
        """Inject one fault after another. Before each fault, wait until all processes are
        healthy."""
        while not self.stop.wait(self.chance.uniform(*BETWEEN_S)):
            count = 2 if self.chance.random() < TWO else 1
            victims = {self._victim() for _ in range(count)}
            is_long = self.chance.random() < LONG
            away_s = self.chance.uniform(*(LONG_S if is_long else AWAY_S))
            began_s = time.monotonic()
            for kind, index in victims:
                self._kill(kind, index)
                self.counts[
                    f"kill -9 of an {kind}" if kind == "agent" else f"kill -9 of {kind}"
                ] += 1
            self.counts["away for more than a minute"] += is_long
            self.counts["two at once"] += len(victims) == 2
            self.stop.wait(away_s)
            for kind, index in victims:
                self._start(kind, index)
            awaited("all healthy again", self.is_healthy, HEALTHY_S)
            if time.monotonic() - began_s > DEAD_S:
                self.returned_s.append(time.monotonic())

    def _victim(self) -> tuple[str, int]:
        (kind,) = self.chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
        count = {"agent": len(self.agents), "datanode": len(self.site.datanodes), "SCM": 1}[kind]
        return kind, self.chance.randrange(count)

    def _kill(self, kind: str, index: int) -> None:
        if kind == "agent":
            self.agents[index].end(signal.SIGKILL)
        elif kind == "datanode":
            self.site.datanodes[index].kill()
        else:
            self.site.scm.kill()

    def _start(self, kind: str, index: int) -> None:
        if kind == "agent":
            self.agents[index].start()
        elif kind == "datanode":
            self.site.datanodes[index].start()
        else:
            self.site.scm.start()
