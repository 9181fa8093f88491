"""How fast a scan reads: the closed loop, its bounds, and what it counts as others' trouble."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.scan_rate_control import (
    ACTIVE_S,
    ADJUST_S,
    BURST_S,
    CALM_S,
    CAREFUL,
    CAREFUL_INCREASE,
    CYCLE_S,
    INCREASE,
    PAUSE_S,
    PIECE_BYTES,
    REACH,
    SAMPLES_MIN,
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
)

MIB = 1024**2
START_S = 1_000.0  # a multiple of the cycle: a pause begins here


def clients(latencies: Latencies, start_s: float, *, beside_s: float, without_s: float) -> float:
    """Let clients read for three cycles, 20 a second; return the time after it."""
    for number in range(int(3 * CYCLE_S * 20)):
        at_s = start_s + number / 20
        latencies.scanned(at_s)
        latencies.add(at_s, without_s if is_pause(at_s) else beside_s)
    return start_s + 3 * CYCLE_S


class TestRate:
    def control(self, latencies: Latencies | None = None, **limits: int) -> RateControl:
        """Return a control that may use a gigabyte a second."""
        bounds = PaceLimits(**{"ceiling_bytes_per_s": 1024 * MIB, **limits})
        return RateControl(bounds, latencies or Latencies())

    def test_an_idle_disk_is_used_to_the_ceiling_within_seconds(self) -> None:
        """Without clients and without pressure the rate doubles with each decision."""
        control = self.control()

        for second in range(11):
            control.adjust(START_S + second, 0.0)

        assert 1024 * MIB == control.bytes_per_s

    def test_disturbed_clients_halve_the_rate(self) -> None:
        """Down to what the promise needs, and never below."""
        latencies = Latencies()
        control = self.control(latencies)
        for second in range(8):
            control.adjust(START_S - 20 + second, 0.0)
        before = control.bytes_per_s
        control.need(20 * MIB)
        now_s = clients(latencies, START_S, beside_s=0.030, without_s=0.010)

        control.adjust(now_s, 0.0)
        assert before / 2 == control.bytes_per_s
        for _ in range(20):
            now_s = clients(latencies, now_s, beside_s=0.030, without_s=0.010)
            control.adjust(now_s, 0.0)

        assert 20 * MIB == control.bytes_per_s == control.lowest_bytes_per_s

    def test_clients_that_feel_nothing_let_it_grow(self) -> None:
        """Equal latencies beside the scan and without it are no reason to slow down."""
        latencies = Latencies()
        control = self.control(latencies)
        now_s = clients(latencies, START_S, beside_s=0.010, without_s=0.010)

        control.adjust(now_s, 0.0)

        assert 2 * MIB == control.bytes_per_s

    def test_after_trouble_it_grows_step_by_step(self) -> None:
        """Doubling is for a disk of which no trouble is known, or has been none for a while."""
        latencies = Latencies()
        control = self.control(latencies)
        for second in range(8):
            control.adjust(START_S - 8 + second, 0.0)
        assert 256 * MIB == control.bytes_per_s
        control.adjust(START_S, 0.9)

        control.adjust(START_S + CALM_S / 2, 0.0)

        assert 128 * MIB * INCREASE == pytest.approx(control.bytes_per_s)

        control.adjust(START_S + CALM_S, 0.0)

        assert 2 * 128 * MIB * INCREASE == pytest.approx(control.bytes_per_s)

    def test_clients_decide_whether_they_are_disturbed_not_the_kernel(self) -> None:
        """Their own reads are pressure: a busy disk is not yet a disturbed one."""
        latencies = Latencies()
        control = self.control(latencies)
        now_s = clients(latencies, START_S, beside_s=0.010, without_s=0.010)
        before_bytes_per_s = control.bytes_per_s

        control.adjust(now_s, 0.9)

        assert before_bytes_per_s <= control.bytes_per_s

    def test_a_few_slow_reads_are_chance(self) -> None:
        """A hundredth is slow by definition; a little more is no proof."""
        few, many = LatencyComparison(1_000, 16), LatencyComparison(1_000, 17)

        assert (False, True) == (few.is_disturbed, many.is_disturbed)

    def test_clients_of_whom_little_is_known_hold_the_rate(self) -> None:
        """The scan does not speed up while it cannot measure its effect."""
        latencies = Latencies()
        control = self.control(latencies)
        latencies.add(START_S, 0.010)

        control.adjust(START_S + 1, 0.0)

        assert MIB == control.bytes_per_s

    def test_pressure_of_others_slows_down_without_any_read_rpc(self) -> None:
        """Writers and other programs count too."""
        control = self.control()
        for second in range(11):
            control.adjust(START_S + second, 0.0)

        control.adjust(START_S + 30, 0.5)

        assert 512 * MIB == control.bytes_per_s

    def test_a_fixed_rate_is_fixed(self) -> None:
        """Neither the promise nor pressure changes a fixed rate."""
        control = self.control(fixed_bytes_per_s=5 * MIB)

        control.need(100 * MIB)
        control.adjust(START_S, 1.0)
        control.adjust(START_S + 10, 0.0)

        assert 5 * MIB == control.bytes_per_s

    def test_near_the_rate_that_was_too_much_it_grows_slower(self) -> None:
        """An overshoot every minute would be a part of the p99; of every ten minutes it is not."""
        latencies = Latencies()
        control = self.control(latencies)
        for second in range(8):
            control.adjust(START_S + second, 0.0)
        before = control.bytes_per_s
        control.adjust(START_S + 20, 0.9)

        growth = []
        for number in range(15):
            rate = control.bytes_per_s
            at_s = START_S + 30 + 15 * number
            now_s = clients(latencies, at_s, beside_s=0.01, without_s=0.01)
            control.adjust(now_s, 0.0)
            growth.append(control.bytes_per_s / rate)

        assert pytest.approx(INCREASE) == growth[0]
        assert pytest.approx(CAREFUL_INCREASE) == growth[-1]
        assert CAREFUL * before <= control.bytes_per_s < before

    def test_without_a_ceiling_it_follows_what_the_reads_reach(self) -> None:
        """From a rate of no meaning it would take minutes to come down when clients come."""
        control = self.control(ceiling_bytes_per_s=0)
        control.reached(200 * MIB)

        for second in range(30):
            control.adjust(START_S + second, 0.0)

        assert REACH * 200 * MIB == control.bytes_per_s

    def test_the_promise_goes_above_what_the_reads_reach(self) -> None:
        """A disk that is slow for a moment is no reason to plan for less."""
        control = self.control(ceiling_bytes_per_s=0)
        control.reached(MIB)

        control.need(100 * MIB)

        assert 100 * MIB == control.bytes_per_s

    @given(
        st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1e10)), max_size=50),
        st.integers(1, 64),
        st.integers(64, 1024),
    )
    def test_the_rate_stays_within_its_bounds(
        self, signals: list[tuple[float, float]], floor_mib: int, ceiling_mib: int
    ) -> None:
        """The rate stays between the floor and the ceiling for every measurement and need, and
        the promise stays below the ceiling.
        """
        control = self.control(
            floor_bytes_per_s=floor_mib * MIB, ceiling_bytes_per_s=ceiling_mib * MIB
        )

        for second, (pressure, needed) in enumerate(signals):
            control.need(needed)
            control.adjust(START_S + second, pressure)
            assert floor_mib * MIB <= control.bytes_per_s <= ceiling_mib * MIB
            assert control.bytes_per_s >= min(needed, ceiling_mib * MIB)


class TestLatencies:
    def test_while_no_scan_reads_all_reads_are_undisturbed(self) -> None:
        """A paused scan must not look harmless, nor the clients' own trouble like its doing."""
        latencies = Latencies()
        latencies.scanned(START_S)
        for number in range(2 * SAMPLES_MIN):
            latencies.add(START_S + PAUSE_S + 0.001 * number, 0.0)
            latencies.add(START_S + PAUSE_S + ACTIVE_S + 0.5 + 0.001 * number, 0.5)
            latencies.add(START_S + PAUSE_S + ACTIVE_S + 0.5 + 0.001 * number, 0.0)

        compared = latencies.compared(START_S + 4, 0.0)

        assert compared is not None
        assert (2 * SAMPLES_MIN, 0) == (compared.count, compared.slow_count)
        assert latencies.compared(START_S + 4, START_S + 4) is None

    def test_too_few_reads_have_no_percentile(self) -> None:
        """On either side."""
        latencies = Latencies()
        for number in range(10 * SAMPLES_MIN):
            latencies.add(START_S + PAUSE_S + number / 1000, 0.01)

        assert latencies.compared(START_S + 3, 0.0) is None

    def test_a_read_that_began_before_the_pause_is_not_counted_as_undisturbed(self) -> None:
        """The read waited for the scan."""
        latencies = Latencies()
        for number in range(2 * SAMPLES_MIN):
            latencies.add(START_S + 0.1, 0.2)
            latencies.add(START_S + 2 + number / 1000, 0.2)

        assert latencies.compared(START_S + 3, 0.0) is None

    def test_the_percentile_is_a_measured_value(self) -> None:
        """Nearest rank: of one to a hundred it is the 99th."""
        assert 99 == p99_of([float(value) for value in range(1, 101)])
        assert 7 == p99_of([7.0])


class TestBudget:
    def test_a_large_read_waits_longer(self) -> None:
        """Bytes are what is bounded."""
        assert 0.5 == pytest.approx(Budget(0.0).delay_s(0.0, MIB // 2, MIB))
        assert 4.0 == pytest.approx(Budget(0.0).delay_s(0.0, 4 * MIB, MIB))

    def test_an_idle_reader_saves_up_little(self) -> None:
        """After a night without work the disk is not flooded."""
        budget = Budget(0.0)

        assert pytest.approx(0.0, abs=1e-5) == budget.delay_s(9 * 3600, int(BURST_S * MIB), MIB)
        assert 0.5 == pytest.approx(budget.delay_s(9 * 3600, MIB // 2, MIB), abs=1e-5)

    def test_no_rate_is_no_wait(self) -> None:
        """Zero means as fast as the disk goes."""
        assert 0.0 == Budget(0.0).delay_s(0.0, 10**12, 0)


class TestPacer:
    def test_a_scan_pauses_while_clients_read(self) -> None:
        """Until the end of the pause that all scans of the process share."""
        latencies = Latencies()
        pacer = Pacer(PaceLimits(), latencies, START_S - 1)
        latencies.add(START_S + 0.1, 0.01)

        assert PAUSE_S - 0.25 == pytest.approx(pacer.delay_s(START_S + 0.25, 1000), abs=0.01)

    def test_no_client_no_pause(self) -> None:
        """An idle disk is used all the time."""
        pacer = Pacer(PaceLimits(), Latencies(), START_S - 1)

        assert 0.01 > pacer.delay_s(START_S + 0.25, 1000)

    def test_large_reads_are_cut_while_clients_read(self) -> None:
        """No client waits behind megabytes. An idle disk and a fixed rate are read in large
        pieces.
        """
        latencies = Latencies()
        pacer = Pacer(PaceLimits(), latencies, START_S)
        fixed = Pacer(PaceLimits(fixed_bytes_per_s=MIB), latencies, START_S)

        assert 0 == pacer.piece_bytes(START_S)
        latencies.add(START_S + 1, 0.01)
        assert PIECE_BYTES == pacer.piece_bytes(START_S + 2)
        assert 0 == fixed.piece_bytes(START_S + 2)
        assert 0 == pacer.piece_bytes(START_S + 1 + CYCLE_S)

    def test_decisions_are_a_second_apart(self) -> None:
        """The interval is one second, whatever the reads."""
        pacer = Pacer(PaceLimits(), Latencies(), START_S)

        assert not pacer.is_time_to_adjust(START_S + ADJUST_S / 2)
        assert pacer.is_time_to_adjust(START_S + ADJUST_S)


class TestPressure:
    def test_the_scan_s_own_waiting_is_not_others_trouble(self) -> None:
        """Only the stall that the kernel counts beyond the scan's own reads is pressure."""
        first = PressureSample(0.0, 1_000_000, own_s=10.0)

        assert 0.0 == pressure_of_others(first, PressureSample(10.0, 10_000_000, own_s=19.0))
        assert 0.5 == pytest.approx(
            pressure_of_others(first, PressureSample(10.0, 10_000_000, own_s=14.0))
        )

    def test_no_time_is_no_pressure(self) -> None:
        """Two measurements at one moment say nothing."""
        assert 0.0 == pressure_of_others(PressureSample(1.0, 0, 0.0), PressureSample(1.0, 5, 0.0))

    def test_the_kernel_s_words_are_read(self) -> None:
        """The total of `some`, in microseconds."""
        text = (
            "some avg10=0.09 avg60=2.34 avg300=4.15 total=94682947\n"
            "full avg10=0.00 avg60=0.00 avg300=0.06 total=21562754\n"
        )

        assert 94_682_947 == parse_stall_us(text)
        with pytest.raises(ValueError, match="some"):
            parse_stall_us("full avg10=0.00\n")
