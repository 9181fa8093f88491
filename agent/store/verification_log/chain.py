"""Format of the verification log, in which each entry has the hash of the previous one. No I/O.

    <sha256 of the body, hex> <body>\\n        body: JSON, one line
        {"n":7,"prev":"<sha256 of entry 6>","at_ms":...,"kind":"verdict","container_id":5,...}

A changed line does not match its own hash. The numbers and hashes of the neighbours show if an
entry was removed, repeated or moved. A person who can write the file can also rewrite all of it, or
truncate it. Only an anchor detects this. An anchor is the number and hash of the last entry at some
time, stored elsewhere. When old files are removed, an entry records this.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

GENESIS: Final = "0" * 64  # the first entry has this as the hash of the previous entry
SUFFIX: Final = ".log"
ENTRY_BYTES_MAX: Final = 16_384
_LINE: Final = re.compile(rb"([0-9a-f]{64}) (\{[^\n]*\})")
_NAME: Final = re.compile(r"([0-9]{16})\.log")


class EntryKind(StrEnum):
    """Kind of a log entry: the event that it records."""

    FILE = "file"  # start of a file: owner of the log, and version of the agent
    VERDICT = "verdict"  # a replica was read, and the entry has the result
    REPAIR = "repair"  # bytes or rows of a replica are about to be changed by a repair
    DELETE = "delete"  # a replica is about to be deleted
    TORN = "torn"  # a partial line, left by a power failure, was truncated
    RETIRED = "retired"  # old files are about to be removed


class ChainFault(StrEnum):
    """Kind of the first gap in a log."""

    EDITED = "edited"
    REMOVED = "removed"
    REORDERED = "reordered"
    REPEATED = "repeated"
    REWRITTEN = "rewritten"
    TRUNCATED = "truncated"
    TORN = "torn"


@dataclass(frozen=True, slots=True)
class Head:
    """Number of entries of a log, and the hash of the last entry."""

    count: int = 0
    checksum: str = GENESIS


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A parsed entry of the verification log."""

    number: int
    previous: str
    checksum: str
    facts: Mapping[str, Any]

    @property
    def head(self) -> Head:
        """The number and hash of this entry, as the head of a log that ends with it."""
        return Head(self.number, self.checksum)


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap in a log. `line` counts from 1. It is 0 if the gap is not at a particular line."""

    fault: ChainFault
    number: int
    file: str
    line: int
    why: str


@dataclass(slots=True)
class ChainCheck:
    """Result of a check of a log.

    `gap` is the first gap, or None. No entry after a gap is trusted. `anchors_held` is the number
    of anchors that match.
    """

    first: int = 0
    head: Head = field(default_factory=Head)
    anchors_held: int = 0
    gap: Gap | None = None


def encode(head: Head, facts: Mapping[str, object]) -> tuple[bytes, Head]:
    """Return the line of the entry that follows `head`, and the head of the log with this entry."""
    body = json.dumps(
        {"n": head.count + 1, "prev": head.checksum, **facts}, separators=(",", ":"), default=str
    ).encode("ascii")
    checksum = hashlib.sha256(body).hexdigest()
    line = checksum.encode() + b" " + body + b"\n"
    assert len(line) <= ENTRY_BYTES_MAX, "facts are bounded by who tells them"
    return line, Head(head.count + 1, checksum)


def decode(line: bytes) -> LogEntry | None:
    """Return the entry in a line, or None if the line does not match its hash.

    The line must not include its newline.
    """
    match = _LINE.fullmatch(line)
    if match is None or hashlib.sha256(match[2]).hexdigest() != match[1].decode():
        return None
    try:
        facts = json.loads(match[2])
        number, previous = facts.pop("n"), facts.pop("prev")
    except (ValueError, KeyError, RecursionError):
        return None
    if not isinstance(number, int) or not isinstance(previous, str):
        return None
    return LogEntry(number, previous, match[1].decode(), facts)


def file_name(first_number: int) -> str:
    """Return the name of the file whose first entry has this number."""
    return f"{first_number:016d}{SUFFIX}"


def first_number_of(name: str) -> int:
    """Return the number of the first entry of a log file, from the name of the file.

    Return 0 if it is not the name of a log file.
    """
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else 0


def entries(files: Iterable[tuple[str, bytes]]) -> Iterator[LogEntry]:
    """Yield the entries of files that `check` has accepted."""
    for _, content in files:
        for line in content.split(b"\n"):
            if (entry := decode(line)) is not None:
                yield entry


def check(files: Sequence[tuple[str, bytes]], anchors: Iterable[Head] = ()) -> ChainCheck:
    """Check the hashes and numbers of all entries of a log, and compare it with anchors.

    Return the result with the first gap. `files` has the name and content of each file, sorted by
    name. An anchor is the head of this log at any earlier time, which was stored elsewhere.
    """
    wanted: dict[int, set[str]] = {}
    for anchor in anchors:
        wanted.setdefault(anchor.count, set()).add(anchor.checksum)
    walk = _Walk(files, wanted)
    for at, (name, content) in enumerate(files):
        walk.checked.gap = walk.file_gap(name, content, is_last=at == len(files) - 1)
        if walk.checked.gap is not None:
            return walk.checked
    walk.checked.gap = walk.end_gap()
    return walk.checked


class _Walk:
    """State of a running check: the last checked entry, and what the next entry must be."""

    def __init__(self, files: Sequence[tuple[str, bytes]], wanted: Mapping[int, set[str]]) -> None:
        self.checked = ChainCheck()
        self._files = files
        self._wanted = wanted
        self._retired_through = 0
        self._seen: dict[int, str] = {}
        self._last_file = ""

    def file_gap(self, name: str, content: bytes, *, is_last: bool) -> Gap | None:
        """Check one file. Return its first gap, or None if there is none."""
        head = self.checked.head
        self._last_file = name
        if self.checked.first and first_number_of(name) != head.count + 1:
            return self._misplaced(name, 0, first_number_of(name), "the name of the file says so")
        *lines, rest = content.split(b"\n")
        for at, line in enumerate(lines, start=1):
            entry = decode(line)
            if entry is None:
                why = "its text and its hash do not fit"
                return Gap(ChainFault.EDITED, self._due(name), name, at, why)
            gap = self._entry_gap(name, at, entry)
            if gap is not None:
                return gap
        if rest:
            fault = ChainFault.TORN if is_last else ChainFault.EDITED
            why = f"the last {len(rest)} bytes of the file are no whole line"
            return Gap(fault, self._due(name), name, len(lines) + 1, why)
        if not lines and not is_last:
            return Gap(ChainFault.REMOVED, self._due(name), name, 0, "the file is empty")
        return None

    def end_gap(self) -> Gap | None:
        """Return the gap before the first or after the last entry, or None if there is none."""
        first, head = self.checked.first, self.checked.head
        if first > 1 and self._retired_through < first - 1:
            why = f"the log begins with entry {first}, and no entry tells that older ones went"
            return Gap(ChainFault.REMOVED, first - 1, self._files[0][0], 0, why)
        beyond = max(self._wanted, default=0)
        if beyond > head.count:
            why = f"it ends with entry {head.count}; an anchor was taken at entry {beyond}"
            return Gap(ChainFault.TRUNCATED, head.count + 1, self._last_file, 0, why)
        return None

    def _due(self, name: str) -> int:
        """Return the number of the next expected entry."""
        return self.checked.head.count + 1 if self.checked.first else first_number_of(name)

    def _entry_gap(self, name: str, at: int, entry: LogEntry) -> Gap | None:
        head = self.checked.head
        if not self.checked.first:
            gap = self._first_gap(name, at, entry)
            if gap is not None:
                return gap
        elif entry.number != head.count + 1:
            return self._misplaced(name, at, entry.number, "", entry)
        elif entry.previous != head.checksum:
            why = f"entry {entry.number} was written behind another entry {head.count}"
            return Gap(ChainFault.REWRITTEN, head.count, name, max(at - 1, 0), why)
        if self._wanted.get(entry.number, {entry.checksum}) != {entry.checksum}:
            why = "its hash is not the one that was anchored"
            return Gap(ChainFault.REWRITTEN, entry.number, name, at, why)
        self.checked.anchors_held += entry.number in self._wanted
        if entry.facts.get("kind") == EntryKind.RETIRED:
            through = entry.facts.get("through")
            if not isinstance(through, int):
                why = "it does not say which old entries went"
                return Gap(ChainFault.REWRITTEN, entry.number, name, at, why)
            self._retired_through = max(self._retired_through, through)
        self._seen[entry.number] = entry.checksum
        self.checked.head = entry.head
        return None

    def _first_gap(self, name: str, at: int, entry: LogEntry) -> Gap | None:
        self.checked.first = entry.number
        if first_number_of(name) != entry.number:
            why = f"the first entry is {entry.number}, the name of the file says otherwise"
            return Gap(ChainFault.REMOVED, first_number_of(name), name, at, why)
        if entry.number == 1 and entry.previous != GENESIS:
            return Gap(ChainFault.REWRITTEN, 1, name, at, "it is not the first entry of a log")
        before = self._wanted.get(entry.number - 1, {entry.previous})
        if entry.number > 1 and before != {entry.previous}:
            why = "the entry before it was anchored with another hash"
            return Gap(ChainFault.REWRITTEN, entry.number - 1, name, at, why)
        return None

    def _misplaced(
        self, name: str, at: int, number: int, why: str, entry: LogEntry | None = None
    ) -> Gap:
        """Return the gap for an entry with an unexpected number.

        Its fault is REPEATED, REORDERED or REMOVED.
        """
        due = self.checked.head.count + 1
        if number < due:
            again = entry is not None and self._seen.get(number) == entry.checksum
            fault = ChainFault.REPEATED if again else ChainFault.REORDERED
            return Gap(fault, number, name, at, why or f"entry {due} has to come here")
        later = any(one.number == due for one in entries(self._files))
        fault = ChainFault.REORDERED if later else ChainFault.REMOVED
        return Gap(fault, due, name, at, why or f"entry {number} comes in its place")
