"""How the cluster was, interval by interval: merging looks, and keeping few of them."""

from itertools import pairwise
from pathlib import Path

import pytest

from scm.state.database import StateDatabase
from scm.state.history.interval_samples import (
    LEVELS,
    NEVER_VERIFIED,
    NOTHING_TO_VERIFY,
    DataVerdict,
    StatusSample,
    VerdictChange,
    Verification,
    merged,
    placed,
)
from tests.support.control.scm_world import MAP_BYTES
from tests.support.heard import logged

DAY_MS = 86_400_000


def test_a_look_falls_into_its_five_minutes_its_hour_and_its_day() -> None:
    """Intervals begin at fixed times of the clock, so a restart continues with the same ones."""
    seven_ms = 20 * DAY_MS + 7 * 3_600_000
    taken = StatusSample(0, seven_ms + 13 * 60_000 + 5, DataVerdict.WHOLE)

    begins = [placed(taken, level).at_ms for level in range(3)]

    assert [seven_ms + 10 * 60_000, seven_ms, 20 * DAY_MS] == begins


@pytest.mark.parametrize("first", tuple(DataVerdict))
@pytest.mark.parametrize("second", tuple(DataVerdict))
def test_worst_verdict_of_an_interval_is_kept(first: DataVerdict, second: DataVerdict) -> None:
    """A wrong minute makes a wrong day, wherever in the day it is. Unknown is worse than whole."""
    order = ["WHOLE", "UNKNOWN", "DEGRADED"]

    both = merged(StatusSample(2, 0, first), StatusSample(2, 0, second))

    assert max(order.index(first), order.index(second)) == order.index(both.verdict)


def test_counts_of_what_is_wrong_are_the_worst_sizes_the_last_and_work_is_added() -> None:
    """Counts of faults keep the worst value and sizes the last one, and work is added up."""
    before = StatusSample(
        2, 0, DataVerdict.WHOLE, 9, 5, 1, 100, 7, 2, 1000, 500, 400, 300, 50, 3, 1, 10
    )
    after = StatusSample(
        2, 0, DataVerdict.WHOLE, 8, 0, 2, 101, 3, 0, 1001, 400, 401, 401, 60, 4, 0, 20
    )

    assert merged(before, after) == StatusSample(
        2, 0, DataVerdict.WHOLE, 8, 5, 2, 101, 7, 2, 1001, 400, 401, 401, 50, 7, 1, 30
    )


@pytest.mark.parametrize(
    ("one", "other", "oldest"),
    [(5, 9, 5), (9, NEVER_VERIFIED, 0), (NOTHING_TO_VERIFY, 9, 9), (9, NOTHING_TO_VERIFY, 9)],
)
def test_never_read_is_older_than_any_age_and_nothing_to_read_is_none(
    one: int, other: int, oldest: int
) -> None:
    """An empty cluster has no age; something never read is the oldest there is."""
    a, b = (
        StatusSample(0, 0, DataVerdict.WHOLE, oldest_scan_at_ms=at_ms) for at_ms in (one, other)
    )

    assert oldest == merged(a, b).oldest_scan_at_ms


def test_sample_levels_hold_few_samples_together() -> None:
    """Days of minutes, weeks of hours and a year of days take kilobytes."""
    assert 2_000 > sum(level.count_max for level in LEVELS)
    for shorter, longer in pairwise(LEVELS):
        assert 0 == longer.length_ms % shorter.length_ms
        assert shorter.length_ms * shorter.count_max >= longer.length_ms


SAMPLE = StatusSample(1, 3_600_000, DataVerdict.DEGRADED, *range(1, 15))
TURN = VerdictChange(77, DataVerdict.UNKNOWN, "the control plane started")
VERIFICATION = Verification(99, (("OK", 3), ("STALE", 1)), "")


def test_samples_survive_a_restart(tmp_path: Path) -> None:
    """Rows are read back as they were written."""
    state = StateDatabase.open(tmp_path, map_bytes=MAP_BYTES)
    with state.change() as change:
        change.put(state.samples, SAMPLE)
        change.put(state.turns, TURN)
        change.put(state.verifications, VERIFICATION)
    state.close()

    state = StateDatabase.open(tmp_path, map_bytes=MAP_BYTES)

    assert [SAMPLE] == state.samples.of(1)
    assert [TURN] == state.turns.by_time()
    assert [VERIFICATION] == state.verifications.by_time()
    state.close()


def test_a_damaged_row_of_history_keeps_nobody_from_starting(tmp_path: Path) -> None:
    """The damaged row is left out and reported, and a whole row is read."""
    state = StateDatabase.open(tmp_path, map_bytes=MAP_BYTES)
    row = bytearray(state.samples.row(SAMPLE))
    whole = bytes(row)
    row[-3] ^= 1
    keys = [state.samples.key_bytes((1, hour)) for hour in (3_600_000, 7_200_000)]
    with state.change() as change:
        change.rows[("samples", keys[0])] = whole
        change.rows[("samples", keys[1])] = bytes(row)
    state.close()

    with logged() as events:
        state = StateDatabase.open(tmp_path, map_bytes=MAP_BYTES)

    assert [SAMPLE] == state.samples.of(1)
    assert ["history_row_damaged"] == [event["event"] for event in events]
    assert keys[1].hex() in events[0]["error"]
    state.close()
