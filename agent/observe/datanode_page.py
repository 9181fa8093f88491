"""Status page of one datanode for a browser. The page is read-only.

It starts with the health of the data, the progress of the scan, findings and changes. The internals
of the process come last.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from agent.observe.datanode_status import DatanodeStatus
from agent.observe.healthz import problems
from agent.observe.replica_totals import AGE_BOUNDS_S, DAY_S, HostSummary
from scanner.finding import ScanFinding
from suture.config.quantity import format_duration
from suture.pages.html import render, templates
from suture.pages.status_headline import answer_of, headline, percent
from suture.wire.v1 import datanode_pb2 as pb

TEMPLATES: Final = templates("agent.observe")
FINDINGS_SHOWN_MAX: Final = 100
CHANGES_SHOWN_MAX: Final = 50
CHANGES_SINCE_MS: Final = 14 * DAY_S * 1000
AGES_SHOWN_D: Final = (1, 2, 3, 4, 5, 6, 7, 10, 14, 30)
COMMANDS: Final = {
    "replicate": "copies to other datanodes",
    "reconcile": "repairs from peers",
    "reconstruct": "rebuilds of shards",
    "delete": "deletes of replicas",
    "delete_blocks": "deletes of blocks",
    "close": "closes",
}


def status_page(
    observer: DatanodeStatus,
    scrub: pb.ScrubStatusResponse,
    now_ms: int,
    findings: Iterable[ScanFinding],
) -> bytes:
    """Return the complete status page as HTML."""
    status = observer.status()
    line = headline(answer_of([(status, scrub)], now_ms), now_ms)
    found = problems(status, scrub)
    data_bytes = sum(volume.data_bytes for volume in status.volumes)
    in_time_bytes = sum(volume.in_time_bytes for volume in status.volumes)
    scans = {volume.volume_id: volume for volume in scrub.volumes}
    facts: dict[str, Any] = {
        "now_ms": now_ms,
        "status": status,
        "headline": line.text,
        "is_wrong": not line.is_well or bool(found),
        "problems": found,
        "verified": percent(in_time_bytes, data_bytes) if data_bytes else "-",
        "left": _left([volume for volume in scrub.volumes if volume.state != "off"]),
        "oldest_at_ms": min(
            (v.oldest_scan_at_ms for v in status.volumes if v.data_bytes), default=-1
        ),
        "replica_count": sum(status.containers_by_state.values()),
        "available_bytes": sum(v.available_bytes for v in status.volumes if not v.failed),
        "scans": [
            _scan(volume, scans.get(volume.volume_id, pb.VolumeScrub(state="off")))
            for volume in status.volumes
        ],
        "findings": list(islice(findings, FINDINGS_SHOWN_MAX)),
        "changes": observer.changes(now_ms - CHANGES_SINCE_MS, count=CHANGES_SHOWN_MAX),
        "queues": [queue for queue in observer.queues() if queue.count],
        "commands": COMMANDS,
        **_ages(observer.summary()),
    }
    return render(TEMPLATES, "datanode.html.j2", facts)


def _scan(volume: pb.VolumeStatus, scan: pb.VolumeScrub) -> dict[str, object]:
    return {
        "volume": volume,
        "scan": scan,
        "left": _left([scan]),
        "reads": _reads(scan),
        "remarks": "; ".join(_scan_remarks(scan)),
    }


def _left(scans: list[pb.VolumeScrub]) -> str:
    if not scans:
        return "scans are off"
    if any(scan.eta_ms < 0 for scan in scans):
        return "not known yet"
    left_ms = max(scan.eta_ms for scan in scans)
    return format_duration(left_ms / 1000) if left_ms else "no scan is due"


def _reads(scan: pb.VolumeScrub) -> str:
    if scan.pause_left_ms:
        return f"paused for {format_duration(scan.pause_left_ms / 1000)}"
    if not scan.container_id:
        return scan.state
    part = min(scan.container_bytes_read, scan.container_bytes)
    share = percent(part, scan.container_bytes) if scan.container_bytes else "-"
    return f"container {scan.container_id}: {share}"


def _scan_remarks(scan: pb.VolumeScrub) -> Iterator[str]:
    if scan.check:
        yield scan.check
    if scan.lag_ms:
        yield f"{format_duration(scan.lag_ms / 1000)} behind its promise"
    if scan.promise and not scan.interval_possible:
        yield scan.promise


def _ages(summary: HostSummary) -> dict[str, object]:
    """Return the number of bytes that were verified within each of several ages, for the status
    page.

    Also return the size of the data, and the number of replicas that were never verified.
    """
    volumes = summary.volumes.values()
    ages, before = [], 0
    for days in AGES_SHOWN_D:
        places = [i for i, bound_s in enumerate(AGE_BOUNDS_S) if bound_s <= days * DAY_S]
        within = sum(volume.age_bytes[place] for volume in volumes for place in places)
        if within != before:
            ages.append({"days": days, "bytes": within})
        before = within
    return {
        "ages": ages,
        "data_bytes": sum(volume.data_bytes for volume in volumes),
        "never_count": sum(volume.never_count for volume in volumes),
    }
