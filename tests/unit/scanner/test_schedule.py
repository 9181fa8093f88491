"""When what is read: the promise, the order, the arithmetic, and ninety days in a moment."""

from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from merkle.replica import ContainerId
from scanner.schedule import (
    MARGIN_SHARE,
    Feasibility,
    ScanCandidate,
    ScanHours,
    Schedule,
    Urgency,
    parse_window,
    phase_of,
)
from tests.support.simulation.scan_simulation import DAY_MS, HOUR_MS

WEEK_S = 7 * 86_400
WEEK_MS = WEEK_S * 1000
NOW_MS = 1_790_000_000_000
GB, TB = 10**9, 10**12
MIB = 1024**2
DATANODES = ("datanode-a", "datanode-b", "datanode-c")
SCHEDULE = Schedule(interval_s=WEEK_S, datanode_id="datanode-a")

ids = st.integers(1, 2**63 - 1).map(ContainerId)
candidates = st.builds(
    ScanCandidate,
    container_id=ids,
    used_bytes=st.integers(0, 5 * GB),
    read_at_ms=st.one_of(st.just(0), st.integers(NOW_MS - 2 * WEEK_MS, NOW_MS + WEEK_MS)),
    doubt_since_ms=st.one_of(st.just(0), st.integers(NOW_MS - WEEK_MS, NOW_MS)),
    last_copy_since_ms=st.one_of(st.just(0), st.integers(NOW_MS - WEEK_MS, NOW_MS)),
)


def candidate(number: int, days_ago: float, used_bytes: int = GB, **changes: int) -> ScanCandidate:
    """Return a candidate read so long ago."""
    return ScanCandidate(
        ContainerId(number), used_bytes, int(NOW_MS - days_ago * DAY_MS), **changes
    )


class TestOrder:
    def test_last_copies_then_never_read_then_in_doubt_then_the_oldest(self) -> None:
        """Containers of equal age are ordered by id."""
        never, doubted = ScanCandidate(ContainerId(9), 1, 0), candidate(8, 1, doubt_since_ms=NOW_MS)
        last = candidate(10, 1, last_copy_since_ms=NOW_MS)
        old, older, twin = candidate(3, 8), candidate(7, 9), candidate(5, 8)

        agenda = SCHEDULE.agenda([old, twin, doubted, last, older, never], NOW_MS)

        assert [10, 9, 8, 7, 3, 5] == [item.candidate.container_id for item in agenda.due]

    def test_a_last_copy_is_read_once_and_not_again(self) -> None:
        """A replica read since then waits for its slot like all others."""
        after = candidate(8, 0.5, last_copy_since_ms=NOW_MS - DAY_MS)

        assert Urgency.ROUTINE is after.urgency
        assert () == SCHEDULE.agenda([after], NOW_MS).due

    def test_a_volume_in_doubt_is_read_once_and_not_again(self) -> None:
        """A replica read after the doubt arose waits for its slot like all others."""
        after = candidate(8, 0.5, doubt_since_ms=NOW_MS - DAY_MS)

        assert Urgency.ROUTINE is after.urgency
        assert () == SCHEDULE.agenda([after], NOW_MS).due

    def test_a_read_in_the_future_is_due(self) -> None:
        """A clock that jumped must not hide a replica for years."""
        assert 1 == len(SCHEDULE.agenda([candidate(1, -5_000)], NOW_MS).due)

    def test_replica_that_was_just_read_is_not_due(self) -> None:
        """The agenda has the time of the next check."""
        agenda = SCHEDULE.agenda([candidate(1, 0.01)], NOW_MS)

        assert () == agenda.due
        assert 0 < agenda.wait_s <= WEEK_S


class TestPlanner:
    @given(candidates)
    def test_a_slot_lies_before_the_deadline(self, one: ScanCandidate) -> None:
        """With time to spare, whatever the phase."""
        item = SCHEDULE.item(one, NOW_MS)

        if item.candidate.urgency is Urgency.ROUTINE and one.read_at_ms <= NOW_MS:
            assert one.read_at_ms + WEEK_MS / 10 < item.due_at_ms  # not again tomorrow
            assert item.due_at_ms < item.deadline_ms - MARGIN_SHARE * WEEK_MS

    @given(st.lists(candidates, max_size=30, unique_by=lambda one: one.container_id))
    def test_the_needed_rate_meets_every_deadline_in_the_order_of_the_agenda(
        self, some: list[ScanCandidate]
    ) -> None:
        """A deadline that has passed, or that lies within the margin, is not met."""
        agenda = SCHEDULE.agenda(some, NOW_MS)

        at_ms = float(NOW_MS)
        for item in agenda.due:
            if item.candidate.used_bytes:
                at_ms += item.candidate.used_bytes / agenda.needed_bytes_per_s * 1000
            margin_ms = MARGIN_SHARE * WEEK_MS
            reachable = max(item.deadline_ms - margin_ms, NOW_MS + margin_ms)
            assert not item.deadline_ms or at_ms <= reachable + 1

    @given(st.lists(candidates, max_size=30, unique_by=lambda one: one.container_id))
    def test_replica_that_is_not_due_is_read_before_its_deadline(
        self, some: list[ScanCandidate]
    ) -> None:
        """No replica is forgotten: it is on the agenda, or its time is before its deadline."""
        agenda = SCHEDULE.agenda(some, NOW_MS)
        due = {item.candidate.container_id for item in agenda.due}

        for one in some:
            if one.container_id not in due:
                assert one.urgency is Urgency.ROUTINE
                assert NOW_MS + agenda.wait_s * 1000 < one.read_at_ms + WEEK_MS

    @given(ids, st.sampled_from(DATANODES))
    def test_a_phase_is_a_place_in_the_period(self, container_id: ContainerId, name: str) -> None:
        """The phase is the same whenever and wherever it is computed."""
        phase = phase_of(container_id, name)

        assert 0 <= phase < 1
        assert phase == phase_of(container_id, name)

    def test_the_load_of_a_period_is_even(self) -> None:
        """Replicas of one night are not read in one night: no tenth holds much above a tenth."""
        tenths = [0] * 10
        for number in range(1, 10_001):
            tenths[int(phase_of(ContainerId(number), "datanode-a") * 10)] += 1

        assert max(tenths) < 1_150
        assert min(tenths) > 850


class TestPhaseShift:
    def unread(self, container_id: int) -> float:
        """Return the longest part of a period in which no copy is read."""
        phases = sorted(phase_of(ContainerId(container_id), name) for name in DATANODES)
        return max(
            (later - phase) % 1
            for phase, later in zip(phases, [*phases[1:], phases[0] + 1], strict=True)
        )

    def test_copies_are_read_at_different_times_without_coordination(self) -> None:
        """On average 0.61 of a period passes without any copy read, instead of a whole one."""
        assert abs(11 / 18 - mean(self.unread(n) for n in range(1, 3_000))) < 0.02


class TestFeasibility:
    def promise(self, offered_bytes_per_s: float, **changes: float) -> Feasibility:
        """Return the check of 16 TB in seven days."""
        values = {"used_bytes": 16 * TB, "interval_s": WEEK_S, "open_share": 1.0, **changes}
        return Feasibility(
            volume="/data1",
            offered_bytes_per_s=offered_bytes_per_s,
            offered_by="scan.volume_bytes_per_s",
            **values,  # type: ignore[arg-type]
        )

    def test_five_mib_a_second_cannot_read_sixteen_terabytes(self) -> None:
        """The incumbent's default, refused with the arithmetic."""
        check = self.promise(5 * MIB)

        assert not check.is_possible
        assert (
            "volume /data1: 16000.0 GB within 7.00 days needs 27.78 MB/s; "
            "scan.volume_bytes_per_s gives 5.24 MB/s, which takes 37.09 days" == str(check)
        )

    @pytest.mark.parametrize(
        ("offered", "changes", "is_possible"),
        [
            (28e6, {}, True),
            (27e6, {}, False),
            (28e6, {"open_share": 0.5}, False),
            (56e6, {"open_share": 0.5}, True),
            (5 * MIB, {"used_bytes": 3 * TB}, True),
            (5 * MIB, {"used_bytes": 3.2 * TB}, False),
            (1, {"used_bytes": 0}, True),
            (0, {}, True),
        ],
    )
    def test_scan_promise_depends_on_speed_windows_and_used_bytes(
        self, offered: float, changes: dict[str, float], is_possible: bool
    ) -> None:
        """An unknown speed is not refused."""
        assert is_possible == self.promise(offered, **changes).is_possible

    def test_a_disk_of_unknown_speed_is_called_so(self) -> None:
        """No number is made up."""
        assert str(self.promise(0)).endswith("the speed of the disk is not known")


class TestWindows:
    def at(self, hour: int, minute: int = 0) -> int:
        """Return a wall time at that time of a day."""
        return NOW_MS // DAY_MS * DAY_MS + hour * HOUR_MS + minute * 60_000

    def test_no_window_is_always(self) -> None:
        """The default."""
        assert ScanHours().is_open(NOW_MS)
        assert 1.0 == ScanHours().share

    def test_a_window_over_midnight(self) -> None:
        """From the evening to the morning, and the time until it opens."""
        windows = ScanHours((parse_window("22:00-06:00"),))

        assert [True, True, False, False] == [
            windows.is_open(self.at(*when)) for when in ((23, 0), (5, 59), (6, 0), (21, 59))
        ]
        assert (0.0, 3600.0) == (windows.opens_in_s(self.at(1)), windows.opens_in_s(self.at(21)))
        assert abs(1 / 3 - windows.share) < 1e-9

    @pytest.mark.parametrize(
        "text", ["", "22-06", "22:00", "24:00-01:00", "1:00-02:00", "05:00-05:00"]
    )
    def test_a_wrong_window_is_refused(self, text: str) -> None:
        """The config names what it does not understand."""
        with pytest.raises(ValueError, match=r"time|invalid window"):
            parse_window(text)
