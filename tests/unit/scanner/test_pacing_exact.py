"""The numbers of the closed loop, one decision at a time."""

import pytest

from scanner.scan_rate_control import (
    CALM_S,
    CAREFUL,
    CAREFUL_INCREASE,
    CYCLE_S,
    DECREASE,
    INCREASE,
    KEPT_S,
    KEPT_WITHOUT_S,
    PAUSE_S,
    REACH,
    SAMPLES_MIN,
    SETTLE_S,
    Budget,
    Latencies,
    LatencyComparison,
    PaceLimits,
    Pacer,
    PressureSample,
    RateControl,
    is_pause,
    p99_of,
    parse_stall_us,
    pressure_of_others,
    too_slow_s,
)

MIB = 1024**2
START_S = 1_000.0  # a pause begins here
WIDE = PaceLimits(ceiling_bytes_per_s=1024 * MIB)


def fill(latencies: Latencies, at_s: float, latency_s: float, count: int = SAMPLES_MIN) -> None:
    """Let clients read so often at one moment, while a scan reads."""
    latencies.scanned(at_s)
    for _ in range(count):
        latencies.add(at_s, latency_s)


class TestLatencies:
    def compared(self, latencies: Latencies, since_s: float = 0.0) -> LatencyComparison | None:
        """Compare at the end of the cycle."""
        return latencies.compared(START_S + CYCLE_S, since_s)

    def test_reads_at_the_limit_are_not_too_slow(self) -> None:
        """
        A tenth more than without the scan, or half a millisecond.
        """
        latencies = Latencies()
        fill(latencies, START_S + 0.5, 0.1)
        fill(latencies, START_S + 2, too_slow_s(0.1))
        assert LatencyComparison(SAMPLES_MIN, 0) == self.compared(latencies)
        fill(latencies, START_S + 3, too_slow_s(0.1) + 1e-6, 3)

        assert LatencyComparison(SAMPLES_MIN + 3, 3) == self.compared(latencies)
        assert pytest.approx(0.11) == too_slow_s(0.1)
        assert pytest.approx(0.0015) == too_slow_s(0.001)

    @pytest.mark.parametrize(("beside", "without"), [(49, 50), (50, 49)])
    def test_fewer_than_fifty_reads_are_no_measurement(self, beside: int, without: int) -> None:
        """
        On either side.
        """
        latencies = Latencies()
        fill(latencies, START_S + 0.5, 0.1, without)
        fill(latencies, START_S + 2, 0.1, beside)

        assert self.compared(latencies) is None

    def test_a_read_that_began_beside_the_scan_and_ended_in_its_pause_counts_for_neither(
        self,
    ) -> None:
        """The read waited for the scan during a part of its time."""
        latencies = Latencies()
        fill(latencies, START_S + 0.1, 0.2)
        fill(latencies, START_S + 2, 0.2)

        assert self.compared(latencies) is None

    def test_while_no_scan_reads_all_is_undisturbed(self) -> None:
        """
        From two seconds after its last read on.
        """
        latencies = Latencies()
        fill(latencies, START_S + 1.5, 0.1)
        for _ in range(SAMPLES_MIN - 1):
            latencies.add(START_S + 4, 0.1)
        latencies.add(START_S + 4, 0.5)  # begun exactly two seconds after
        assert self.compared(latencies) is None
        latencies.add(START_S + 4, 0.4)

        assert LatencyComparison(SAMPLES_MIN + 1, 1) == self.compared(latencies)

    def test_old_reads_are_forgotten(self) -> None:
        """
        Those beside the scan after half a minute, or a decrease; the others after three.
        """
        latencies = Latencies()
        fill(latencies, START_S + 0.5, 0.1)
        fill(latencies, START_S + 160.5, 0.1)
        fill(latencies, START_S + 162, 0.1)

        def count_at(now_s: float, since_s: float = 0.0) -> int | None:
            found = latencies.compared(START_S + now_s, START_S + since_s)
            return None if found is None else found.count

        assert SAMPLES_MIN == count_at(162 + KEPT_S)
        assert count_at(162.1 + KEPT_S) is None
        assert SAMPLES_MIN == count_at(170, 162)
        assert count_at(170, 162.1) is None
        latencies = Latencies()
        fill(latencies, START_S + 0.5, 0.1)
        fill(latencies, START_S + 172, 0.1)
        assert SAMPLES_MIN == count_at(0.5 + KEPT_WITHOUT_S)
        assert count_at(0.6 + KEPT_WITHOUT_S) is None

    def test_clients_are_recent_for_a_cycle(self) -> None:
        """Clients are recent for one cycle, and never before the first request."""
        latencies = Latencies()
        assert not latencies.are_recent(START_S)
        latencies.add(START_S, 0.1)

        assert latencies.are_recent(START_S + CYCLE_S - 0.1)
        assert not latencies.are_recent(START_S + CYCLE_S)

    def test_the_pause_is_the_first_second_of_five(self) -> None:
        """
        Its end is not part of it.
        """
        assert [True, True, False, False, True] == [
            is_pause(START_S + at_s) for at_s in (0.0, 0.99, 1.0, 4.99, 5.0)
        ]


@pytest.mark.parametrize(
    ("count", "slow", "is_disturbed"),
    [(100, 3, False), (100, 4, True), (400, 8, False), (400, 9, True), (10_000, 120, False)],
)
def test_more_slow_reads_than_chance_explains_are_a_disturbance(
    count: int, slow: int, is_disturbed: bool
) -> None:
    """
    A hundredth, and two standard deviations.
    """
    assert is_disturbed is LatencyComparison(count, slow).is_disturbed


@pytest.mark.parametrize(("count", "value"), [(1, 1), (99, 99), (100, 99), (200, 198)])
def test_a_hundredth_of_the_values_may_lie_above_the_percentile(count: int, value: int) -> None:
    """
    In whatever order they are.
    """
    assert value == p99_of([float(number) for number in range(count, 0, -1)])


class TestRate:
    def test_other_limits_hold_at_once(self) -> None:
        """
        A lower ceiling brings the rate down, a higher floor brings it up.
        """
        control = RateControl(WIDE, Latencies())
        control.begin_at(100 * MIB)
        assert 100 * MIB == control.bytes_per_s

        control.change(PaceLimits(ceiling_bytes_per_s=10 * MIB))
        assert 10 * MIB == control.bytes_per_s
        control.change(PaceLimits(floor_bytes_per_s=20 * MIB, ceiling_bytes_per_s=30 * MIB))
        assert 20 * MIB == control.bytes_per_s

    def test_rate_begins_between_floor_and_ceiling(self) -> None:
        """This holds whatever rate was good before."""
        control = RateControl(PaceLimits(ceiling_bytes_per_s=10 * MIB), Latencies())
        control.begin_at(MIB / 2)
        assert MIB == control.bytes_per_s
        control.begin_at(20 * MIB)

        assert 10 * MIB == control.bytes_per_s

    def test_need_from_a_fixed_rate_is_not_kept(self) -> None:
        """After the rate is no longer fixed, only the present need counts."""
        control = RateControl(PaceLimits(fixed_bytes_per_s=5 * MIB), Latencies())
        control.need(100 * MIB)
        control.need(0)
        control.change(WIDE)

        assert MIB == control.bytes_per_s == control.lowest_bytes_per_s

    def test_the_promise_does_not_break_the_ceiling(self) -> None:
        """The operator set the ceiling on purpose."""
        control = RateControl(PaceLimits(ceiling_bytes_per_s=10 * MIB), Latencies())

        control.need(100 * MIB)

        assert 10 * MIB == control.bytes_per_s == control.lowest_bytes_per_s

    def test_rate_is_halved_once_per_trouble_and_settles(self) -> None:
        """For two seconds no measurement counts. Pressure exactly at the bound is no trouble."""
        control = RateControl(WIDE, Latencies())
        control.begin_at(64 * MIB)

        control.adjust(START_S, 0.21)
        assert 32 * MIB == control.bytes_per_s
        control.adjust(START_S + SETTLE_S - 0.1, 0.21)
        assert 32 * MIB == control.bytes_per_s
        control.adjust(START_S + SETTLE_S, 0.21)
        assert 16 * MIB == control.bytes_per_s
        control.adjust(START_S + SETTLE_S + 1, 0.2)
        assert 16 * MIB * INCREASE == control.bytes_per_s
        assert 0.5 == DECREASE

    def test_near_the_rate_that_was_too_much_growth_is_careful(self) -> None:
        """
        From four fifths of it on, exactly; until the disk has been calm.
        """
        for share, growth in ((CAREFUL * 0.999, INCREASE), (CAREFUL, CAREFUL_INCREASE)):
            control = RateControl(WIDE, Latencies())
            control.begin_at(64 * MIB)
            control.adjust(START_S, 0.9)
            control.begin_at(share * 64 * MIB)

            control.adjust(START_S + CALM_S - 0.1, 0.0)
            assert share * 64 * MIB * growth == control.bytes_per_s
            control.adjust(START_S + CALM_S, 0.0)
            assert 2 * share * 64 * MIB * growth == control.bytes_per_s

    def test_measured_read_rate_is_the_ceiling_without_a_configured_one(self) -> None:
        """The ceiling is half more than that, and never below the floor. There is none before
        the first measurement.
        """
        control = RateControl(PaceLimits(), Latencies())
        control.begin_at(2.0**41)
        assert 2.0**40 == control.bytes_per_s
        control.reached(100 * MIB)
        control.adjust(START_S, 0.0)
        assert REACH * 100 * MIB == control.bytes_per_s
        control.reached(MIB / 100)
        control.adjust(START_S, 0.0)
        assert MIB == control.bytes_per_s


class TestBudget:
    def test_budget_delays_for_bytes_and_reads(self) -> None:
        """Bytes and reads have their own rates, and the longer delay counts. Time that has
        passed is deducted.
        """
        budget = Budget(10.0)

        assert pytest.approx(2.0) == budget.delay_s(10.0, 200, 100)
        assert pytest.approx(2.0) == budget.delay_s(11.0, 100, 100)
        assert pytest.approx(2.0) == budget.delay_s(11.0, 10, 0)
        assert pytest.approx(0.0) == Budget(0.0).delay_s(5.0, 5, 100)


class TestPacer:
    def test_a_decision_counts_what_was_read_since_the_last_one(self) -> None:
        """
        The speed of the reads alone, waits left out.
        """
        pacer = Pacer(PaceLimits(), Latencies(), START_S)
        pacer.rate.begin_at(10_000 * MIB)
        pacer.delay_s(START_S + 1, 30 * MIB, 0.1)
        pacer.delay_s(START_S + 1, 10 * MIB, 0.1)

        pacer.adjust(START_S + 1, 0.0)
        assert pytest.approx(REACH * 200 * MIB) == pacer.rate.bytes_per_s
        assert not pacer.is_time_to_adjust(START_S + 1.9)
        assert pacer.is_time_to_adjust(START_S + 2)

        pacer.delay_s(START_S + 2, 40 * MIB, 1.0)
        pacer.adjust(START_S + 2, 0.0)
        assert pytest.approx(REACH * 40 * MIB) == pacer.rate.bytes_per_s
        pacer.adjust(START_S + 3, 0.0)
        assert pytest.approx(REACH * 40 * MIB) == pacer.rate.bytes_per_s

    def test_paced_reads_mark_latencies_as_disturbed(self) -> None:
        """Client latencies beside a scan are compared with those without."""
        latencies = Latencies()
        pacer = Pacer(PaceLimits(), latencies, START_S)
        for _ in range(SAMPLES_MIN):
            latencies.add(START_S + 0.5, 0.1)
        pacer.delay_s(START_S + 2, 1)
        for _ in range(SAMPLES_MIN):
            latencies.add(START_S + 2, 0.1)

        assert LatencyComparison(SAMPLES_MIN, 0) == latencies.compared(START_S + 3, 0.0)

    def test_the_rest_of_a_pause_is_waited_for_behind_the_budget(self) -> None:
        """
        If clients read then; a scan of a fixed rate does not pause.
        """
        latencies = Latencies()
        latencies.add(START_S - 0.1, 0.01)
        limits = PaceLimits(floor_bytes_per_s=1_000, ceiling_bytes_per_s=1_000)
        fixed = PaceLimits(fixed_bytes_per_s=1_000)

        def waits(limits: PaceLimits, now_s: float, length_bytes: int) -> float:
            return Pacer(limits, latencies, now_s).delay_s(now_s, length_bytes)

        assert pytest.approx(PAUSE_S) == waits(limits, START_S - 0.5, 500) - 0.5
        assert pytest.approx(0.2 + PAUSE_S - 0.4) == waits(limits, START_S + 0.2, 200)
        assert pytest.approx(0.3) == waits(limits, START_S + 2, 300)
        assert pytest.approx(0.2) == waits(fixed, START_S + 0.2, 200)
        assert pytest.approx(0.2) == waits(limits, START_S + CYCLE_S + 0.2, 200)

    def test_other_limits_hold_at_once(self) -> None:
        """
        For the rate and for the wait after a read.
        """
        pacer = Pacer(WIDE, Latencies(), START_S)
        pacer.change(PaceLimits(fixed_bytes_per_s=MIB))

        assert MIB == pacer.rate.bytes_per_s
        assert pytest.approx(0.5) == pacer.delay_s(START_S, MIB // 2)


class TestPressure:
    def test_pressure_is_a_share_between_zero_and_one(self) -> None:
        """Pressure is a share of any period."""
        first = PressureSample(5.0, 1_000_000, 2.0)

        assert pytest.approx(0.4) == pressure_of_others(first, PressureSample(5.5, 1_300_000, 2.1))
        assert 0.0 == pressure_of_others(first, PressureSample(5.5, 1_300_000, 2.4))
        assert 1.0 == pressure_of_others(first, PressureSample(5.5, 9_000_000, 2.0))
        assert 0.0 == pressure_of_others(first, PressureSample(5.0, 9_000_000, 2.0))
        assert 0.0 == pressure_of_others(first, PressureSample(4.0, 9_000_000, 2.0))

    def test_the_line_of_some_is_found_wherever_it_is(self) -> None:
        """The line and the total are found at any place."""
        assert 7 == parse_stall_us("full total=9\nsome total=7 avg10=0.00\n")


def test_pacing_constants_are_the_measured_ones() -> None:
    """A change to one of these numbers needs a new measurement of client latencies beside a
    scan.
    """
    from scanner import scan_rate_control

    decided = {
        "BURST_S": 0.1,
        "ADJUST_S": 1.0,
        "CYCLE_S": 5.0,
        "PAUSE_S": 1.0,
        "SETTLE_S": 2.0,
        "CALM_S": 10.0,
        "KEPT_S": 30.0,
        "KEPT_WITHOUT_S": 180.0,
        "ACTIVE_S": 2.0,
        "PIECE_BYTES": 524_288,
        "SAMPLES_MIN": 50,
        "SAMPLES_MAX": 4_000,
        "UNBOUNDED": 1_099_511_627_776.0,
        "RATIO_MAX": 1.1,
        "DEVIATIONS": 2.0,
        "NOISE_S": 0.0005,
        "PRESSURE_MAX": 0.2,
        "DECREASE": 0.5,
        "INCREASE": 1.05,
        "CAREFUL": 0.8,
        "CAREFUL_INCREASE": 1.003,
        "REACH": 1.5,
    }

    assert decided == {name: getattr(scan_rate_control, name) for name in decided}
    assert (
        PaceLimits(
            floor_bytes_per_s=1_048_576,
            ceiling_bytes_per_s=0,
            fixed_bytes_per_s=0,
        )
        == PaceLimits()
    )
