"""All replicas of this host at a glance, kept up to date replica by replica.

Reading every row takes seconds on a host with a hundred thousand replicas, and status, heartbeats
and metrics ask all the time; so the few numbers that they need are kept in memory.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from agent.store.facts import ReplicaFacts
from merkle.replica import TREE_STATES, ContainerId, ReplicaState

HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S
AGE_BOUNDS_S: Final = (
    *(HOUR_S, 6 * HOUR_S, 12 * HOUR_S),
    *(days * DAY_S for days in (1, 2, 3, 4, 5, 6, 7, 8, 10, 14, 21, 30, 90)),
)
KEPT_MS: Final = 10_000  # a summary is as old as this at most


class Entry(NamedTuple):
    """What is kept of one replica."""

    volume_id: str
    state: ReplicaState
    bytes_used: int
    data_scan_at_ms: int
    finding_count: int


@dataclass(slots=True)
class VolumeSummary:
    """The closed replicas of one volume, as of one moment.

    `age_bytes[i]` were verified at most AGE_BOUNDS_S[i] ago and not within the bound before; the
    last item is beyond all bounds, or was never verified. `oldest_at_ms` is 0 when something was
    never verified, -1 when there is nothing.
    """

    data_bytes: int = 0
    in_time_bytes: int = 0
    oldest_at_ms: int = -1
    never_count: int = 0
    age_sum_byte_s: float = 0.0
    age_bytes: list[int] = field(default_factory=lambda: [0] * (len(AGE_BOUNDS_S) + 1))

    def add(self, entry: Entry, now_ms: int, interval_s: float) -> None:
        """Count a closed replica."""
        self.data_bytes += entry.bytes_used
        at_ms = entry.data_scan_at_ms
        self.oldest_at_ms = at_ms if self.oldest_at_ms < 0 else min(self.oldest_at_ms, at_ms)
        if not at_ms:
            self.never_count += 1
            self.age_bytes[-1] += entry.bytes_used
            return
        age_s = max(0, now_ms - at_ms) / 1000
        self.age_bytes[bisect_left(AGE_BOUNDS_S, age_s)] += entry.bytes_used
        self.age_sum_byte_s += age_s * entry.bytes_used
        if age_s <= interval_s:
            self.in_time_bytes += entry.bytes_used


@dataclass(frozen=True, slots=True)
class Summary:
    """All replicas of the host, as of one moment."""

    volumes: dict[str, VolumeSummary]
    states: Counter[str]
    finding_count: int
    damaged: tuple[ContainerId, ...]


class Census:
    """The replicas of this host. `put` and `drop` may come from any thread, as may `summary`:
    a dictionary's single operations and its copy are atomic under the interpreter's lock."""

    def __init__(self, facts: Iterable[ReplicaFacts], *, interval_s: float) -> None:
        """`interval_s`: every byte is to be verified once in this time."""
        self._interval_s = interval_s
        self._entries = {item.container_id: entry_of(item) for item in facts}
        self._version = 0
        self._kept: tuple[int, int, Summary] | None = None

    def put(self, facts: ReplicaFacts) -> None:
        """Note what a replica is now."""
        self._entries[facts.container_id] = entry_of(facts)
        self._version += 1

    def drop(self, container_id: ContainerId) -> None:
        """Note that a replica is gone."""
        self._entries.pop(container_id, None)
        self._version += 1

    def summary(self, now_ms: int) -> Summary:
        """Return the sums; those of a few seconds ago where nothing changed since."""
        kept, version = self._kept, self._version
        if kept is not None and kept[0] == version and 0 <= now_ms - kept[1] < KEPT_MS:
            return kept[2]
        summary = summarise(self._entries.copy(), now_ms, self._interval_s)
        self._kept = (version, now_ms, summary)
        return summary


def entry_of(facts: ReplicaFacts) -> Entry:
    """Return what is kept of a replica."""
    return Entry(
        facts.volume_id, facts.state, facts.bytes_used, facts.data_scan_at_ms, facts.finding_count
    )


def summarise(entries: dict[ContainerId, Entry], now_ms: int, interval_s: float) -> Summary:
    """Return the sums of all entries."""
    volumes: dict[str, VolumeSummary] = {}
    damaged = []
    finding_count = 0
    for container_id, entry in entries.items():
        if entry.finding_count:
            finding_count += entry.finding_count
            damaged.append(container_id)
        if entry.state in TREE_STATES:
            volumes.setdefault(entry.volume_id, VolumeSummary()).add(entry, now_ms, interval_s)
    states = Counter(entry.state for entry in entries.values())
    named = Counter({state.value: count for state, count in states.items()})
    return Summary(volumes, named, finding_count, tuple(sorted(damaged)))
