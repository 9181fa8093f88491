"""Command `history --audit`: prints the commands of people, from the audit logs of all programs."""

import json
from collections.abc import Mapping
from typing import Any, Final

from suture.errors import SutureError
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.datanode_queries import DatanodeReply, nodes_of, query_all
from suture.terminal.output import pluralize, print_json, print_line, print_rows, short
from suture.wire.server.audit_handlers import NO_OBJECTS
from suture.wire.v1 import container_pb2 as pb

SCM: Final = "scm"
COLUMNS: Final = ("time (UTC)", "at", "person", "command", "result", "objects")

Entry = Mapping[str, Any]


def show_audit(datanode: str | None, since_ms: int, about: str, count: int) -> int:
    """Print the commands that people have given to the SCM and to datanodes, oldest first.

    If `datanode` is not None, print only the commands to this datanode. Return the exit code.
    """
    request = pb.ListAuditRequest(since_ms=since_ms, object=about)
    with connect() as client:
        answers = []
        if datanode is None:
            try:
                answers.append(DatanodeReply(SCM, client.scm.list_audit(request)))
            except SutureError as error:
                answers.append(DatanodeReply(SCM, None, str(error), error))
        answers += query_all(client, nodes_of(client, datanode), lambda peer: peer.audit(request))
    entries = sorted(
        (
            {**json.loads(line), "program": answer.datanode}
            for answer in answers
            for line in (answer.value.lines if answer.value else ())
        ),
        key=lambda entry: str(entry["at"]),
    )
    missing = [
        f"{short(answer.datanode)}: {answer.error}"
        if answer.value is None
        else f"{short(answer.datanode)}: {answer.value.left_out_count} older lines left out"
        for answer in answers
        if answer.value is None or answer.value.left_out_count
    ]
    if is_json():
        print_json({"since_ms": since_ms, "lines": entries, "errors": missing})
    else:
        left_out_count = max(0, len(entries) - count)
        if left_out_count:
            print_line(f"{pluralize(left_out_count, 'older line')} left out; --count shows more")
        print_rows(COLUMNS, [audit_row(entry) for entry in entries[left_out_count:]])
        for text in missing:
            print_line(text)
    return ExitCode.TO_DO if missing else ExitCode.OK


def audit_row(entry: Entry) -> tuple[object, ...]:
    """Return the table row for one line of an audit log."""
    objects = ", ".join(
        f"{name}={' '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in entry.items()
        if name not in NO_OBJECTS | {"who", "program", "decisions"}
    )
    at = str(entry["at"])[:19].replace("T", " ")
    place = short(entry["program"])
    return (at, place, entry["who"], entry["action"], entry["result"], objects)
