"""Simulates three days of a hundred datanodes and 20,000 containers, with a real control plane in
its own process: `tests/support/simulation/simulated_days.py` has the events, and
`simulated_world.py` beside it judges.

The days pass in simulated time, so the bounds are about behaviour and not about this machine. Only
the cost of computing is measured in real seconds. The first day is run twice: the same seed must
lead to the same commands at the same simulated times.
"""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.measure import Measure, at_least, at_most, duration_s
from tests.support.simulation.simulated_days import Days, first_day, second_day, third_day

NODES: Final = 100
RACKS: Final = 10
CONTAINERS: Final = 20_000
SEED: Final = 1
DAY_S: Final = 86_400.0
# Low enough that the cluster-wide limit is reached, too.
SETTINGS: Final = {"inflight_factor_percent": 40}
# A node with room for part of a rebuild, which weighs 3, gets a whole one.
HELD_MAX: Final = 20 - 1 + 3
HELD_OUT_OF_SERVICE_MAX: Final = 40 - 1 + 3
TOOK_S_MAX: Final = 480
SHOWN_MAX: Final = 20  # of the broken promises
KINDS: Final = ("replicate", "reconstruct", "delete", "close", "set_operational_state")


def measures() -> list[Measure]:
    """Run all three days, and then the first day again."""
    measured: dict[str, float] = {}
    days = cluster()
    with tempfile.TemporaryDirectory(prefix="suture-simulation-") as scratch:
        days.path = Path(scratch)
        with days.running():
            took_s = duration_s(lambda: live(days, measured))
            unhealthy = len(days.unhealthy_containers())
    for line in days.world.broken[:SHOWN_MAX]:
        print(f"broken: {line}", file=sys.stderr)
    day_count = days.world.now_s / DAY_S
    return [
        *size_of(days, day_count),
        *promises(days, measured, unhealthy),
        *convergence(measured),
        at_most("simulation, first days that differ", differing_days(days), "days", 0),
        Measure("simulation, longest tick", days.tick_s_most, "s"),
        Measure("simulation, control plane", days.scm_cpu_s / day_count, "CPU s a day"),
        at_most("simulation, took", took_s, "s", TOOK_S_MAX),
    ]


def cluster() -> Days:
    """Return the cluster before any event."""
    return Days(Path(), SEED, NODES, RACKS, CONTAINERS, SETTINGS, day_s=DAY_S)


def live(days: Days, measured: dict[str, float]) -> None:
    """Run the events of all three days, and add their results to `measured`."""
    for day in (first_day, second_day, third_day):
        measured.update(day(days))


def differing_days(days: Days) -> int:
    """Run the first day again, until its evening. Return 1 if its commands differ from those of the
    first run, otherwise 0."""
    again = cluster()
    again.day_s = 0
    with tempfile.TemporaryDirectory(prefix="suture-simulation-") as scratch:
        again.path = Path(scratch)
        with again.running():
            first_day(again)
    return int(days.evenings[0] != again.evenings[0])


def size_of(days: Days, day_count: float) -> list[Measure]:
    """Return the numbers of events."""
    counts = days.world.counts
    return [
        Measure("simulation, containers", days.container_count, "containers"),
        Measure("simulation, datanodes", days.node_count, "datanodes"),
        Measure("simulation, simulated", day_count, "days"),
        *(Measure(f"simulation, {kind}", counts[kind], "orders") for kind in KINDS),
        Measure("simulation, heartbeats judged", counts["heartbeats judged"], "calls"),
        Measure("simulation, deletes of good judged", counts["deletes of good replicas"], "orders"),
    ]


def promises(days: Days, measured: Mapping[str, float], unhealthy: int) -> list[Measure]:
    """Compare the worst observed values with the promises."""
    held = days.world.held_most
    orders_s = measured["dead to first orders"] + measured["computing until the first orders"]
    evenings = sum(measured[f"orders on the {day} evening"] for day in ("first", "second", "third"))
    name = "simulation, "
    return [
        at_most(name + "from dead to the first orders", orders_s, "s", 10),
        at_most(name + "containers not healed at the end", unhealthy, "containers", 0),
        at_most(name + "promises broken", len(days.world.broken), "times", 0),
        at_most(
            name + "weighted copies at a node in service", held["in service"], "copies", HELD_MAX
        ),
        at_most(
            name + "the same, out of service",
            held["out of service"],
            "copies",
            HELD_OUT_OF_SERVICE_MAX,
        ),
        at_most(name + "deletes at a node", held["delete"], "deletes", 40),
        at_most(
            name + "replicas on their way", held["in flight"], "replicas", days.in_flight_limit()
        ),
        at_least(name + "good copies left by a delete", days.world.fewest_left, "copies", 1),
        at_most(
            name + "copies made while a rack rests", measured["copies while they rest"], "copies", 0
        ),
        at_most(name + "orders while all is well", evenings, "orders", 0),
    ]


def convergence(measured: Mapping[str, float]) -> list[Measure]:
    """Return how long each problem lasted."""
    return [
        Measure(f"simulation, {what}", value / 60, "min, simulated")
        for what, value in measured.items()
        if "orders" not in what and "copies" not in what
    ]
