"""Schedules the scans of replicas, so that every byte is read again within the scan interval.

After a scan at time L, the next scan of the replica is due at its next slot, but not before 0.12 of
the interval has passed. Its deadline is L + interval. The required rate rises as the deadline of
due replicas approaches.

A replica has one slot in each period, which is 0.8 of the interval. The position of the slot in the
period is a hash of the container's and the datanode's id. Therefore, the load of a host is even,
even if all its replicas were written at the same time. The replicas of a container are read at
different times, without communication between datanodes.

No I/O, no clock. Times are wall time, because an interval may be longer than the process runs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from math import ceil, floor, inf
from typing import Final

import numpy as np
import numpy.typing as npt

from merkle.checksum import Algorithm, leaf_checksum
from merkle.checksum_columns import U64s
from merkle.replica import ContainerId

PERIOD_SHARE: Final = 0.8  # of the interval; the rest is a reserve for a busy disk
REST_SHARE: Final = 0.15  # of the period; a slot that begins earlier after a read is skipped
MARGIN_SHARE: Final = 0.02  # of the interval; reads are planned to end this much earlier
HEADROOM: Final = 1.05  # factor for a rate that meets the interval in practice
DAY_S: Final = 86_400
MINUTES_OF_DAY: Final = 1_440
CHECKSUMS: Final = 2**64

assert PERIOD_SHARE * (1 + REST_SHARE) + MARGIN_SHARE < 1, "a slot lies before the deadline"


class Urgency(IntEnum):
    """Priority classes of scans, the most urgent first. A replica that was just imported counts as
    never read."""

    LAST_COPY = 0  # not read since it became the only healthy replica
    NEVER_READ = 1
    IN_DOUBT = 2  # its volume became suspect after the last read
    ROUTINE = 3


@dataclass(frozen=True, slots=True)
class ScanCandidate:
    """A replica that may be scanned. All times are in ms; 0 means that the event did not happen.

    `read_at_ms` is the end of the last complete scan. `doubt_since_ms` is the time when the volume
    became suspect. `last_copy_since_ms` is the time since which this is the only healthy replica of
    its container; such a replica must be scanned again after that time.
    """

    container_id: ContainerId
    used_bytes: int
    read_at_ms: int
    doubt_since_ms: int = 0
    last_copy_since_ms: int = 0

    @property
    def urgency(self) -> Urgency:
        """Priority class of the replica."""
        if self.read_at_ms < self.last_copy_since_ms:
            return Urgency.LAST_COPY
        if not self.read_at_ms:
            return Urgency.NEVER_READ
        if self.read_at_ms < self.doubt_since_ms:
            return Urgency.IN_DOUBT
        return Urgency.ROUTINE


@dataclass(frozen=True, slots=True)
class ScheduledReplica:
    """A replica with the time when its scan is due, and its deadline. A deadline of 0 means that
    the replica was never scanned."""

    candidate: ScanCandidate
    due_at_ms: int
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Agenda:
    """The due scans of one volume, the most urgent first.

    `needed_bytes_per_s` is the lowest rate that meets the interval. `wait_s` is the time until
    another replica becomes due. `lag_s` is the time since the earliest missed deadline; 0.0 if none
    was missed.
    """

    due: tuple[ScheduledReplica, ...]
    due_bytes: int
    used_bytes: int
    needed_bytes_per_s: float
    wait_s: float
    oldest_read_at_ms: int
    never_read_count: int
    lag_s: float


@dataclass(frozen=True, slots=True)
class Candidates:
    """The replicas of one volume that may be scanned, as columns. `doubt_since_ms` applies to all
    of them."""

    container_ids: U64s
    used_bytes: U64s
    read_at_ms: U64s
    last_copy_since_ms: U64s
    doubt_since_ms: int

    def __iter__(self) -> Iterator[ScanCandidate]:
        columns = (self.container_ids, self.used_bytes, self.read_at_ms, self.last_copy_since_ms)
        for number, used_bytes, read_at_ms, last_copy_ms in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            container_id = ContainerId(number)
            yield ScanCandidate(
                container_id, used_bytes, read_at_ms, self.doubt_since_ms, last_copy_ms
            )

    def where(self, mask: npt.NDArray[np.bool_]) -> "Candidates":
        """Return the replicas for which `mask` is True."""
        return Candidates(
            self.container_ids[mask],
            self.used_bytes[mask],
            self.read_at_ms[mask],
            self.last_copy_since_ms[mask],
            self.doubt_since_ms,
        )


class Schedule:
    """Computes when the scans of a datanode's replicas are due, for one scan interval."""

    def __init__(self, *, interval_s: float, datanode_id: str) -> None:
        if interval_s <= 0:
            raise ValueError(f"an interval of {interval_s} s promises nothing")
        self._interval_ms = interval_s * 1000
        self._period_ms = self._interval_ms * PERIOD_SHARE
        self._datanode_id = datanode_id
        self._phases: dict[ContainerId, float] = {}
        self._phase_ids: U64s = np.zeros(0, np.uint64)
        self._phase_column: npt.NDArray[np.float64] = np.zeros(0)

    @property
    def interval_s(self) -> float:
        """The scan interval in seconds."""
        return self._interval_ms / 1000

    @property
    def rest_s(self) -> float:
        """Seconds after a scan of a replica in which it is scanned again only for an urgent
        reason."""
        return REST_SHARE * self._period_ms / 1000

    def item(self, candidate: ScanCandidate, now_ms: int) -> ScheduledReplica:
        """Return a replica with the time when its scan is due, and its deadline.

        If the time of the last scan is in the future, the clock was changed. The scan is then due
        now, because otherwise the replica might not be read for years.
        """
        read_at_ms = candidate.read_at_ms
        if not read_at_ms:
            return ScheduledReplica(candidate, now_ms, 0)
        if read_at_ms > now_ms:
            return ScheduledReplica(candidate, now_ms, int(now_ms + self._interval_ms))
        deadline_ms = int(read_at_ms + self._interval_ms)
        if candidate.urgency is not Urgency.ROUTINE:
            return ScheduledReplica(candidate, now_ms, deadline_ms)
        rested_ms = read_at_ms + REST_SHARE * self._period_ms
        phase = self._phase(candidate.container_id)
        slot = floor(rested_ms / self._period_ms - phase) + 1
        return ScheduledReplica(candidate, ceil((slot + phase) * self._period_ms), deadline_ms)

    def _phase(self, container_id: ContainerId) -> float:
        phase = self._phases.get(container_id)
        if phase is None:
            phase = self._phases[container_id] = phase_of(container_id, self._datanode_id)
        return phase

    def agenda_of(self, candidates: Candidates, now_ms: int) -> Agenda:
        """Return the due scans in order, and the required rate, given columns of replicas.

        The result equals that of `agenda`. For 100,000 replicas, the method takes some hundredths
        of a second.
        """
        read_at_ms = candidates.read_at_ms.astype(np.float64)  # whole milliseconds: exact
        is_read = candidates.read_at_ms > 0
        is_urgent = (
            ~is_read
            | (candidates.read_at_ms < candidates.last_copy_since_ms)
            | (candidates.read_at_ms < candidates.doubt_since_ms)
        )
        rested_ms = read_at_ms + REST_SHARE * self._period_ms
        phases = self._phases_of(candidates.container_ids)
        slots = np.floor(rested_ms / self._period_ms - phases) + 1
        due_at_ms = np.ceil((slots + phases) * self._period_ms)
        is_due = is_urgent | (read_at_ms > now_ms) | (due_at_ms <= now_ms)
        due = self.agenda(candidates.where(is_due), now_ms)
        if is_due.all():
            return due
        later = candidates.where(~is_due)
        used_bytes = due.used_bytes + int(later.used_bytes.sum())
        oldest_ms, wait_ms = int(later.read_at_ms.min()), int(due_at_ms[~is_due].min()) - now_ms
        lag_ms = max(0, now_ms - int(oldest_ms + self._interval_ms))
        return replace(
            due,
            used_bytes=used_bytes,
            needed_bytes_per_s=self._needed_bytes_per_s(due.due, used_bytes, now_ms),
            wait_s=wait_ms / 1000,
            oldest_read_at_ms=min(due.oldest_read_at_ms, oldest_ms) if due.due else oldest_ms,
            lag_s=max(due.lag_s, lag_ms / 1000),
        )

    def _phases_of(self, container_ids: U64s) -> npt.NDArray[np.float64]:
        """Return `phase_of` for each of the ids, which must ascend. The result of the last call is
        cached."""
        if not np.array_equal(container_ids, self._phase_ids):
            known = dict(zip(self._phase_ids.tolist(), self._phase_column.tolist(), strict=True))
            phases = [
                known[number] if number in known else phase_of(number, self._datanode_id)
                for number in container_ids.tolist()
            ]
            self._phase_ids, self._phase_column = container_ids, np.array(phases)
        return self._phase_column

    def agenda(self, candidates: Iterable[ScanCandidate], now_ms: int) -> Agenda:
        """Return the due scans in order, and the required rate."""
        due = []
        used_bytes = never_read_count = 0
        later_ms = deadline_ms = oldest_ms = inf
        for candidate in candidates:  # only due ones are kept, because the others are many
            item = self.item(candidate, now_ms)
            used_bytes += candidate.used_bytes
            oldest_ms = min(oldest_ms, candidate.read_at_ms)
            never_read_count += not candidate.read_at_ms
            if item.deadline_ms:
                deadline_ms = min(deadline_ms, item.deadline_ms)
            if item.due_at_ms <= now_ms:
                due.append(item)
            else:
                later_ms = min(later_ms, item.due_at_ms)
        due.sort(key=lambda i: (i.candidate.urgency, i.deadline_ms, i.candidate.container_id))
        return Agenda(
            due=tuple(due),
            due_bytes=sum(item.candidate.used_bytes for item in due),
            used_bytes=used_bytes,
            needed_bytes_per_s=self._needed_bytes_per_s(due, used_bytes, now_ms),
            wait_s=(self._period_ms if later_ms == inf else later_ms - now_ms) / 1000,
            oldest_read_at_ms=0 if oldest_ms == inf else int(oldest_ms),
            never_read_count=never_read_count,
            lag_s=max(0.0, now_ms - deadline_ms) / 1000,
        )

    def _needed_bytes_per_s(
        self, due: Sequence[ScheduledReplica], used_bytes: int, now_ms: int
    ) -> float:
        """Return the lowest rate at which each due scan, in this order, ends before its deadline.

        The rate is at least the rate that reads all replicas once per period, because more scans
        become due in the meantime. If a deadline was missed, the scan should end within
        MARGIN_SHARE of the interval.
        """
        needed = used_bytes / self._period_ms * 1000
        margin_ms = MARGIN_SHARE * self._interval_ms
        behind_bytes = 0
        for item in due:
            behind_bytes += item.candidate.used_bytes
            if item.deadline_ms:
                left_ms = max(item.deadline_ms - margin_ms - now_ms, margin_ms)
                needed = max(needed, behind_bytes / left_ms * 1000)
        return needed


def phase_of(container_id: ContainerId, datanode_id: str) -> float:
    """Return the position of a replica's slot in the period, in [0, 1).

    The position is a hash, so that datanodes read the replicas of a container at different times.
    For three replicas, the longest time in which none of them is read is on average 0.61 of a
    period.
    """
    score = leaf_checksum(Algorithm.XXH3_64, container_id, 0, datanode_id.encode())
    return score / CHECKSUMS


@dataclass(frozen=True, slots=True)
class ScanHours:
    """Times of the day, in UTC, in which scans may run in the background. If there are none, scans
    may always run.

    Each item is (first minute of the day, end minute of the day). If the end is before the start,
    it is on the next day.
    """

    spans: tuple[tuple[int, int], ...] = ()

    def is_open(self, now_ms: int) -> bool:
        """Return True if scans may run now."""
        minute = now_ms // 60_000 % MINUTES_OF_DAY
        return not self.spans or any(
            first <= minute < end if first < end else minute >= first or minute < end
            for first, end in self.spans
        )

    def opens_in_s(self, now_ms: int) -> float:
        """Return the number of seconds until scans may run; 0.0 if they may run now."""
        if self.is_open(now_ms):
            return 0.0
        minute_of_day = now_ms / 60_000 % MINUTES_OF_DAY
        return min((first - minute_of_day) % MINUTES_OF_DAY for first, _ in self.spans) * 60

    @property
    def share(self) -> float:
        """Share of the day in which scans may run, from 0.0 to 1.0."""
        starts_ms = range(0, DAY_S * 1000, 60_000)
        return sum(map(self.is_open, starts_ms)) / MINUTES_OF_DAY


def parse_window(text: str) -> tuple[int, int]:
    """Convert a text like `22:00-06:00` to (first minute of the day, end minute of the day). Raise
    ValueError if the text is invalid."""
    first, _, end = text.partition("-")
    minutes = (_minute(first), _minute(end))
    if minutes[0] == minutes[1]:
        raise ValueError(f"invalid window '{text}': its begin and end are equal")
    return minutes


def _minute(text: str) -> int:
    hour, _, minute = text.partition(":")
    if not (len(hour) == len(minute) == 2 and hour.isdecimal() and minute.isdecimal()):
        raise ValueError(f"invalid time of day {text!r}: expected a form like 06:30")
    if int(hour) > 23 or int(minute) > 59:
        raise ValueError(f"invalid time of day {text!r}")
    return int(hour) * 60 + int(minute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feasibility:
    """The result of a check whether one volume can be read completely within the scan interval.

    `offered_bytes_per_s` is the rate that the configuration or the disk allows, 0 = unknown;
    `offered_by` says which of the two. `open_share` is the share of the day in which scans may run.
    """

    volume: str
    used_bytes: int
    interval_s: float
    open_share: float
    offered_bytes_per_s: float
    offered_by: str

    @property
    def needed_bytes_per_s(self) -> float:
        """Rate in bytes per second that meets the interval."""
        return HEADROOM * self.used_bytes / (self.interval_s * max(self.open_share, 1e-9))

    @property
    def is_possible(self) -> bool:
        """True if the interval can be met, or if the possible rate is unknown."""
        return not self.offered_bytes_per_s or self.needed_bytes_per_s <= self.offered_bytes_per_s

    def __str__(self) -> str:
        """Return the calculation as text."""
        a_day = "" if self.open_share >= 1 else f", {self.open_share * 24:.1f} hours a day"
        needed = (
            f"volume {self.volume}: {self.used_bytes / 1e9:.1f} GB within "
            f"{self.interval_s / DAY_S:.2f} days{a_day} needs "
            f"{self.needed_bytes_per_s / 1e6:.2f} MB/s"
        )
        if not self.offered_bytes_per_s:
            return f"{needed}; the speed of the disk is not known"
        takes_s = HEADROOM * self.used_bytes / (self.offered_bytes_per_s * self.open_share)
        return (
            f"{needed}; {self.offered_by} gives {self.offered_bytes_per_s / 1e6:.2f} MB/s, "
            f"which takes {takes_s / DAY_S:.2f} days"
        )
