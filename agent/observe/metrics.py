"""Prometheus metrics. Every name is declared here with its meaning; a scrape reads the status.

Units are base units (seconds, bytes); counters end in `_total`. Labels are few: volumes, values of
the agent's own enumerations, names of workers; never containers.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Counter as PrometheusCounter
from prometheus_client import Gauge as PrometheusGauge
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from agent.observe.census import AGE_BOUNDS_S, VolumeSummary
from agent.observe.datanode_status import DatanodeStatus
from agent.rpc.v1 import datanode_pb2, scm_pb2
from scanner.finding import Verdict

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
RECONCILE_RESULTS: Final = (
    *("converged", "nothing_to_do", "partial", "non_convergent", "interrupted", "no_peer"),
)

Scrub = Callable[[], datanode_pb2.ScrubStatusResponse]


class AgentMetrics:
    """Counters of events that a status cannot show later."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()  # registering must not scrape
        self._reconciles = PrometheusCounter(
            "suture_reconciles_total",
            "Reconciles that ended, by result.",
            ["result"],
            registry=self.registry,
        )
        self._commands = PrometheusCounter(
            "suture_commands_total",
            "Commands of the control plane that ended, by type and state.",
            ["type", "state"],
            registry=self.registry,
        )
        self._fetched = PrometheusCounter(
            "suture_reconcile_fetched_bytes_total",
            "Bytes fetched from peers to reconcile: chunks, and trees.",
            ["kind"],
            registry=self.registry,
        )
        self._chunks = PrometheusCounter(
            "suture_reconcile_chunks_total",
            "What became of the chunks of reconciles, of the first ones of each.",
            ["result"],
            registry=self.registry,
        )
        self._challenges = PrometheusCounter(
            "suture_challenges_total",
            "Peers that were asked to prove a chunk, by result.",
            ["result"],
            registry=self.registry,
        )
        for result in ("proven", "failed", "unanswered", "own"):
            self._challenges.labels(result)
        self._shadow = PrometheusCounter(
            "suture_shadow_hash_differences_total",
            "Scans that came to something else than the former code did; their verdicts are held.",
            registry=self.registry,
        )
        self._exported = PrometheusGauge(
            "suture_report_export_timestamp_seconds",
            "When the last report was exported as a file; 0: none yet, or none is asked for.",
            registry=self.registry,
        )
        for result in RECONCILE_RESULTS:
            self._reconciles.labels(result)
        for kind in ("data", "tree"):
            self._fetched.labels(kind)

    def exported(self, at_ms: int) -> None:
        """Record the time at which the newest written report was begun."""
        self._exported.set(at_ms / 1000)

    def challenged(self, result: str) -> None:
        """Count a peer that was asked to prove a chunk."""
        self._challenges.labels(result).inc()

    def answered(self, status: scm_pb2.CommandStatus) -> None:
        """Count a command that ended, and the results of a reconcile."""
        state = scm_pb2.CommandStatus.State.Name(status.state).lower()
        self._commands.labels(status.type, state).inc()
        if status.HasField("reconcile"):
            self.reconciled(status.reconcile)

    def shadow_differed(self) -> None:
        """Count a scan whose verdict is held back because another implementation disagrees."""
        self._shadow.inc()

    def reconciled(self, outcome: scm_pb2.ReconcileOutcome) -> None:
        """Count a reconcile."""
        self._reconciles.labels(outcome.result).inc()
        self._fetched.labels("data").inc(outcome.bytes_fetched)
        self._fetched.labels("tree").inc(outcome.tree_bytes_fetched)
        for result, count in Counter(chunk.result for chunk in outcome.chunks).items():
            self._chunks.labels(result).inc(count)


class StatusCollector(Collector):
    """Reads the status of a datanode at each scrape."""

    def __init__(
        self, observer: DatanodeStatus, scrub: Scrub, certificate_expires_at_s: Callable[[], float]
    ) -> None:
        self._observer = observer
        self._scrub = scrub
        self._certificate_expires_at_s = certificate_expires_at_s

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        status = self._observer.status()
        scrub = self._scrub()
        yield InfoMetricFamily(
            "suture_agent",
            "Who this datanode is.",
            {"datanode_id": status.datanode_id, "version": status.version},
        )
        yield _gauge("suture_start_time_seconds", "When it started.", status.started_at_ms / 1000)
        yield _gauge(
            "suture_scm_registered",
            "Whether the control plane knows this datanode: 1 or 0.",
            float(status.scm_state == "registered"),
        )
        expires_at_s = self._certificate_expires_at_s()
        if expires_at_s:
            yield _gauge(
                "suture_certificate_expiry_time_seconds",
                "When the certificate that is shown now expires.",
                expires_at_s,
            )
        yield from _volumes(status, scrub)
        yield from _scans(status, scrub)
        yield _ages(self._observer)
        yield from self._replicas(status)
        yield from _workers(status)
        yield _tasks(self._observer)

    def _replicas(self, status: datanode_pb2.StatusResponse) -> Iterator[Metric]:
        states = GaugeMetricFamily("suture_replicas", "Replicas by state.", labels=["state"])
        for state, count in status.containers_by_state.items():
            states.add_metric([state], count)
        yield states
        yield _gauge("suture_findings", "Unresolved findings.", status.finding_count)
        yield _gauge(
            "suture_damaged_replicas", "Replicas with findings.", float(status.damaged_count)
        )
        yield _gauge(
            "suture_contradictory_replicas",
            "Replicas that a peer contradicts, though each is right by its own rows.",
            float(status.contradictory_count),
        )
        found = Counter((f.verdict.value, f.fault.value) for f in self._observer.findings())
        classes = GaugeMetricFamily(
            "suture_findings_by_class",
            "Unresolved findings by verdict and fault, of the first damaged replicas.",
            labels=["verdict", "fault"],
        )
        if not found:
            classes.add_metric([Verdict.CORRUPT.value, "CHUNK_CHECKSUM"], 0)
        for (verdict, fault), count in sorted(found.items()):
            classes.add_metric([verdict, fault], count)
        yield classes


def registry_of(
    meters: AgentMetrics,
    observer: DatanodeStatus,
    scrub: Scrub,
    certificate_expires_at_s: Callable[[], float] = lambda: 0.0,
) -> CollectorRegistry:
    """Return the registry with all metrics. An expiry of 0 means that there is no certificate."""
    meters.registry.register(StatusCollector(observer, scrub, certificate_expires_at_s))
    return meters.registry


def exposition(registry: CollectorRegistry) -> bytes:
    """Return the text of a scrape."""
    return generate_latest(registry)


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, value=value)


def _volumes(
    status: datanode_pb2.StatusResponse, scrub: datanode_pb2.ScrubStatusResponse
) -> Iterator[Metric]:
    volumes = status.volumes
    yield _by_path(
        "suture_volume_capacity_bytes", "Size.", volumes, lambda v: float(v.capacity_bytes)
    )
    yield _by_path(
        "suture_volume_available_bytes", "Free.", volumes, lambda v: float(v.available_bytes)
    )
    yield _by_path(
        "suture_volume_used_bytes", "Held by replicas.", volumes, lambda v: float(v.used_bytes)
    )
    yield _by_path(
        "suture_volume_failed", "Whether it was fenced: 1 or 0.", volumes, lambda v: float(v.failed)
    )
    yield _by_path(
        "suture_volume_in_doubt",
        "Whether its last check failed: 1 or 0.",
        scrub.volumes,
        lambda v: float(bool(v.check)),
    )
    yield _by_path(
        "suture_volume_slow",
        "Whether it is much slower than its siblings, for minutes: 1 or 0.",
        volumes,
        lambda v: float(bool(v.slow)),
    )
    yield _by_path(
        "suture_volume_read_latency_seconds",
        "Of a read of its disk in the last minute, by the kernel's count; 0: not known.",
        volumes,
        lambda v: v.read_us / 1e6,
    )
    yield _by_path(
        "suture_volume_write_latency_seconds",
        "Of a write; 0: not known.",
        volumes,
        lambda v: v.write_us / 1e6,
    )
    yield _by_path(
        "suture_volume_not_in_service",
        "Whether it is read-only, or retires: 1 or 0.",
        volumes,
        lambda v: float(v.service not in {"", "IN_SERVICE"}),
    )


def _scans(
    status: datanode_pb2.StatusResponse, scrub: datanode_pb2.ScrubStatusResponse
) -> Iterator[Metric]:
    on = [volume for volume in scrub.volumes if volume.state != "off"]
    now_ms = time.time() * 1000
    interval_s = scrub.interval_ms / 1000
    yield _gauge("suture_scan_interval_seconds", "Every byte once in this time.", interval_s)
    yield _by_path(
        "suture_scan_lag_seconds", "Beyond the promise; 0: kept.", on, lambda v: v.lag_ms / 1000
    )
    yield _by_path(
        "suture_scan_deadline_slack_seconds",
        "Until the byte that was not verified for the longest time breaks the promise.",
        [volume for volume in status.volumes if volume.oldest_scan_at_ms],
        lambda v: interval_s - (now_ms - v.oldest_scan_at_ms) / 1000,
    )
    yield _by_path("suture_scan_due_bytes", "To be read now.", on, lambda v: float(v.due_bytes))
    yield _by_path(
        "suture_scan_never_read_replicas", "Never verified.", on, lambda v: v.never_read_count
    )
    yield _by_path(
        "suture_scan_rate_bytes_per_second", "Allowed now.", on, lambda v: v.rate_bytes_per_s
    )
    yield _by_path(
        "suture_scan_needed_bytes_per_second",
        "For the promise.",
        on,
        lambda v: v.needed_bytes_per_s,
    )
    yield _by_path(
        "suture_scan_paused", "Held by an operator: 1 or 0.", on, lambda v: bool(v.pause_left_ms)
    )
    yield _by_path(
        "suture_scan_promise_possible",
        "Whether the rate suffices for the promise: 1 or 0.",
        on,
        lambda v: float(v.promise_possible),
    )
    yield _by_path(
        "suture_canary_overdue",
        "Whether the planted fault was not found in time: 1 or 0.",
        on,
        lambda v: float(v.canary_overdue),
    )
    yield _by_path(
        "suture_canary_found_time_seconds",
        "When the planted fault was found last; 0: never.",
        on,
        lambda v: v.canary_found_at_ms / 1000,
    )
    scanned = CounterMetricFamily(
        "suture_scanned_bytes", "Read by background scans.", labels=["volume"]
    )
    for volume in on:
        scanned.add_metric([volume.path], volume.scanned_bytes)
    yield scanned
    yield _gauge("suture_scans_asked_for", "On demand, waiting.", scrub.on_demand_waiting)
    yield _gauge(
        "suture_metadata_scan_time_seconds",
        "When the last metadata scan ended; 0: none yet.",
        scrub.metadata_scanned_at_ms / 1000,
    )
    yield _gauge("suture_metadata_faults", "Found by it.", float(scrub.metadata_fault_count))
    yield from _parity(scrub.parity)
    yield from _checks(scrub)


def _parity(parity: datanode_pb2.ParityScrub) -> Iterator[Metric]:
    yield _gauge(
        "suture_parity_wrong_stripes",
        "Stripes whose shards did not fit together when they were verified last.",
        float(parity.fault_count),
    )
    yield _gauge(
        "suture_parity_oldest_time_seconds",
        "When the container was verified that waits for the longest time; 0: none yet.",
        parity.oldest_verified_at_ms / 1000,
    )
    read = CounterMetricFamily("suture_parity_read_bytes", "Read to verify parity.")
    read.add_metric([], parity.read_bytes)
    yield read


def _checks(scrub: datanode_pb2.ScrubStatusResponse) -> Iterator[Metric]:
    """Yield metrics of checks by peers and by other code."""
    yield _gauge(
        "suture_challenge_time_seconds",
        "When a peer was asked last to prove a chunk; 0: none yet.",
        scrub.challenges.asked_at_ms / 1000,
    )
    yield _gauge(
        "suture_shadow_hash_running",
        "1 while other code hashes some of what scans read, too.",
        float(scrub.shadow_hashing.running),
    )
    compared = CounterMetricFamily("suture_shadow_hash_compared", "Chunks hashed by both.")
    compared.add_metric([], scrub.shadow_hashing.compared_count)
    yield compared


def _ages(observer: DatanodeStatus) -> HistogramMetricFamily:
    ages = HistogramMetricFamily(
        "suture_verified_age_seconds",
        "Time since bytes were verified; counts bytes of closed replicas.",
        labels=["volume"],
    )
    known = observer.summary().volumes
    for volume in observer.store_volumes():
        summary = known.get(volume.volume_id, VolumeSummary())
        total, buckets = 0, []
        bounds = [*(str(float(bound_s)) for bound_s in AGE_BOUNDS_S), "+Inf"]
        for bound, count in zip(bounds, summary.age_bytes, strict=True):
            total += count
            buckets.append((bound, float(total)))
        ages.add_metric([str(volume.path)], buckets, summary.age_sum_byte_s)
    return ages


def _workers(status: datanode_pb2.StatusResponse) -> Iterator[Metric]:
    stalled = GaugeMetricFamily("suture_worker_stalled", "Hung or dead: 1 or 0.", labels=["worker"])
    errors = CounterMetricFamily(
        "suture_worker_errors", "Errors of a worker since the start.", labels=["worker"]
    )
    for worker in status.workers:
        stalled.add_metric([worker.name], float(worker.stalled))
        errors.add_metric([worker.name], worker.error_count)
    yield stalled
    yield errors


def _tasks(observer: DatanodeStatus) -> GaugeMetricFamily:
    tasks = GaugeMetricFamily(
        "suture_tasks", "Commands that wait or run, by type.", labels=["type"]
    )
    for queue in observer.queues():
        tasks.add_metric([queue.type], queue.count)
    return tasks


def _by_path(
    name: str,
    meaning: str,
    volumes: Sequence[Any],  # volumes of either status
    value: Callable[[Any], float],
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, meaning, labels=["volume"])
    for volume in volumes:
        family.add_metric([volume.path], value(volume))
    return family
