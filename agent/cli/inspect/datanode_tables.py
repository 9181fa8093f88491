"""Commands `findings`, `volumes` and `top`, which show facts of all datanodes in one table."""

import time
from collections.abc import Sequence
from typing import Annotated, Final

from merkle.replica import ContainerId
from suture.config.quantity import format_duration
from suture.errors import size_text
from suture.pages.status_headline import Told, percent, rebuild_remark, volume_word
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.datanode_queries import (
    DatanodeReply,
    NodeOption,
    answered_text,
    fetch_status,
    nodes_of,
    query_all,
)
from suture.terminal.document import facts
from suture.terminal.output import people, pluralize, print_json, print_line, print_rows, short
from suture.terminal.time_option import duration
from suture.terminal.typer_options import option
from suture.wire.clients.peer import Peer
from suture.wire.v1 import datanode_pb2 as pb

ALL: Final = ContainerId(0)  # all containers, on the wire
INTERVAL_S_DEFAULT: Final = 2.0
ROWS_SHOWN_MAX: Final = 200  # rows in a table; --json has them all
VOLUME_COLUMNS: Final = (
    *("datanode", "volume", "state", "containers#", "used#", "free#"),
    *("verified#", "oldest scan", "scan", "remark"),
)


def findings(datanode: NodeOption = None) -> int:
    """List unrepaired scan findings of all datanodes.

    Exit codes:
        2: there are findings, or a datanode did not answer

    Example:
        suture findings
    """
    with connect() as client:
        answers = query_all(client, nodes_of(client, datanode), lambda peer: peer.findings(ALL))
    found = [(answer.datanode, item) for answer in answers for item in answer.value or ()]
    silent = [(answer.datanode, answer.error) for answer in answers if answer.error]
    if is_json():
        print_json({"findings": [{"datanode_id": node, **facts(item)} for node, item in found]})
    else:
        columns = ["datanode", "container#", "block#", "offset#", "fault", "verdict", "pattern"]
        rows = [finding_row(node, item) for node, item in found[:ROWS_SHOWN_MAX]]
        if rows:
            print_rows([*columns, "age", "evidence"], rows)
        print_line(f"{pluralize(len(found), 'finding')} on {answered_text(answers)}")
        print_unreachable(silent)
    return ExitCode.TO_DO if found or silent else ExitCode.OK


def volumes(datanode: NodeOption = None) -> int:
    """Show space, health and scans of every volume.

    Disks with errors are listed again below, the one to replace next first.

    Exit codes:
        2: a volume is not healthy, or a datanode did not answer

    Example:
        suture volumes
    """
    with connect() as client:
        answers = query_all(client, nodes_of(client, datanode), fetch_status_with_last_pass)
    silent = [(answer.datanode, answer.error) for answer in answers if answer.error]
    found = [
        (answer.datanode, volume, scan)
        for answer in answers
        if answer.value
        for volume, scan in pairs(answer.value)
    ]
    if is_json():
        known = [
            {
                "datanode_id": node,
                **facts(volume),
                "scrub": facts(scan),
                "replace_reasons": replace_reasons(volume, scan),
            }
            for node, volume, scan in found
        ]
        print_json({"volumes": known})
    else:
        print_rows(VOLUME_COLUMNS, [volume_row(*one) for one in found])
        worn = sorted(found, key=lambda one: wear_rank(*one[1:]), reverse=True)
        rows = [
            (short(node), volume.path, "; ".join(reasons))
            for node, volume, scan in worn
            if (reasons := replace_reasons(volume, scan))
        ]
        if rows:
            print_rows(("replace next", "volume", "reasons"), rows)
        print_unreachable(silent)
    bad = any(
        volume.failed or volume.slow or scan.check or scan.canary_overdue or scan.lag_ms
        for _, volume, scan in found
    )
    return ExitCode.TO_DO if bad or silent else ExitCode.OK


def fetch_status_with_last_pass(peer: Peer) -> Told:
    """Fetch the status of one datanode, and the status of its scans with the last full passes."""
    return peer.status(), peer.scrub_status(with_last_pass=True)


def wear_rank(volume: pb.VolumeStatus, scan: pb.VolumeScrub) -> tuple[bool, bool, int, bool]:
    """Return a sort key of a volume. The disk that must be replaced first has the highest key."""
    return volume.failed, bool(scan.check), scan.last_pass.found_count, bool(volume.slow)


def replace_reasons(volume: pb.VolumeStatus, scan: pb.VolumeScrub) -> list[str]:
    """Return the reasons to replace the disk of a volume, the most serious first.

    Return an empty list if there is no reason.
    """
    found_count = scan.last_pass.found_count
    reasons = (
        f"failed: {volume.error}" if volume.failed else "",
        f"its check failed: {scan.check}" if scan.check and not volume.failed else "",
        f"{pluralize(found_count, 'error')} in the last full pass" if found_count else "",
        f"slow: {volume.slow}" if volume.slow else "",
    )
    return [reason for reason in reasons if reason]


def top(
    datanode: NodeOption = None,
    interval_s: Annotated[
        float, duration("--every", text="Time between updates.", min_s=0.1, shown="2s")
    ] = INTERVAL_S_DEFAULT,
    count: Annotated[
        int, option("N", "Number of updates; 0 = unlimited, until Ctrl-C.", min=0)
    ] = 0,
) -> int:
    """Show the current scans and queues of every datanode.

    Example:
        suture top --every 5s
    """
    shown = 0
    with connect() as client:
        while True:
            answers = query_all(client, nodes_of(client, datanode), fetch_status)
            if people.is_terminal and not count:
                people.clear()
            columns = ["datanode", "volume", "scan", "container#", "speed#", "backlog#", "tasks#"]
            rows = [row for answer in answers for row in top_rows(answer)]
            print_rows([*columns, "busy workers"], rows, title=time.strftime("%H:%M:%S"))
            shown += 1
            if shown == count:
                return ExitCode.OK
            time.sleep(interval_s)


def pairs(value: Told) -> list[tuple[pb.VolumeStatus, pb.VolumeScrub]]:
    """Return each volume of a datanode with the status of its scan.

    A volume without a scan gets a status with the state "off".
    """
    status, scrub = value
    scans = {scan.volume_id: scan for scan in scrub.volumes}
    return [
        (volume, scans.get(volume.volume_id, pb.VolumeScrub(state="off")))
        for volume in status.volumes
    ]


def finding_row(datanode: str, item: pb.Finding) -> tuple[object, ...]:
    """Return the table row of one scan finding."""
    return (
        short(datanode),
        item.container_id,
        "-" if item.local_id < 0 else item.local_id,
        "-" if item.offset < 0 else item.offset,
        item.fault,
        item.verdict,
        item.forensic or "-",
        f"{age(item.found_at_ms)} ago",
        item.evidence,
    )


def service_remark(volume: pb.VolumeStatus) -> str:
    """Return a remark about the service mode of a volume.

    For a retiring volume, it has the progress of the moves and the reason why replicas remain. For
    other volumes, it has the number of replicas that need a change: those that are still open on a
    read-only volume, and those that another volume also has.
    """
    stuck = volume.stuck_count
    if volume.service != "RETIRING":
        return f"{pluralize(stuck, 'replica')} stuck: {volume.stuck_reason}" if stuck else ""
    gone = max(0, volume.retiring_bytes - volume.used_bytes)
    share = percent(gone, volume.retiring_bytes) if volume.retiring_bytes else "100 %"
    left = f", {format_duration(volume.eta_ms / 1000)} left" if volume.eta_ms > 0 else ""
    held = f"; {pluralize(stuck, 'replica')} not moved: {volume.stuck_reason}" if stuck else ""
    return f"{share} moved{left}{held}"


def volume_state(volume: pb.VolumeStatus, scan: pb.VolumeScrub) -> str:
    """Return the state of a volume as a word: that it has failed or, otherwise, its service
    mode."""
    return volume_word(volume.service, failed=volume.failed, in_doubt=bool(scan.check))


def volume_row(datanode: str, volume: pb.VolumeStatus, scan: pb.VolumeScrub) -> tuple[object, ...]:
    """Return the table row about one volume."""
    remarks = [volume.error, rebuild_remark(volume), scan.check, service_remark(volume)]
    remarks.append(f"slow: {volume.slow}" if volume.slow else "")
    remarks.append("the planted fault was not found" if scan.canary_overdue else "")
    remarks.append(f"{format_duration(scan.lag_ms / 1000)} late" if scan.lag_ms else "")
    return (
        short(datanode),
        volume.path,
        volume_state(volume, scan),
        volume.container_count,
        size_text(volume.used_bytes),
        size_text(volume.available_bytes),
        percent(volume.in_time_bytes, volume.data_bytes) if volume.data_bytes else "-",
        age(volume.oldest_scan_at_ms) if volume.data_bytes else "-",
        scan.state,
        "; ".join(filter(None, remarks)),
    )


def top_rows(answer: DatanodeReply[Told]) -> list[tuple[object, ...]]:
    """Return one table row for each volume of a datanode.

    If the datanode did not answer, return one row with the error.
    """
    if answer.value is None:
        return [(short(answer.datanode), *["-"] * 6, answer.error)]
    status, _ = answer.value
    busy = " ".join(worker.name for worker in status.workers if worker.state == "busy")
    return [
        (
            short(answer.datanode),
            volume.path,
            scan.state,
            scan.container_id or "-",
            f"{size_text(scan.speed_bytes_per_s)}/s",
            scan.due_count,
            status.task_count,
            busy,
        )
        for volume, scan in pairs(answer.value)
    ]


def print_unreachable(silent: Sequence[tuple[str, str]]) -> None:
    """Print the names of the datanodes that did not answer, with the errors."""
    for name, error in silent:
        print_line(f"{short(name)} does not answer: {error}")


def age(at_ms: int) -> str:
    """Return the time since `at_ms` as text, for example "3 days". Return "never" if `at_ms` is
    0."""
    return "never" if not at_ms else format_duration(max(0.0, time.time() - at_ms / 1000))
