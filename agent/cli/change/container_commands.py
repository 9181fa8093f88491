"""Commands that change containers: `rm`, `reconcile`, `scm replicate`, `delete`, `close` and
others."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any, Final

import typer
from google.protobuf.message import Message

from agent.cli.change.confirmation import (
    DryRunFlag,
    ExpectOption,
    Order,
    YesFlag,
    is_confirmed,
    read_fingerprints,
    require_confirmation,
)
from agent.cli.change.trust import trust
from agent.cli.inspect.scm_commands import (
    Containers,
    WaitOption,
    app,
    safe_mode_line,
    show_decisions,
    wait_and_show,
)
from suture.client.cluster_client import ClusterClient
from suture.client.key_listing import checked_key, delete_keys
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.document import facts, print_messages
from suture.terminal.output import (
    print_json,
    print_line,
    print_note,
    print_rows,
    print_waiting_once,
    short,
    size,
)
from suture.terminal.selection import OnOption, datanode_id, selected
from suture.terminal.typer_options import argument, flag, option
from suture.wire.v1 import scm_pb2

MINUTE_MS: Final = 60_000

ForceFlag = Annotated[bool, flag("Close even if this loses the last writes.", "--force")]
NodeOption = Annotated[
    str, option("ID|HOST:PORT", "Datanode of the replicas to delete.", "--datanode")
]
TargetOption = Annotated[
    str, option("ID|HOST:PORT", "Datanode to copy to; default: chosen by the SCM.", "--target")
]

TrustOption = Annotated[
    str, option("ID|HOST:PORT", "Datanode with the correct replica.", "--trust")
]


@app.command("replicate")
def replicate(
    ids: Containers,
    target: TargetOption = "",
    dry_run: DryRunFlag = False,
    yes: YesFlag = False,
    expect: ExpectOption = None,
    wait_s: WaitOption = 0,
) -> int:
    """Copy containers to one more datanode each.

    The placement rules of the SCM apply.

    Exit codes:
        2: a copy failed, or the wait timed out

    Example:
        suture scm replicate 42 --target dn4.example.org:9861
    """
    with connect() as client:
        request = scm_pb2.ReplicateContainersRequest(
            container_ids=ids,
            target_datanode_id=datanode_id(client, target) if target else "",
            worlds=read_fingerprints(expect, ids),
        )
        order = order_of(client, client.scm.replicate_containers, request, "copy", wait_s)
        return order.confirm_and_submit(dry_run=dry_run, yes=yes)


@app.command("delete")
def delete(
    ids: Containers,
    datanode: NodeOption,
    dry_run: DryRunFlag = False,
    yes: YesFlag = False,
    expect: ExpectOption = None,
    wait_s: WaitOption = 0,
) -> int:
    """Delete replicas of containers from one datanode.

    A replica is deleted only if enough healthy replicas remain.

    Exit codes:
        2: a delete failed, or the wait timed out

    Example:
        suture scm delete 42 --datanode dn1.example.org:9861
    """
    with connect() as client:
        request = scm_pb2.DeleteReplicasRequest(
            container_ids=ids,
            datanode_id=datanode_id(client, datanode),
            worlds=read_fingerprints(expect, ids),
        )
        order = order_of(client, client.scm.delete_replicas, request, "delete", wait_s)
        return order.confirm_and_submit(dry_run=dry_run, yes=yes)


@app.command("close")
def close(
    ids: Containers,
    force: ForceFlag = False,
    dry_run: DryRunFlag = False,
    yes: YesFlag = False,
    expect: ExpectOption = None,
) -> int:
    """Close containers to further writes.

    Writers continue in other containers. With --force, a container is closed even if this abandons
    commits that no closed replica has. The commits that would be lost are shown first.

    Exit codes:
        2: the SCM is in safe mode, and closes the containers later

    Example:
        suture scm close 42
    """
    worlds = read_fingerprints(expect, ids)
    with connect() as client:
        request = scm_pb2.CloseContainersRequest(container_ids=ids, force=force, worlds=worlds)
        order = order_of(client, client.scm.close_containers, request, "close")
        waits = "" if force else safe_mode_line(client)
        if waits:
            print_note(waits)
        code = order.confirm_and_submit(dry_run=dry_run, yes=yes or not force)
    return ExitCode.TO_DO if waits and code == ExitCode.OK else code


def reconcile(
    ids: Containers,
    trusted: TrustOption = "",
    dry_run: DryRunFlag = False,
    yes: YesFlag = False,
    expect: ExpectOption = None,
    wait_s: WaitOption = 600,
) -> int:
    """Repair replicas of containers from healthy peers.

    Only damaged or missing chunks are copied. Replicas that contradict each other are left
    unchanged. With --trust, all replicas of one container are made equal to the replica of the
    given datanode. The data that would be replaced is shown first.

    Exit codes:
        2: a replica could not be repaired, or the wait timed out

    Example:
        suture reconcile 42
    """
    worlds = read_fingerprints(expect, ids)
    with connect() as client:
        if trusted:
            if len(ids) > 1:
                raise typer.BadParameter(
                    "expected one CONTAINER with --trust", param_hint="CONTAINER"
                )
            if not (dry_run or yes):
                require_confirmation()
            chosen = datanode_id(client, trusted)
            return trust(client, ids[0], chosen, dry_run=dry_run, yes=yes)
        request = scm_pb2.ReconcileContainersRequest(container_ids=ids, worlds=worlds)
        order = order_of(client, client.scm.reconcile_containers, request, "reconcile", wait_s)
        return order.confirm_and_submit(dry_run=dry_run, yes=True)


def order_of(
    client: ClusterClient,
    submit: Callable[[Any], scm_pb2.ContainerDecisions],
    request: Message,
    verb: str,
    wait_s: float = 0,
) -> Order[scm_pb2.ContainerDecisions]:
    """Return the `Order` for a request about containers.

    If `wait_s` is not 0, the command waits up to this number of seconds for the outcomes.
    """
    return Order(
        submit,
        request,
        f"{verb} as shown?",
        partial(wait_and_show, client, wait_s) if wait_s else show_decisions,
        preview=show_orders,
        worlds=lambda trial: [decision.world for decision in trial.decisions],
    )


def show_orders(answer: scm_pb2.ContainerDecisions) -> int:
    """Print the commands that the SCM will send, and return the exit code.

    The table has the bytes and minutes of each command, and the healthy copies before and after it.
    """
    rows = [row for decision in answer.decisions for row in order_rows(decision)]
    columns = ["container#", "decision", "order", "bytes#", "minutes#", "copies", "reason"]
    print_messages("decisions", columns, rows, answer.decisions)
    if not is_json():
        show_given_up(answer)
    return ExitCode.OK if all(d.code == "OK" for d in answer.decisions) else ExitCode.FAILED


def show_given_up(answer: scm_pb2.ContainerDecisions) -> None:
    """Print the commits that are lost when the containers are closed. Print nothing if none are
    lost."""
    rows = [
        (
            decision.container_id,
            lost.bcsid,
            lost.local_id or "unknown",
            lost.key or "none: never acknowledged, or deleted since",
        )
        for decision in answer.decisions
        for lost in decision.given_up
    ]
    if rows:
        print_rows(["container#", "commit#", "block#", "key"], rows, title="given up")
    for decision in answer.decisions:
        hidden_count = decision.given_up_count - len(decision.given_up)
        if hidden_count > 0:
            print_line(f"container {decision.container_id}: and {hidden_count} commits more")


def order_rows(decision: scm_pb2.ContainerDecision) -> list[tuple[object, ...]]:
    """Return one table row for each command of a decision.

    If the decision has no commands, return one row with the reason.
    """
    copies = f"{decision.copies_before} -> {decision.copies_after}"
    if not decision.orders:
        return [(decision.container_id, decision.code, "-", "-", "-", copies, decision.message)]
    return [
        (
            decision.container_id,
            decision.code,
            order_text(order),
            size(order.bytes),
            f"{(order.duration_ms + order.queued_ms) / MINUTE_MS:.1f}",
            copies,
            decision.message,
        )
        for order in decision.orders
    ]


def order_text(order: scm_pb2.Order) -> str:
    """Return a description of a planned command, for example "replicate dn1 to dn2"."""
    if order.target_datanode_id:
        return f"{order.type} {short(order.datanode_id)} to {short(order.target_datanode_id)}"
    return f"{order.type} on {short(order.datanode_id)}" if order.datanode_id else order.type


@app.command("queues")
def queues(on: OnOption = None) -> int:
    """Show the command queue and limits of every datanode.

    Exit codes:
        2: safe mode is on

    Example:
        suture scm queues
    """
    with connect() as client:
        answer = client.scm.get_queues(scm_pb2.GetQueuesRequest())
        is_selected = selected(client, on)
        waits = safe_mode_line(client)
    shown = [queue for queue in answer.nodes if is_selected(queue.datanode_id)]
    del answer.nodes[:]
    answer.nodes.extend(shown)
    code = ExitCode.TO_DO if waits else ExitCode.OK
    if is_json():
        print_json({**facts(answer), "safe_mode_reason": waits})
        return code
    if waits:
        print_line(waits)
    rows = [
        (
            short(q.datanode_id),
            q.op_state,
            f"{q.replication_load}/{q.replication_limit}" + (" full" if q.excluded else ""),
            f"{q.delete_load}/{q.delete_limit}",
            counts(q.reported),
            counts(q.sent),
            counts(q.waiting),
        )
        for q in answer.nodes
    ]
    columns = ["datanode", "state", "copy load", "delete load", "reported tasks", "sent tasks"]
    columns.append("queued tasks")
    print_rows(columns, rows)
    print_line(
        f"replicas on their way: {answer.pending_add_count}{of_limit(answer.pending_add_limit)}, "
        f"to be removed: {answer.pending_delete_count}; "
        f"containers that wait for a copy: {answer.under_replicated_count}, for a delete: "
        f"{answer.over_replicated_count}; deletes of blocks not acknowledged: "
        f"{answer.delete_transaction_count}"
    )
    return code


def of_limit(limit: int) -> str:
    """Return a limit as text, for example " of 100". Return "" if `limit` is 0, which means
    unlimited."""
    return f" of {limit}" if limit else ""


def counts(queue: Iterable[scm_pb2.QueueCount]) -> str:
    """Return the number of commands of each type as text, for example "3 delete". Return "-" if all
    are 0."""
    return ", ".join(f"{count.count} {count.type}" for count in queue if count.count) or "-"


@app.command("safemode")
def safemode(
    leave: Annotated[
        bool, flag("Leave safe mode before all datanodes have reported.", "--leave")
    ] = False,
    enter: Annotated[
        bool, typer.Option("--enter", help="Enter safe mode and stay in it until --leave.")
    ] = False,
    yes: YesFlag = False,
) -> int:
    """Show, enter or leave the safe mode of the SCM.

    The output names the datanodes that the SCM waits for.

    Exit codes:
        2: safe mode is on

    Example:
        suture scm safemode
    """
    if leave and enter:
        raise typer.BadParameter("expected --enter or --leave, not both")
    question = "decide without those that have not reported?"
    if enter:
        question = "stop all copies, deletes, reconciles and writes of new keys?"
    with connect() as client:
        if (leave or enter) and not is_confirmed(question, yes=yes):
            return ExitCode.FAILED
        answer = client.scm.safe_mode(scm_pb2.SafeModeRequest(leave=leave, enter=enter))
        nodes = client.scm.list_nodes(scm_pb2.ListNodesRequest()).nodes
    if is_json():
        print_json(facts(answer))
    else:
        start = "cold start" if answer.cold_start else "restart"
        print_line(f"safe mode is {'on' if answer.on else 'off'} ({start}): {answer.reason}")
        missing = set(answer.missing_datanode_ids)
        for node in nodes:
            if node.datanode_id in missing:
                has_called = node.health == "HEALTHY"
                what = "has not reported all its replicas" if has_called else "has not called"
                print_line(f"  waits for {node.datanode_id} ({node.address}, {node.rack}): {what}")
    return ExitCode.TO_DO if answer.on else ExitCode.OK


def rm(
    names: Annotated[list[str], argument("KEY", "Names of the keys to delete.")],
    dry_run: DryRunFlag = False,
    yes: YesFlag = False,
) -> int:
    """Delete keys and, in the background, their blocks.

    Example:
        suture rm report.pdf
    """
    for name in names:
        checked_key(name)
    with connect() as client:
        question = f"delete {', '.join(names)}?"
        if not is_confirmed(question, yes=yes or dry_run):
            return ExitCode.FAILED
        deletions = delete_keys(client.scm, names, dry_run=dry_run, waits=print_waiting_once())
    if is_json():
        print_json({"deletions": [facts(deletion) for deletion in deletions]})
    for deletion in () if is_json() else deletions:
        if deletion.code == "OK":
            print_line(
                f"{'would delete' if dry_run else 'deleted'} {deletion.key}, {size(deletion.size)}"
            )
        else:
            print_note(f"{deletion.key}: no such key")
    return ExitCode.OK if all(d.code == "OK" for d in deletions) else ExitCode.FAILED
