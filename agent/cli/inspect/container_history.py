"""Command `history CONTAINER`: prints the changes of a container's replicas, with the reasons."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from agent.cli.inspect.last_verified import last_reads, verified_text
from agent.cli.inspect.scm_commands import container_info, state_name
from merkle.replica import ContainerId
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.datanode_queries import query_all
from suture.terminal.document import facts
from suture.terminal.outcomes import outcomes_in
from suture.terminal.output import (
    checksum,
    pluralize,
    print_json,
    print_line,
    print_rows,
    short,
    size,
)
from suture.wire.v1 import datanode_pb2, scm_pb2

SHOWN_COUNT: Final = 50
REPAIRED: Final = frozenset({"repaired", "salvaged", "trimmed"})
COLUMNS: Final = ("time (UTC)", "datanode", "state", "root", "blocks#", "findings#", "reason")

Told = dict[str, list[datanode_pb2.HistoryEntry] | str]  # by datanode; a string is an error
Row = tuple[int, tuple[object, ...]]  # time, and table row


def show_container_history(container_id: int, count: int) -> int:
    """Print the roots of a container's replicas over time, oldest first, with the reasons of
    changes.

    Return the exit code.
    """
    with connect() as client:
        info = container_info(client, container_id)
        nodes = [(r.datanode.datanode_id, r.datanode.address) for r in info.replicas]
        answers = query_all(client, nodes, lambda peer: peer.history(ContainerId(container_id)))
        told: Told = {
            one.datanode: one.error if one.value is None else one.value for one in answers
        }
        outcomes = outcomes_in(client, container_id)
    silent = {node: entries for node, entries in told.items() if isinstance(entries, str)}
    if is_json():
        print_json({**document(told, outcomes), "last_read_at_ms": last_reads(info)})
        return ExitCode.TO_DO if silent else ExitCode.OK
    rows = sorted([*changes(told), *orders(outcomes)], key=lambda row: row[0])
    if len(rows) > count:
        print_line(f"{pluralize(len(rows) - count, 'older line')} left out; --count shows more")
    print_rows(COLUMNS, [row for _, row in rows[-count:]])
    print_line(verified_text(info))
    for node, error in silent.items():
        print_line(f"{short(node)}: cannot be asked: {error}")
    return ExitCode.TO_DO if silent else ExitCode.OK


def changes(told: Told) -> Iterator[Row]:
    """Yield a table row for each change of a replica. If a datanode did not answer, skip it."""
    for node, entries in told.items():
        for entry in () if isinstance(entries, str) else entries:
            root = checksum(entry.root if entry.HasField("root") else None)
            state = state_name(entry.state)
            yield (
                entry.at_ms,
                (
                    *(moment(entry.at_ms), short(node), state, root),
                    *(entry.block_count, entry.finding_count, entry.reason),
                ),
            )


def orders(outcomes: list[scm_pb2.Outcome]) -> Iterator[Row]:
    """Yield a table row for each completed command of the SCM, because a command may explain a
    change."""
    for outcome in outcomes:
        at_ms, words = outcome.reported_at_ms, order_words(outcome)
        yield at_ms, (moment(at_ms), short(outcome.datanode_id), "", "", "", "", words)


def order_words(outcome: scm_pb2.Outcome) -> str:
    """Return a text about a command and its outcome."""
    status, done = outcome.status, outcome.status.reconcile
    result = done.result or scm_pb2.CommandStatus.State.Name(status.state).lower()
    words = [f"{status.type}: {result}"]
    repaired_count = sum(chunk.result in REPAIRED for chunk in done.chunks)
    if repaired_count:
        words.append(
            f"{pluralize(repaired_count, 'chunk')} repaired, {size(done.bytes_fetched)} fetched"
        )
    if status.message:
        words.append(f"{status.code} {status.message}".strip())
    return ", ".join(words)


def document(told: Told, outcomes: list[scm_pb2.Outcome]) -> dict[str, object]:
    """Return the histories of replicas and the outcomes of commands as a JSON document.

    Roots are hexadecimal, as in the tables.
    """
    return {
        "replicas": {
            node: {"error": entries}
            if isinstance(entries, str)
            else {"entries": [entry_facts(entry) for entry in entries]}
            for node, entries in told.items()
        },
        "outcomes": [facts(outcome) for outcome in outcomes],
    }


def entry_facts(entry: datanode_pb2.HistoryEntry) -> dict[str, object]:
    """Return one entry of a replica's history as a JSON document. A missing root is null."""
    root = checksum(entry.root) if entry.HasField("root") else None
    return {**facts(entry), "root": root}


def moment(at_ms: int) -> str:
    """Return a time in UTC as text."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
