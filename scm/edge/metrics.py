"""What Prometheus sees of the control plane. Every name is declared here, with its meaning.

A scrape reads what is kept anyway: nothing is counted for it. Labels are words of our own
enumerations and kinds of commands; never containers or datanodes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.runtime.loop import WorkerStatus
from scm.state.facts import Kind

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LOCK_BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class Figures:
    """The control plane in numbers, as of one moment."""

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
    commands: Mapping[Kind, int]
    """Unanswered ones, by kind."""
    under_replicated: int
    over_replicated: int
    capacity_bytes: int
    used_bytes: int
    verified_at_s: float
    """When the last verification by Spark ended; 0: none yet."""
    has_verify_failed: bool


class Meters:
    """What is measured where it happens, and cannot be read from the state later."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._lock_held = Histogram(
            "suture_scm_lock_held_seconds",
            "How long the one lock of the control plane was held, every call waits for it.",
            buckets=LOCK_BOUNDS_S,
            registry=self.registry,
        )

        self._lock_spent = Histogram(
            "suture_scm_lock_processor_seconds",
            "Processor time while the lock was held; the rest of each hold was spent waiting.",
            buckets=LOCK_BOUNDS_S,
            registry=self.registry,
        )

    def lock_held(self, seconds: float, processor_seconds: float) -> None:
        """Count one hold of the lock."""
        self._lock_held.observe(seconds)
        self._lock_spent.observe(processor_seconds)


class FiguresCollector(Collector):
    """Reads the figures at each scrape."""

    def __init__(
        self,
        figures: Callable[[], Figures],
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
        yield _by("suture_scm_containers", "Containers by state.", "state", now.containers)
        yield _by(
            "suture_scm_containers_unwell",
            "Containers by health state, those that are not HEALTHY.",
            "state",
            now.unwell,
        )
        yield _gauge("suture_scm_containers_lost", "No whole replica is known.", now.lost)
        yield _gauge("suture_scm_containers_differ", "Their replicas differ.", now.differ)
        yield _gauge(
            "suture_scm_containers_contradict",
            "Their replicas contradict each other, each by rows that are intact.",
            now.contradict,
        )
        yield _by("suture_scm_commands_pending", "Unanswered ones.", "type", now.commands)
        queued = {"under": now.under_replicated, "over": now.over_replicated}
        yield _by("suture_scm_queued_containers", "Waiting for copies or deletes.", "queue", queued)
        yield _gauge("suture_scm_capacity_bytes", "Of all volumes that work.", now.capacity_bytes)
        yield _gauge("suture_scm_used_bytes", "Of replicas on them.", now.used_bytes)
        yield _gauge(
            "suture_scm_verified_time_seconds",
            "When the last verification by Spark ended; 0: none yet.",
            now.verified_at_s,
        )
        yield _gauge(
            "suture_scm_verify_failed", "The last one failed: 1 or 0.", now.has_verify_failed
        )
        yield _gauge(
            "suture_scm_calls_waiting", "Calls wait too long: 1 or 0.", bool(self._waiting_calls())
        )
        yield from self._worker_metrics()

    def _worker_metrics(self) -> Iterator[Metric]:
        errors = CounterMetricFamily(
            "suture_scm_worker_errors", "Steps that failed since the start.", labels=["worker"]
        )
        for status in self._workers():
            errors.add_metric([status.name], status.error_count)
        yield errors


def exposition(meters: Meters, collector: FiguresCollector) -> bytes:
    """Return everything in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(meters.registry) + generate_latest(registry)


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, value=float(value))


def _by(name: str, meaning: str, label: str, values: Mapping[Any, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, meaning, labels=[label])
    for word, value in sorted(values.items()):
        family.add_metric([word], value)
    return family
