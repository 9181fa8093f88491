"""The RPC ListAudit, which both services have. It returns lines of the audit log about commands of
people."""

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from grpc import ServicerContext as Context

from merkle.replica import ID_MAX
from suture.errors import Code, RefusedError
from suture.observe.audit import KEPT_COUNT
from suture.wire.mapping.codec import parse_int
from suture.wire.server.authorization import ADMIN, CLIENT, TABLE, Audit
from suture.wire.v1 import container_pb2 as pb

LINES_MAX: Final = 2_000  # maximum number of lines in an answer; a line has about 300 bytes
ANSWER_BYTES_MAX: Final = 1024**2
BY_PEOPLE: Final = frozenset(
    method.rpartition("/")[2]
    for method, rule in TABLE.items()
    if rule.audited and rule.roles & (ADMIN | CLIENT)
)
"""Names of the audited methods that people call. The other audited methods are called only by
datanodes."""
NO_OBJECTS: Final = frozenset({"event", "at", "action", "result", "roles", "place"})


@dataclass(eq=False)
class AuditHandlers:
    """Implements the RPC ListAudit, which returns lines of the audit log."""

    audit: Audit

    def ListAudit(self, request: pb.ListAuditRequest, _context: Context) -> pb.ListAuditResponse:
        """Return the newest lines of the audit log since a time. Raise RefusedError if the audit
        log is not written to a file."""
        since_ms = parse_int(request.since_ms, "since_ms", low=0, high=ID_MAX)
        if self.audit.path is None:
            raise RefusedError(
                Code.INELIGIBLE,
                "cannot list the audit log: it goes to the journal",
                hint="set audit_file, or search the journal of the unit",
            )
        kept: deque[str] = deque()
        left_out_count = size_bytes = 0
        for line in lines_of_people(self.audit.path, since_ms / 1000, request.object):
            kept.append(line)
            size_bytes += len(line.encode())
            while len(kept) > LINES_MAX or size_bytes > ANSWER_BYTES_MAX:
                size_bytes -= len(kept.popleft().encode())
                left_out_count += 1
        return pb.ListAuditResponse(lines=kept, left_out_count=left_out_count)


def lines_of_people(path: Path, since_s: float, about: str) -> Iterator[str]:
    """Yield the lines of an audit log about commands of people since `since_s`, the oldest first.
    Rotated files are included. If `about` is not "", only lines that name this object are returned.
    """
    since = datetime.fromtimestamp(since_s, UTC).isoformat(timespec="milliseconds")
    for file in (*(Path(f"{path}.{index}") for index in range(KEPT_COUNT, 0, -1)), path):
        try:
            if file.stat().st_mtime < since_s:
                continue
            with file.open(encoding="utf-8", errors="replace") as text:
                yield from (
                    line.rstrip("\n") for line in text if _is_due(line, since=since, about=about)
                )
        except FileNotFoundError:  # not rotated so often, or rotated meanwhile
            continue


def _is_due(line: str, *, since: str, about: str) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:  # the start of a line that a full disk cut off
        return False
    if entry["action"] not in BY_PEOPLE or entry["at"] < since:
        return False
    return not about or is_about(entry, about)


def is_about(entry: Mapping[str, Any], about: str) -> bool:
    """Return True if a line names an object, by its id or by a name that begins with `about`. If a
    list was cut in the log, the line counts as naming every object."""
    for name, value in entry.items():
        if name in NO_OBJECTS:
            continue
        if f"{name}_count" in entry:
            return True
        for item in value if isinstance(value, list) else [value]:
            if item == about or (isinstance(item, str) and item.startswith(about)):
                return True
            if isinstance(item, int) and str(item) == about:
                return True
    return False
