"""Runs 10,000 seeded histories of containers, a day each, and counts those that stay stuck.

Each cluster has twelve simulated datanodes and a real control plane;
`tests/support/simulation/histories.py` has the events and the verdicts. BENCH_HISTORIES_CLUSTERS
and BENCH_HISTORIES_WRITERS change the size.
"""

import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from bench.measure import Measure, at_most, duration_s
from tests.support.simulation.histories import Verdict, cluster

CLUSTERS: Final = int(os.environ.get("BENCH_HISTORIES_CLUSTERS", "24"))
WRITERS: Final = int(os.environ.get("BENCH_HISTORIES_WRITERS", "500"))
SHOWN_MAX: Final = 20  # of the containers that are stuck


def measures() -> list[Measure]:
    """Run all histories on all processors, and measure the sums of their results."""
    total = Verdict()
    took_s = duration_s(lambda: _live_all(total))
    for line in [*total.stuck, *total.broken][:SHOWN_MAX]:
        print(f"stuck or broken: {line}", file=sys.stderr)
    name = "histories, "
    return [
        Measure(name + "containers", sum(total.counts.values()), "containers"),
        Measure(name + "settled by themselves", total.counts["settled"], "containers"),
        *(
            Measure(f"{name}{word} after 24 h", count, "containers")
            for word, count in sorted(total.counts.items())
            if word != "settled"
        ),
        *(Measure(f"{name}{word} given", n, "times") for word, n in sorted(total.remedies.items())),
        *(Measure(f"{name}{what}", n, "times") for what, n in sorted(total.events.items())),
        at_most(name + "that nothing ends", len(total.stuck), "containers", 0),
        at_most(name + "promises broken", len(total.broken), "times", 0),
        Measure(name + "took", took_s, "s"),
    ]


def live_one(seed: int) -> Verdict:
    """Run the histories of one cluster."""
    with tempfile.TemporaryDirectory(prefix="suture-histories-") as scratch:
        return cluster(Path(scratch), seed, WRITERS)


def _live_all(total: Verdict) -> None:
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for one in pool.map(live_one, range(1, CLUSTERS + 1)):
            total.add(one)
