"""Compares a control plane's health states with the judge's verdicts on its snapshots, every tick.

Small clusters run random days, by `tests/support/simulation/random_days.py`: nodes die and return,
replicas are damaged, commands are carried out, fail or are lost, operators make requests, and the
control plane is killed. After each second the control plane exports its state, and every container
with a health state is judged again from the export.

    AGREEMENT_CONTAINER_TICKS=1000000 BENCH_TIMEOUT_S=7200 make bench NAME=agreement
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.measure import Measure, at_least, at_most
from suture.observe import logs
from tests.support.control.agreement import Agreement
from tests.support.simulation.random_days import RandomDays

CONTAINER_TICKS: Final = int(os.environ.get("AGREEMENT_CONTAINER_TICKS", "20000"))
CONTAINERS: Final = 1_000
SECONDS: Final = 60  # of each cluster
SHOWN_MAX: Final = 20
STATES_MIN: Final = 14


def measures() -> list[Measure]:
    """Run clusters until enough containers were compared."""
    logs.configure("error")
    agreement, clusters = Agreement(), 0
    began_s = time.process_time()
    while agreement.compared < CONTAINER_TICKS:
        live(agreement, seed=clusters)
        clusters += 1
    cpu_s = time.process_time() - began_s
    for line in agreement.differences[:SHOWN_MAX]:
        print(line, file=sys.stderr)
    return [
        at_least("agreement, compared", agreement.compared, "containers", CONTAINER_TICKS),
        at_most("agreement, differences", len(agreement.differences), "containers", 0),
        Measure("agreement, no state was said", agreement.unsaid, "containers"),
        at_least("agreement, states that were seen", len(agreement.states), "states", STATES_MIN),
        Measure("agreement, clusters", clusters, "clusters"),
        Measure("agreement, rate", agreement.compared / cpu_s, "containers/CPU s"),
    ]


def live(agreement: Agreement, *, seed: int) -> None:
    """Run one cluster, and compare after each second."""
    with tempfile.TemporaryDirectory(prefix="suture-agreement-") as scratch:
        days = RandomDays(Path(scratch), seed, CONTAINERS)
        try:
            for second in range(SECONDS):
                days.step()
                exported = days.world.control.queries.export_snapshot()
                agreement.compare(exported, f"cluster {seed}, second {second}")
                if agreement.compared >= CONTAINER_TICKS:
                    return
        finally:
            days.world.state.close()
