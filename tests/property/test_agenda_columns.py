"""An agenda made from columns is the one that is made candidate by candidate."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scanner.schedule import Candidates, Schedule

HOUR_MS = 3_600_000
NOW_MS = 1_790_000_000_000
WEEK_S = 7 * 86_400
AGES_MS = st.integers(-2 * HOUR_MS, 10 * 24 * HOUR_MS)
Rows = list[tuple[int, int, int, int]]
READS_MS = st.just(0) | AGES_MS.map(lambda age_ms: NOW_MS - age_ms)
SINCE_MS = st.just(0) | AGES_MS.map(lambda age_ms: NOW_MS - age_ms)
ROWS = st.lists(
    st.tuples(st.integers(1, 2**63 - 1), st.integers(0, 2**40), READS_MS, SINCE_MS),
    max_size=12,
    unique_by=lambda row: row[0],
).map(sorted)


def candidates(rows: Rows, doubt_since_ms: int) -> Candidates:
    """Return rows as columns."""
    table = np.array(rows, dtype=np.uint64).reshape(len(rows), 4)
    return Candidates(*(table[:, column] for column in range(4)), doubt_since_ms)


@given(st.lists(st.tuples(ROWS, SINCE_MS), min_size=1, max_size=3))
def test_columns_make_the_same_agenda(rounds: list[tuple[Rows, int]]) -> None:
    """The due replicas, their order, the rate and all sums are equal, also when replicas come
    and go.
    """
    schedule = Schedule(interval_s=WEEK_S, datanode_id="dn")

    for number, (rows, doubt_since_ms) in enumerate(rounds):
        columns, now_ms = candidates(rows, doubt_since_ms), NOW_MS + number * HOUR_MS

        found = schedule.agenda_of(columns, now_ms)

        assert schedule.agenda(iter(columns), now_ms) == found
