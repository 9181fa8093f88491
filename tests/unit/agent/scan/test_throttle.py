"""The pace of a scan as its reader feels it."""

import pytest

from agent.scan.throttle import ScanPace
from scanner.pacing import BURST_S, MIB, PaceLimits
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
            cut.pace.rest(MIB // 2)
        cut.pace(4 * MIB)
        whole.pace(4 * MIB)

    assert 8.0 == pytest.approx(whole.total_s, abs=2 * BURST_S)
    assert whole.total_s == pytest.approx(cut.total_s, abs=2 * BURST_S)


def test_pieces_of_a_read_that_failed_are_forgotten() -> None:
    """The next scan pays for what it reads."""
    waits = Waits()
    for _ in range(4):
        waits.pace.rest(MIB)
    waits.pace.begin(lambda: False)
    before_s = waits.total_s

    waits.pace(4 * MIB)

    assert 4.0 == pytest.approx(waits.total_s - before_s, abs=2 * BURST_S)
