"""History of a replica: one entry, with its reason, for each visible change.

The entry is written in the transaction of the change, from the rows before and after it. Therefore,
every change has an entry, and every entry has a change. A new generation of a tree with the same
root is not a visible change.
"""

import json
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappush, heappushpop
from typing import Final

import lmdb

from agent.store.index.rows import ROW_VERSION, ReplicaRow, seal, unseal
from merkle.damaged_data import DamagedData
from merkle.replica import ContainerId, ReplicaState
from scanner.finding import ScanFinding

KEPT_COUNT: Final = 64  # entries per replica; the newest are kept
FAULTS_TOLD_MAX: Final = 3
_KEY: Final = struct.Struct(">QI")  # container, entry number
_HEAD: Final = re.compile(rb'{"version":%d,"at_ms":(\d+),' % ROW_VERSION)
"""Matches the start of an entry's row; group 1 is `at_ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """State of a replica after one change.

    `root` is None if the replica had no tree. `reason` is a text that explains the change.
    """

    at_ms: int
    state: ReplicaState
    generation: int
    algorithm: str
    root: int | None
    block_count: int
    tombstone_count: int
    finding_count: int
    reason: str


def entry_of(
    before: ReplicaRow | None, after: ReplicaRow, findings: Sequence[ScanFinding], at_ms: int
) -> HistoryEntry:
    """Return the entry for a change. `findings` are the replica's findings after the change."""
    tree = after.tree
    return HistoryEntry(
        at_ms=at_ms,
        state=after.state,
        generation=after.generation,
        algorithm="" if tree is None else tree.algorithm.value,
        root=None if tree is None else tree.root,
        block_count=after.block_count if tree is None else tree.block_count,
        tombstone_count=0 if tree is None else tree.tombstone_count,
        finding_count=after.finding_count,
        reason="; ".join(reasons(before, after, findings)) or "a whole read found other chunks",
    )


def reasons(
    before: ReplicaRow | None, after: ReplicaRow, findings: Sequence[ScanFinding]
) -> Iterator[str]:
    """Yield texts that explain the change of a replica row from `before` to `after`.

    `before` is None if the replica is new.
    """
    if before is None:
        yield f"appeared here as {after.state}"
    elif before.tree is None and after.tree is not None:
        yield f"closed with {_counted(after.tree.block_count, 'block')}"
    elif before.state is not after.state and after.finding_count == before.finding_count:
        yield f"{before.state} became {after.state}"
    buried_count = tombstones(after) - tombstones(before)
    if buried_count > 0:
        yield f"{_counted(buried_count, 'block')} deleted"
    if was_repaired(before, after):
        yield "repaired"
    if after.finding_count:
        faults = Counter(finding.fault.value for finding in findings if finding.is_damage)
        told = [f"{count} {fault}" for fault, count in faults.most_common(FAULTS_TOLD_MAX)]
        yield f"damaged: {', '.join(told) or after.finding_count}"
    elif before is not None and before.finding_count:
        yield "a whole read found no damage"


def tombstones(row: ReplicaRow | None) -> int:
    """Return the number of tombstones (records of deleted blocks) in a replica's tree."""
    return 0 if row is None or row.tree is None else row.tree.tombstone_count


def was_repaired(before: ReplicaRow | None, after: ReplicaRow) -> bool:
    """Return True if the replica was repaired after its previous tree was built.

    Each repair increments the generation of the replica, which is then higher than that of the
    tree.
    """
    if before is None or before.tree is None or after.tree is None:
        return False
    return before.generation > before.tree.generation


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def encode_entry(entry: HistoryEntry) -> bytes:
    """Return the row of one entry.

    The key of the row, not the row, has the container id and the entry number.
    """
    fields = {
        "version": ROW_VERSION,
        "at_ms": entry.at_ms,
        "state": entry.state,
        "generation": entry.generation,
        "algorithm": entry.algorithm,
        "root": entry.root,
        "block_count": entry.block_count,
        "tombstone_count": entry.tombstone_count,
        "finding_count": entry.finding_count,
        "reason": entry.reason,
    }
    return seal(json.dumps(fields, separators=(",", ":")).encode())


def append(cursor: "lmdb.Cursor[bytes]", container_id: ContainerId, entry: HistoryEntry) -> None:
    """Add an entry to the history of its replica.

    If the history then has too many entries, delete the oldest.
    """
    number = 0
    if cursor.prev() if cursor.set_range(_KEY.pack(container_id + 1, 0)) else cursor.last():
        owner, last = _KEY.unpack(cursor.key())
        number = last if owner == container_id else 0
    cursor.put(_KEY.pack(container_id, number + 1), encode_entry(entry))
    if number + 1 > KEPT_COUNT and cursor.set_key(_KEY.pack(container_id, number + 1 - KEPT_COUNT)):
        cursor.delete()


def entries_of(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[ContainerId, HistoryEntry]]:
    """Yield (container id, entry) in the order of the rows. Damaged rows are skipped."""
    for key, row in rows:
        container_id = ContainerId(int.from_bytes(key[:8]))
        with suppress(DamagedData):
            yield container_id, decode_entry(container_id, row)


@dataclass(frozen=True, slots=True)
class Changes:
    """History entries of many replicas since a time, oldest first, each with its container id.

    If there were too many entries, only the newest are included.
    """

    entries: Sequence[tuple[ContainerId, HistoryEntry]]
    left_out_count: int = 0  # number of older entries in that period that are not included
    unread_paths: Sequence[str] = ()  # unreadable volumes


def newest(rows: Iterable[tuple[bytes, bytes]], *, since_ms: int, count: int) -> Changes:
    """Return the newest `count` entries since `since_ms`.

    There may be millions of rows, of which few are selected. Therefore, the time is read from the
    first bytes of a row, and only selected rows are decoded.
    """
    found: list[tuple[int, bytes, bytes]] = []
    left_out_count = 0
    for key, row in rows:
        head = _HEAD.match(row)
        if head is None or int(head[1]) < since_ms:
            continue
        item = (int(head[1]), bytes(key), bytes(row))
        if len(found) < count:
            heappush(found, item)
        else:
            heappushpop(found, item)
            left_out_count += 1
    wanted = [(key, row) for _, key, row in sorted(found)]
    return Changes(list(entries_of(wanted)), left_out_count)


def count_findings(rows: Iterable[tuple[bytes, bytes]], *, since_ms: int) -> tuple[int, int]:
    """Return (number of findings that appeared, number that disappeared) since `since_ms`.

    The numbers are the differences between successive entries of each replica. An entry is not
    counted if the entry before it is damaged or was deleted. As in `newest`, only few rows are
    decoded.
    """
    found_count = resolved_count = 0
    before = b"", b""
    for key, row in rows:
        head = _HEAD.match(row)
        if head is not None and int(head[1]) >= since_ms:
            container_id, number = _KEY.unpack(key)
            pair = entries_of([before, (key, row)])
            counts = [entry.finding_count for owner, entry in pair if owner == container_id]
            known = counts if number > 1 else [0, *counts]
            change = known[1] - known[0] if len(known) > 1 else 0
            found_count += max(0, change)
            resolved_count += max(0, -change)
        before = bytes(key), bytes(row)
    return found_count, resolved_count


def together(found: Iterable[Changes], *, count: int) -> Changes:
    """Merge the changes of several volumes. Return the newest `count` entries."""
    parts = list(found)
    entries = sorted(
        (item for part in parts for item in part.entries), key=lambda item: item[1].at_ms
    )
    cut_count = max(0, len(entries) - count)
    return Changes(
        entries[cut_count:],
        cut_count + sum(part.left_out_count for part in parts),
        [path for part in parts for path in part.unread_paths],
    )


def decode_entry(container_id: ContainerId, row: bytes) -> HistoryEntry:
    """Parse one entry. Raise `DamagedData` if it is invalid."""
    what = f"history row of container {container_id}"
    fields = json.loads(bytes(unseal(row, what)))
    if fields.pop("version", None) != ROW_VERSION:
        raise DamagedData(f"{what}: unknown version")
    return HistoryEntry(**{**fields, "state": ReplicaState(fields["state"])})
