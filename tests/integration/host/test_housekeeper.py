"""How long bytes that a repair replaced are kept, whatever the clock says meanwhile."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.host.housekeeper import HOUSEKEEPING_INTERVAL_S, SETTLED_S, Housekeeper
from suture.runtime.loop import RetryAfter
from tests.support.clock import FakeClock
from tests.support.storage.stored_replica import CONTAINER, StoredReplica

DAY_S = 86_400.0
KEEP_S = 14 * DAY_S
YEARS_S = 5 * 365 * DAY_S


class Kept:
    """A store with something in quarantine, and who lets go of it, in the test's time."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock(1_790_010_000_000)
        self.replica = StoredReplica(path)
        self.replica.options = replace(self.replica.options, now_ms=self.clock.now_ms)
        self.replica.close()
        self.replica.reopen()
        self.replica.create()
        (self._volume,) = self.replica.store.volume_set.working
        self.replica.store.keep_evidence(CONTAINER, {"replaced": b"the only copy"})
        self.start()

    def start(self) -> None:
        """Begin as after a restart of the agent."""
        self._housekeeper = Housekeeper(self.replica.store, KEEP_S, clock=self.clock)

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return len(list(self._volume.layout.quarantine.glob("*.bytes")))

    def run(self, duration_s: float) -> None:
        """Let the worker work as long."""
        end_s = self.clock.monotonic_s() + duration_s
        while self.clock.monotonic_s() <= end_s:
            assert RetryAfter(HOUSEKEEPING_INTERVAL_S) == self._housekeeper.step()
            self.clock.advance_s(HOUSEKEEPING_INTERVAL_S)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    """Something that was put into quarantine a moment ago."""
    result = Kept(tmp_path / "volume")
    yield result
    result.replica.close()


def test_quarantined_bytes_are_removed_when_they_reach_the_age(kept: Kept) -> None:
    """The bytes stay for the whole period, and go less than half a day after it because the
    volume may need the room.
    """
    kept.run(KEEP_S - HOUSEKEEPING_INTERVAL_S)
    assert 1 == kept.count

    kept.run(SETTLED_S + HOUSEKEEPING_INTERVAL_S)

    assert 0 == kept.count


@pytest.mark.parametrize("is_at_start", [True, False])
def test_a_clock_that_is_ahead_for_hours_takes_nothing_away(kept: Kept, is_at_start: bool) -> None:
    """The kept bytes of a contradiction may be the right ones, and there is no second copy."""
    if not is_at_start:
        kept.run(DAY_S)
    kept.clock.set_wall_s(YEARS_S)
    if is_at_start:
        kept.start()
    kept.run(SETTLED_S - 2 * HOUSEKEEPING_INTERVAL_S)
    kept.clock.set_wall_s(-YEARS_S)

    kept.run(DAY_S)

    assert 1 == kept.count


def test_a_clock_that_is_put_back_delays_it_and_no_more(kept: Kept) -> None:
    """
    Nothing stays for ever because the clock was wrong once.
    """
    kept.run(DAY_S)
    kept.clock.set_wall_s(-DAY_S)

    kept.run(KEEP_S + SETTLED_S + DAY_S)

    assert 0 == kept.count
