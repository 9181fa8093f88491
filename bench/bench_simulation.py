"""A hundred simulated datanodes and 20,000 containers through scripted days, with a real control
plane as its own process: what happens is in `tests/support/simulated_days.py`.

The days pass in simulated time, so these are promises about behaviour and not about this machine;
only what computing costs is measured in seconds of its own.
"""

import tempfile
from pathlib import Path
from typing import Final

from bench.measure import Measure, at_least, at_most, duration_s
from tests.support.simulated_days import Days, first_day, second_day, third_day

NODES: Final = 100
RACKS: Final = 10
CONTAINERS: Final = 20_000
SEED: Final = 1
# Low enough that the limit of the whole cluster, too, is reached.
SETTINGS: Final = {"inflight_factor_percent": 40}


def measures() -> list[Measure]:
    """Let the days pass."""
    measured: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="suture-simulation-") as scratch:
        days = Days(Path(scratch), SEED, NODES, RACKS, CONTAINERS, SETTINGS)
        with days.running():
            took_s = duration_s(lambda: live(days, measured))
            unwell = len(days.unwell())
    held, counts = days.world.held_most, days.world.counts
    orders_s = measured["dead to first orders"] + measured["computing until the first orders"]
    name = "simulation, "
    return [
        at_most(name + "from dead to the first orders", orders_s, "s", 10),
        at_most(name + "containers not healed at the end", unwell, "containers", 0),
        at_most(name + "promises broken", len(days.world.broken), "times", 0),
        at_most(name + "weighted copies at a node in service", held["in service"], "copies", 20),
        at_most(name + "the same, out of service", held["out of service"], "copies", 40),
        at_most(name + "deletes at a node", held["delete"], "deletes", 40),
        at_most(
            name + "replicas on their way", held["in flight"], "replicas", days.in_flight_limit()
        ),
        at_least(name + "good copies left by a delete", days.world.fewest_left, "copies", 1),
        at_most(
            name + "copies made while a rack rests", measured["copies while they rest"], "copies", 0
        ),
        *(
            Measure(f"{name}{what}", value / 60, "minutes, simulated")
            for what, value in measured.items()
            if "orders" not in what and "copies" not in what
        ),
        Measure(name + "longest tick", days.tick_s_most, "s"),
        *(Measure(f"{name}{kind}", counts[kind], "orders") for kind in KINDS),
        Measure(name + "heartbeats", counts["heartbeats"], "calls"),
        Measure(name + "simulated", days.world.now_s / 3600, "hours"),
        Measure(name + "took", took_s, "s"),
    ]


KINDS: Final = ("replicate", "reconstruct", "delete", "close")


def live(days: Days, measured: dict[str, float]) -> None:
    """Let it all happen."""
    for day in (first_day, second_day, third_day):
        measured.update(day(days))
