"""Measures the scrub of an Ozone volume against the agent's scan of the same bytes, and Ozone's
scanner.

A realistic Ozone volume and one of ours share their block files. Both are scanned in alternation,
each in its own process, with rows and inodes in memory in one round and dropped from it in the next
(block files are always read past the page cache). The bound is on the whole volume; the results per
kind of container are shown beside it. BENCH_OZONE_MIB is the size of the volume (1,024; promised is
5,120), BENCH_OZONE_FOLDER its place.

If BENCH_OZONE_CLUSTER names the folder of a built test cluster of Ozone, a real datanode holds two
containers, which its own scanner and the scrub read in alternation (`bench.ozone.ozone_solo`).
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.measure import Measure, at_least, at_most
from bench.ozone import ozone_ends
from bench.ozone.ozone_solo import scanners
from bench.ozone.ozone_world import MIB, SHAPES, WARM_UP, World, make
from bench.scans.bench_scan import GB, Run, in_turns, ratios, run_json
from tests.support.faults.page_cache import drop_pages

ROUNDS: Final = 7
SHAPE_ROUNDS: Final = 3
SPEED_RATIO_MIN: Final = 0.9
CPU_RATIO_MAX: Final = 1.2
EVERYTHING: Final = tuple(str(shape.container_id) for shape in SHAPES)


def measures() -> list[Measure]:
    """Measure everything; some three minutes on two cores."""
    mib = int(os.environ.get("BENCH_OZONE_MIB", "1024"))
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_OZONE_FOLDER")) as folder:
        world = make(Path(folder), mib * MIB)
        taken = whole(world)
        for shape in SHAPES:
            taken += one_shape(world, shape.name, str(shape.container_id))
    cluster = os.environ.get("BENCH_OZONE_CLUSTER")
    if cluster is None:
        print("BENCH_OZONE_CLUSTER is not set: Ozone's scanner is left out", file=sys.stderr)
        return taken
    return taken + scanners(Path(cluster))


def whole(world: World) -> list[Measure]:
    """Measure a scan and a scrub of the complete volume, with one worker each."""
    own, ozone = both(world, EVERYTHING, ROUNDS)
    speed, cpu = compared(own, ozone)
    gb = f"{own[0].length_bytes / GB:.2f} GB, {len(own)} rounds"
    own_speed = statistics.median(run.bytes_per_s for run in own) / GB
    own_cpu = statistics.median(run.cpu_s_per_gb for run in own)
    ozone_speed = statistics.median(run.bytes_per_s for run in ozone) / GB
    ozone_cpu = statistics.median(run.cpu_s_per_gb for run in ozone)
    return [
        Measure(f"ozone scrub speed, {gb}", ozone_speed, "GB/s", f"{own_speed:.3f}, own scan"),
        at_least(
            f"ozone scrub speed ratio ({min(speed):.2f} to {max(speed):.2f})",
            statistics.median(speed),
            "x",
            SPEED_RATIO_MIN,
            compared_with="own scan of equal data",
        ),
        Measure("ozone scrub cpu", ozone_cpu, "cpu s/GB", f"{own_cpu:.4f}, own scan"),
        at_most(
            f"ozone scrub cpu ratio ({min(cpu):.2f} to {max(cpu):.2f})",
            statistics.median(cpu),
            "x",
            CPU_RATIO_MAX,
            compared_with="own scan of equal data",
        ),
    ]


def one_shape(world: World, name: str, container: str) -> list[Measure]:
    """Measure a scan and a scrub of one container."""
    own, ozone = both(world, (container,), SHAPE_ROUNDS)
    speed, cpu = compared(own, ozone)
    shown = statistics.median(run.bytes_per_s for run in ozone) / GB
    return [
        Measure(f"{name}: speed ratio", statistics.median(speed), "x", f"at {shown:.2f} GB/s"),
        Measure(f"{name}: cpu ratio", statistics.median(cpu), "x"),
    ]


def both(world: World, containers: tuple[str, ...], rounds: int) -> tuple[list[Run], list[Run]]:
    """Run the agent's scan and the scrub alternately; return the runs of each. In every second
    round, rows and inodes are first dropped from memory."""
    asked = {"own": 0, "ozone": 0}

    def run(end: str) -> Run:
        asked[end] += 1
        if asked[end] % 2:
            drop(world.own if end == "own" else world.ozone)
        root = world.own.parent
        words = (end, str(root), str(WARM_UP), *containers)
        return run_json(sys.executable, "-m", ozone_ends.__name__, *words)

    own, ozone = in_turns(lambda: run("own"), lambda: run("ozone"), rounds=rounds)
    return own, ozone


def compared(own: list[Run], ozone: list[Run]) -> tuple[list[float], list[float]]:
    """Return the ratios of speed and of processor time, scrub to scan, with one value per round."""
    return (
        ratios(ozone, own, lambda run: run.bytes_per_s),
        ratios(ozone, own, lambda run: run.cpu_s_per_gb),
    )


def drop(volume: Path) -> None:
    """Drop the files of a volume from the page cache, except for block files, which are never
    cached."""
    for path in volume.rglob("*"):
        if path.is_file() and path.suffix != ".block":
            drop_pages(path)
