"""Who rests on a replica here, and for how long."""

import pytest

from agent import delete_pins as module
from agent.delete_pins import DeletePins
from merkle.replica import ContainerId
from suture.errors import Code, UnavailableError
from tests.support.clock import FakeClock

ONE, TWO = ContainerId(1), ContainerId(2)


def test_pinned_replica_stays_until_its_last_pin_ends() -> None:
    """The replica is not kept any longer."""
    clock = FakeClock()
    pins = DeletePins(clock)
    pins.pin(ONE, 10.0)
    pins.pin(ONE, 5.0)

    clock.advance_s(9.0)
    with pytest.raises(UnavailableError) as caught, pins.deleting(ONE):
        pass
    assert Code.BUSY is caught.value.code
    with pins.deleting(TWO):
        pass
    clock.advance_s(1.0)
    with pins.deleting(ONE):
        pass


def test_pin_for_a_leaving_replica_is_refused() -> None:
    """If two replicas would rely on each other, neither goes. A replica that stays after all can
    be pinned again.
    """
    pins = DeletePins(FakeClock())

    with pins.deleting(ONE), pytest.raises(UnavailableError) as caught:
        pins.pin(ONE, 1.0)

    assert Code.BUSY is caught.value.code
    pins.pin(ONE, 1.0)


def test_pins_are_limited_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that have ended make room."""
    monkeypatch.setattr(module, "PINS_MAX", 1)
    clock = FakeClock()
    pins = DeletePins(clock)
    pins.pin(ONE, 1.0)

    with pytest.raises(UnavailableError):
        pins.pin(TWO, 1.0)
    clock.advance_s(2.0)
    pins.pin(TWO, 1.0)
