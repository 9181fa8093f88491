"""Whether the state takes changes: told when it begins and when it ends, not with each change."""

from scm.state.writability import QUIET_S, Writability
from tests.support.clock import FakeClock
from tests.support.heard import logged


def test_a_disk_that_takes_some_changes_is_not_called_well() -> None:
    """With little room, small changes succeed between large ones that fail. A query in such a
    moment must not report success, and the log has no line for each change.
    """
    clock = FakeClock()
    found = Writability(clock.monotonic_s)
    with logged() as said:
        for _ in range(100):
            found.record_failure("no space")
            found.succeeded()
            clock.advance_s(1)
    assert "no space" == found.trouble
    assert ["state_write_failed"] == [line["event"] for line in said]

    clock.advance_s(QUIET_S)
    with logged() as said:
        found.succeeded()
        found.succeeded()

    assert "" == found.trouble
    assert ["state_write_recovered"] == [line["event"] for line in said]


def test_time_alone_ends_no_trouble() -> None:
    """Without a write it is unknown whether the disk accepts one."""
    clock = FakeClock()
    found = Writability(clock.monotonic_s)
    found.record_failure("no space")

    clock.advance_s(10 * QUIET_S)

    assert "no space" == found.trouble
