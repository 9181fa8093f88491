"""A whole cluster on simulated disks, threads and network: fifty schedules, and the tools."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = [pytest.mark.fault, pytest.mark.slow]

ROOT: Final = Path(__file__).parents[2]
SEEDS: Final = (
    range(
        1, 37
    ),  # without almost any guard of tools/simulation/guards_found.tsv, one of them fails
    range(40, 81, 10),  # the other led ones of eighty, in which every fault is once
    range(220, 221),  # two control planes: without OlderStates.compare, blocks are lost
    range(10_000_001, 10_000_009),  # swarms
)
"""Schedules; `make nightly` runs 10,000."""
STEPS_MIN: Final = 1_000
HAPPENED: Final = (
    *("power cuts", "kills", "scans", "findings", "reconciles", "chunks repaired", "deletes"),
    *(
        "replicates",
        "keys",
        "keys deleted",
        "rot: flip",
        "rot: lost",
        "writes lost",
        "flips in memory",
        "calls that failed",
    ),
    *("keys of block groups", "block groups read"),
    *("orders to be DECOMMISSIONING: OK", "orders to be ENTERING_MAINTENANCE: OK"),
    "orders to be IN_SERVICE: OK",
    *("opens without a descriptor", "older states put back", "states forked", "recoveries"),
    "datanodes refused",
    "keys while a host was away since the start",
    *("blocks written by chunk", "blocks written at once", "blocks written in messages"),
)
"""What must have happened at all: a simulation without faults proves nothing."""


def simulation(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the tool in a process of its own, as it must be alone with its threads."""
    return subprocess.run(
        [sys.executable, "-m", "tools.simulation", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=1_800,
    )


def test_no_schedule_breaks_a_promise(tmp_path: Path) -> None:
    """
    Fifty schedules of a thousand steps and more: nothing that was acknowledged is lost,
    nothing whole is called corrupt, and after quiet all replicas are equal.
    """
    counts: Counter[str] = Counter()
    for seeds in SEEDS:
        path = tmp_path / f"{seeds[0]}.json"
        which = ["--seed", str(seeds[0]), "--count", str(len(seeds)), "--step", str(seeds.step)]

        ended = simulation("run", *which, "--jobs", "2", "--json", str(path))

        report: dict[str, Any] = json.loads(path.read_text())
        assert {} == report["violations"]
        assert (0, len(seeds)) == (ended.returncode, report["schedules"])
        assert report["steps_min"] >= STEPS_MIN
        counts.update(report["counts"])
    assert [] == [what for what in HAPPENED if not counts[what]]


def test_a_seed_repeats_step_for_step() -> None:
    """
    Two processes live the same schedule in the same order, to the last operation of a disk.
    """
    first, second = simulation("replay", "7"), simulation("replay", "7")

    assert first.returncode == 0
    assert len(first.stdout.splitlines()) > STEPS_MIN
    assert first.stdout == second.stdout


def test_a_schedule_in_which_little_happens_is_as_long_as_any() -> None:
    """The few bytes written are whole after each of the additional starts."""
    short = "import json; from tools.simulation import schedule as s; whole = s.drawn(1); s.drawn ="
    short += " lambda seed: whole[:3]; r = s.simulate(1); print(json.dumps([r.step_count, r.counts,"
    short += " r.violations]))"

    ended = subprocess.run(
        [sys.executable, "-c", short], cwd=ROOT, capture_output=True, text=True, check=True
    )

    step_count, counts, violations = json.loads(ended.stdout)
    assert step_count >= STEPS_MIN
    assert counts["starts of who was whole"] >= 1
    assert [] == violations
