"""The pace of a scan as its reader feels it, and that of copies as their threads do."""

import pytest

from agent.scan.throttle import ScanPace, SharedPace
from scanner.scan_rate_control import (
    BURST_S,
    CYCLE_S,
    MIB,
    PAUSE_S,
    Latencies,
    PaceLimits,
    is_pause,
)
from tests.support.clock import FakeClock


class Waits:
    """A pace of a megabyte a second whose waits take no time but the clock's."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.total_s = 0.0
        self.pace = ScanPace(PaceLimits(fixed_bytes_per_s=MIB), self.wait, clock=self.clock)
        self.pace.begin(lambda: False)

    def wait(self, seconds: float) -> bool:
        """Let the time pass."""
        self.total_s += seconds
        self.clock.advance_s(seconds)
        return False


def test_pieces_of_a_read_are_accounted_for_once() -> None:
    """Cut or not, four megabytes at one a second take four seconds; and so does the next read."""
    cut, whole = Waits(), Waits()

    for _ in range(2):
        for _ in range(7):
            cut.pace.throttle_part(MIB // 2)
        cut.pace(4 * MIB)
        whole.pace(4 * MIB)

    assert 8.0 == pytest.approx(whole.total_s, abs=2 * BURST_S)
    assert whole.total_s == pytest.approx(cut.total_s, abs=2 * BURST_S)


def test_pieces_of_a_read_that_failed_are_forgotten() -> None:
    """The next scan pays for what it reads."""
    waits = Waits()
    for _ in range(4):
        waits.pace.throttle_part(MIB)
    waits.pace.begin(lambda: False)
    before_s = waits.total_s

    waits.pace(4 * MIB)

    assert 4.0 == pytest.approx(waits.total_s - before_s, abs=2 * BURST_S)


def test_a_budget_that_was_corrected_is_kept_to_at_once() -> None:
    """The delay from a budget that was a thousand times too low does not last to its end."""
    clock = FakeClock()
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        clock.advance_s(seconds)
        if len(waits) == 30:
            pace.change(PaceLimits(fixed_bytes_per_s=MIB))
        return False

    pace = ScanPace(PaceLimits(fixed_bytes_per_s=1024), wait, clock=clock)
    pace.begin(lambda: False)

    pace(4 * MIB)
    assert 30 == len(waits)
    pace(4 * MIB)

    assert 30.0 + 4.0 == pytest.approx(sum(waits), abs=2 * BURST_S)


FLOOR = 16 * MIB


class Copies:
    """Copies beside clients whose reads take so long, in the pauses and beside the copies."""

    def __init__(self, *, beside_s: float = 0.01, without_s: float = 0.01) -> None:
        self.clock = FakeClock()
        self.latencies = Latencies()
        self.pace = SharedPace(FLOOR, self.wait, clock=self.clock, latencies=self.latencies)
        self._beside_s, self._without_s = beside_s, without_s
        self.has_clients = True
        self.waited_in: list[float] = []

    def wait(self, seconds: float) -> bool:
        """Let the time pass, in which clients read a hundred times a second."""
        self.waited_in.append(self.clock.monotonic_s())
        until_s = self.clock.monotonic_s() + seconds
        while self.clock.monotonic_s() < until_s:
            self.read()
            self.clock.advance_s(min(0.01, until_s - self.clock.monotonic_s()) + 1e-9)
        return False

    def read(self) -> None:
        """A client has read."""
        now_s = self.clock.monotonic_s()
        if self.has_clients:
            self.latencies.add(now_s, self._without_s if is_pause(now_s) else self._beside_s)

    def sent_s(self, length_bytes: int) -> float:
        """Send so many bytes, a megabyte at a time; return how long that took."""
        begun_s = self.clock.monotonic_s()
        for _ in range(length_bytes // MIB):
            self.read()
            self.pace(MIB, lambda: False)
        return self.clock.monotonic_s() - begun_s


class TestCopies:
    def test_copy_without_clients_is_not_throttled(self) -> None:
        """The last copy of a container is made as fast as the disks permit."""
        copies = Copies()
        copies.has_clients = False

        assert 0.0 == copies.sent_s(1000 * MIB)

    def test_clients_that_are_disturbed_slow_copies_down_to_the_floor_and_no_further(self) -> None:
        """All threads share it, and in the pauses nothing is sent."""
        copies = Copies(beside_s=0.05, without_s=0.01)
        copies.sent_s(30 * FLOOR)

        took_s = copies.sent_s(100 * FLOOR)

        share = 1 - PAUSE_S / CYCLE_S
        assert 100 / share == pytest.approx(took_s, rel=0.1)
        assert FLOOR == copies.pace.bytes_per_s

    def test_clients_that_feel_nothing_let_copies_go_faster(self) -> None:
        """With unaffected clients, copies run above the floor."""
        copies = Copies()

        copies.sent_s(100 * FLOOR)

        assert copies.pace.bytes_per_s > 4 * FLOOR

    def test_a_copy_that_is_to_end_waits_no_longer(self) -> None:
        """A stop of the agent is not held up by a pause."""
        copies = Copies()
        copies.read()

        for _ in range(10):
            copies.pace(100 * MIB, lambda: True)

        assert [] == copies.waited_in
