"""Who rests on a replica here, and for how long."""

import pytest

from agent.errors import Code, Unavailable
from agent.runtime import pledges as module
from agent.runtime.pledges import Pledges
from merkle.replica import ContainerId
from tests.support.clock import FakeClock

ONE, TWO = ContainerId(1), ContainerId(2)


def test_what_was_pledged_stays_for_its_time() -> None:
    """
    Until the last of all pledges has ended, and no longer.
    """
    clock = FakeClock()
    pledges = Pledges(clock)
    pledges.give(ONE, 10.0)
    pledges.give(ONE, 5.0)

    clock.advance_s(9.0)
    with pytest.raises(Unavailable) as caught, pledges.leaving(ONE):
        pass
    assert Code.BUSY is caught.value.code
    with pledges.leaving(TWO):
        pass
    clock.advance_s(1.0)
    with pledges.leaving(ONE):
        pass


def test_nobody_rests_on_what_is_about_to_go() -> None:
    """
    Of two that would rest on each other, neither goes; one that stays after all is rested on.
    """
    pledges = Pledges(FakeClock())

    with pledges.leaving(ONE), pytest.raises(Unavailable) as caught:
        pledges.give(ONE, 1.0)

    assert Code.BUSY is caught.value.code
    pledges.give(ONE, 1.0)


def test_there_are_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Those that have ended make room.
    """
    monkeypatch.setattr(module, "PLEDGES_MAX", 1)
    clock = FakeClock()
    pledges = Pledges(clock)
    pledges.give(ONE, 1.0)

    with pytest.raises(Unavailable):
        pledges.give(TWO, 1.0)
    clock.advance_s(2.0)
    pledges.give(TWO, 1.0)
