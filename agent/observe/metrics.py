"""Prometheus metrics of a datanode. Tables declare every name; a scrape reads the status.

Units are base units (seconds, bytes); counters end in `_total`. Labels are few: volumes, values of
the agent's own enumerations, names of workers; never containers.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client import Counter as PrometheusCounter
from prometheus_client import Gauge as PrometheusGauge
from prometheus_client.core import (
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from agent.observe.census import AGE_BOUNDS_S, VolumeSummary
from agent.observe.datanode_status import DatanodeStatus
from agent.observe.metric_table import (
    LabelledItems,
    MetricTable,
    TableCollector,
    alone,
    counted,
    counter,
    gauge,
    named,
)
from agent.rpc.v1 import datanode_pb2, scm_pb2
from scanner.finding import Verdict

RECONCILE_RESULTS: Final = (
    *("converged", "nothing_to_do", "partial", "non_convergent", "interrupted", "no_peer"),
)


class AgentMetrics:
    """Counters of events that a status cannot show later."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()  # registering must not scrape
        self._reconciles = self._counter(
            "suture_reconciles_total",
            "Reconciles that ended, by result.",
            result=RECONCILE_RESULTS,
        )
        self._commands = self._counter(
            "suture_commands_total",
            "Commands of the control plane that ended, by type and state.",
            type=(),
            state=(),
        )
        self._fetched = self._counter(
            "suture_reconcile_fetched_bytes_total",
            "Bytes fetched from peers to reconcile: chunks, and trees.",
            kind=("data", "tree"),
        )
        self._chunks = self._counter(
            "suture_reconcile_chunks_total",
            "What became of the chunks of reconciles, of the first ones of each.",
            result=(),
        )
        self._challenges = self._counter(
            "suture_challenges_total",
            "Peers that were asked to prove a chunk, by result.",
            result=("proven", "failed", "unanswered", "own"),
        )
        self._shadow = self._counter(
            "suture_shadow_hash_differences_total",
            "Scans that came to something else than the former code did; their verdicts are held.",
        )
        self._exported = PrometheusGauge(
            "suture_report_export_timestamp_seconds",
            "When the last report was exported as a file; 0: none yet, or none is asked for.",
            registry=self.registry,
        )

    def _counter(self, name: str, meaning: str, **words: tuple[str, ...]) -> PrometheusCounter:
        """Return a counter. `words` are its labels, with the values that begin at 0."""
        metric = PrometheusCounter(name, meaning, words, registry=self.registry)
        for word in chain(*words.values()):
            metric.labels(word)
        return metric

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


@dataclass(frozen=True, slots=True)
class _Scrape:
    """The figures of a datanode at one moment."""

    observer: DatanodeStatus
    status: datanode_pb2.StatusResponse
    scrub: datanode_pb2.ScrubStatusResponse
    certificate_expires_at_s: float


def _scan_slack_s(at: _Scrape) -> LabelledItems:
    left_s = at.scrub.interval_ms / 1000 - time.time()
    for volume in at.status.volumes:
        if volume.oldest_scan_at_ms:
            yield (volume.path,), left_s + volume.oldest_scan_at_ms / 1000


def _findings_by_class(at: _Scrape) -> dict[tuple[str, str], int]:
    found = Counter((f.verdict.value, f.fault.value) for f in at.observer.findings())
    return found or {(Verdict.CORRUPT.value, "CHUNK_CHECKSUM"): 0}


def _ages(at: _Scrape) -> Iterator[Metric]:
    ages = HistogramMetricFamily(
        "suture_verified_age_seconds",
        "Time since bytes were verified; counts bytes of closed replicas.",
        labels=["volume"],
    )
    known = at.observer.summary().volumes
    bounds = [*(str(float(bound_s)) for bound_s in AGE_BOUNDS_S), "+Inf"]
    for volume in at.observer.store_volumes():
        summary = known.get(volume.volume_id, VolumeSummary())
        buckets = list(zip(bounds, map(float, accumulate(summary.age_bytes)), strict=True))
        ages.add_metric([str(volume.path)], buckets, summary.age_sum_byte_s)
    yield ages


def _identity(at: _Scrape) -> Iterator[Metric]:
    words = {"datanode_id": at.status.datanode_id, "version": at.status.version}
    yield InfoMetricFamily("suture_agent", "Who this datanode is.", words)


def _certificate(at: _Scrape) -> Iterator[Metric]:
    if at.certificate_expires_at_s:
        yield GaugeMetricFamily(
            "suture_certificate_expiry_time_seconds",
            "When the certificate that is shown now expires.",
            at.certificate_expires_at_s,
        )


DATANODE: Final = {
    "suture_start_time_seconds": gauge(
        "When it started.", lambda at: at.status.started_at_ms / 1000
    ),
    "suture_scm_registered": gauge(
        "Whether the control plane knows this datanode: 1 or 0.",
        lambda at: at.status.scm_state == "registered",
    ),
    "suture_findings": gauge("Unresolved findings.", lambda at: at.status.finding_count),
    "suture_damaged_replicas": gauge("Replicas with findings.", lambda at: at.status.damaged_count),
    "suture_contradictory_replicas": gauge(
        "Replicas that a peer contradicts, though each is right by its own rows.",
        lambda at: at.status.contradictory_count,
    ),
    "suture_scan_interval_seconds": gauge(
        "Every byte once in this time.", lambda at: at.scrub.interval_ms / 1000
    ),
    "suture_scans_asked_for": gauge("On demand, waiting.", lambda at: at.scrub.on_demand_waiting),
    "suture_metadata_scan_time_seconds": gauge(
        "When the last metadata scan ended; 0: none yet.",
        lambda at: at.scrub.metadata_scanned_at_ms / 1000,
    ),
    "suture_metadata_faults": gauge("Found by it.", lambda at: at.scrub.metadata_fault_count),
    "suture_parity_wrong_stripes": gauge(
        "Stripes whose shards did not fit together when they were verified last.",
        lambda at: at.scrub.parity.fault_count,
    ),
    "suture_parity_oldest_time_seconds": gauge(
        "When the container was verified that waits for the longest time; 0: none yet.",
        lambda at: at.scrub.parity.oldest_verified_at_ms / 1000,
    ),
    "suture_parity_read_bytes": counter(
        "Read to verify parity.", lambda at: at.scrub.parity.read_bytes
    ),
    "suture_challenge_time_seconds": gauge(
        "When a peer was asked last to prove a chunk; 0: none yet.",
        lambda at: at.scrub.challenges.asked_at_ms / 1000,
    ),
    "suture_shadow_hash_running": gauge(
        "1 while other code hashes some of what scans read, too.",
        lambda at: at.scrub.shadow_hashing.running,
    ),
    "suture_shadow_hash_compared": counter(
        "Chunks hashed by both.", lambda at: at.scrub.shadow_hashing.compared_count
    ),
}
VOLUMES: Final = {
    "suture_volume_capacity_bytes": gauge("Size.", lambda v: v.capacity_bytes),
    "suture_volume_available_bytes": gauge("Free.", lambda v: v.available_bytes),
    "suture_volume_used_bytes": gauge("Held by replicas.", lambda v: v.used_bytes),
    "suture_volume_failed": gauge("Whether it was fenced: 1 or 0.", lambda v: v.failed),
    "suture_volume_slow": gauge(
        "Whether it is much slower than its siblings, for minutes: 1 or 0.",
        lambda v: bool(v.slow),
    ),
    "suture_volume_read_latency_seconds": gauge(
        "Of a read of its disk in the last minute, by the kernel's count; 0: not known.",
        lambda v: v.read_us / 1e6,
    ),
    "suture_volume_write_latency_seconds": gauge(
        "Of a write; 0: not known.", lambda v: v.write_us / 1e6
    ),
    "suture_volume_not_in_service": gauge(
        "Whether it is read-only, or retires: 1 or 0.",
        lambda v: v.service not in {"", "IN_SERVICE"},
    ),
}
DOUBTS: Final = {
    "suture_volume_in_doubt": gauge(
        "Whether its last check failed: 1 or 0.", lambda v: bool(v.check)
    )
}
SCANS: Final = {
    "suture_scan_lag_seconds": gauge("Beyond the promise; 0: kept.", lambda v: v.lag_ms / 1000),
    "suture_scan_due_bytes": gauge("To be read now.", lambda v: v.due_bytes),
    "suture_scan_never_read_replicas": gauge("Never verified.", lambda v: v.never_read_count),
    "suture_scan_rate_bytes_per_second": gauge("Allowed now.", lambda v: v.rate_bytes_per_s),
    "suture_scan_needed_bytes_per_second": gauge(
        "For the promise.", lambda v: v.needed_bytes_per_s
    ),
    "suture_scan_paused": gauge("Held by an operator: 1 or 0.", lambda v: bool(v.pause_left_ms)),
    "suture_scan_promise_possible": gauge(
        "Whether the rate suffices for the promise: 1 or 0.", lambda v: v.promise_possible
    ),
    "suture_canary_overdue": gauge(
        "Whether the planted fault was not found in time: 1 or 0.", lambda v: v.canary_overdue
    ),
    "suture_canary_found_time_seconds": gauge(
        "When the planted fault was found last; 0: never.", lambda v: v.canary_found_at_ms / 1000
    ),
    "suture_scanned_bytes": counter("Read by background scans.", lambda v: v.scanned_bytes),
}
SLACK: Final = {
    "suture_scan_deadline_slack_seconds": gauge(
        "Until the byte that was not verified for the longest time breaks the promise."
    )
}
STATES: Final = {"suture_replicas": gauge("Replicas by state.")}
CLASSES: Final = {
    "suture_findings_by_class": gauge(
        "Unresolved findings by verdict and fault, of the first damaged replicas."
    )
}
WORKERS: Final = {
    "suture_worker_stalled": gauge("Hung or dead: 1 or 0.", lambda w: w.stalled),
    "suture_worker_errors": counter("Errors of a worker since the start.", lambda w: w.error_count),
}
TASKS: Final = {"suture_tasks": gauge("Commands that wait or run, by type.", lambda q: q.count)}

TABLES: Final = (
    _identity,
    _certificate,
    _ages,
    MetricTable((), alone, DATANODE),
    MetricTable(("volume",), named("path", lambda at: at.status.volumes), VOLUMES),
    MetricTable(("volume",), named("path", lambda at: at.scrub.volumes), DOUBTS),
    MetricTable(
        ("volume",),
        named("path", lambda at: (v for v in at.scrub.volumes if v.state != "off")),
        SCANS,
    ),
    MetricTable(("volume",), _scan_slack_s, SLACK),
    MetricTable(("state",), counted(lambda at: at.status.containers_by_state), STATES),
    MetricTable(("verdict", "fault"), counted(_findings_by_class), CLASSES),
    MetricTable(("worker",), named("name", lambda at: at.status.workers), WORKERS),
    MetricTable(("type",), named("type", lambda at: at.observer.queues()), TASKS),
)


def registry_of(
    meters: AgentMetrics,
    observer: DatanodeStatus,
    scrub: Callable[[], datanode_pb2.ScrubStatusResponse],
    certificate_expires_at_s: Callable[[], float] = lambda: 0.0,
) -> CollectorRegistry:
    """Return the registry with all metrics. An expiry of 0 means that there is no certificate."""
    meters.registry.register(
        TableCollector(
            TABLES,
            lambda: _Scrape(observer, observer.status(), scrub(), certificate_expires_at_s()),
        )
    )
    return meters.registry
