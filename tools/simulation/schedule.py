"""Runs one schedule. Its seed selects the kind of schedule."""

import gc
import logging
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import structlog

from tools.simulation.events import WHOLE, Event, Shape, draw, draw_drops, some_of
from tools.simulation.run import Run
from tools.simulation.stage import Result, ScheduleRun
from tools.simulation.whole_cluster.coded import CodedRun
from tools.simulation.whole_cluster.events import WHOLE as WHOLE_LED
from tools.simulation.whole_cluster.events import draw as draw_led
from tools.simulation.whole_cluster.run import LedRun

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - only private directories are made in it
LED_EVERY: Final = 10  # one of this many seeds has a control plane
CODED_EVERY: Final = 40  # one of this many seeds writes erasure-coded keys under its control plane
CODED_AT: Final = 30
DROPS_AT: Final = 5  # schedules of these seeds delete complete replicas by order
SWARM_FROM: Final = 10_000_000  # this seed and later ones: short, with some kinds of faults
SWARM_A_BURST: Final = (0, 1, 2, 3)  # number of faults: one of these
STEPS_MIN: Final = 1_000  # length of a whole schedule


def is_led(seed: int) -> bool:
    """Return True if the schedule of a seed has a control plane and whole agents."""
    return seed % LED_EVERY == 0


def is_coded(seed: int) -> bool:
    """Return True if keys are erasure-coded in the schedule of a seed."""
    return seed % CODED_EVERY == CODED_AT


def has_drops(seed: int) -> bool:
    """Return True if replicas are deleted in the schedule of a seed without a control plane."""
    return seed % LED_EVERY == DROPS_AT


def is_swarm(seed: int) -> bool:
    """Return True if the schedule of a seed is a short one with some kinds of faults only."""
    return seed >= SWARM_FROM


def shape_of(seed: int) -> Shape:
    """Return the length and the faults of the schedule of a seed."""
    whole = WHOLE_LED if is_led(seed) else WHOLE
    if not is_swarm(seed):
        return whole
    bursts, containers = (6, whole.containers) if is_led(seed) else (7, 1)
    faults = some_of(whole.faults, Random(f"{seed} swarm"))
    return Shape(bursts, containers, faults, SWARM_A_BURST)


def drawn(seed: int) -> list[Event]:
    """Return the schedule of a seed."""
    shape = shape_of(seed)
    if is_led(seed):
        return draw_led(seed, shape)
    return draw_drops(seed, shape) if has_drops(seed) else draw(seed, shape)


def simulate(seed: int, events: Sequence[Event] | None = None, *, traced: bool = False) -> Result:
    """Run the schedule of a seed, or only `events` of this schedule; return the result."""
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    chosen = drawn(seed) if events is None else list(events)
    root = Path(
        tempfile.mkdtemp(prefix="suture-simulation-", dir=MEMORY if MEMORY.is_dir() else None)
    )
    gc.freeze()  # not to examine imported modules and objects of earlier schedules again
    gc.disable()  # otherwise abandoned generators would run at unpredictable times
    told, sys.unraisablehook = sys.unraisablehook, lambda _: None  # generators of dead processes
    stage: ScheduleRun | None = None
    try:
        kind = CodedRun if is_coded(seed) else LedRun if is_led(seed) else Run
        stage = kind(seed, root, traced=traced)
        return stage.live(chosen, STEPS_MIN if events is None else 0)
    finally:
        del stage
        gc.collect()  # at this point, objects that end have no effect
        gc.enable()
        sys.unraisablehook = told
        shutil.rmtree(root, ignore_errors=True)
