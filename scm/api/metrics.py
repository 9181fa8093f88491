"""The control plane's Prometheus metrics. Tables in this module declare all names.

A scrape reads existing values and counts nothing. The values of labels come from Suture's own
enumerations and command kinds, never from ids of containers or datanodes.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate
from threading import Lock
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from health.cluster_verdict import DataVerdict
from scm.api.cluster_status.datanode_totals import NodeTotals
from scm.state.entities import CommandKind
from scm.state.history.interval_samples import NOTHING_TO_VERIFY
from suture.observe.metric_table import MetricTable, alone, counted, counter, gauge, named
from suture.runtime.loop import WorkerStatus

VERSION: Final = version("suture")  # of this process, also after an upgrade of its files
COUNTED_TOGETHER: Final = 512  # holds that are counted in one batch
LOCK_BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class ClusterMetrics:
    """The values of the control plane's metrics at one moment."""

    term: int
    is_safe_mode: bool
    nodes: Mapping[tuple[str, str], int]
    """Number of datanodes by (health, operational state)."""
    containers: Mapping[str, int]
    """Number of containers by state."""
    unhealthy: Mapping[str, int]
    """Number of containers by health state. HEALTHY containers are left out."""
    differ: int
    contradict: int
    lost: int
    missing_blocks: int
    stray: int
    uncounted: int
    """Number of containers that have changed since the other metrics counted them."""
    commands: Mapping[CommandKind, int]
    """Number of commands without an answer, by kind."""
    outcomes: Mapping[tuple[str, str], int]
    """Number of answered commands since the start, by kind and result."""
    moved_bytes: Mapping[str, int]
    """Number of bytes that the answered commands moved, by kind."""
    under_replicated: int
    over_replicated: int
    verdict: DataVerdict
    waiting: Mapping[str, int]
    """Number of containers whose repair waits, by the kind of the reason."""
    sums: NodeTotals
    """Totals of the volumes that datanodes report."""
    verified_at_s: float
    """End of the last Spark verification, in seconds since 1970. It is 0 if there was none."""
    has_verify_failed: bool
    is_unwritable: bool
    is_older: bool
    refusing: int
    """Number of datanodes whose recent reports had invalid parts."""


class LockHoldMetrics(Collector):
    """Histograms of the time for which calls held the control plane's lock, and of their CPU time.

    Every call to the control plane adds one value to each histogram. `add` only appends the values
    to a list, because a `Histogram` of the Prometheus library needs eight Python calls per value.
    The values are counted in batches, or at a scrape.
    """

    def __init__(self) -> None:
        self.not_counted: deque[tuple[float, float]] = deque()
        self._counting = Lock()
        self._held = _Counts()
        self._spent = _Counts()

    def add(self, held_s: float, spent_s: float) -> None:
        """Record for how long a call held the lock, and its CPU time, in seconds. Thread-safe."""
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
        """Yield both histograms: the time for which the lock was held, and the CPU time."""
        self._count()
        with self._counting:
            held = self._held.histogram(
                "suture_scm_lock_held_seconds",
                "Time that a call held the SCM's state lock; other calls wait for it.",
            )
            spent = self._spent.histogram(
                "suture_scm_lock_cpu_seconds",
                "CPU time that a call used while it held the state lock.",
            )
        yield held
        yield spent


class _Counts:
    """A histogram of durations: the number of values per bucket, and their sum in seconds."""

    def __init__(self) -> None:
        self._by_bound = [0] * (len(LOCK_BOUNDS_S) + 1)  # the last count: values above all bounds
        self.sum_s = 0.0

    def add(self, value_s: float) -> None:
        """Add one value to the histogram."""
        self._by_bound[bisect_left(LOCK_BOUNDS_S, value_s)] += 1
        self.sum_s += value_s

    def histogram(self, name: str, meaning: str) -> HistogramMetricFamily:
        """Return the histogram as a Prometheus metric. `meaning` is its help text."""
        bounds = (*map(floatToGoString, LOCK_BOUNDS_S), "+Inf")
        buckets = list(zip(bounds, accumulate(self._by_bound), strict=True))
        return HistogramMetricFamily(name, meaning, buckets=buckets, sum_value=self.sum_s)


class ScmMetrics:
    """Metrics of events.

    They are recorded when the event occurs, because the state does not contain them.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.lock_holds = LockHoldMetrics()
        self.registry.register(self.lock_holds)
        self.lock_held = self.lock_holds.add
        """Record for how long a call held the lock, and its CPU time, in seconds."""


@dataclass(frozen=True, slots=True)
class ProcessMetrics:
    """The values of the metrics of the control plane and of its process at one moment."""

    cluster: ClusterMetrics
    workers: Sequence[WorkerStatus]
    has_waiting_calls: bool


def _outcomes(at: ProcessMetrics) -> dict[tuple[str, str], int]:
    return {(kind, result.lower()): n for (kind, result), n in at.cluster.outcomes.items()}


def _queued(at: ProcessMetrics) -> dict[str, int]:
    return {"under": at.cluster.under_replicated, "over": at.cluster.over_replicated}


def _verdicts(at: ProcessMetrics) -> dict[str, bool]:
    return {verdict: verdict is at.cluster.verdict for verdict in DataVerdict}


def _oldest_verified_s(sums: NodeTotals) -> float:
    if sums.oldest_scan_at_ms == NOTHING_TO_VERIFY:
        return NOTHING_TO_VERIFY
    return sums.oldest_scan_at_ms / 1000


CLUSTER: Final = {
    "suture_scm_term": gauge("Term of this SCM; it grows with each start.", lambda now: now.term),
    "suture_scm_safe_mode": gauge("1 in safe mode, otherwise 0.", lambda now: now.is_safe_mode),
    "suture_scm_lost_containers": gauge(
        "Containers without a known whole replica.", lambda now: now.lost
    ),
    "suture_scm_incomplete_containers": gauge(
        "Containers of which no replica can have all blocks that keys need.",
        lambda now: now.missing_blocks,
    ),
    "suture_scm_divergent_containers": gauge(
        "Containers whose replicas differ.", lambda now: now.differ
    ),
    "suture_scm_contradictory_containers": gauge(
        "Containers whose replicas differ although each matches its own metadata.",
        lambda now: now.contradict,
    ),
    "suture_scm_unknown_containers": gauge(
        "Containers that datanodes have and the SCM's state lacks; the state may be outdated.",
        lambda now: now.stray,
    ),
    "suture_scm_containers_pending_recount": gauge(
        "Containers that changed since the other metrics counted them.",
        lambda now: now.uncounted,
    ),
    "suture_scm_spark_verify_last_timestamp_seconds": gauge(
        "End of the last Spark verification; 0 = none yet.", lambda now: now.verified_at_s
    ),
    "suture_scm_spark_verify_last_failed": gauge(
        "1 if the last Spark verification failed, otherwise 0.", lambda now: now.has_verify_failed
    ),
    "suture_scm_state_read_only": gauge(
        "1 if the state cannot be written and changes are rejected, otherwise 0.",
        lambda now: now.is_unwritable,
    ),
    "suture_scm_state_outdated": gauge(
        "1 if datanodes have seen a later state and this SCM is not recovered, otherwise 0.",
        lambda now: now.is_older,
    ),
    "suture_scm_nodes_with_rejected_reports": gauge(
        "Datanodes whose reports had invalid parts in the last two hours.",
        lambda now: now.refusing,
    ),
}
VOLUMES: Final = {
    "suture_scm_capacity_bytes": gauge("Size of all working volumes.", lambda s: s.capacity_bytes),
    "suture_scm_used_bytes": gauge(
        "Bytes of the replicas on all working volumes.", lambda s: s.used_bytes
    ),
    "suture_scm_available_bytes": gauge(
        "Free space on all working volumes.", lambda s: s.available_bytes
    ),
    "suture_scm_failed_volumes": gauge("Failed volumes.", lambda s: s.failed_volume_count),
    "suture_scm_unreachable_nodes": gauge(
        "Datanodes that are expected and send no heartbeats.", lambda s: len(s.silent)
    ),
    "suture_scm_data_bytes": gauge("Bytes of the closed replicas.", lambda s: s.data_bytes),
    "suture_scm_verified_within_interval_bytes": gauge(
        "Bytes of the closed replicas that were verified within their datanode's scan interval.",
        lambda s: s.in_time_bytes,
    ),
    "suture_scm_oldest_verified_timestamp_seconds": gauge(
        "Oldest verification of any data; 0 = some was never verified, -1 = there is no data.",
        _oldest_verified_s,
    ),
}
INFO: Final = {"suture_scm_info": gauge("Version of this SCM; always 1.")}
CALLS: Final = {
    "suture_scm_calls_overloaded": gauge(
        "1 if calls wait too long for a thread, otherwise 0.", lambda at: at.has_waiting_calls
    )
}
NODES: Final = {"suture_scm_nodes": gauge("Datanodes by health and operational state.")}
STATES: Final = {"suture_scm_containers": gauge("Containers by state.")}
CONDITION_TEXTS: Final = {
    "suture_scm_degraded_containers": gauge("Containers that are not HEALTHY, by health state.")
}
PENDING: Final = {"suture_scm_pending_commands": gauge("Commands without an answer, by type.")}
OUTCOMES: Final = {
    "suture_scm_command_outcomes_total": counter(
        "Commands that datanodes answered since the start, by type and result."
    )
}
MOVED: Final = {
    "suture_scm_moved_bytes_total": counter(
        "Bytes moved by commands since the start, by type of command."
    )
}
QUEUES: Final = {
    "suture_scm_queued_containers": gauge(
        "Containers that wait for copies (under) or deletes (over)."
    )
}
VERDICT: Final = {
    "suture_scm_verdict": gauge(
        "Verdict on the cluster's data; 1 for the present verdict, 0 for the others."
    )
}
WAITING: Final = {
    "suture_scm_waiting_containers": gauge("Containers whose repair waits, by reason.")
}
WORKERS: Final = {
    "suture_scm_worker_errors_total": counter(
        "Steps of the worker that failed since the start.", lambda worker: worker.error_count
    )
}
TABLES: Final = (
    MetricTable((), lambda at: alone(at.cluster), CLUSTER),
    MetricTable((), lambda at: alone(at.cluster.sums), VOLUMES),
    MetricTable(("version",), lambda _: [((VERSION,), 1)], INFO),
    MetricTable((), alone, CALLS),
    MetricTable(("health", "op_state"), counted(lambda at: at.cluster.nodes), NODES),
    MetricTable(("state",), counted(lambda at: at.cluster.containers), STATES),
    MetricTable(("state",), counted(lambda at: at.cluster.unhealthy), CONDITION_TEXTS),
    MetricTable(("type",), counted(lambda at: at.cluster.commands), PENDING),
    MetricTable(("type", "result"), counted(_outcomes), OUTCOMES),
    MetricTable(("type",), counted(lambda at: at.cluster.moved_bytes), MOVED),
    MetricTable(("queue",), counted(_queued), QUEUES),
    MetricTable(("reason",), counted(lambda at: at.cluster.waiting), WAITING),
    MetricTable(("verdict",), counted(_verdicts), VERDICT),
    MetricTable(("worker",), named("name", lambda at: at.workers), WORKERS),
)
