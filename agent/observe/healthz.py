"""The response to `/healthz`: whether the agent serves requests and its workers run."""

import json
from http import HTTPStatus

from suture.config.quantity import format_duration
from suture.pages.status_headline import rebuild_remark
from suture.wire.v1 import datanode_pb2 as pb


def health(
    status: pb.StatusResponse, scrub: pb.ScrubStatusResponse, calls_trouble: str = ""
) -> tuple[HTTPStatus, dict[str, object]]:
    """Return the HTTP status of `/healthz` and a document with details.

    The status is 200 if at least one volume is served, all workers run, and calls are answered.
    Otherwise, it is 503. `calls_trouble` is the reason why calls may get no answer; "" if they are
    answered.
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
    """Return the document of `health` as JSON text."""
    return (json.dumps(document, indent=2) + "\n").encode()


def problems(status: pb.StatusResponse, scrub: pb.ScrubStatusResponse) -> list[str]:
    """Return descriptions of all problems that an operator must solve."""
    found = [f"volume {v.path} failed: {v.error}" for v in status.volumes if v.failed]
    found += [f"volume {v.path}: {rebuild_remark(v)}" for v in status.volumes if v.rebuild_count]
    found += [f"worker {worker.name} is stalled" for worker in status.workers if worker.stalled]
    for volume in scrub.volumes:
        if volume.lag_ms:
            late = format_duration(volume.lag_ms / 1000)
            found.append(f"volume {volume.path} is {late} behind its promise")
        if volume.canary_overdue:
            found.append(f"the scan of {volume.path} did not find the planted fault")
        if volume.check:
            found.append(f"volume {volume.path} is in doubt: {volume.check}")
    if status.scm_state != "registered":
        found.append(f"not registered with the SCM: {status.scm_state}")
    return found
