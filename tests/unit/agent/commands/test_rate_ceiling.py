"""The highest rate of background work: the time that some bytes take, and its changes."""

from agent.commands.rate_ceiling import RateCeiling
from tests.support.clock import FakeClock


class Waits:
    """Waits that only move a clock."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.slept_s = 0.0

    def __call__(self, seconds: float) -> bool:
        """Move the clock."""
        self.slept_s += seconds
        self.clock.advance_s(seconds)
        return False


def ceiling() -> tuple[RateCeiling, Waits]:
    """Return a ceiling without a limit, and its waits."""
    clock = FakeClock()
    waits = Waits(clock)
    return RateCeiling(clock, waits), waits


def test_work_without_a_limit_never_waits() -> None:
    paced, waits = ceiling()

    paced(10**12, lambda: False)

    assert not waits.slept_s


def test_work_takes_the_time_that_its_bytes_need_at_the_rate() -> None:
    paced, waits = ceiling()
    paced.change(100)

    for _ in range(5):
        paced(200, lambda: False)

    assert 10.0 == round(waits.slept_s, 6)


def test_time_without_work_gives_no_credit() -> None:
    paced, waits = ceiling()
    paced.change(100)
    waits.clock.advance_s(1_000)

    paced(300, lambda: False)

    assert 3.0 == round(waits.slept_s, 6)


def test_removed_limit_ends_a_wait() -> None:
    paced, waits = ceiling()
    paced.change(1)

    def end() -> bool:
        if waits.slept_s >= 5:
            paced.change(0)
        return False

    paced(1_000, end)

    assert 5 <= waits.slept_s <= 6


def test_stopped_work_does_not_wait() -> None:
    paced, waits = ceiling()
    paced.change(1)

    paced(1_000, lambda: True)

    assert not waits.slept_s
