"""A thousand seeded clusters in which somebody lies, somebody is damaged and somebody is down: what
happens, and who judges it, is in `tests/support/simulation/liars.py`.

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
"""In a thousand clusters, or it is no test of liars."""


def measures() -> list[Measure]:
    """Let all clusters live; nothing may be broken, and enough must have happened."""
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
    """Let the clusters of these seeds live; runs in a process of its own."""
    quiet = structlog.make_filtering_bound_logger(logging.ERROR)
    structlog.configure(wrapper_class=quiet)
    with private_directory() as root, liars(root) as clusters:
        for seed in seeds:
            clusters.live(seed)
    return clusters.judgement
