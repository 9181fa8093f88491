"""The control plane's Prometheus metrics. Every name is declared here, with its meaning.

A scrape reads existing figures: nothing is counted for it. Labels are values of our own
enumerations and kinds of commands, never containers or datanodes.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from agent.runtime.loop import WorkerStatus
from health.cluster_verdict import DataVerdict
from scm.edge.overview.datanode_totals import NodeTotals
from scm.state.facts import CommandKind
from scm.state.history.interval_samples import NOTHING_TO_VERIFY

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
COUNTED_TOGETHER: Final = 512  # holds of the lock
LOCK_BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class ClusterMetrics:
    """The figures of the control plane at one moment."""

    term: int
    is_safe_mode: bool
    nodes: Mapping[tuple[str, str], int]
    """By health and operational state."""
    containers: Mapping[str, int]
    """By state."""
    unwell: Mapping[str, int]
    """By health state, those that are not HEALTHY."""
    differ: int
    contradict: int
    lost: int
    lacking: int
    stray: int
    uncounted: int
    """Not counted since they changed."""
    commands: Mapping[CommandKind, int]
    """Unanswered ones, by kind."""
    outcomes: Mapping[tuple[str, str], int]
    """Answered ones since the start, by kind and result."""
    moved_bytes: Mapping[str, int]
    """By them, by kind."""
    under_replicated: int
    over_replicated: int
    verdict: DataVerdict
    sums: NodeTotals
    """Volumes as datanodes report them."""
    verified_at_s: float
    """End of the last verification by Spark; 0: none yet."""
    has_verify_failed: bool
    is_unwritable: bool
    is_older: bool
    refusing: int
    """Datanodes with recent invalid parts of reports."""


class LockHoldMetrics(Collector):
    """Histograms of the lock's hold times and their processor times.

    Every call adds one. It is only appended, and counted in batches or at a scrape, because a
    `Histogram` takes eight calls for each.
    """

    def __init__(self) -> None:
        self.not_counted: deque[tuple[float, float]] = deque()
        self._counting = Lock()
        self._held = _Counts()
        self._spent = _Counts()

    def add(self, held_s: float, spent_s: float) -> None:
        """Record one hold. Thread-safe."""
        self.not_counted.append((held_s, spent_s))
        if len(self.not_counted) >= COUNTED_TOGETHER:
            self._count()

    def _count(self) -> None:
        with self._counting:
            for _ in range(len(self.not_counted)):
                held_s, spent_s = self.not_counted.popleft()
                self._held.add(held_s)
                self._spent.add(spent_s)

    def collect(self) -> Iterator[Metric]:
        """Yield both histograms."""
        self._count()
        with self._counting:
            held = HistogramMetricFamily(
                "suture_scm_lock_held_seconds",
                "How long the one lock of the control plane was held, every call waits for it.",
                buckets=self._held.buckets(),
                sum_value=self._held.sum_s,
            )
            spent = HistogramMetricFamily(
                "suture_scm_lock_processor_seconds",
                "Processor time while the lock was held; the rest of each hold was spent waiting.",
                buckets=self._spent.buckets(),
                sum_value=self._spent.sum_s,
            )
        yield held
        yield spent


class _Counts:
    """Counts of values by upper bound."""

    def __init__(self) -> None:
        self._by_bound = [0] * (len(LOCK_BOUNDS_S) + 1)  # the last one: above all bounds
        self.sum_s = 0.0

    def add(self, value_s: float) -> None:
        """Count one."""
        self._by_bound[bisect_left(LOCK_BOUNDS_S, value_s)] += 1
        self.sum_s += value_s

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative count for each bound."""
        bounds = (*map(floatToGoString, LOCK_BOUNDS_S), "+Inf")
        return list(zip(bounds, accumulate(self._by_bound), strict=True))


class ScmMetrics:
    """Metrics that are recorded where they occur and cannot be read from the state later."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.lock_holds = LockHoldMetrics()
        self.registry.register(self.lock_holds)
        self.lock_held = self.lock_holds.add
        """Count one hold of the lock: its seconds, and those of the processor."""


class ClusterMetricsCollector(Collector):
    """Reads the figures at each scrape."""

    def __init__(
        self,
        figures: Callable[[], ClusterMetrics],
        workers: Callable[[], Sequence[WorkerStatus]],
        waiting_calls: Callable[[], str],
    ) -> None:
        self._figures = figures
        self._workers = workers
        self._waiting_calls = waiting_calls

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        now = self._figures()
        yield _gauge("suture_scm_term", "How often this control plane has started.", now.term)
        yield _gauge("suture_scm_safe_mode", "Nothing is decided yet: 1 or 0.", now.is_safe_mode)
        nodes = GaugeMetricFamily("suture_scm_nodes", "Datanodes.", labels=["health", "op_state"])
        for words, count in sorted(now.nodes.items()):
            nodes.add_metric(list(words), count)
        yield nodes
        yield from _of_containers(now)
        yield _by("suture_scm_commands_pending", "Unanswered ones.", now.commands, label="type")
        yield from self._work(now)
        queued = {"under": now.under_replicated, "over": now.over_replicated}
        yield _by(
            "suture_scm_queued_containers", "Waiting for copies or deletes.", queued, label="queue"
        )
        yield _by(
            "suture_scm_verdict",
            "What is said of the data: 1 for the word that is true.",
            {verdict: verdict is now.verdict for verdict in DataVerdict},
            label="verdict",
        )
        yield from _of_volumes(now.sums)
        yield _gauge(
            "suture_scm_verified_time_seconds",
            "When the last verification by Spark ended; 0: none yet.",
            now.verified_at_s,
        )
        failed = now.has_verify_failed
        yield _gauge("suture_scm_verify_failed", "The last one failed: 1 or 0.", failed)
        yield _gauge(
            "suture_scm_calls_waiting", "Calls wait too long: 1 or 0.", bool(self._waiting_calls())
        )
        yield _gauge(
            "suture_scm_state_unwritable", "Changes are refused: 1 or 0.", now.is_unwritable
        )
        yield _gauge(
            "suture_scm_state_older",
            "Datanodes have seen a later state than this one, and it is not recovered: 1 or 0.",
            now.is_older,
        )
        yield _gauge(
            "suture_scm_nodes_refused_in_part",
            "Datanodes of whose reports something was left out in two hours: it breaks a rule.",
            now.refusing,
        )
        yield from self._worker_metrics()

    def _work(self, now: ClusterMetrics) -> Iterator[Metric]:
        outcomes = CounterMetricFamily(
            "suture_scm_outcomes",
            "Commands that datanodes answered since the start.",
            labels=["type", "result"],
        )
        for (kind, result), count in sorted(now.outcomes.items()):
            outcomes.add_metric([kind, result.lower()], count)
        yield outcomes
        moved = CounterMetricFamily(
            "suture_scm_moved_bytes", "By commands, since the start.", labels=["type"]
        )
        for kind, count in sorted(now.moved_bytes.items()):
            moved.add_metric([kind], count)
        yield moved

    def _worker_metrics(self) -> Iterator[Metric]:
        errors = CounterMetricFamily(
            "suture_scm_worker_errors", "Steps that failed since the start.", labels=["worker"]
        )
        for status in self._workers():
            errors.add_metric([status.name], status.error_count)
        yield errors


def exposition(meters: ScmMetrics, collector: ClusterMetricsCollector) -> bytes:
    """Return everything in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(meters.registry) + generate_latest(registry)


def _of_containers(now: ClusterMetrics) -> Iterator[Metric]:
    yield _by("suture_scm_containers", "Containers by state.", now.containers, label="state")
    yield _by(
        "suture_scm_containers_unwell",
        "Containers by health state, those that are not HEALTHY.",
        now.unwell,
        label="state",
    )
    yield _gauge("suture_scm_containers_lost", "No whole replica is known.", now.lost)
    yield _gauge(
        "suture_scm_containers_lacking",
        "No replica can have all blocks that keys need.",
        now.lacking,
    )
    yield _gauge("suture_scm_containers_differ", "Their replicas differ.", now.differ)
    yield _gauge(
        "suture_scm_containers_contradict",
        "Their replicas contradict each other, each by rows that are intact.",
        now.contradict,
    )
    yield _gauge(
        "suture_scm_containers_stray",
        "Datanodes have them, and the state has not: it may be an older one.",
        now.stray,
    )
    yield _gauge(
        "suture_scm_containers_uncounted",
        "They changed, and were not counted since; what is counted is older.",
        now.uncounted,
    )


def _of_volumes(sums: NodeTotals) -> Iterator[Metric]:
    yield _gauge("suture_scm_capacity_bytes", "Of all volumes that work.", sums.capacity_bytes)
    yield _gauge("suture_scm_used_bytes", "Of replicas on them.", sums.used_bytes)
    yield _gauge("suture_scm_available_bytes", "Free on them.", sums.available_bytes)
    yield _gauge("suture_scm_volumes_failed", "Volumes that failed.", sums.failed_volume_count)
    yield _gauge("suture_scm_nodes_silent", "Not heard, and expected.", len(sums.silent))
    yield _gauge("suture_scm_data_bytes", "Of closed replicas.", sums.data_bytes)
    yield _gauge(
        "suture_scm_verified_in_time_bytes",
        "Of these, verified within their datanode's interval.",
        sums.in_time_bytes,
    )
    yield _gauge(
        "suture_scm_oldest_verified_time_seconds",
        "When what was not read for longest was read; 0: something never; -1: there is nothing.",
        NOTHING_TO_VERIFY
        if sums.oldest_scan_at_ms == NOTHING_TO_VERIFY
        else sums.oldest_scan_at_ms / 1000,
    )


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, value=float(value))


def _by(name: str, meaning: str, values: Mapping[Any, int], *, label: str) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, meaning, labels=[label])
    for word, value in sorted(values.items()):
        family.add_metric([word], value)
    return family
