"""A hundred simulated datanodes and 20,000 containers through three days, with a real control plane
as its own process: `tests/support/simulation/simulated_days.py` says what happens, and
`simulated_world.py` beside it judges.

The days pass in simulated time, so these are promises about behaviour and not about this machine;
only what computing costs is measured in seconds of its own. The first day is lived twice: the same
seed must bring the same orders, each at the same moment.
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
# Low enough that the limit of the whole cluster, too, is reached.
SETTINGS: Final = {"inflight_factor_percent": 40}
# Whoever has room for a part of a rebuild, which weighs 3, gets a whole one.
HELD_MAX: Final = 20 - 1 + 3
HELD_OUT_OF_SERVICE_MAX: Final = 40 - 1 + 3
TOOK_S_MAX: Final = 480
SHOWN_MAX: Final = 20  # of the promises that were broken
KINDS: Final = ("replicate", "reconstruct", "delete", "close", "set_operational_state")


def measures() -> list[Measure]:
    """Let the days pass, and the first of them once more."""
    measured: dict[str, float] = {}
    days = cluster()
    with tempfile.TemporaryDirectory(prefix="suture-simulation-") as scratch:
        days.path = Path(scratch)
        with days.running():
            took_s = duration_s(lambda: live(days, measured))
            unwell = len(days.unwell())
    for line in days.world.broken[:SHOWN_MAX]:
        print(f"broken: {line}", file=sys.stderr)
    day_count = days.world.now_s / DAY_S
    return [
        *size_of(days, day_count),
        *promises(days, measured, unwell),
        *convergence(measured),
        at_most("simulation, first days that differ", differing_days(days), "days", 0),
        Measure("simulation, longest tick", days.tick_s_most, "s"),
        Measure("simulation, control plane", days.scm_cpu_s / day_count, "CPU s a day"),
        at_most("simulation, took", took_s, "s", TOOK_S_MAX),
    ]


def cluster() -> Days:
    """Return the cluster as it is before anything happens."""
    return Days(Path(), SEED, NODES, RACKS, CONTAINERS, SETTINGS, day_s=DAY_S)


def live(days: Days, measured: dict[str, float]) -> None:
    """Let it all happen."""
    for day in (first_day, second_day, third_day):
        measured.update(day(days))


def differing_days(days: Days) -> int:
    """Live the first day until its evening once more; return 1 if it brings other orders."""
    again = cluster()
    again.day_s = 0
    with tempfile.TemporaryDirectory(prefix="suture-simulation-") as scratch:
        again.path = Path(scratch)
        with again.running():
            first_day(again)
    return int(days.evenings[0] != again.evenings[0])


def size_of(days: Days, day_count: float) -> list[Measure]:
    """Say how much happened."""
    counts = days.world.counts
    return [
        Measure("simulation, containers", days.container_count, "containers"),
        Measure("simulation, datanodes", days.node_count, "datanodes"),
        Measure("simulation, simulated", day_count, "days"),
        *(Measure(f"simulation, {kind}", counts[kind], "orders") for kind in KINDS),
        Measure("simulation, heartbeats judged", counts["heartbeats judged"], "calls"),
        Measure("simulation, deletes of good judged", counts["deletes of good replicas"], "orders"),
    ]


def promises(days: Days, measured: Mapping[str, float], unwell: int) -> list[Measure]:
    """Compare the worst that was seen with what was promised."""
    held = days.world.held_most
    orders_s = measured["dead to first orders"] + measured["computing until the first orders"]
    evenings = sum(measured[f"orders on the {day} evening"] for day in ("first", "second", "third"))
    name = "simulation, "
    return [
        at_most(name + "from dead to the first orders", orders_s, "s", 10),
        at_most(name + "containers not healed at the end", unwell, "containers", 0),
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
    """Return how long each trouble lasted."""
    return [
        Measure(f"simulation, {what}", value / 60, "min, simulated")
        for what, value in measured.items()
        if "orders" not in what and "copies" not in what
    ]
