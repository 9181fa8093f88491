"""Prometheus metrics of a datanode.

Tables in this module declare the names of all metrics. Most values are computed from the datanode's
status at each scrape. Values have base units (seconds, bytes), and counters end in `_total`. Labels
have only few values, such as volumes and worker names. No label contains a container id.
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
    HistogramMetricFamily,
    Metric,
)

from agent.observe.datanode_status import DatanodeStatus
from agent.observe.replica_totals import AGE_BOUNDS_S, VolumeSummary
from scanner.finding import Verdict
from suture.observe.metric_table import (
    LabelledItems,
    MetricTable,
    TableCollector,
    alone,
    counted,
    counter,
    gauge,
    named,
)
from suture.wire.v1 import datanode_pb2, scm_pb2

RECONCILE_RESULTS: Final = (
    *("converged", "nothing_to_do", "partial", "non_convergent", "interrupted", "no_peer"),
)


class AgentMetrics:
    """Counters of events, whose values are not part of the datanode's status."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()  # registering must not scrape
        self._reconciles = self._counter(
            "suture_reconciles_total",
            "Reconciles that ended, by result.",
            result=RECONCILE_RESULTS,
        )
        self._commands = self._counter(
            "suture_commands_total",
            "Commands of the SCM that ended, by type and state.",
            type=(),
            state=(),
        )
        self._fetched = self._counter(
            "suture_reconcile_fetched_bytes_total",
            "Bytes fetched from peers for reconciles, by kind: chunk data or trees.",
            kind=("data", "tree"),
        )
        self._chunks = self._counter(
            "suture_reconcile_chunks_total",
            "Chunks of reconciles by result; only the first chunks of each reconcile are counted.",
            result=(),
        )
        self._challenges = self._counter(
            "suture_challenges_total",
            "Challenges to peers to prove a chunk, by result.",
            result=("proven", "failed", "unanswered", "own"),
        )
        self._shadow = self._counter(
            "suture_shadow_hash_mismatches_total",
            "Scans whose checksums differ from a second implementation's; verdicts are withheld.",
        )
        self._exported = PrometheusGauge(
            "suture_report_export_timestamp_seconds",
            "Time of the last report export; 0 = none yet, or exports are disabled.",
            registry=self.registry,
        )

    def _counter(self, name: str, meaning: str, **words: tuple[str, ...]) -> PrometheusCounter:
        """Return a new counter. `words` has the labels of the counter, and the known values of each
        label.

        The counter starts at 0 for each of these values.
        """
        metric = PrometheusCounter(name, meaning, words, registry=self.registry)
        for word in chain(*words.values()):
            metric.labels(word)
        return metric

    def exported(self, at_ms: int) -> None:
        """Record the time of the newest report that was exported."""
        self._exported.set(at_ms / 1000)

    def count_challenge(self, result: str) -> None:
        """Count a challenge, which is a request to a peer to prove that it has a chunk.

        `result` is the outcome of the challenge, for example "proven".
        """
        self._challenges.labels(result).inc()

    def count_command(self, status: scm_pb2.CommandStatus) -> None:
        """Count a command of the SCM that has ended. If the command was a reconcile, also count its
        results."""
        state = scm_pb2.CommandStatus.State.Name(status.state).lower()
        self._commands.labels(status.type, state).inc()
        if status.HasField("reconcile"):
            self.reconciled(status.reconcile)

    def shadow_differed(self) -> None:
        """Count a scan whose result is ignored because the second checksum implementation
        disagrees."""
        self._shadow.inc()

    def reconciled(self, outcome: scm_pb2.ReconcileOutcome) -> None:
        """Count a reconcile, the bytes that it has fetched, and the results of its chunks."""
        self._reconciles.labels(outcome.result).inc()
        self._fetched.labels("data").inc(outcome.bytes_fetched)
        self._fetched.labels("tree").inc(outcome.tree_bytes_fetched)
        for result, count in Counter(chunk.result for chunk in outcome.chunks).items():
            self._chunks.labels(result).inc(count)


@dataclass(frozen=True, slots=True)
class _Scrape:
    """The status of a datanode at the time of one scrape by Prometheus."""

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


def age_histogram() -> HistogramMetricFamily:
    """Return an empty metric family for the histogram of the time since data was verified."""
    return HistogramMetricFamily(
        "suture_verified_age_seconds",
        "Time since each byte of the closed replicas was verified; the samples are bytes.",
        labels=["volume"],
    )


def _ages(at: _Scrape) -> Iterator[Metric]:
    ages = age_histogram()
    known = at.observer.summary().volumes
    bounds = [*(str(float(bound_s)) for bound_s in AGE_BOUNDS_S), "+Inf"]
    for volume in at.observer.store_volumes():
        summary = known.get(volume.volume_id, VolumeSummary())
        buckets = list(zip(bounds, map(float, accumulate(summary.age_bytes)), strict=True))
        ages.add_metric([str(volume.path)], buckets, summary.age_sum_byte_s)
    yield ages


def _expiries(at: _Scrape) -> LabelledItems:
    return alone(at.certificate_expires_at_s) if at.certificate_expires_at_s else ()


INFO: Final = {"suture_agent_info": gauge("Id and version of this datanode; always 1.")}
CERTIFICATE: Final = {
    "suture_certificate_expiry_timestamp_seconds": gauge("Expiry time of the certificate in use.")
}
DATANODE: Final = {
    "suture_start_time_seconds": gauge(
        "Start time of the agent.", lambda at: at.status.started_at_ms / 1000
    ),
    "suture_registered": gauge(
        "1 if the SCM has registered this datanode, otherwise 0.",
        lambda at: at.status.scm_state == "registered",
    ),
    "suture_clock_offset_seconds": gauge(
        "Lead of the host's clock over the SCM's, as far as certain; negative = it lags.",
        lambda at: at.status.clock_offset_ms / 1000,
    ),
    "suture_findings": gauge("Unresolved findings.", lambda at: at.status.finding_count),
    "suture_damaged_replicas": gauge(
        "Replicas with unresolved findings.", lambda at: at.status.damaged_count
    ),
    "suture_contradictory_replicas": gauge(
        "Replicas that differ from a peer's although each matches its own metadata.",
        lambda at: at.status.contradictory_count,
    ),
    "suture_scan_interval_seconds": gauge(
        "Time within which every byte is to be scanned once (scan.data_interval_s).",
        lambda at: at.scrub.interval_ms / 1000,
    ),
    "suture_scan_requests_queued": gauge(
        "Requested scans that wait.", lambda at: at.scrub.on_demand_waiting
    ),
    "suture_metadata_scan_last_timestamp_seconds": gauge(
        "End of the last metadata scan; 0 = none yet.",
        lambda at: at.scrub.metadata_scanned_at_ms / 1000,
    ),
    "suture_metadata_faults": gauge(
        "Faults found by the last metadata scan.", lambda at: at.scrub.metadata_fault_count
    ),
    "suture_parity_mismatched_stripes": gauge(
        "Stripes whose shards did not match in their last parity verification.",
        lambda at: at.scrub.parity.fault_count,
    ),
    "suture_parity_oldest_verified_timestamp_seconds": gauge(
        "Oldest parity verification of any container; 0 = none yet.",
        lambda at: at.scrub.parity.oldest_verified_at_ms / 1000,
    ),
    "suture_parity_read_bytes_total": counter(
        "Bytes read to verify parity.", lambda at: at.scrub.parity.read_bytes
    ),
    "suture_challenge_last_timestamp_seconds": gauge(
        "Time of the last challenge to a peer; 0 = none yet.",
        lambda at: at.scrub.challenges.asked_at_ms / 1000,
    ),
    "suture_shadow_hash_running": gauge(
        "1 while a sample of the scanned chunks is also hashed by other code, otherwise 0.",
        lambda at: at.scrub.shadow_hashing.running,
    ),
    "suture_shadow_hash_compared_chunks_total": counter(
        "Chunks hashed by both implementations.", lambda at: at.scrub.shadow_hashing.compared_count
    ),
}
VOLUMES: Final = {
    "suture_volume_capacity_bytes": gauge("Size of the volume.", lambda v: v.capacity_bytes),
    "suture_volume_available_bytes": gauge(
        "Free space on the volume.", lambda v: v.available_bytes
    ),
    "suture_volume_used_bytes": gauge(
        "Bytes of the replicas on the volume.", lambda v: v.used_bytes
    ),
    "suture_volume_failed": gauge("1 if the volume is fenced, otherwise 0.", lambda v: v.failed),
    "suture_volume_rebuild_left_replicas": gauge(
        "Replicas that wait for the rebuild of the volume's lost index.",
        lambda v: v.rebuild_left_count,
    ),
    "suture_volume_slow": gauge(
        "1 if the volume has been much slower than its siblings for minutes, otherwise 0.",
        lambda v: bool(v.slow),
    ),
    "suture_volume_read_latency_seconds": gauge(
        "Mean time of a disk read in the last minute, from the kernel; 0 = unknown.",
        lambda v: v.read_us / 1e6,
    ),
    "suture_volume_write_latency_seconds": gauge(
        "Mean time of a disk write in the last minute, from the kernel; 0 = unknown.",
        lambda v: v.write_us / 1e6,
    ),
    "suture_volume_out_of_service": gauge(
        "1 if the volume is read-only or retiring, otherwise 0.",
        lambda v: v.service not in {"", "IN_SERVICE"},
    ),
}
DOUBTS: Final = {
    "suture_volume_suspect": gauge(
        "1 if the last check of the volume failed, otherwise 0.", lambda v: bool(v.check)
    )
}
SCANS: Final = {
    "suture_scan_lag_seconds": gauge(
        "Time by which the scan has exceeded its interval; 0 = on time.", lambda v: v.lag_ms / 1000
    ),
    "suture_scan_due_bytes": gauge("Bytes that are due to be scanned.", lambda v: v.due_bytes),
    "suture_scan_unscanned_replicas": gauge(
        "Replicas that were never scanned.", lambda v: v.never_read_count
    ),
    "suture_scan_allowed_bytes_per_second": gauge(
        "Rate that the scan may use at present.", lambda v: v.rate_bytes_per_s
    ),
    "suture_scan_required_bytes_per_second": gauge(
        "Rate that the scan interval requires.", lambda v: v.needed_bytes_per_s
    ),
    "suture_scan_paused": gauge(
        "1 if an operator paused the scan, otherwise 0.", lambda v: bool(v.pause_left_ms)
    ),
    "suture_scan_interval_feasible": gauge(
        "1 if the configured rate suffices for the scan interval, otherwise 0.",
        lambda v: v.interval_possible,
    ),
    "suture_canary_overdue": gauge(
        "1 if the planted fault was not found in time, otherwise 0.", lambda v: v.canary_overdue
    ),
    "suture_canary_last_found_timestamp_seconds": gauge(
        "Time when the planted fault was last found; 0 = never.",
        lambda v: v.canary_found_at_ms / 1000,
    ),
    "suture_scanned_bytes_total": counter(
        "Bytes read by background scans.", lambda v: v.scanned_bytes
    ),
}
SLACK: Final = {
    "suture_scan_deadline_slack_seconds": gauge(
        "Time until the oldest verified byte exceeds the scan interval."
    )
}
STATES: Final = {"suture_replicas": gauge("Replicas by state.")}
CLASSES: Final = {
    "suture_findings_by_class": gauge(
        "Unresolved findings by verdict and fault; only the first damaged replicas are counted."
    )
}
WORKERS: Final = {
    "suture_worker_stalled": gauge(
        "1 if the worker hangs or has ended, otherwise 0.", lambda w: w.stalled
    ),
    "suture_worker_errors_total": counter(
        "Errors of the worker since the start.", lambda w: w.error_count
    ),
}
TASKS: Final = {
    "suture_tasks": gauge("Commands that are queued or running, by type.", lambda q: q.count)
}

TABLES: Final = (
    MetricTable(
        ("datanode_id", "version"),
        lambda at: [((at.status.datanode_id, at.status.version), 1)],
        INFO,
    ),
    MetricTable((), _expiries, CERTIFICATE),
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
    """Return a Prometheus registry with all metrics of the datanode.

    `certificate_expires_at_s` returns a Unix time, or 0 if this datanode has no certificate.
    """
    meters.registry.register(
        TableCollector(
            TABLES,
            lambda: _Scrape(observer, observer.status(), scrub(), certificate_expires_at_s()),
        )
    )
    return meters.registry
