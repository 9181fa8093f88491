"""Command `scm hold`: excludes containers and replicas from all repairs and deletes."""

from typing import Annotated

import typer

from agent.cli.inspect.scm_commands import app, show_decisions
from suture.client.cluster_client import ClusterClient
from suture.runtime.exit_codes import ExitCode
from suture.terminal.credentials import connect
from suture.terminal.document import print_messages
from suture.terminal.output import short
from suture.terminal.selection import OnOption, datanode_id, selected
from suture.terminal.transient_refusals import until_decided
from suture.terminal.typer_options import ID_MAX, argument, flag, option
from suture.wire.v1 import scm_pb2

ReplicaOption = Annotated[
    str,
    option("ID|HOST:PORT", "Hold only the replicas of this datanode; default: all.", "--datanode"),
]


@app.command("hold")
def hold(
    ids: Annotated[
        list[int] | None, argument("CONTAINER", "Container ids.", min=1, max=ID_MAX)
    ] = None,
    datanode: ReplicaOption = "",
    release: Annotated[
        bool, flag("Release held containers and excluded replicas.", "--release")
    ] = False,
    on: OnOption = None,
) -> int:
    """Stop repairs and deletes of containers or replicas.

    The SCM sends no commands for held containers. Without CONTAINER, held containers and excluded
    replicas are listed with their reasons.

    Example:
        suture scm hold 42
    """
    if not ids and (datanode or release):
        raise typer.BadParameter(
            "expected the ids of containers to hold or release", param_hint="CONTAINER"
        )
    with connect() as client:
        if not ids:
            return show_holds(client, on)
        request = scm_pb2.HoldContainersRequest(
            container_ids=ids,
            datanode_id=datanode_id(client, datanode) if datanode else "",
            release=release,
        )
        return show_decisions(until_decided(client.scm.hold_containers, request))


def show_holds(client: ClusterClient, on: list[str] | None) -> int:
    """Print all containers and replicas that are excluded from repairs and deletes.

    If `on` is set, print only those on these datanodes.
    """
    answer = client.scm.list_holds(scm_pb2.ListHoldsRequest())
    is_selected = selected(client, on)
    shown = [one for one in answer.holds if is_selected(one.datanode_id)]
    rows = [(h.container_id, short(h.datanode_id) or "all of it", h.reason) for h in shown]
    print_messages("holds", ["container#", "datanode", "reason"], rows, shown)
    return ExitCode.OK
