"""Report for auditors, computed from a verification log that was checked for gaps. No I/O.

The report lists the replicas that were verified in a period, with times, and counts failures,
repairs and deletes. It states only facts of the log. A replica that was not read in the period is
in no list. The report also has the number of entries that could not be logged.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agent.store.verification_log.chain import ChainCheck, EntryKind, LogEntry
from agent.store.verification_log.log_entries import HEALTHY

FORMAT: Final = 1
OWNER: Final = ("cluster_id", "datanode_id", "volume_id")
WHO: Final = ("by", "task", "command_id")
FAILURE: Final = ("container_id", "index", "verdict", "faults", "why", "root", "whole")
REPAIR: Final = (
    *("container_id", "index", "action", "block_id", "offset", "bytes"),
    *("first_block_id", "last_block_id", "chunk_count"),
)
DELETE: Final = ("container_id", "index", "state", "root", "block_count", "bytes", "forced")


@dataclass(slots=True)
class _Read:
    """Summary of the reads of one replica in the period."""

    reads: int = 0
    whole_at_ms: int = 0  # time of the last complete read; 0 = none
    verdict: str = ""
    root: str = ""


@dataclass(slots=True)
class _Account:
    """Sums over the log entries of the period."""

    owner: dict[str, str] = field(default_factory=dict)
    versions: list[str] = field(default_factory=list)
    first_at_ms: int = 0
    last_at_ms: int = 0
    clock_went_back: int = 0
    missed: int = 0
    torn: int = 0
    retired_through: int = 0
    entries: int = 0
    bytes_read: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    read_by: Counter[str] = field(default_factory=Counter)
    replicas: dict[tuple[int, int], _Read] = field(default_factory=dict)
    read_whole_at_ms: dict[tuple[int, int], int] = field(default_factory=dict)
    """Times of the last complete reads, also before the period."""
    longest_wait: tuple[int, int] = (0, 0)  # (milliseconds, container) between complete reads
    failures: list[dict[str, object]] = field(default_factory=list)
    repairs: list[dict[str, object]] = field(default_factory=list)
    deletes: list[dict[str, object]] = field(default_factory=list)


def account(
    entries: Iterable[LogEntry], checked: ChainCheck, *, from_ms: int, to_ms: int
) -> dict[str, object]:
    """Return the report for the period `[from_ms, to_ms)` of a log without a gap."""
    assert checked.gap is None, "who asks has refused a log with a gap"
    kept = _Account()
    for entry in entries:
        _add_entry(kept, entry, from_ms, to_ms)
    for key in [*kept.read_whole_at_ms]:
        _end_wait(kept, key, min(to_ms, kept.last_at_ms))
    wait_ms, wait_container_id = kept.longest_wait
    return {
        **kept.owner,
        "versions": kept.versions,
        "first_entry": checked.first,
        "entries_in_all": checked.head.count,
        "head": f"{checked.head.count}:{checked.head.checksum}",
        "anchors_held": checked.anchors_held,
        "older_entries_retired_through": kept.retired_through,
        "begins_at_ms": kept.first_at_ms,
        "ends_at_ms": kept.last_at_ms,
        "clock_went_back": kept.clock_went_back,
        "entries": kept.entries,
        "entries_missed": kept.missed,
        "lines_torn": kept.torn,
        "bytes_read": kept.bytes_read,
        "longest_wait_ms": wait_ms,
        "longest_wait_container_id": wait_container_id,
        "verdicts": dict(sorted(kept.verdicts.items())),
        "read_by": dict(sorted(kept.read_by.items())),
        "replicas": [_replica(key, read) for key, read in sorted(kept.replicas.items())],
        "failures": kept.failures,
        "repairs": kept.repairs,
        "deletes": kept.deletes,
    }


def _add_entry(kept: _Account, entry: LogEntry, from_ms: int, to_ms: int) -> None:
    """Add one entry to the sums.

    Facts about the log itself are always added. Other facts are added only if the entry is in the
    period.
    """
    facts, kind = entry.facts, entry.facts.get("kind")
    at_ms = int(facts.get("at_ms", 0))
    kept.first_at_ms = kept.first_at_ms or at_ms
    kept.clock_went_back += at_ms < kept.last_at_ms
    kept.last_at_ms = max(at_ms, kept.last_at_ms)
    if kind == EntryKind.FILE:
        kept.owner = {name: str(facts.get(name, "")) for name in OWNER}
        software = str(facts.get("software", ""))
        if software not in kept.versions:
            kept.versions.append(software)
    elif kind == EntryKind.RETIRED:
        kept.retired_through = max(kept.retired_through, int(facts["through"]))
    if at_ms < to_ms:
        _add_wait(kept, facts, at_ms, is_in_period=at_ms >= from_ms)
    if not from_ms <= at_ms < to_ms:
        return
    kept.entries += 1
    kept.missed += int(facts.get("missed", 0))
    kept.torn += kind == EntryKind.TORN
    match kind:
        case EntryKind.VERDICT:
            _add_verdict(kept, entry)
        case EntryKind.REPAIR:
            kept.repairs.append(_entry_facts(entry, REPAIR))
        case EntryKind.DELETE:
            kept.deletes.append(_entry_facts(entry, DELETE))


def _add_wait(kept: _Account, facts: Mapping[str, Any], at_ms: int, *, is_in_period: bool) -> None:
    """Record the time since the previous complete read of a replica.

    `facts` is the entry of a complete read, or of the delete of the replica. Other entries are
    ignored.
    """
    is_deleted = facts.get("kind") == EntryKind.DELETE
    if not is_deleted and not facts.get("whole"):
        return
    key = (int(facts["container_id"]), int(facts.get("index", 0)))
    if is_in_period:
        _end_wait(kept, key, at_ms)
    if is_deleted:
        kept.read_whole_at_ms.pop(key, None)
    else:
        kept.read_whole_at_ms[key] = at_ms


def _end_wait(kept: _Account, key: tuple[int, int], at_ms: int) -> None:
    wait_ms = at_ms - kept.read_whole_at_ms.get(key, at_ms)
    kept.longest_wait = max(kept.longest_wait, (wait_ms, key[0]))


def _add_verdict(kept: _Account, entry: LogEntry) -> None:
    facts = entry.facts
    verdict = str(facts["verdict"])
    kept.verdicts[verdict] += 1
    kept.read_by[str(facts.get("task") or facts.get("by", ""))] += 1
    kept.bytes_read += int(facts["bytes_read"])
    read = kept.replicas.setdefault((int(facts["container_id"]), int(facts["index"])), _Read())
    read.reads += 1
    read.verdict, read.root = verdict, str(facts["root"])
    if facts["whole"]:
        read.whole_at_ms = max(read.whole_at_ms, int(facts["at_ms"]))
    if verdict != HEALTHY:
        kept.failures.append(_entry_facts(entry, FAILURE))


def _entry_facts(entry: LogEntry, names: Sequence[str]) -> dict[str, object]:
    """Return the named facts of an entry, together with its number in the log."""
    named = {name: entry.facts[name] for name in (*names, *WHO) if name in entry.facts}
    return {"entry": entry.number, "at_ms": entry.facts["at_ms"], **named}


def _replica(key: tuple[int, int], read: _Read) -> dict[str, object]:
    container_id, index = key
    return {
        "container_id": container_id,
        "index": index,
        "reads": read.reads,
        "last_read_whole_at_ms": read.whole_at_ms,
        "last_verdict": read.verdict,
        "last_root": read.root,
    }
