"""Command `history`: prints changes of replicas, and the commands that have caused them."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Final

import typer

from agent.cli.inspect.audit_lines import show_audit
from agent.cli.inspect.container_history import SHOWN_COUNT as HISTORY_SHOWN
from agent.cli.inspect.container_history import moment, order_words, show_container_history
from agent.cli.inspect.scm_commands import show_outcomes, state_name
from suture.client.cluster_client import ClusterClient
from suture.config.quantity import format_duration
from suture.errors import UnavailableError
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.datanode_queries import (
    DatanodeReply,
    NodeOption,
    answered_text,
    nodes_of,
    query_all,
)
from suture.terminal.outcomes import newest_outcomes
from suture.terminal.output import checksum, pluralize, print_json, print_line, print_rows, short
from suture.terminal.selection import known_nodes
from suture.terminal.time_option import duration
from suture.terminal.typer_options import ID_MAX, argument, flag, option
from suture.wire.v1 import datanode_pb2, scm_pb2

SINCE_S_DEFAULT: Final = 12 * 3600.0
SHOWN_COUNT: Final = 200
COLUMNS: Final = ("time (UTC)", "datanode", "container#", "state", "findings#", "event")
SILENT_KINDS: Final = frozenset({"refresh_volume_usage", "reregister", "set_operational_state"})
"""Types of commands that change nothing on a disk."""

Changes = datanode_pb2.ListChangesResponse
Nodes = list[tuple[str, str]]  # (name, address) pairs


@dataclass(frozen=True, slots=True)
class ChangeLogEntry:
    """A line in the output of `suture history`: a change of a replica, or a completed command."""

    at_ms: int
    datanode_id: str
    container_id: int
    state: str
    finding_count: int | None
    text: str
    root: str = ""

    def row(self) -> tuple[object, ...]:
        """Return this line as a row of the table."""
        findings = "" if self.finding_count is None else self.finding_count
        node, container_id = short(self.datanode_id), self.container_id or ""
        return (moment(self.at_ms), node, container_id, self.state, findings, self.text)


ChangedContainer = Annotated[
    int | None,
    argument("CONTAINER", "Show only changes of this container; default: all.", min=1, max=ID_MAX),
]
LinesOption = Annotated[
    int | None,
    option(
        "N",
        "Show at most N lines, the newest ones.",
        show_default="200; with CONTAINER 50; with --commands 20",
        min=1,
    ),
]


def history(
    container_id: ChangedContainer = None,
    commands: Annotated[
        bool, flag("List the newest commands and their results.", "--commands")
    ] = False,
    audit: Annotated[
        bool, flag("List commands that people gave, from the audit logs.", "--audit")
    ] = False,
    about: Annotated[
        str | None,
        option("NAME", "With --audit: list only this id, key or prefix.", "--object"),
    ] = None,
    since_s: Annotated[
        float, duration("--since", text="Show only the changes of the last TIME.", shown="12h")
    ] = SINCE_S_DEFAULT,
    count: LinesOption = None,
    datanode: NodeOption = None,
) -> int:
    """Show changes of replicas and commands, oldest first.

    Without CONTAINER, all datanodes are queried. With CONTAINER, the roots of its replicas are
    shown over time, with the reasons of changes. Each datanode keeps the last 64 changes of a
    replica. With --audit, commands that people gave to the SCM or to datanodes are listed.

    Exit codes:
        2: a datanode did not answer, or has no file for its audit log

    Example:
        suture history --since 1d
    """
    if container_id is not None and (commands or audit or datanode):
        raise typer.BadParameter(
            "cannot combine CONTAINER with options other than --count", param_hint="CONTAINER"
        )
    if about is not None and not audit:
        raise typer.BadParameter("cannot use it without --audit", param_hint="--object")
    if container_id is not None:
        return show_container_history(container_id, count or HISTORY_SHOWN)
    if commands:
        show_outcomes(datanode, count)
        return ExitCode.OK
    since_ms = max(0, int((time.time() - since_s) * 1000))
    if audit:
        return show_audit(datanode, since_ms, about or "", count or SHOWN_COUNT)
    ago = format_duration(since_s)
    return show_changes(datanode, since_ms, ago, count or SHOWN_COUNT)


def show_changes(datanode: str | None, since_ms: int, ago: str, count: int) -> int:
    """Print the changes of replicas and the completed commands since `since_ms`, oldest first.

    If `datanode` is not None, print only those of this datanode. Return the exit code.
    """
    with connect() as client:
        nodes = nodes_of(client, datanode)
        by_address = datanode is not None and ":" in datanode
        nodes, orders, unknown = orders_to(client, nodes, by_address=by_address)
        answers = query_all(client, nodes, lambda peer: peer.changes(since_ms))
    lines = sorted(
        [*changes_told(answers), *orders_told(orders, since_ms)], key=lambda line: line.at_ms
    )
    missing = [*not_told(answers), *unknown]
    if is_json():
        print_json(
            {"since_ms": since_ms, "events": [asdict(line) for line in lines], "errors": missing}
        )
    else:
        shown = lines[-count:]
        if len(lines) > len(shown):
            print_line(
                f"{pluralize(len(lines) - len(shown), 'older line')} left out; --count shows more"
            )
        if shown:
            print_rows(COLUMNS, [line.row() for line in shown])
        print_line(
            f"{pluralize(len(lines), 'change')} on {answered_text(answers)} in the last {ago}"
        )
        for text in missing:
            print_line(text)
    return ExitCode.TO_DO if missing else ExitCode.OK


def orders_to(
    client: ClusterClient, nodes: Nodes, *, by_address: bool
) -> tuple[Nodes, list[scm_pb2.Outcome], list[str]]:
    """Return three lists: the nodes, the outcomes of commands to them, and texts about missing
    facts.

    The nodes in the result have their datanode ids as names. If the SCM does not answer, and
    `by_address` is False, raise UnavailableError. If `by_address` is True, return `nodes`
    unchanged, no outcomes, and a text with the error.
    """
    try:
        if by_address:
            ids = {node.address: node.datanode_id for node in known_nodes(client)}
            nodes = [(ids.get(address, name), address) for name, address in nodes]
        names = {name for name, _ in nodes}
        return nodes, newest_outcomes(client, lambda o: o.datanode_id in names), []
    except UnavailableError as error:
        if not by_address:
            raise
        return nodes, [], [f"what was ordered is not known: {error}"]


def changes_told(answers: Sequence[DatanodeReply[Changes]]) -> Iterator[ChangeLogEntry]:
    """Yield an entry for each change of a replica that a datanode has reported."""
    for answer in answers:
        for change in answer.value.changes if answer.value else ():
            entry = change.entry
            root = checksum(entry.root) if entry.HasField("root") else ""
            what = entry.reason
            yield ChangeLogEntry(
                entry.at_ms,
                answer.datanode,
                change.container_id,
                state_name(entry.state),
                entry.finding_count,
                what,
                root,
            )


def orders_told(outcomes: Sequence[scm_pb2.Outcome], since_ms: int) -> Iterator[ChangeLogEntry]:
    """Yield an entry for each command that was completed since `since_ms`.

    These entries explain the changes. For a deleted replica, there are no other entries.
    """
    for outcome in outcomes:
        status = outcome.status
        if outcome.reported_at_ms < since_ms or status.type in SILENT_KINDS:
            continue
        words = order_words(outcome)
        node = outcome.datanode_id
        yield ChangeLogEntry(outcome.reported_at_ms, node, status.container_id, "", None, words)


def not_told(answers: Sequence[DatanodeReply[Changes]]) -> Iterator[str]:
    """Yield a text for each reason why the output is incomplete.

    Reasons are a datanode that did not answer, an unreadable volume, and older changes that were
    omitted.
    """
    for answer in answers:
        name = short(answer.datanode)
        if answer.value is None:
            yield f"{name}: cannot be asked: {answer.error}"
            continue
        for path in answer.value.unread_paths:
            yield f"{name}: {path} cannot be read"
        if answer.value.left_out_count:
            yield f"{name}: {pluralize(answer.value.left_out_count, 'older change')} left out"
