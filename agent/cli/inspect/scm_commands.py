"""Commands `scm nodes`, `containers` and others, which show records of the SCM and outcomes of
commands."""

import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import typer

from merkle.replica import ContainerId
from suture.client.cluster_client import ClusterClient
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.document import facts, print_messages
from suture.terminal.long_lists import print_json_pages, print_row_pages
from suture.terminal.outcomes import KEPT_MAX, newest_outcomes
from suture.terminal.output import (
    ago,
    checksum,
    items_progress,
    pluralize,
    print_json,
    print_line,
    print_note,
    print_rows,
    print_waiting_once,
    short,
    size,
)
from suture.terminal.selection import OnOption, fetch_container, selected
from suture.terminal.time_option import duration
from suture.terminal.transient_refusals import THE_SCM, TRANSIENT, until_free
from suture.terminal.typer_options import ID_MAX, argument
from suture.wire.v1 import container_pb2, scm_pb2

POLL_S: Final = 0.2
PAGE: Final = 1000
HEALED: Final = frozenset({"converged", "nothing_to_do"})
OUTCOMES_SHOWN: Final = 20
BEING_WRITTEN: Final = frozenset({"OPEN", "CLOSING"})  # states of a container without a tree

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Containers = Annotated[list[int], argument("CONTAINER", "Container ids.", min=1, max=ID_MAX)]
WaitOption = Annotated[
    float, duration("--wait-for", "--wait-s", text="Longest wait for results; 0 = do not wait.")
]


def health_of(node: scm_pb2.NodeInfo) -> str:
    """Return the health of a datanode as text.

    The text says if the datanode gets no new replicas because it is read-only or not managed.
    """
    if node.read_only:
        return f"{node.health}, read-only"
    return f"{node.health}, not managed" if node.unmanaged else node.health


@app.command("nodes")
def nodes(on: OnOption = None) -> None:
    """List datanodes with health, space and activity.

    Example:
        suture scm nodes --on /rack1
    """
    with connect() as client:
        answer = client.scm.list_nodes(scm_pb2.ListNodesRequest())
        is_selected = selected(client, on)
    shown = [node for node in answer.nodes if is_selected(node.datanode_id)]
    now_ms = time.time() * 1000
    rows = [
        (
            short(node.datanode_id),
            node.address,
            node.rack,
            health_of(node),
            node.op_state,
            node.container_count,
            size(sum(v.available_bytes for v in node.volumes)),
            sum(q.count for q in node.queues),
            f"{max(0.0, now_ms - node.last_heartbeat_at_ms) / 1000:.1f} s ago",
        )
        for node in shown
    ]
    columns = ["datanode", "address", "rack", "health", "state", "containers#", "free#", "tasks#"]
    print_messages("nodes", [*columns, "last heartbeat"], rows, shown)
    for node in () if is_json() else shown:
        if node.read_only:
            print_note(
                f"{short(node.datanode_id)} is read-only: its layout is version "
                f"{node.layout_version}, not the control plane's; it gets no new replicas"
            )


def container_pages(client: ClusterClient) -> Iterator[Sequence[scm_pb2.ContainerInfo]]:
    """Yield all containers that the SCM knows, in pages. Each page is fetched by one request."""
    start = 1
    while start:
        page = client.scm.list_container_infos(
            scm_pb2.ListContainerInfosRequest(start_container_id=start, count=PAGE)
        )
        yield page.containers
        start = page.next_container_id


@app.command("containers")
def containers(
    container_id: Annotated[
        int | None,
        argument(
            "CONTAINER", "List the replicas of this container; default: all.", min=1, max=ID_MAX
        ),
    ] = None,
    on: OnOption = None,
) -> None:
    """List containers, and whether their replicas are equal.

    With CONTAINER, its replicas are listed.

    Example:
        suture scm containers 42
    """
    with connect() as client:
        if container_id is not None:
            show_container(client, container_id)
            return
        is_selected = selected(client, on)
        pages = (
            [
                c
                for c in page
                if not on or any(is_selected(r.datanode.datanode_id) for r in c.replicas)
            ]
            for page in container_pages(client)
        )
        if is_json():
            print_json_pages("containers", (map(facts, page) for page in pages))
            return
        columns = ["container#", "state", "replicas#", "bytes#", "bcsid#", "checksums"]
        print_row_pages([*columns, "replica states"], (list(map(container_row, p)) for p in pages))


def container_row(info: scm_pb2.ContainerInfo) -> tuple[object, ...]:
    """Return the table row about one container."""
    return (
        info.container_id,
        info.state,
        len(info.replicas),
        size(info.used_bytes),
        info.sequence_id,
        info.checksums,
        ", ".join(sorted({state_name(one.replica.state) for one in info.replicas})),
    )


def state_name(state: container_pb2.ReplicaState) -> str:
    """Return the name of a replica state. `state` is its number in messages."""
    return container_pb2.ReplicaState.Name(state)


def show_container(client: ClusterClient, container_id: int) -> None:
    """Print one container and all its replicas."""
    info = fetch_container(client, container_id)
    if is_json():
        print_json(facts(info))
        return
    checksums = info.scheme if info.checksums == "shards" else info.checksums
    print_line(f"container {container_id}: {info.state}, bcsid {info.sequence_id}, {checksums}")
    print_replicas(info)
    say_unloadable(info)


def say_unloadable(info: scm_pb2.ContainerInfo) -> None:
    """Print the reason for each replica that cannot be loaded."""
    for held in info.replicas:
        if held.replica.load_error:
            print_line(
                f"{short(held.datanode.datanode_id)}: cannot be loaded: {held.replica.load_error}"
            )


def print_replicas(info: scm_pb2.ContainerInfo) -> None:
    """Print a table of a container's replicas."""
    rows = [
        (
            short(r.datanode.datanode_id),
            r.datanode.address,
            r.node_health,
            state_name(r.replica.state),
            r.replica.bcsid,
            size(r.replica.used_bytes),
            checksum(r.replica.tree.root if r.replica.HasField("tree") else None),
            r.replica.finding_count,
            ago(r.replica.data_scan_at_ms),
            *([r.replica.replica_index] if info.scheme else []),
        )
        for r in sorted(info.replicas, key=lambda r: r.replica.replica_index)
    ]
    columns = ["datanode", "address", "health", "state", "bcsid#", "bytes#", "root", "findings#"]
    columns.append("last scan")
    print_rows(columns + (["shard#"] if info.scheme else []), rows)


@app.command("snapshot")
def snapshot() -> None:
    """Export the state of the SCM for suture-verify.

    The SCM writes Parquet files to a directory on its host. The command prints the directory.

    Example:
        suture scm snapshot
    """
    with connect() as client:
        answer = client.scm.export_snapshot(
            scm_pb2.ExportSnapshotRequest(), waits=print_waiting_once()
        )
    if is_json():
        print_json(facts(answer))
        return
    print_line(answer.path)


def scan_decision(
    client: ClusterClient, row: scm_pb2.PlanRow, *, dry_run: bool
) -> scm_pb2.ContainerDecision:
    """Scan the replicas that a row of a plan names, and return the decision about the row.

    A plan requests a scan only for replicas without a root. If one of the replicas has a root now,
    it is not scanned, and the decision is STALE_PLAN. In a dry run, nothing is scanned.
    """
    decision = scm_pb2.ContainerDecision(container_id=row.container_id, code="OK")
    try:
        _scan(client, row, decision, dry_run=dry_run)
    except SutureError as error:  # not raised, so that the caller shows the other rows
        decision.code, decision.message = error.code, str(error)
    return decision


def _scan(
    client: ClusterClient,
    row: scm_pb2.PlanRow,
    decision: scm_pb2.ContainerDecision,
    *,
    dry_run: bool,
) -> None:
    info = fetch_container(client, row.container_id)
    for held in info.replicas:
        if held.datanode.datanode_id not in row.targets:
            continue
        if held.replica.HasField("tree"):
            decision.code = Code.STALE_PLAN
            decision.message = f"{held.datanode.datanode_id} has a root now"
        elif not dry_run:
            # The datanode reports the finding, if any.
            client.peer(held.datanode).scanned(
                ContainerId(row.container_id), waits=print_waiting_once(held.datanode.datanode_id)
            )


def show_decisions(answer: scm_pb2.ContainerDecisions) -> int:
    """Print the SCM's decision about each container. Return exit code 1 if the SCM refused any
    request."""
    rows = [(d.container_id, d.code, len(d.command_ids), d.message) for d in answer.decisions]
    columns = ["container#", "decision", "commands#", "reason"]
    print_messages("decisions", columns, rows, answer.decisions)
    return ExitCode.OK if all(d.code == "OK" for d in answer.decisions) else ExitCode.FAILED


def safe_mode_line(client: ClusterClient) -> str:
    """Return a line with the reason why the SCM is in safe mode. Return "" if safe mode is off."""
    answer = client.scm.safe_mode(scm_pb2.SafeModeRequest())
    return f"the control plane: safe mode: {answer.reason}" if answer.on else ""


def wait_and_show(client: ClusterClient, wait_s: float, answer: scm_pb2.ContainerDecisions) -> int:
    """Wait for the outcomes of commands, and print them.

    Return exit code 1 if the SCM refused a command. Return exit code 2 if a command failed, or if
    it has no outcome after `wait_s` seconds.
    """
    refused = [d for d in answer.decisions if d.code != "OK"]
    ids = [command_id for d in answer.decisions for command_id in d.command_ids]
    outcomes, pending = wait_for_outcomes(client, ids, wait_s)
    if is_json():
        print_json(
            {
                "decisions": [facts(d) for d in answer.decisions],
                "outcomes": [facts(o) for o in outcomes],
                "pending_command_ids": pending,
            }
        )
    else:
        if outcomes:
            print_rows(OUTCOME_COLUMNS, [outcome_row(o) for o in outcomes])
        for d in refused:
            print_line(f"container {d.container_id} refused: {d.code}: {d.message}")
        if pending:
            print_line(
                f"{pluralize(len(pending), 'command')} not answered yet; "
                "look again with: suture history --commands"
            )
    if refused:
        return ExitCode.FAILED
    healed = all(
        o.status.reconcile.result in HEALED
        if o.status.HasField("reconcile")
        else o.status.state == scm_pb2.CommandStatus.EXECUTED
        for o in outcomes
    )
    return ExitCode.OK if healed and not pending else ExitCode.TO_DO


OUTCOME_COLUMNS = [
    "container#",
    "datanode",
    "command",
    "result",
    "repaired chunks#",
    "data bytes#",
    "tree bytes#",
    "state",
    "reason",
]


PROOFS = {"changed": "read what changed", "whole": "read whole"}


def outcome_row(outcome: scm_pb2.Outcome) -> tuple[object, ...]:
    """Return the table row about the outcome of one command."""
    status, done = outcome.status, outcome.status.reconcile
    repaired = sum(chunk.result in {"repaired", "salvaged", "trimmed"} for chunk in done.chunks)
    rebuilt = status.reconstruct
    orphans = (
        f"{pluralize(rebuilt.orphan_count, 'orphan')} left out" if rebuilt.orphan_count else ""
    )
    return (
        status.container_id,
        short(outcome.datanode_id),
        status.type,
        done.result or scm_pb2.CommandStatus.State.Name(status.state),
        repaired,
        size(done.bytes_fetched or rebuilt.bytes_read),
        size(done.tree_bytes_fetched),
        state_name(done.state_after) if done.state_after else "-",
        f"{status.code} {status.message} {orphans} {PROOFS.get(done.proof, '')}".strip(),
    )


def wait_for_outcomes(
    client: ClusterClient, command_ids: list[int], wait_s: float
) -> tuple[list[scm_pb2.Outcome], list[int]]:
    """Wait until all commands have an outcome, but at most `wait_s` seconds. Show the progress on
    stderr.

    Return the outcomes, and the ids of the commands without an outcome.
    """
    deadline_s = time.monotonic() + wait_s
    if not command_ids:
        return [], []
    request = scm_pb2.ListOutcomesRequest(command_ids=command_ids, count=len(command_ids))
    with items_progress("commands answered", len(command_ids)) as bar:
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            answer = until_free(
                THE_SCM,
                lambda: client.scm.list_outcomes(request),
                codes=TRANSIENT,
                timeout_s=left_s,
            )
            bar.update(
                bar.task_ids[0], completed=len(command_ids) - len(answer.pending_command_ids)
            )
            if not answer.pending_command_ids or time.monotonic() > deadline_s:
                return list(answer.outcomes), list(answer.pending_command_ids)
            time.sleep(POLL_S)


def show_outcomes(datanode: str | None, count: int | None) -> None:
    """Print the outcomes of the newest commands. If `datanode` is set, print only those of this
    datanode."""
    count = min(OUTCOMES_SHOWN if count is None else count, KEPT_MAX)
    with connect() as client:
        is_selected = selected(client, [datanode] if datanode else None)
        shown = newest_outcomes(client, lambda o: is_selected(o.datanode_id), count=count)
        answer = client.scm.list_outcomes(scm_pb2.ListOutcomesRequest(count=1))
    del answer.outcomes[:]
    answer.outcomes.extend(shown)
    if is_json():
        print_json(facts(answer))
        return
    print_rows(OUTCOME_COLUMNS, [outcome_row(o) for o in answer.outcomes])
    pending = len(answer.pending_command_ids)
    print_line(
        f"{pluralize(pending, 'command')} {'is' if pending == 1 else 'are'} not answered yet"
    )


def container_info(client: ClusterClient, container_id: int) -> scm_pb2.ContainerInfo:
    """Return the SCM's record of one container. Raise RefusedError if the container has no
    replicas."""
    info = fetch_container(client, container_id)
    if not info.replicas:
        raise RefusedError(
            Code.CONTAINER_NOT_FOUND,
            f"no datanode reports a replica of container {container_id}",
            hint="try again in some seconds if the container is new",
        )
    return info
