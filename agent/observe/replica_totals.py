"""Totals over the replicas of this host. They are kept in memory and updated with each change.

Status, heartbeats and metrics often need the totals, and reading every index row takes seconds on a
host with 100,000 replicas. Therefore, the few fields that the totals need are kept in memory, with
24 bytes per replica. numpy computes the sums.
"""

import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from agent.store.index.columns import ReplicaColumns
from agent.store.index.facts import ReplicaFacts
from agent.store.index.rows import STATES
from merkle.replica import TREE_STATES, ContainerId

HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S
AGE_BOUNDS_S: Final = (
    *(HOUR_S, 6 * HOUR_S, 12 * HOUR_S),
    *(days * DAY_S for days in (1, 2, 3, 4, 5, 6, 7, 8, 10, 14, 21, 30, 90)),
)
KEPT_MS: Final = 10_000  # maximum age of a cached summary


_PACKED: Final = struct.Struct("=HBBIQQ")
_COLUMNS: Final = np.dtype(
    [("volume", "u2"), ("state", "u1"), ("contradicts", "u1"), ("findings", "u4"), ("bytes", "u8"),
     ("scan_at_ms", "u8")]
)  # fmt: skip
assert _COLUMNS.itemsize == _PACKED.size
_NUMBERS: Final = {state: number for number, state in enumerate(STATES)}
_CLOSED: Final = np.array([state in TREE_STATES for state in STATES])
_BOUNDS_S: Final = np.array(AGE_BOUNDS_S, dtype=np.float64)

Rows: TypeAlias = npt.NDArray[Any]  # with the fields of _COLUMNS


@dataclass(slots=True)
class VolumeSummary:
    """Totals over the closed replicas of one volume at one time.

    `age_bytes[i]` is the number of bytes that were verified at most AGE_BOUNDS_S[i] seconds ago,
    but longer ago than the previous bound. The last item counts older bytes, and bytes that were
    never verified. `oldest_at_ms` is the time of the oldest scan. It is 0 if a replica was never
    verified, and -1 if the volume has no closed replicas.
    """

    data_bytes: int = 0
    in_time_bytes: int = 0
    oldest_at_ms: int = -1
    never_count: int = 0
    age_sum_byte_s: float = 0.0
    age_bytes: list[int] = field(default_factory=lambda: [0] * (len(AGE_BOUNDS_S) + 1))


def volume_summary(rows: Rows, now_ms: int, interval_s: float) -> VolumeSummary:
    """Return the totals over the closed replicas of one volume. `interval_s` is the scan
    interval."""
    sizes_bytes, read = rows["bytes"], rows["scan_at_ms"] > 0
    ages_s = np.maximum(0, now_ms - rows["scan_at_ms"][read].astype(np.int64)) / 1000
    read_bytes = sizes_bytes[read]
    bins = np.searchsorted(_BOUNDS_S, ages_s, side="left")
    age_bytes = np.zeros(len(AGE_BOUNDS_S) + 1, dtype=np.uint64)
    np.add.at(age_bytes, bins, read_bytes)
    age_bytes[-1] += sizes_bytes[~read].sum(dtype=np.uint64)
    return VolumeSummary(
        data_bytes=int(sizes_bytes.sum(dtype=np.uint64)),
        in_time_bytes=int(read_bytes[ages_s <= interval_s].sum(dtype=np.uint64)),
        oldest_at_ms=int(rows["scan_at_ms"].min()) if len(rows) else -1,
        never_count=int(np.count_nonzero(~read)),
        age_sum_byte_s=float((ages_s * read_bytes).sum()),
        age_bytes=age_bytes.tolist(),
    )


@dataclass(frozen=True, slots=True)
class HostSummary:
    """Totals over all replicas of this host at one time."""

    volumes: dict[str, VolumeSummary]
    states: Counter[str]
    finding_count: int
    damaged: tuple[ContainerId, ...]
    contradictory_count: int  # number of replicas that a peer contradicts
    contradictory: tuple[ContainerId, ...] = ()


class ReplicaTotals:
    """Totals over all replicas of this host, such as the number of damaged replicas.

    The fields of all replicas that are needed for the totals are stored. Any thread may call `put`,
    `drop` and `summary`, because single operations on a dictionary and copies of it are atomic
    under the GIL.
    """

    def __init__(self, *, interval_s: float) -> None:
        """Create empty totals. `interval_s` is the scan interval, in which every byte should be
        verified."""
        self._interval_s = interval_s
        self._volume_numbers: dict[str, int] = {}
        self._entries: dict[ContainerId, bytes] = {}
        self._version = 0
        self._kept: tuple[int, int, HostSummary] | None = None

    def fill(self, volume_id: str, replicas: ReplicaColumns) -> None:
        """Add all replicas of a volume. This is done at the start of the agent, and when a volume
        is added."""
        rows = np.zeros(len(replicas), _COLUMNS)
        rows["volume"] = self._number_of(volume_id)
        rows["state"] = replicas.states
        rows["findings"] = replicas.finding_counts
        rows["contradicts"] = replicas.contradiction_counts > 0
        rows["bytes"] = replicas.used_bytes
        rows["scan_at_ms"] = replicas.data_scan_at_ms
        packed = (row.tobytes() for row in rows)
        self._entries.update(zip(replicas.container_ids.tolist(), packed, strict=True))
        self._version += 1

    def put(self, facts: ReplicaFacts) -> None:
        """Add a replica, or replace its fields by the current facts."""
        self._entries[facts.container_id] = self._packed(facts)
        self._version += 1

    def drop(self, container_id: ContainerId) -> None:
        """Remove a replica from the totals."""
        self._entries.pop(container_id, None)
        self._version += 1

    def summary(self, now_ms: int) -> HostSummary:
        """Return the totals over all replicas.

        The previous result is returned if it is less than KEPT_MS old and no replica has changed.
        """
        kept, version = self._kept, self._version
        if kept is not None and kept[0] == version and 0 <= now_ms - kept[1] < KEPT_MS:
            return kept[2]
        summary = self._summarise(self._entries.copy(), now_ms)
        self._kept = (version, now_ms, summary)
        return summary

    def _packed(self, facts: ReplicaFacts) -> bytes:
        return _PACKED.pack(
            self._number_of(facts.volume_id),
            _NUMBERS[facts.state],
            facts.contradiction_count > 0,
            facts.finding_count,
            facts.used_bytes,
            facts.data_scan_at_ms,
        )

    def _number_of(self, volume_id: str) -> int:
        numbers = self._volume_numbers
        return numbers.setdefault(volume_id, len(numbers))

    def _summarise(self, entries: dict[ContainerId, bytes], now_ms: int) -> HostSummary:
        rows = np.frombuffer(b"".join(entries.values()), dtype=_COLUMNS)
        container_ids = np.fromiter(entries, dtype=np.uint64, count=len(entries))
        counts = np.bincount(rows["state"], minlength=len(STATES)).tolist()
        closed = rows[_CLOSED[rows["state"]]]
        volumes = {
            volume_id: volume_summary(closed[mine], now_ms, self._interval_s)
            for volume_id, number in self._volume_numbers.copy().items()
            if (mine := closed["volume"] == number).any()
        }
        return HostSummary(
            volumes,
            Counter({STATES[n].value: count for n, count in enumerate(counts) if count}),
            int(rows["findings"].sum(dtype=np.uint64)),
            tuple(sorted(container_ids[rows["findings"] > 0].tolist())),
            int(np.count_nonzero(rows["contradicts"])),
            tuple(sorted(container_ids[rows["contradicts"] > 0].tolist())),
        )
