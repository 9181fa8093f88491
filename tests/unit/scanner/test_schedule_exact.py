"""When a replica is due, how fast to read and what is promised, in numbers worked out by hand."""

import re
from math import ceil

import numpy as np
import pytest

from merkle.replica import ContainerId
from scanner.schedule import (
    Agenda,
    Candidates,
    Feasibility,
    ScanCandidate,
    ScanHours,
    Schedule,
    ScheduledReplica,
    parse_window,
    phase_of,
)

NOW_MS = 10_000_000
INTERVAL_MS, PERIOD_MS, REST_MS, MARGIN_MS = 1_000_000, 800_000, 120_000, 20_000
MINUTE_MS = 60_000


def schedule() -> Schedule:
    """Return one that promises a read every thousand seconds."""
    return Schedule(interval_s=1_000, datanode_id="dn1")


def candidate(number: int, used_bytes: int, read_at_ms: int, **since: int) -> ScanCandidate:
    """Return a replica."""
    return ScanCandidate(ContainerId(number), used_bytes, read_at_ms, **since)


def slot_after(number: int, rested_ms: float) -> int:
    """Return the first of a replica's slots, a period apart, that lies behind a time."""
    first_ms = phase_of(ContainerId(number), "dn1") * PERIOD_MS
    while first_ms <= rested_ms:
        first_ms += PERIOD_MS
    return ceil(first_ms - 1e-6)


def both(some: list[ScanCandidate], doubt_since_ms: int = 0) -> Agenda:
    """Return the agenda of some candidates, which is the same however they are given."""
    columns = Candidates(
        *(
            np.array([getattr(one, name) for one in some], dtype=np.uint64)
            for name in ("container_id", "used_bytes", "read_at_ms", "last_copy_since_ms")
        ),
        doubt_since_ms,
    )
    assert some == list(columns)
    found = schedule().agenda(some, NOW_MS)
    assert found == schedule().agenda_of(columns, NOW_MS)
    return found


def test_a_schedule_says_what_it_promises() -> None:
    """The schedule also gives the time within which a read is not repeated. An interval of no
    time is refused.
    """
    assert (1_000.0, 120.0) == (schedule().interval_s, schedule().rest_s)
    with pytest.raises(ValueError, match="an interval of 0 s promises nothing"):
        Schedule(interval_s=0, datanode_id="dn1")


class TestItem:
    @pytest.mark.parametrize("number", range(12))
    def test_a_routine_read_waits_for_its_slot(self, number: int) -> None:
        """The slot is the first one behind its rest and before its deadline."""
        one = candidate(number, 5, NOW_MS - 100_000)

        item = schedule().item(one, NOW_MS)

        due_ms = slot_after(number, NOW_MS - 100_000 + REST_MS)
        assert ScheduledReplica(one, due_ms, NOW_MS - 100_000 + INTERVAL_MS) == item

    @pytest.mark.parametrize(
        ("one", "deadline_ms"),
        [
            (candidate(1, 5, 0), 0),
            (candidate(1, 5, NOW_MS - 10, doubt_since_ms=NOW_MS - 9), NOW_MS - 10 + INTERVAL_MS),
            (candidate(1, 5, NOW_MS - 10, last_copy_since_ms=NOW_MS), NOW_MS - 10 + INTERVAL_MS),
            (candidate(1, 5, NOW_MS + 1), NOW_MS + INTERVAL_MS),
        ],
        ids=["never", "in doubt", "last copy", "future"],
    )
    def test_whatever_else_is_due_now(self, one: ScanCandidate, deadline_ms: int) -> None:
        """
        The deadline is that of the last read; of none it is not known.
        """
        assert ScheduledReplica(one, NOW_MS, deadline_ms) == schedule().item(one, NOW_MS)

    @pytest.mark.parametrize("since_ms", [NOW_MS - 10, 0])
    def test_a_read_since_then_is_enough(self, since_ms: int) -> None:
        """A read at the same moment is enough."""
        for name in ("doubt_since_ms", "last_copy_since_ms"):
            one = candidate(1, 5, NOW_MS - 10, **{name: since_ms})

            assert schedule().item(one, NOW_MS).due_at_ms > NOW_MS


class TestAgenda:
    def test_agenda_has_due_replicas_waiting_time_and_rate(self) -> None:
        """One replica was never read, one is overdue by a thousand seconds, and two are to be
        read later.
        """
        never, overdue = candidate(3, 10, 0), candidate(5, 20, NOW_MS - 2 * INTERVAL_MS)
        later = [candidate(7, 40, NOW_MS - 1), candidate(9, 80, NOW_MS - 2)]

        found = both([never, overdue, *later])

        due_ms = min(slot_after(7, NOW_MS - 1 + REST_MS), slot_after(9, NOW_MS - 2 + REST_MS))
        assert (never, overdue) == tuple(item.candidate for item in found.due)
        assert (30, 150, 1) == (found.due_bytes, found.used_bytes, found.never_read_count)
        assert (due_ms - NOW_MS) / 1000 == found.wait_s
        assert (0, 1_000.0) == (found.oldest_read_at_ms, found.lag_s)
        assert pytest.approx(30 / MARGIN_MS * 1000) == found.needed_bytes_per_s

    def test_agenda_rate_ends_each_item_before_its_deadline(self) -> None:
        """The margin comes before the deadline, behind all items that are read first."""
        read_at_ms = [NOW_MS - 990_000 + 100 * number for number in range(3)]
        some = [
            candidate(number, 1_000_000, at_ms, doubt_since_ms=NOW_MS)
            for number, at_ms in enumerate(read_at_ms)
        ]

        found = both(some, NOW_MS)

        assert read_at_ms == [item.candidate.read_at_ms for item in found.due]
        assert read_at_ms[0] == found.oldest_read_at_ms
        assert pytest.approx(3_000_000 / MARGIN_MS * 1000) == found.needed_bytes_per_s
        assert 0.0 == found.lag_s

    def test_a_deadline_far_away_needs_what_is_left_of_the_time(self) -> None:
        """
        Here the doubt is new, and the last read was, too.
        """
        found = both([candidate(1, 8_000_000, NOW_MS - 500_000, doubt_since_ms=NOW_MS)], NOW_MS)

        assert pytest.approx(8_000_000 / (500_000 - MARGIN_MS) * 1000) == found.needed_bytes_per_s

    def test_agenda_without_due_replicas_needs_one_period_for_all(self) -> None:
        """The agenda waits for the first slot."""
        found = both([candidate(7, 40, NOW_MS - 1), candidate(9, 80, NOW_MS - 2)])

        assert ((), 0, 120, 0) == (
            found.due,
            found.due_bytes,
            found.used_bytes,
            found.never_read_count,
        )
        assert pytest.approx(120 / PERIOD_MS * 1000) == found.needed_bytes_per_s
        assert (NOW_MS - 2, 0.0) == (found.oldest_read_at_ms, found.lag_s)

    def test_agenda_of_no_replicas_is_empty(self) -> None:
        """The agenda is computed again after a period."""
        assert Agenda((), 0, 0, 0.0, 800.0, 0, 0, 0.0) == both([])

    def test_the_most_urgent_come_first_then_the_oldest(self) -> None:
        """
        Equal ones by their number.
        """
        old_ms = NOW_MS - 2 * INTERVAL_MS
        some = [
            candidate(1, 1, old_ms + 5, doubt_since_ms=old_ms + 5),
            candidate(2, 1, old_ms, doubt_since_ms=old_ms + 5),
            candidate(3, 1, 0, doubt_since_ms=old_ms + 5),
            candidate(4, 1, old_ms, doubt_since_ms=old_ms + 5, last_copy_since_ms=old_ms + 1),
            candidate(5, 1, old_ms, doubt_since_ms=old_ms + 5),
            candidate(6, 1, old_ms - 9, doubt_since_ms=old_ms + 5),
        ]

        found = both(some, old_ms + 5)

        assert [4, 3, 6, 2, 5, 1] == [item.candidate.container_id for item in found.due]
        assert (INTERVAL_MS + 9) / 1000 == found.lag_s

    def test_columns_that_change_are_looked_at_again(self) -> None:
        """
        A replica that came or went has its own slot all the same.
        """
        one = schedule()
        for numbers in ([3, 5, 7], [5, 7], [2, 5, 7, 9], [2, 5, 7, 9]):
            read_at_ms = np.full(len(numbers), NOW_MS - 1, dtype=np.uint64)
            ids = np.array(numbers, dtype=np.uint64)
            nothing = np.zeros(len(numbers), dtype=np.uint64)
            columns = Candidates(ids, nothing, read_at_ms, nothing, 0)

            found = one.agenda_of(columns, NOW_MS)

            due_ms = min(slot_after(number, NOW_MS - 1 + REST_MS) for number in numbers)
            assert (due_ms - NOW_MS) / 1000 == found.wait_s


class TestWindows:
    @pytest.mark.parametrize(
        ("spans", "minute", "is_open"),
        [
            ((), 0, True),
            (((60, 120),), 59, False),
            (((60, 120),), 60, True),
            (((60, 120),), 119, True),
            (((60, 120),), 120, False),
            (((1_380, 60),), 1_379, False),
            (((1_380, 60),), 1_380, True),
            (((1_380, 60),), 0, True),
            (((1_380, 60),), 59, True),
            (((1_380, 60),), 60, False),
            (((60, 120), (180, 200)), 190, True),
            (((60, 120), (180, 200)), 150, False),
        ],
    )
    def test_the_first_minute_is_in_it_and_the_last_is_not(
        self, spans: tuple[tuple[int, int], ...], minute: int, is_open: bool
    ) -> None:
        """
        On any day.
        """
        for day in (0, 20_000):
            now_ms = (day * 1_440 + minute) * MINUTE_MS

            assert is_open is ScanHours(spans).is_open(now_ms)
            assert is_open is ScanHours(spans).is_open(now_ms + MINUTE_MS - 1)
            assert is_open is (0.0 == ScanHours(spans).opens_in_s(now_ms))

    def test_window_has_the_time_until_it_opens(self) -> None:
        """The time is exact to the second, and works over midnight."""
        windows = ScanHours(((60, 120), (180, 200)))

        assert pytest.approx(1_770) == windows.opens_in_s(150 * MINUTE_MS + 30_000)
        assert pytest.approx(60 * 60 + 60) == windows.opens_in_s(1_439 * MINUTE_MS)

    def test_the_share_of_a_day_is_counted_in_minutes(self) -> None:
        """
        Spans that overlap count once.
        """
        assert 1.0 == ScanHours().share
        assert 90 / 1_440 == ScanHours(((0, 60), (30, 90))).share
        assert 120 / 1_440 == ScanHours(((1_380, 60),)).share

    def test_times_are_read(self) -> None:
        """
        All minutes of a day.
        """
        assert (0, 1_439) == parse_window("00:00-23:59")
        assert (1_330, 361) == parse_window("22:10-06:01")

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("24:00-06:00", "invalid time of day '24:00'"),
            ("22:00-06:60", "invalid time of day '06:60'"),
            ("22:00", "invalid time of day '': expected a form like 06:30"),
            ("2:00-06:00", "invalid time of day '2:00': expected a form like 06:30"),
            ("022:00-06:00", "invalid time of day '022:00': expected a form like 06:30"),
            ("22:0-06:00", "invalid time of day '22:0': expected a form like 06:30"),
            ("ab:00-06:00", "invalid time of day 'ab:00': expected a form like 06:30"),
            ("22:cd-06:00", "invalid time of day '22:cd': expected a form like 06:30"),
            ("06:00-06:00", "invalid window '06:00-06:00': its begin and end are equal"),
        ],
    )
    def test_invalid_window_is_refused_as_written(self, text: str, complaint: str) -> None:
        """The error quotes the operator's text."""
        with pytest.raises(ValueError, match=rf"^{re.escape(complaint)}$"):
            parse_window(text)


class TestFeasibility:
    def of(self, offered_bytes_per_s: float, open_share: float = 1.0) -> Feasibility:
        """Return the arithmetic of a terabyte in ten days."""
        return Feasibility(
            volume="/data/1",
            used_bytes=10**12,
            interval_s=864_000,
            open_share=open_share,
            offered_bytes_per_s=offered_bytes_per_s,
            offered_by="the disk",
        )

    def test_the_arithmetic_is_shown(self) -> None:
        """
        With five in a hundred to spare.
        """
        assert str(self.of(2e6)) == (
            "volume /data/1: 1000.0 GB within 10.00 days needs 1.22 MB/s; "
            "the disk gives 2.00 MB/s, which takes 6.08 days"
        )
        assert str(self.of(4e6, 0.25)) == (
            "volume /data/1: 1000.0 GB within 10.00 days, 6.0 hours a day needs 4.86 MB/s; "
            "the disk gives 4.00 MB/s, which takes 12.15 days"
        )
        assert str(self.of(0)) == (
            "volume /data/1: 1000.0 GB within 10.00 days needs 1.22 MB/s; "
            "the speed of the disk is not known"
        )

    def test_exact_rate_keeps_the_promise(self) -> None:
        """A rate that just suffices is enough. An unknown rate is not refused."""
        needed = self.of(1).needed_bytes_per_s
        assert pytest.approx(1.05 * 10**12 / 864_000) == needed
        assert pytest.approx(4 * needed) == self.of(1, 0.25).needed_bytes_per_s

        assert [True, True, False, False] == [
            self.of(offered, share).is_possible
            for offered, share in ((0, 1.0), (needed, 1.0), (needed - 1, 1.0), (1e15, 0.0))
        ]
