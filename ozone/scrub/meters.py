"""The service's HTTP pages: Prometheus metrics and health."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.observe.metrics import CONTENT_TYPE, exposition
from agent.runtime.http_listener import HttpResponse
from agent.runtime.loop import WorkerLoop
from agent.scan.background_scan import VolumeScanWorker
from merkle.replica import ContainerId
from ozone.disk.layout import OzoneVolume
from ozone.scrub.history import History
from ozone.scrub.result import ContainerResult, ScrubStatus
from ozone.scrub.store import OzoneStore

LABELS: Final = ["volume"]
SHOWN: Final = tuple(standing for standing in ScrubStatus if standing is not ScrubStatus.SKIPPED)


@dataclass(frozen=True, slots=True)
class _EntryCounts:
    """Counts of a history's entries, for one container or all."""

    standings: Counter[ScrubStatus]
    findings: Counter[tuple[str, str]]


class HistoryCounts:
    """Counts a history's entries; a result is parsed again only after it changed."""

    def __init__(self) -> None:
        self._known: dict[ContainerId, tuple[int, _EntryCounts]] = {}

    def count(self, path: Path, refused: Collection[ContainerResult] = ()) -> _EntryCounts:
        """Count the results of a volume, with `refused` containers as they are now.

        Uses its own connection, beside the worker's. Thread-safe: the last caller's results are
        kept.
        """
        known: dict[ContainerId, tuple[int, _EntryCounts]] = {}
        with closing(History(path)) as history:
            for container_id, mark in history.marks().items():
                had = self._known.get(container_id)
                if had is not None and had[0] == mark:
                    known[container_id] = had
                elif (result := history.result(container_id)) is not None:
                    known[container_id] = (mark, _counted(result))
        self._known = known
        total = _EntryCounts(Counter(), Counter())
        now = {result.container_id: (0, _counted(result)) for result in refused}
        for _, one in {**known, **now}.values():
            total.standings.update(one.standings)
            total.findings.update(one.findings)
        return total


def _counted(result: ContainerResult) -> _EntryCounts:
    findings = Counter((item.verdict.value, item.fault.value) for item in result.findings)
    return _EntryCounts(Counter([result.standing]), findings)


@dataclass(frozen=True, slots=True)
class MonitoredVolume:
    """A volume of the service, as shown."""

    volume: OzoneVolume
    worker: VolumeScanWorker
    loop: WorkerLoop
    history: Path
    store: OzoneStore
    counted: HistoryCounts = field(default_factory=HistoryCounts)


@dataclass(frozen=True, slots=True)
class PendingVolume:
    """A directory without a readable volume when the service started; once there is one, it is
    watched.
    """

    place: Path
    loop: WorkerLoop
    is_over: Callable[[], bool]
    why: str

    def last_error(self) -> str:
        """Return the last reason why it is not read."""
        return self.loop.status().last_error or self.why


class _Collector(Collector):
    def __init__(
        self, watched: Sequence[MonitoredVolume], awaited: Sequence[PendingVolume]
    ) -> None:
        self._watched = watched
        self._awaited = [item for item in awaited if not item.is_over()]

    def collect(self) -> Iterator[Metric]:
        yield from _progress(self._watched, self._awaited)
        standings = GaugeMetricFamily(
            "suture_ozone_containers",
            "Containers by what the last read of each came to.",
            labels=[*LABELS, "standing"],
        )
        findings = GaugeMetricFamily(
            "suture_ozone_findings",
            "Findings that are kept, by verdict and fault.",
            labels=[*LABELS, "verdict", "fault"],
        )
        for item in self._watched:
            path = str(item.volume.hdds)
            known = item.counted.count(item.history, item.store.refused)
            for standing in SHOWN:
                standings.add_metric([path, standing.value], known.standings[standing])
            for (verdict, fault), count in sorted(known.findings.items()):
                findings.add_metric([path, verdict, fault], count)
        yield standings
        yield findings


GAUGES: Final = {
    "needed_bytes_per_s": ("suture_ozone_scan_needed_bytes_per_second", "What the promise needs."),
    "speed_bytes_per_s": ("suture_ozone_scan_speed_bytes_per_second", "What was read lately."),
    "due_bytes": ("suture_ozone_scan_due_bytes", "What is to be read now."),
    "used_bytes": ("suture_ozone_used_bytes", "What closed containers hold."),
    "never_read_count": ("suture_ozone_never_read_containers", "Containers not read yet."),
    "lag_s": ("suture_ozone_scan_lag_seconds", "By how much the promise is broken; 0 is kept."),
    "oldest_read_at_ms": (
        "suture_ozone_oldest_read_time_seconds",
        "When the container was read that was read longest ago; 0 for never.",
    ),
}


def _progress(
    watched: Sequence[MonitoredVolume], awaited: Sequence[PendingVolume]
) -> Iterator[Metric]:
    read = CounterMetricFamily(
        "suture_ozone_scanned_bytes_total", "Bytes read since the start.", labels=LABELS
    )
    errors = CounterMetricFamily(
        "suture_ozone_scan_errors_total", "Steps of the scan that failed.", labels=LABELS
    )
    for item in watched:
        path = str(item.volume.hdds)
        read.add_metric([path], item.worker.scanned_bytes)
        errors.add_metric([path], item.loop.status().error_count)
    absent = GaugeMetricFamily(
        "suture_ozone_volume_absent",
        "Whether no volume that can be read is in its directory.",
        labels=LABELS,
    )
    for item in watched:
        absent.add_metric([str(item.volume.hdds)], 0)
    for one in awaited:
        errors.add_metric([str(one.place)], one.loop.status().error_count)
        absent.add_metric([str(one.place)], 1)
    yield read
    yield errors
    yield absent
    for shown, (name, meaning) in GAUGES.items():
        gauge = GaugeMetricFamily(name, meaning, labels=LABELS)
        for item in watched:
            value = float(getattr(item.worker.status(), shown))
            gauge.add_metric(
                [str(item.volume.hdds)], value / 1000 if shown.endswith("_ms") else value
            )
        yield gauge


def metrics_page(
    watched: Sequence[MonitoredVolume], awaited: Sequence[PendingVolume]
) -> HttpResponse:
    """Return the metrics page."""
    registry = CollectorRegistry()
    registry.register(_Collector(watched, awaited))
    return HttpResponse(exposition(registry), CONTENT_TYPE)


def health_page(
    watched: Sequence[MonitoredVolume], awaited: Sequence[PendingVolume], quiet_max_s: float
) -> HttpResponse:
    """Return 200 if every present volume is being read, else 503 with the reason."""
    volumes: dict[str, dict[str, object]] = {}
    for item in watched:
        status = item.loop.status()
        volumes[str(item.volume.hdds)] = {
            "state": item.worker.status().state,
            "is_stalled": status.is_stalled(quiet_max_s),
            "last_error": status.last_error,
            "refused": {str(one.container_id): one.why for one in item.store.refused},
        }
    for waiting in awaited:
        if not waiting.is_over():
            volumes[str(waiting.place)] = {
                "state": "absent",
                "is_stalled": waiting.loop.status().is_stalled(quiet_max_s),
                "last_error": waiting.last_error(),
                "refused": {},
            }
    is_well = not any(volume["is_stalled"] for volume in volumes.values())
    code = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
    body = json.dumps({"volumes": volumes, "is_well": is_well}, indent=2).encode()
    return HttpResponse(body, "application/json", code)
