"""Commands `scrub status`, `pause` and `scan`, which show and control the scans."""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Final

import typer

from agent.cli.change.sample import sample
from agent.cli.inspect.container_history import moment
from agent.cli.inspect.datanode_tables import print_unreachable
from agent.cli.inspect.replica_commands import ScanOptions, scan_replicas
from agent.cli.inspect.verify_parity import verify_parity_command
from suture.config.quantity import format_duration
from suture.errors import Code, RefusedError, UnavailableError
from suture.pages.status_headline import percent
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.datanode_queries import DatanodeReply, NodeOption, nodes_of, query_all
from suture.terminal.document import facts
from suture.terminal.output import ago, pluralize, print_json, print_line, print_rows, short, size
from suture.terminal.time_option import duration
from suture.terminal.typer_options import ID_MAX, argument, flag, option
from suture.wire.clients.peer import Peer
from suture.wire.v1 import datanode_pb2 as pb

PAUSE_S_DEFAULT: Final = 3600.0

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

VolumeOption = Annotated[str, option("ID", "Pause only this volume (id); default: all.")]
Answers = list[DatanodeReply[pb.ScrubStatusResponse]]


@app.command("status")
def status(datanode: NodeOption = None) -> int:
    """Show the scan progress of every volume.

    The last full pass of a volume is the period in which each of its replicas was last read.

    Exit codes:
        2: a scan is late or misses test damage, or a datanode did not answer

    Example:
        suture scrub status
    """
    answers = query_scrubs(datanode, lambda peer: peer.scrub_status(with_last_pass=True))
    return print_answers(answers)


@app.command("pause")
def pause(
    datanode: NodeOption = None,
    volume: VolumeOption = "",
    duration_s: Annotated[
        float, duration("--for", text="Length of the pause.", min_s=0.001, shown="1h")
    ] = PAUSE_S_DEFAULT,
    end: Annotated[bool, flag("End the pause now.", "--end")] = False,
) -> int:
    """Pause background scans for a limited time.

    Requested scans still run.

    Exit codes:
        2: a datanode did not answer; the others are paused

    Example:
        suture scrub pause --for 2h
    """
    if end:
        wish = pb.ControlScrubRequest(volume_id=volume, resume=True)
    else:
        wish = pb.ControlScrubRequest(volume_id=volume, pause_ms=max(1, int(duration_s * 1000)))
    return print_answers(control_scrubs(datanode, wish))


@app.command("scan")
def scan(
    container_id: Annotated[int, argument("CONTAINER", "Container id.", min=1, max=ID_MAX)],
    datanode: NodeOption = None,
    wait: Annotated[bool, flag("Scan now, and print progress and findings.", "--wait")] = False,
    full_speed: Annotated[
        bool, flag("With --wait: give the scan priority over clients.", "--full-speed")
    ] = False,
    cancel: Annotated[
        bool, flag("Cancel the background scan of the container.", "--cancel")
    ] = False,
) -> int:
    """Queue a full scan of a container's replicas.

    Every byte is read from the disk, not from the page cache. With --wait, the scan starts now.

    Exit codes:
        2: damage was found, or a replica could not be read or queued

    Example:
        suture scrub scan 42 --wait
    """
    if (full_speed and not wait) or (cancel and wait):
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            "cannot combine the options: --full-speed requires --wait, and --cancel excludes it",
            hint="--cancel stops the background scan; --wait starts a scan now",
        )
    if cancel:
        wish = pb.ControlScrubRequest(skip_container_id=container_id)
        return print_answers(control_scrubs(datanode, wish))
    options = ScanOptions(container_id=container_id, wait=wait, full_speed=full_speed)
    return scan_replicas(datanode, options)


app.command("parity")(verify_parity_command)
app.command("sample")(sample)


def query_scrubs(
    datanode: str | None, question: Callable[[Peer], pb.ScrubStatusResponse]
) -> Answers:
    """Send a request to one datanode, or to all at the same time. Raise SutureError if none
    answers."""
    with connect() as client:
        answers = query_all(client, nodes_of(client, datanode), question)
    if answers and all(answer.value is None for answer in answers):
        errors = [answer.cause for answer in answers if answer.cause]
        raise next((error for error in errors if isinstance(error, UnavailableError)), errors[0])
    return answers


def control_scrubs(datanode: str | None, wish: pb.ControlScrubRequest) -> Answers:
    """Change the scans of one datanode, or of all datanodes.

    If `wish` is for one volume, datanodes without this volume reject it. Their errors are not part
    of the result. Raise SutureError if no datanode accepts the change.
    """
    answers = query_scrubs(datanode, lambda peer: peer.control_scrub(wish))
    return [answer for answer in answers if answer.value is not None or not wish.volume_id]


def print_answers(answers: Answers) -> int:
    """Print the responses, and the datanodes that did not answer. Return the exit code."""
    heard = [(answer.datanode, answer.value) for answer in answers if answer.value is not None]
    silent = [(answer.datanode, answer.error) for answer in answers if answer.error]
    if is_json():
        errors = {datanode: {"error": error} for datanode, error in silent}
        known = {datanode: facts(answer) for datanode, answer in heard}
        total = total_pass([volume for _, answer in heard for volume in answer.volumes])
        print_json({"datanodes": known | errors, **({"last_pass": facts(total)} if total else {})})
    else:
        columns = ["datanode", "volume", "state", "pass#", "speed", "min speed", "backlog#"]
        columns += ["time left", "oldest scan", "lag", "remark"]
        rows = [
            volume_row(datanode, volume) for datanode, answer in heard for volume in answer.volumes
        ]
        print_rows(columns, rows)
        print_passes(heard)
        for datanode, answer in heard:
            print_line(f"{short(datanode)}: {headline(answer)}")
            for line in parity_lines(answer.parity):
                print_line(f"{short(datanode)}: {line}")
        print_unreachable(silent)
    return ExitCode.TO_DO if silent or any(is_wrong(answer) for _, answer in heard) else ExitCode.OK


def is_wrong(answer: pb.ScrubStatusResponse) -> bool:
    """Return whether an operator must act on the status of the scans of one datanode.

    The reason is a late scan, a planted test fault that a scan did not find in time, a failed check
    of a volume, or a parity fault.
    """
    if answer.parity.fault_count:
        return True
    return any(volume.lag_ms or volume.canary_overdue or volume.check for volume in answer.volumes)


def parity_lines(parity: pb.ParityScrub) -> list[str]:
    """Return lines with the results of the parity scrub. Return an empty list if it has not
    started."""
    if not parity.verified_count and not parity.container_id:
        return []
    lines = [
        f"parity of {pluralize(parity.verified_count, 'container')} verified, "
        f"{pluralize(parity.stripe_count, 'stripe')}, oldest {ago(parity.oldest_verified_at_ms)}"
    ]
    for fault in parity.faults:
        wrong = ", ".join(map(str, fault.wrong_shards)) or "cannot be told"
        lines.append(
            f"container {fault.container_id}, block {fault.local_id}, stripe {fault.stripe}: "
            f"the shards do not fit together; wrong shard: {wrong}"
        )
    return lines


def headline(answer: pb.ScrubStatusResponse) -> str:
    """Return one sentence about the scans of one datanode."""
    on = [volume for volume in answer.volumes if volume.state != "off"]
    if not on:
        return "no background scans"
    late = sum(bool(volume.lag_ms) for volume in on)
    off = len(answer.volumes) - len(on)
    kept = "kept on the other volumes" if off else "kept on all volumes"
    kept = f"broken on {late} of {len(on)} volumes" if late else kept
    kept = f"{pluralize(off, 'volume')} not scanned; {kept}" if off else kept
    due_bytes = sum(volume.due_bytes for volume in on)
    return (
        f"every byte within {format_duration(answer.interval_ms / 1000)}: {kept}; "
        f"{size(due_bytes)} due now, {answer.on_demand_waiting} scans asked for"
    )


def volume_row(datanode: str, volume: pb.VolumeScrub) -> tuple[object, ...]:
    """Return the table row about the scan of one volume."""
    if volume.state == "off":
        return (short(datanode), volume.path, "off", *["-"] * 8)
    state = volume.state
    if volume.container_id:
        part = min(1.0, volume.container_bytes_read / max(volume.container_bytes, 1))
        state = f"{state} {volume.container_id} ({part:.0%})"
    if volume.pause_left_ms:
        state = f"paused for {format_duration(volume.pause_left_ms / 1000)}"
    remarks = [volume.check, "the planted fault was not found" if volume.canary_overdue else ""]
    if not volume.interval_possible:
        remarks.append(volume.promise)
    if volume.never_read_count:
        remarks.append(f"{volume.never_read_count} never read")
    return (
        short(datanode),
        volume.path,
        state,
        done_share(volume),
        f"{size(volume.speed_bytes_per_s)}/s",
        f"{size(volume.needed_bytes_per_s)}/s",
        volume.due_count,
        "?" if volume.eta_ms < 0 else format_duration(volume.eta_ms / 1000),
        ago(volume.oldest_read_at_ms) if volume.used_bytes else "-",
        format_duration(volume.lag_ms / 1000) if volume.lag_ms else "none",
        "; ".join(filter(None, remarks)),
    )


def print_passes(heard: Sequence[tuple[str, pb.ScrubStatusResponse]]) -> None:
    """Print the last full pass of each volume, and the pass over all volumes. Print nothing if none
    exists.

    A full pass is the period in which each replica of a volume was last read.
    """
    passes = [
        (datanode, volume)
        for datanode, answer in heard
        for volume in answer.volumes
        if volume.HasField("last_pass")
    ]
    total = total_pass([volume for _, volume in passes])
    if total is None:
        return
    rows = [(short(node), one.path, *pass_row(one.last_pass)) for node, one in passes]
    rows.append(("all", pluralize(len(passes), "volume"), *pass_row(total)))
    columns = ["datanode", "volume", "ended (UTC)", "took", "read#", "errors found#", "resolved#"]
    print_rows(columns, rows, title="last full pass")


def pass_row(one: pb.ScrubPass) -> tuple[object, ...]:
    """Return the table cells of a full pass, the period in which each replica of a volume was last
    read."""
    took = format_duration((one.ended_at_ms - one.began_at_ms) / 1000)
    ended = moment(one.ended_at_ms)
    return ended, took, size(one.read_bytes), one.found_count, one.resolved_count


def total_pass(volumes: Iterable[pb.VolumeScrub]) -> pb.ScrubPass | None:
    """Return the pass over all volumes, from the earliest start to the latest end of their passes.

    Return None if no volume has a pass.
    """
    known = [volume.last_pass for volume in volumes if volume.HasField("last_pass")]
    if not known:
        return None
    return pb.ScrubPass(
        began_at_ms=min(one.began_at_ms for one in known),
        ended_at_ms=max(one.ended_at_ms for one in known),
        read_bytes=sum(one.read_bytes for one in known),
        found_count=sum(one.found_count for one in known),
        resolved_count=sum(one.resolved_count for one in known),
    )


def done_share(volume: pb.VolumeScrub) -> str:
    """Return the percentage of a volume's bytes that are not due for a scan, as text.

    Return "-" if the volume is empty.
    """
    if not volume.used_bytes:
        return "-"
    return percent(max(0, volume.used_bytes - volume.due_bytes), volume.used_bytes)
