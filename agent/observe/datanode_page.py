"""Status page of one datanode for a browser; read-only.

The most important facts come first: whether the data is healthy, the progress of the scan, findings
and changes. The internals of the process come last.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from agent.config.quantity import format_duration
from agent.errors import size_text
from agent.observe.census import AGE_BOUNDS_S, DAY_S, HostSummary
from agent.observe.datanode_status import DatanodeStatus
from agent.observe.healthz import problems
from agent.observe.markup import (
    Markup,
    age,
    bar,
    bullets,
    document,
    element,
    joined,
    moment,
    section,
    table,
    tiles,
)
from agent.observe.status_headline import answer_of, headline, percent, volume_word
from agent.rpc.v1 import datanode_pb2 as pb
from agent.store.index.replica_history import Changes
from scanner.finding import ScanFinding

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
    """Return the whole page: the answer, the scan, volumes, findings, changes, work, workers."""
    status = observer.status()
    changes = observer.changes(now_ms - CHANGES_SINCE_MS, count=CHANGES_SHOWN_MAX)
    line = headline(answer_of([(status, scrub)], now_ms), now_ms)
    is_wrong = not line.is_well or bool(problems(status, scrub))
    shown = [found for _, found in zip(range(FINDINGS_SHOWN_MAX), findings, strict=False)]
    queues = [(COMMANDS.get(q.type, q.type), f"{q.count:,}") for q in observer.queues() if q.count]
    return document(
        f"Suture: {status.datanode_id[:8]}",
        element("h1", f"Datanode {status.datanode_id}"),
        element("p", element("strong", line.text), kind="answer" + " wrong" * is_wrong),
        bullets(element("span", text, kind="wrong") for text in problems(status, scrub)),
        tiles(_facts(status, scrub, now_ms)),
        section("How far the scan is", table(SCAN_COLUMNS, _scan_rows(status, scrub, now_ms))),
        section("When bytes were last verified", _ages(observer.summary())),
        section("Volumes", table(VOLUME_COLUMNS, map(_volume_row, status.volumes))),
        section(
            "What was found and not repaired yet",
            table(FINDING_COLUMNS, (_finding_row(found, now_ms) for found in shown), "Nothing."),
            element("p", f"{status.finding_count:,} in all.") * (status.finding_count > len(shown)),
        ),
        section("What was changed in the last two weeks", _changes(changes)),
        section(
            "What it was told to do",
            table(("work", "#waiting or running"), queues, "Nothing waits."),
        ),
        section("Inside: workers", table(WORKER_COLUMNS, map(_worker_row, status.workers))),
        element(
            "p",
            f"Version {status.version}, up {age(status.started_at_ms, now_ms)}, SCM: "
            f"{status.scm_state}, cluster {status.cluster_id}. As of {moment(now_ms)}. ",
            Markup("<a href='/metrics'>metrics</a>, <a href='/healthz'>health</a>"),
            kind="soft",
        ),
    )


SCAN_COLUMNS: Final = (
    *("volume", "verified in time", "#due", "#time left", "#speed", "reads now"),
    *("oldest verification", "#never read", "planted fault found", "remark"),
)
VOLUME_COLUMNS: Final = ("volume", "state", "full", "#used", "#free", "#containers", "remark")
FINDING_COLUMNS: Final = ("#container", "#block", "#offset", "verdict", "fault", "found", "why")
CHANGE_COLUMNS: Final = ("when", "#container", "is now", "#findings", "what happened")
WORKER_COLUMNS: Final = ("worker", "state", "#steps", "#errors", "last error")


def _facts(
    status: pb.StatusResponse, scrub: pb.ScrubStatusResponse, now_ms: int
) -> Iterator[tuple[str, object]]:
    data_bytes = sum(volume.data_bytes for volume in status.volumes)
    in_time_bytes = sum(volume.in_time_bytes for volume in status.volumes)
    scans = [volume for volume in scrub.volumes if volume.state != "off"]
    yield "verified in time", percent(in_time_bytes, data_bytes) if data_bytes else "-"
    yield "left of the pass", _left(scans)
    oldest = [volume.oldest_scan_at_ms for volume in status.volumes if volume.data_bytes]
    yield "oldest verification", _ago(min(oldest), now_ms) if oldest else "-"
    yield "found and not repaired", f"{status.finding_count:,}"
    yield "replicas", f"{sum(status.containers_by_state.values()):,}"
    yield "free", size_text(sum(v.available_bytes for v in status.volumes if not v.failed))


def _left(scans: list[pb.VolumeScrub]) -> str:
    if not scans:
        return "scans are off"
    if any(scan.eta_ms < 0 for scan in scans):
        return "not known yet"
    left_ms = max(scan.eta_ms for scan in scans)
    return format_duration(left_ms / 1000) if left_ms else "nothing is due"


def _scan_rows(
    status: pb.StatusResponse, scrub: pb.ScrubStatusResponse, now_ms: int
) -> Iterator[tuple[object, ...]]:
    scans = {volume.volume_id: volume for volume in scrub.volumes}
    for volume in status.volumes:
        scan = scans.get(volume.volume_id, pb.VolumeScrub(state="off"))
        is_off = scan.state == "off"
        is_late = volume.in_time_bytes < volume.data_bytes
        yield (
            volume.path,
            bar(volume.in_time_bytes, volume.data_bytes, "doubt" if is_late else ""),
            "-" if is_off else size_text(scan.due_bytes),
            "-" if is_off else _left([scan]),
            "-" if is_off else f"{size_text(scan.speed_bytes_per_s)}/s",
            _reads(scan),
            _ago(volume.oldest_scan_at_ms, now_ms) if volume.data_bytes else "-",
            f"{scan.never_read_count:,}",
            "-" if is_off else _canary(scan, now_ms),
            "; ".join(_scan_remarks(scan)),
        )


def _reads(scan: pb.VolumeScrub) -> str:
    if scan.pause_left_ms:
        return f"paused for {format_duration(scan.pause_left_ms / 1000)}"
    if not scan.container_id:
        return scan.state
    part = min(scan.container_bytes_read, scan.container_bytes)
    share = percent(part, scan.container_bytes) if scan.container_bytes else "-"
    return f"container {scan.container_id}: {share}"


def _canary(scan: pb.VolumeScrub, now_ms: int) -> object:
    if scan.canary_overdue:
        return element("span", "overdue", kind="wrong")
    return _ago(scan.canary_found_at_ms, now_ms) if scan.canary_found_at_ms else "not yet"


def _scan_remarks(scan: pb.VolumeScrub) -> Iterator[str]:
    if scan.check:
        yield scan.check
    if scan.lag_ms:
        yield f"{format_duration(scan.lag_ms / 1000)} behind its promise"
    if scan.promise and not scan.promise_possible:
        yield scan.promise


def _ages(summary: HostSummary) -> Markup:
    """Return the shares of the bytes verified within each age; together they are 100 %."""
    data_bytes = sum(volume.data_bytes for volume in summary.volumes.values())
    if not data_bytes:
        return element("p", "No closed replica holds data yet.", kind="soft")
    rows, before = [], 0
    for days in AGES_SHOWN_D:
        places = [i for i, bound_s in enumerate(AGE_BOUNDS_S) if bound_s <= days * DAY_S]
        within = sum(
            volume.age_bytes[place] for volume in summary.volumes.values() for place in places
        )
        if within != before:
            rows.append((f"{days} d", bar(within, data_bytes), size_text(within)))
        before = within
    never_count = sum(volume.never_count for volume in summary.volumes.values())
    never = f"{never_count:,} replicas were never read again since they were written."
    return joined(
        table(("within", "bytes", "#that is"), rows),
        element("p", never) if never_count else "",
    )


def _volume_row(volume: pb.VolumeStatus) -> tuple[object, ...]:
    used_bytes = max(0, volume.capacity_bytes - volume.available_bytes)
    return (
        volume.path,
        element(
            "span",
            volume_word(volume.service, failed=volume.failed),
            kind="wrong" if volume.failed else "",
        ),
        "-" if volume.failed else bar(used_bytes, volume.capacity_bytes),
        size_text(volume.used_bytes),
        size_text(volume.available_bytes),
        f"{volume.container_count:,}",
        volume.error,
    )


def _finding_row(found: ScanFinding, now_ms: int) -> tuple[object, ...]:
    return (
        found.container_id,
        "-" if found.block_id < 0 else found.block_id,
        "-" if found.offset < 0 else found.offset,
        found.verdict.value,
        found.fault.value,
        _ago(found.found_at_ms, now_ms),
        found.evidence,
    )


def _changes(changes: Changes) -> Markup:
    rows = [
        (moment(entry.at_ms), owner, entry.state.value, entry.finding_count, entry.why)
        for owner, entry in reversed(changes.entries)
    ]
    more = []
    if changes.left_out_count:
        more.append(element("p", f"and {changes.left_out_count:,} older ones: suture log"))
    more += [
        element("p", f"What was changed on {path} cannot be read.", kind="wrong")
        for path in changes.unread_paths
    ]
    return joined(table(CHANGE_COLUMNS, rows, "Nothing."), *more)


def _worker_row(worker: pb.WorkerStatus) -> tuple[object, ...]:
    state = f"{worker.state}, stalled" if worker.stalled else worker.state
    return (worker.name, state, f"{worker.steps:,}", worker.error_count, worker.last_error)


def _ago(at_ms: int, now_ms: int) -> str:
    return f"{age(at_ms, now_ms)} ago" if at_ms else "never"
