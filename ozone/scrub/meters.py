"""The HTTP pages of the scrub service: Prometheus metrics and health."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from agent.scan.background_scan import RoundStatus, VolumeScanWorker
from merkle.replica import ContainerId
from ozone.disk.layout import OzoneVolume
from ozone.scrub.history import History
from ozone.scrub.result import ContainerResult, ScrubStatus
from ozone.scrub.store import OzoneStore
from suture.observe.metric_table import (
    CONTENT_TYPE,
    MetricTable,
    TableCollector,
    counted,
    counter,
    exposition,
    gauge,
    named,
)
from suture.runtime.http_listener import HttpResponse
from suture.runtime.loop import WorkerLoop

SHOWN: Final = tuple(status for status in ScrubStatus if status is not ScrubStatus.SKIPPED)


@dataclass(frozen=True, slots=True)
class _EntryCounts:
    """Numbers of findings and statuses in the results of one container, or of all containers."""

    statuses: Counter[ScrubStatus]
    findings: Counter[tuple[str, str]]


class HistoryCounts:
    """Counts the results in a history. A result is parsed again only if it has changed."""

    def __init__(self) -> None:
        self._known: dict[ContainerId, tuple[int, _EntryCounts]] = {}

    def count(self, path: Path, refused: Collection[ContainerResult] = ()) -> _EntryCounts:
        """Count the results of a volume.

        Thread-safe, because it opens its own connection to the history. The results in `refused`
        replace the stored results of the same containers.
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
            total.statuses.update(one.statuses)
            total.findings.update(one.findings)
        return total


def _counted(result: ContainerResult) -> _EntryCounts:
    findings = Counter((item.verdict.value, item.fault.value) for item in result.findings)
    return _EntryCounts(Counter([result.status]), findings)


@dataclass(frozen=True, slots=True)
class MonitoredVolume:
    """A volume that the service scrubs."""

    volume: OzoneVolume
    worker: VolumeScanWorker
    loop: WorkerLoop
    history: Path
    store: OzoneStore
    counted: HistoryCounts = field(default_factory=HistoryCounts)

    @property
    def path(self) -> str:
        """Path of the root directory of the volume."""
        return str(self.volume.hdds)

    def count(self) -> _EntryCounts:
        """Return the numbers of findings and statuses in the history of the volume."""
        return self.counted.count(self.history, self.store.refused)


@dataclass(frozen=True, slots=True)
class PendingVolume:
    """A directory that had no readable volume when the service started.

    The volume is scrubbed as soon as it can be read.
    """

    place: Path
    loop: WorkerLoop
    is_over: Callable[[], bool]
    why: str

    @property
    def path(self) -> str:
        """Path of the directory."""
        return str(self.place)

    def last_error(self) -> str:
        """Return the last reason why the volume cannot be read."""
        return self.loop.status().last_error or self.why


@dataclass(frozen=True, slots=True)
class _Scrape:
    """The volumes at the time of one request for the metrics.

    Their status and their counts are stored by path.
    """

    volumes: Sequence[MonitoredVolume | PendingVolume]
    statuses: Mapping[str, RoundStatus]
    counts: Mapping[str, _EntryCounts]


def _statuses(at: _Scrape) -> dict[tuple[str, str], int]:
    return {
        (path, status.value): known.statuses[status]
        for path, known in at.counts.items()
        for status in SHOWN
    }


def _findings(at: _Scrape) -> dict[tuple[str, str, str], int]:
    return {
        (path, *words): count
        for path, known in at.counts.items()
        for words, count in known.findings.items()
    }


VOLUMES: Final = {
    "suture_ozone_scan_errors_total": counter(
        "Steps of the scan that failed.", lambda volume: volume.loop.status().error_count
    ),
    "suture_ozone_volume_missing": gauge(
        "1 if the directory contains no readable volume, otherwise 0.",
        lambda volume: isinstance(volume, PendingVolume),
    ),
}
SCANS: Final = {
    "suture_ozone_scanned_bytes_total": counter(
        "Bytes read since the start.", lambda scan: scan.scanned_bytes
    ),
    "suture_ozone_scan_required_bytes_per_second": gauge(
        "Rate that the scan interval requires.", lambda scan: scan.needed_bytes_per_s
    ),
    "suture_ozone_scan_speed_bytes_per_second": gauge(
        "Rate at which the scan read recently.", lambda scan: scan.speed_bytes_per_s
    ),
    "suture_ozone_scan_due_bytes": gauge(
        "Bytes that are due to be scanned.", lambda scan: scan.due_bytes
    ),
    "suture_ozone_used_bytes": gauge(
        "Bytes of the closed containers.", lambda scan: scan.used_bytes
    ),
    "suture_ozone_unscanned_containers": gauge(
        "Containers that were never scanned.", lambda scan: scan.never_read_count
    ),
    "suture_ozone_scan_lag_seconds": gauge(
        "Time by which the scan has exceeded its interval; 0 = on time.", lambda scan: scan.lag_s
    ),
    "suture_ozone_oldest_read_timestamp_seconds": gauge(
        "Read time of the container that was read longest ago; 0 = never read.",
        lambda scan: scan.oldest_read_at_ms / 1000,
    ),
}
STATUSES: Final = {"suture_ozone_containers": gauge("Containers by the result of their last read.")}
FINDINGS: Final = {"suture_ozone_findings": gauge("Unresolved findings by verdict and fault.")}
TABLES: Final = (
    MetricTable(("volume",), named("path", lambda at: at.volumes), VOLUMES),
    MetricTable(("volume",), counted(lambda at: at.statuses), SCANS),
    MetricTable(("volume", "status"), counted(_statuses), STATUSES),
    MetricTable(("volume", "verdict", "fault"), counted(_findings), FINDINGS),
)


def metrics_page(
    watched: Sequence[MonitoredVolume], awaited: Sequence[PendingVolume]
) -> HttpResponse:
    """Return the HTTP response with the metrics of all volumes, in the format of Prometheus."""
    at = _Scrape(
        [*watched, *(volume for volume in awaited if not volume.is_over())],
        {volume.path: volume.worker.status() for volume in watched},
        {volume.path: volume.count() for volume in watched},
    )
    registry = CollectorRegistry()
    registry.register(TableCollector(TABLES, lambda: at))
    return HttpResponse(exposition(registry), CONTENT_TYPE)


def health_page(
    watched: Sequence[MonitoredVolume], awaited: Sequence[PendingVolume], quiet_max_s: float
) -> HttpResponse:
    """Return the health page, which is JSON with the state of each volume.

    Its HTTP status is 503 if the thread of a volume has made no progress for `quiet_max_s` seconds,
    and otherwise 200.
    """
    volumes: dict[str, dict[str, object]] = {}
    for item in watched:
        status = item.loop.status()
        volumes[item.path] = {
            "state": item.worker.status().state,
            "is_stalled": status.is_stalled(quiet_max_s),
            "last_error": status.last_error,
            "refused": {str(one.container_id): one.why for one in item.store.refused},
        }
    for waiting in awaited:
        if not waiting.is_over():
            volumes[waiting.path] = {
                "state": "absent",
                "is_stalled": waiting.loop.status().is_stalled(quiet_max_s),
                "last_error": waiting.last_error(),
                "refused": {},
            }
    is_well = not any(volume["is_stalled"] for volume in volumes.values())
    code = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
    body = json.dumps({"volumes": volumes, "is_well": is_well}, indent=2).encode()
    return HttpResponse(body, "application/json", code)
