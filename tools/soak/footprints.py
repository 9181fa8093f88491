"""Samples memory, descriptors and threads of processes over time, and computes their growth.

Memory is private memory only (RssAnon), because the pages of a mapped index are a cache, which may
grow. Idle workers of pools do not count as threads, because the pools limit their number
(`child.py`).
"""

import json
import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from tools.soak.child import path_of
from tools.soak.site import Site

EVERY_S: Final = 5.0
WARM_SHARE: Final = 0.25  # share of a life that is warm-up: caches fill, and pools grow
SAMPLES_MIN: Final = 24


@dataclass(frozen=True, slots=True)
class Sample:
    """The resources of one process at one moment."""

    at_s: float
    anon_bytes: int
    descriptors: int
    threads: int
    resting: int = 0  # how many of `threads` are idle workers of pools


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of a process over `life_s` after its warm-up. Rates are per hour, by least
    squares."""

    name: str
    life_s: float
    anon_bytes: int
    anon_bytes_per_h: float
    descriptors: int
    descriptors_per_h: float
    threads: int
    held_threads_per_h: float


@dataclass
class Watch:
    """Samples all processes of a cluster."""

    site: Site
    stop: threading.Event
    lives: dict[tuple[str, int], list[Sample]] = field(default_factory=dict)
    beyond: set[str] = field(default_factory=set)  # pools with more threads than allowed
    loaded_until_s: float = math.inf  # later samples are ignored, because the load has ended

    def run(self) -> None:
        """Sample until stopped."""
        while not self.stop.wait(EVERY_S):
            for name, pid in self._pids():
                threads = threads_of(self.site.threads, pid)
                sample = sampled(pid, threads.resting_count)
                if sample is not None:
                    self.lives.setdefault((name, pid), []).append(sample)
                self.beyond.update(f"{name}: {pool}" for pool in threads.beyond())

    def _pids(self) -> Iterator[tuple[str, int]]:
        for process in (self.site.cluster.scm, *self.site.cluster.nodes):
            popen = process.popen
            if popen is not None:
                yield process.name, popen.pid

    def growths(self) -> list[Growth]:
        """Return the growth of each process in its longest life, by the samples under load."""
        longest: dict[str, list[Sample]] = {}
        for (name, _), lived in self.lives.items():
            samples = [one for one in lived if one.at_s <= self.loaded_until_s]
            if len(samples) > len(longest.get(name, ())):
                longest[name] = samples
        return [
            growth(name, samples)
            for name, samples in sorted(longest.items())
            if len(samples) >= SAMPLES_MIN
        ]


@dataclass(frozen=True, slots=True)
class Threads:
    """A process's threads, by kind."""

    threads: Mapping[str, int] = field(default_factory=dict)
    resting: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)  # of pools

    @property
    def resting_count(self) -> int:
        """Number of idle workers of pools."""
        return sum(self.resting.values())

    def beyond(self) -> list[str]:
        """Return the pools with more threads than a pool of this name may have."""
        return [
            f"{self.threads[kind]} threads called {kind}, of a pool of {bound}"
            for kind, bound in self.bounds.items()
            if self.threads.get(kind, 0) > bound
        ]


def threads_of(directory: Path, pid: int) -> Threads:
    """Return a process's recorded threads; empty if it has not recorded any yet."""
    try:
        return Threads(**json.loads(path_of(directory, pid).read_text()))
    except FileNotFoundError:
        return Threads()


def sampled(pid: int, resting_count: int = 0) -> Sample | None:
    """Return the resources of a process; None if it has ended."""
    directory = Path(f"/proc/{pid}")
    with suppress(OSError, KeyError, ValueError):
        status = dict(
            line.split(":", 1) for line in (directory / "status").read_text().splitlines()
        )
        return Sample(
            time.monotonic(),
            int(status["RssAnon"].split()[0]) * 1024,
            sum(1 for _ in (directory / "fd").iterdir()),
            int(status["Threads"]),
            resting_count,
        )
    return None


def growth(name: str, samples: list[Sample]) -> Growth:
    """Return the growth of a process in one life, after its warm-up."""
    life_s = samples[-1].at_s - samples[0].at_s
    warm = [one for one in samples if one.at_s - samples[0].at_s >= WARM_SHARE * life_s]
    hours = np.array([one.at_s for one in warm]) / 3600

    def slope(values: list[int]) -> float:
        return float(np.polyfit(hours - hours[0], np.array(values, dtype=float), 1)[0])

    return Growth(
        name,
        life_s,
        samples[-1].anon_bytes,
        slope([one.anon_bytes for one in warm]),
        samples[-1].descriptors,
        slope([one.descriptors for one in warm]),
        samples[-1].threads,
        slope([one.threads - one.resting for one in warm]),
    )
