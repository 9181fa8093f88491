"""The page of one datanode for a browser, and its health for a machine. Both only tell."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from http import HTTPStatus
from typing import Final

from agent.config.quantity import spoken_duration
from agent.errors import size_text
from agent.observe.answer import answer_of, headline
from agent.observe.status import Observer
from agent.rpc.v1 import datanode_pb2 as pb
from scanner.finding import Finding

FINDINGS_SHOWN_MAX: Final = 100
STYLE: Final = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem;
       color: #1c2230; background: #fff; }
h1 { font-size: 1.2rem; } h2 { font-size: 1rem; margin-top: 2rem; }
p.answer { font-size: 1.15rem; padding: .8rem 1rem; border-left: .3rem solid #2a8a4a;
           background: #eef7f0; } p.answer.wrong { border-color: #c0392b; background: #fbeeec; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-weight: 600; }
th, td { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #dde1e8; vertical-align: top; }
th.n, td.n { text-align: right; font-variant-numeric: tabular-nums; } .wrong { color: #c0392b; }
@media (prefers-color-scheme: dark) { body { color: #dfe3ea; background: #14171d; }
  p.answer { background: #16261b; } p.answer.wrong { background: #2b1815; }
  th, td { border-color: #2b313c; } }
"""


def status_page(
    observer: Observer, scrub: pb.ScrubStatusResponse, now_ms: int, findings: Iterable[Finding]
) -> str:
    """Return the whole page: the answer, volumes, findings, queue, workers."""
    status = observer.status()
    line = headline(answer_of([(status, scrub)], now_ms), now_ms)
    is_wrong = not line.is_well or bool(problems(status, scrub))
    at = datetime.fromtimestamp(now_ms / 1000, UTC)
    queues = [(queue.type, queue.count) for queue in observer.queues()]
    shown = [found for _, found in zip(range(FINDINGS_SHOWN_MAX), findings, strict=False)]
    return "".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width"><title>Suture: ',
            f"{escape(status.datanode_id[:8])}</title><style>{STYLE}</style></head><body>",
            f"<h1>Datanode {escape(status.datanode_id)}</h1>",
            f'<p class="answer{" wrong" if is_wrong else ""}">',
            f"{escape(line.text)}</p>",
            _problem_list(problems(status, scrub)),
            f"<p>Version {escape(status.version)}, up {_age(status.started_at_ms, now_ms)}, SCM: ",
            f"{escape(status.scm_state)}, cluster {escape(status.cluster_id)}.</p>",
            _table("Volumes", VOLUME_COLUMNS, _volume_rows(status, scrub, now_ms)),
            _table("Findings", FINDING_COLUMNS, [_finding_row(found, now_ms) for found in shown]),
            f"<p>{status.finding_count} in all.</p>" if status.finding_count else "",
            _table("Queue", ("command", "#waiting or running"), queues),
            _table("Workers", WORKER_COLUMNS, [_worker_row(worker) for worker in status.workers]),
            f"<p>As of {at:%Y-%m-%d %H:%M:%S} UTC. <a href='/metrics'>metrics</a>, ",
            "<a href='/healthz'>health</a></p></body></html>",
        )
    )


def health(
    status: pb.StatusResponse, scrub: pb.ScrubStatusResponse, calls_trouble: str = ""
) -> tuple[HTTPStatus, dict[str, object]]:
    """Return 200 while this datanode serves and works, else 503; and why, volume by volume.

    `calls_trouble` says why it answers no calls, "" while it does.
    """
    serving = [volume for volume in status.volumes if not volume.failed]
    is_working = not any(worker.stalled for worker in status.workers)
    is_healthy = bool(serving) and is_working and not calls_trouble
    document: dict[str, object] = {
        "healthy": is_healthy,
        "problems": [*([calls_trouble] if calls_trouble else []), *problems(status, scrub)],
        "scm": status.scm_state,
        "volumes": [
            {"path": volume.path, "failed": volume.failed, "error": volume.error}
            for volume in status.volumes
        ],
    }
    return HTTPStatus.OK if is_healthy else HTTPStatus.SERVICE_UNAVAILABLE, document


def health_text(document: dict[str, object]) -> bytes:
    """Return the document of `health` as JSON."""
    return (json.dumps(document, indent=2) + "\n").encode()


def problems(status: pb.StatusResponse, scrub: pb.ScrubStatusResponse) -> list[str]:
    """Return what somebody should look at, in words."""
    found = [f"volume {v.path} failed: {v.error}" for v in status.volumes if v.failed]
    found += [f"worker {worker.name} is stalled" for worker in status.workers if worker.stalled]
    for volume in scrub.volumes:
        if volume.lag_ms:
            late = spoken_duration(volume.lag_ms / 1000)
            found.append(f"volume {volume.path} is {late} behind its promise")
        if volume.canary_overdue:
            found.append(f"the scan of {volume.path} did not find the planted fault")
        if volume.check:
            found.append(f"volume {volume.path} is in doubt: {volume.check}")
    if status.scm_state != "registered":
        found.append(f"not registered with the SCM: {status.scm_state}")
    return found


VOLUME_COLUMNS: Final = (
    *("volume", "state", "#used", "#free", "#containers", "#verified in time"),
    *("oldest verification", "scan", "remark"),
)
FINDING_COLUMNS: Final = ("#container", "#block", "#offset", "verdict", "fault", "found", "why")
WORKER_COLUMNS: Final = ("worker", "state", "#steps", "#errors", "last error")


def _volume_rows(
    status: pb.StatusResponse, scrub: pb.ScrubStatusResponse, now_ms: int
) -> list[tuple[object, ...]]:
    scans = {volume.volume_id: volume for volume in scrub.volumes}
    rows: list[tuple[object, ...]] = []
    for volume in status.volumes:
        scan = scans.get(volume.volume_id, pb.VolumeScrub(state="off"))
        share = f"{volume.in_time_bytes * 100 // volume.data_bytes} %" if volume.data_bytes else "-"
        rows.append(
            (
                volume.path,
                "failed" if volume.failed else "good",
                size_text(volume.used_bytes),
                size_text(volume.available_bytes),
                volume.container_count,
                share,
                _age(volume.oldest_scan_at_ms, now_ms) if volume.data_bytes else "-",
                f"{scan.state}, {size_text(scan.speed_bytes_per_s)}/s",
                volume.error or scan.check,
            )
        )
    return rows


def _finding_row(found: Finding, now_ms: int) -> tuple[object, ...]:
    return (
        found.container_id,
        "-" if found.block_id < 0 else found.block_id,
        "-" if found.offset < 0 else found.offset,
        found.verdict.value,
        found.fault.value,
        f"{_age(found.found_at_ms, now_ms)} ago",
        found.evidence,
    )


def _worker_row(worker: pb.WorkerStatus) -> tuple[object, ...]:
    state = f"{worker.state}, stalled" if worker.stalled else worker.state
    return (worker.name, state, worker.steps, worker.error_count, worker.last_error)


def _age(at_ms: int, now_ms: int) -> str:
    return "never" if not at_ms else spoken_duration(max(0, now_ms - at_ms) / 1000)


def _problem_list(found: list[str]) -> str:
    items = "".join(f'<li class="wrong">{escape(text)}</li>' for text in found)
    return f"<ul>{items}</ul>" if items else ""


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{' class=n' if column.startswith('#') else ''}>{escape(str(cell))}</td>"
            for column, cell in zip(columns, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    if not body:
        return f"<h2>{title}</h2><p>None.</p>"
    head = "".join(
        f"<th scope=col{' class=n' if column.startswith('#') else ''}>"
        f"{escape(column.lstrip('#'))}</th>"
        for column in columns
    )
    return f"<h2>{title}</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
