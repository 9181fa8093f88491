"""scm suppress, release, holds: what the control plane leaves alone until it is released."""

from typing import Annotated

import typer

from agent.cli.inspect.scm_commands import Containers, app, show_decisions
from agent.cli.terminal.credentials import connect
from agent.cli.terminal.document import facts
from agent.cli.terminal.output import emit, grid, short, show
from agent.cli.terminal.selection import OnOption, datanode_id, selected
from agent.cli.terminal.typer_options import SCM_DEFAULT, JsonFlag, ScmOption
from agent.rpc.v1 import scm_pb2

ReplicaOption = Annotated[
    str, typer.Option("--datanode", metavar="ID|HOST:PORT", help="Only its replicas.")
]


@app.command("suppress")
def suppress(
    ids: Containers,
    datanode: ReplicaOption = "",
    scm: ScmOption = SCM_DEFAULT,
    as_json: JsonFlag = False,
) -> int:
    """Order nothing about containers, or about one datanode's replicas, until they are released."""
    return hold(scm, ids, datanode, release=False, as_json=as_json)


@app.command("release")
def release(
    ids: Containers,
    datanode: ReplicaOption = "",
    scm: ScmOption = SCM_DEFAULT,
    as_json: JsonFlag = False,
) -> int:
    """Take suppressed containers and excluded replicas back in hand."""
    return hold(scm, ids, datanode, release=True, as_json=as_json)


def hold(scm: str, ids: list[int], datanode: str, *, release: bool, as_json: bool) -> int:
    """Ask the SCM to hold or release."""
    with connect(scm) as client:
        request = scm_pb2.HoldContainersRequest(
            container_ids=ids,
            datanode_id=datanode_id(client, datanode) if datanode else "",
            release=release,
        )
        return show_decisions(client.scm.hold_containers(request), as_json=as_json)


@app.command("holds")
def holds(on: OnOption = None, scm: ScmOption = SCM_DEFAULT, as_json: JsonFlag = False) -> None:
    """List what is suppressed, and which replicas are excluded and why."""
    with connect(scm) as client:
        answer = client.scm.list_holds(scm_pb2.ListHoldsRequest())
        is_selected = selected(client, on)
    shown = [hold for hold in answer.holds if is_selected(hold.datanode_id)]
    if as_json:
        emit([facts(one) for one in shown])
        return
    rows = [(h.container_id, short(h.datanode_id) or "all of it", h.reason) for h in shown]
    show(grid("", ["container#", "replica on", "why"], rows))
