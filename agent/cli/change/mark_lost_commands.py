"""Commands `scm mark-lost` and `scm remove-node`, which give up lost data after a preview."""

from typing import Annotated, Final

from agent.cli.change.confirmation import (
    DryRunFlag,
    ExpectOption,
    Order,
    YesFlag,
    read_fingerprints,
)
from agent.cli.change.node_commands import Datanodes, ForceFlag, show_node_decisions
from agent.cli.inspect.scm_commands import Containers, app
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.document import print_messages
from suture.terminal.output import pluralize, print_line
from suture.terminal.selection import datanode_ids
from suture.terminal.typer_options import flag
from suture.wire.v1 import scm_pb2

KEYS_SHOWN_MAX: Final = 20  # per container; --json has up to 1,000

UndoFlag = Annotated[bool, flag("Undo the mark after a replica returned.", "--undo")]


@app.command("mark-lost")
def mark_lost(
    ids: Containers,
    undo: UndoFlag = False,
    dry_run: DryRunFlag = False,
    yes: YesFlag = False,
    expect: ExpectOption = None,
) -> int:
    """Mark missing containers as lost.

    Their keys become unreadable, and decommissioning no longer waits for them. The lost keys are
    shown first. If a replica returns later, it is reported and kept; --undo returns it to the
    container.

    Example:
        suture scm mark-lost 42 --dry-run
    """
    worlds = read_fingerprints(expect, ids)
    with connect() as client:
        request = scm_pb2.MarkContainersLostRequest(container_ids=ids, worlds=worlds, undo=undo)
        order = Order(
            client.scm.mark_containers_lost,
            request,
            "no longer mark them as lost?" if undo else "mark them and these keys as lost?",
            show_fates,
            worlds=lambda trial: [one.world for one in trial.containers],
        )
        return order.confirm_and_submit(dry_run=dry_run, yes=yes)


def show_fates(answer: scm_pb2.MarkContainersLostResponse) -> int:
    """Print the result or the preview for each container and its keys.

    Return exit code 1 if a container was refused.
    """
    rows = [(c.container_id, c.code, c.key_count, c.message) for c in answer.containers]
    columns = ["container#", "decision", "lost keys#", "reason"]
    print_messages("decisions", columns, rows, answer.containers)
    for one in () if is_json() else answer.containers:
        for name in one.keys[:KEYS_SHOWN_MAX]:
            print_line(f"lost with container {one.container_id}: {name}")
        left = one.key_count - len(one.keys[:KEYS_SHOWN_MAX])
        if left > 0:
            print_line(f"and {pluralize(left, 'key')} more of container {one.container_id}")
    return ExitCode.OK if all(one.code == "OK" for one in answer.containers) else ExitCode.FAILED


@app.command("remove-node")
def remove_node(
    ids: Datanodes, force: ForceFlag = False, dry_run: DryRunFlag = False, yes: YesFlag = False
) -> int:
    """Remove dead datanodes and their replica records.

    Nothing is deleted from their disks. If a removed datanode returns, it registers and reports its
    replicas again. If the command is interrupted, run it again.

    Example:
        suture scm remove-node dn1.example.org:9861
    """
    with connect() as client:
        named = datanode_ids(client, ids, may_be_gone=True)
        request = scm_pb2.RemoveNodesRequest(datanode_ids=named, force=force)
        remove = client.scm.remove_nodes
        order = Order(remove, request, "remove as shown?", show_node_decisions)
        return order.confirm_and_submit(dry_run=dry_run, yes=yes)
