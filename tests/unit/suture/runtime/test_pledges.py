"""Who rests on a replica here, and for how long."""

import pytest

from agent import delete_pins as module
from agent.delete_pins import DeletePins
from merkle.replica import ContainerId
from suture.errors import Code, UnavailableError
from tests.support.clock import FakeClock

ONE, TWO = ContainerId(1), ContainerId(2)


def test_pledged_replica_stays_until_its_last_pledge_ends() -> None:
    """The replica is not kept any longer."""
    clock = FakeClock()
    pledges = DeletePins(clock)
    pledges.pin(ONE, 10.0)
    pledges.pin(ONE, 5.0)

    clock.advance_s(9.0)
    with pytest.raises(UnavailableError) as caught, pledges.leaving(ONE):
        pass
    assert Code.BUSY is caught.value.code
    with pledges.leaving(TWO):
        pass
    clock.advance_s(1.0)
    with pledges.leaving(ONE):
        pass


def test_pledge_for_a_leaving_replica_is_refused() -> None:
    """If two replicas would rely on each other, neither goes. A replica that stays after all can
    be pledged again.
    """
    pledges = DeletePins(FakeClock())

    with pledges.leaving(ONE), pytest.raises(UnavailableError) as caught:
        pledges.pin(ONE, 1.0)

    assert Code.BUSY is caught.value.code
    pledges.pin(ONE, 1.0)


def test_pledges_are_limited_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pledges that have ended make room."""
    monkeypatch.setattr(module, "PLEDGES_MAX", 1)
    clock = FakeClock()
    pledges = DeletePins(clock)
    pledges.pin(ONE, 1.0)

    with pytest.raises(UnavailableError):
        pledges.pin(TWO, 1.0)
    clock.advance_s(2.0)
    pledges.pin(TWO, 1.0)
