"""Runs a thousand seeded clusters with a lying, a damaged and an absent datanode;
`tests/support/simulation/liars.py` has the events and the verdicts.

    LIARS_SEEDS=100 make bench NAME=liars     fewer of them
"""

import logging
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Final

import structlog

from bench.measure import Measure, at_least, at_most
from tests.support.simulation.liars import Judgement, liars
from tests.support.storage.stores import private_directory

SEEDS: Final = 1_000
PROCESSES: Final = 2
SHOWN_MAX: Final = 20
AT_LEAST: Final = {
    "repaired": 50,
    "adopted": 50,
    "deletes followed": 50,
    "contradictions told": 500,
}
"""Minimum number of each event in a thousand clusters; otherwise, the clusters test too little."""


def measures() -> list[Measure]:
    """Run all clusters; no promise may be broken, and enough events must have occurred."""
    seeds = int(os.environ.get("LIARS_SEEDS", SEEDS))
    parts = [range(first, seeds, PROCESSES) for first in range(PROCESSES)]
    total = Judgement()
    with ProcessPoolExecutor(PROCESSES) as executor:
        for part in executor.map(lived, parts):
            total.counts += part.counts
            total.broken += part.broken
    for line in total.broken[:SHOWN_MAX]:
        print(f"broken: {line}", file=sys.stderr)
    return [
        at_most("liars, promises broken", len(total.broken), "times", 0),
        *(
            at_least(f"liars, {what}", total.counts[what], "times", least * seeds / SEEDS)
            for what, least in AT_LEAST.items()
        ),
        *(
            Measure(f"liars, {what}", count, "times")
            for what, count in sorted(total.counts.items())
            if what not in AT_LEAST
        ),
    ]


def lived(seeds: range) -> Judgement:
    """Run the clusters of these seeds in a separate process."""
    quiet = structlog.make_filtering_bound_logger(logging.ERROR)
    structlog.configure(wrapper_class=quiet)
    with private_directory() as root, liars(root) as clusters:
        for seed in seeds:
            clusters.live(seed)
    return clusters.judgement
