"""Commands `scm pause`, `resume`, `limit` and `config`, which change settings of the running
SCM."""

from enum import StrEnum
from typing import Annotated

import typer

from agent.cli.inspect.scm_commands import app
from suture.config.quantity import parse_bytes_per_s
from suture.config.week_windows import parse_week_windows
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.document import facts
from suture.terminal.output import print_json, print_line, print_rows
from suture.terminal.time_option import duration
from suture.wire.v1 import scm_pb2

NONE = "none"  # removes a limit


class Work(StrEnum):
    """Kinds of work that can be paused."""

    COPIES = "copies"
    DELETES = "deletes"
    RECONCILES = "reconciles"
    BALANCING = "balancing"


class LimitedWork(StrEnum):
    """Kinds of work that can be limited."""

    COPIES = "copies"
    RECONCILES = "reconciles"


KindOption = Annotated[
    list[Work] | None,
    typer.Option(
        "--kind", metavar="KIND", help="Copies, deletes, reconciles or balancing; default: all."
    ),
]
RackOption = Annotated[
    str,
    typer.Option(
        "--rack", metavar="RACK", help="Only the work of datanodes on this rack; default: all."
    ),
]


@app.command("pause")
def pause(
    kind: KindOption = None,
    rack: RackOption = "",
    for_s: Annotated[float, duration("--for", text="Duration of the pause; 0 = unlimited.")] = 0,
) -> int:
    """Pause copies, deletes, reconciles or balancing.

    Commands that datanodes already have are completed. New commands wait. The pause lasts over a
    restart of the SCM.

    Example:
        suture scm pause --kind copies --rack /rack1 --for 2h
    """
    works = [work.value for work in kind or Work]
    request = scm_pb2.ChangeSettingsRequest(
        control="pause", works=works, rack=rack, duration_ms=int(for_s * 1000)
    )
    return change([request])


@app.command("resume")
def resume(kind: KindOption = None, rack: RackOption = "") -> int:
    """End pauses of work.

    Without --rack, the pauses on all racks end.

    Example:
        suture scm resume --kind copies
    """
    works = [work.value for work in kind or Work]
    request = scm_pb2.ChangeSettingsRequest(control="pause", works=works, rack=rack, remove=True)
    return change([request])


@app.command("limit")
def limit(
    work: Annotated[
        LimitedWork, typer.Argument(metavar="WORK", help="Work to limit: copies or reconciles.")
    ],
    per_datanode: Annotated[
        str, typer.Option(metavar="RATE", help="Rate limit of each datanode; none = no limit.")
    ] = "",
    cluster: Annotated[
        str,
        typer.Option(metavar="RATE", help="Rate limit of all datanodes together; none = no limit."),
    ] = "",
    windows: Annotated[
        str,
        typer.Option(
            metavar="WINDOWS", help="Times of the week for the work (UTC); none = any time."
        ),
    ] = "",
) -> int:
    """Set the bandwidth and hours of copies or reconciles.

    A limit takes effect with the next heartbeat of each datanode, and lasts over a restart of the
    SCM. The limit of the cluster is divided equally among the datanodes.

    Example:
        suture scm limit copies --per-datanode 50MiB/s --windows 'mon-fri 20:00-06:00'
    """
    given = {"node_rate": per_datanode, "cluster_rate": cluster, "windows": windows}
    requests = [
        request_of(control, work, value.strip()) for control, value in given.items() if value
    ]
    if not requests:
        raise typer.BadParameter("expected --per-datanode, --cluster or --windows")
    return change(requests)


def request_of(control: str, work: LimitedWork, value: str) -> scm_pb2.ChangeSettingsRequest:
    """Return the request that sets one limit. Raise BadParameter if `value` is invalid."""
    request = scm_pb2.ChangeSettingsRequest(control=control, works=[work.value])
    if value == NONE:
        request.remove = True
        return request
    try:
        if control == "windows":
            parse_week_windows(value)
            request.value = value
        else:
            request.value = str(parse_bytes_per_s(value))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return request


def change(requests: list[scm_pb2.ChangeSettingsRequest]) -> int:
    """Change settings of the running SCM, and print all settings that are then in effect."""
    with connect() as client:
        *_, answer = [client.scm.change_settings(request) for request in requests]
    if is_json():
        print_json(facts(answer))
        return ExitCode.OK
    for setting in answer.settings:
        print_line(setting.text)
    if not answer.settings:
        print_line("nothing is paused or limited")
    return ExitCode.OK


@app.command("config")
def config() -> int:
    """Show the effective options and settings of the SCM.

    Example:
        suture scm config
    """
    with connect() as client:
        answer = client.scm.list_settings(scm_pb2.ListSettingsRequest())
    if is_json():
        print_json(facts(answer))
        return ExitCode.OK
    rows = [
        (option.name, option.value, "" if option.value == option.default_value else "changed")
        for option in answer.options
    ]
    print_rows(["option", "value", "remark"], rows)
    for setting in answer.settings:
        print_line(setting.text)
    return ExitCode.OK
