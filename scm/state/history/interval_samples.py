"""Samples of the cluster: its counts and sizes per interval, kept for weeks.

Each new sample is merged into three intervals at once:

- its 5 minutes, kept for 2 days
- its hour, kept for 3 weeks
- its day, kept for 400 days

Therefore, no aggregation happens later, and an interruption loses nothing. An interval has the
worst verdict of all its samples: a day with five minutes of damage is shown as damaged. The module
reads no clock and no disk.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from health.cluster_verdict import DataVerdict

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
NOTHING_TO_VERIFY: Final = -1
NEVER_VERIFIED: Final = 0
_WORST_FIRST: Final = (DataVerdict.DEGRADED, DataVerdict.UNKNOWN, DataVerdict.WHOLE)


@dataclass(frozen=True, slots=True)
class SampleLevel:
    """A length of intervals, and the number of such intervals that are kept."""

    length_ms: int
    count_max: int


LEVELS: Final[Sequence[SampleLevel]] = (
    SampleLevel(5 * MINUTE_MS, 2 * DAY_MS // (5 * MINUTE_MS)),
    SampleLevel(HOUR_MS, 21 * 24),
    SampleLevel(DAY_MS, 400),
)


@dataclass(frozen=True, slots=True)
class StatusSample:
    """The state of the cluster in one interval, or at one moment.

    `level` and `at_ms`, the start of the interval, identify the sample. The numbers of problems are
    the highest in the interval, the sizes are the last ones, and the amounts of work are sums.
    """

    level: int
    at_ms: int
    verdict: DataVerdict
    node_count: int = 0
    silent_count: int = 0  # nodes without a recent heartbeat
    failed_volume_count: int = 0
    container_count: int = 0
    faulty_count: int = 0  # closed containers that are not healthy
    lost_count: int = 0  # of these, without a whole replica
    capacity_bytes: int = 0
    used_bytes: int = 0
    data_bytes: int = 0  # of closed replicas
    in_time_bytes: int = 0  # of these, verified within the scan interval
    oldest_scan_at_ms: int = NOTHING_TO_VERIFY  # 0 = some data was never read
    done_count: int = 0  # copies, rebuilds, repairs and deletes that were carried out
    failed_count: int = 0
    moved_bytes: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """Return the key of the sample in its table."""
        return self.level, self.at_ms


def placed(sample: StatusSample, level: int) -> StatusSample:
    """Return a sample of one moment as a sample of the interval that contains the moment.

    `level` is the length of the interval, as an index in `LEVELS`.
    """
    length_ms = LEVELS[level].length_ms
    return replace(sample, level=level, at_ms=sample.at_ms // length_ms * length_ms)


def merged(before: StatusSample, after: StatusSample) -> StatusSample:
    """Merge two samples of the same interval. `after` is the later sample."""
    return replace(
        after,
        verdict=min(before.verdict, after.verdict, key=_WORST_FIRST.index),
        silent_count=max(before.silent_count, after.silent_count),
        failed_volume_count=max(before.failed_volume_count, after.failed_volume_count),
        faulty_count=max(before.faulty_count, after.faulty_count),
        lost_count=max(before.lost_count, after.lost_count),
        oldest_scan_at_ms=_older(before.oldest_scan_at_ms, after.oldest_scan_at_ms),
        done_count=before.done_count + after.done_count,
        failed_count=before.failed_count + after.failed_count,
        moved_bytes=before.moved_bytes + after.moved_bytes,
    )


def _older(one: int, other: int) -> int:
    known = [at_ms for at_ms in (one, other) if at_ms != NOTHING_TO_VERIFY]
    return min(known, default=NOTHING_TO_VERIFY)


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """A change of the verdict on the cluster's data."""

    at_ms: int
    verdict: DataVerdict
    text: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a Spark verification."""

    at_ms: int
    decisions: tuple[tuple[str, int], ...]
    error: str
