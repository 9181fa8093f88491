"""Calls that wait for their callers: counted, bounded for each, ended when they are in the way."""

from suture.wire.server.blocked_calls import (
    SLOW_S,
    SWEEP_INTERVAL_S,
    WAIT_S_MAX,
    BlockedCalls,
    account_of,
    share,
)
from tests.support.clock import FakeClock

THREADS = 8
SHARE = 6


class World:
    """Waits on a clock that is moved by hand; it notes which calls were ended."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.waits = BlockedCalls(THREADS, monotonic_s=self.clock.monotonic_s)
        self.ended: list[str] = []

    def begin(self, caller: str, count: int = 1) -> None:
        """Begin that many calls of a caller that never finishes one."""
        for number in range(count):
            name = f"{caller}{number}"
            self.waits.begin(caller, lambda name=name: self.ended.append(name))

    def after(self, seconds: float) -> list[str]:
        """Let time pass and sweep; return who was ended until now."""
        self.clock.advance_s(seconds)
        self.waits.sweep()
        return self.ended


def test_a_share_leaves_threads_to_others() -> None:
    """This holds for few calls and for many. A share is never one thread, which would serialize
    a caller.
    """
    assert [2, 2, 2, 3, 6, 15] == [share(count) for count in (1, 2, 3, 4, 8, 20)]


def test_a_host_has_one_share_and_each_local_process_its_own() -> None:
    """
    Connections of another host are counted together, so that opening more gains nothing.
    """
    assert account_of("ipv4:10.0.0.7:4711") == account_of("ipv4:10.0.0.7:4712")
    assert account_of("ipv4:127.0.0.1:4711") != account_of("ipv4:127.0.0.1:4712")
    assert account_of("ipv6:%5B::1%5D:4711") != account_of("ipv6:%5B::1%5D:4712")


def test_caller_with_a_full_share_of_waits_gets_no_more() -> None:
    """Other callers do, and so does the first when one of its calls continues."""
    world = World()
    world.begin("a", SHARE - 1)
    ticket = world.waits.begin("a", lambda: None)

    assert not world.waits.has_room("a")
    assert world.waits.has_room("b")
    world.waits.end(ticket)
    assert world.waits.has_room("a")


def test_while_threads_are_left_a_slow_caller_is_left_alone() -> None:
    """
    A client on a slow line is no attack; only what lasts beyond all reason is ended.
    """
    world = World()
    world.begin("a", SHARE - 1)

    assert [] == world.after(WAIT_S_MAX - 1)
    assert {"a0", "a1", "a2", "a3", "a4"} == set(world.after(1))


def test_slow_calls_are_ended_when_most_threads_wait() -> None:
    """Calls of the caller with the most waits end first, oldest first, until half a share waits.
    Calls that have just begun are spared.
    """
    world = World()
    world.begin("b", 1)
    world.clock.advance_s(0.1)
    world.begin("a", 4)
    world.clock.advance_s(SLOW_S)
    world.begin("c", 2)

    assert ["a0", "a1", "a2", "a3"] == sorted(world.after(0))
    assert 3 == len(world.waits)


def test_waits_are_swept_no_more_often_than_needed() -> None:
    """Each call of a busy server requests a sweep."""
    world = World()
    world.clock.advance_s(SLOW_S)
    world.begin("a", SHARE)
    assert [] == world.after(0)

    world.clock.advance_s(SLOW_S - SWEEP_INTERVAL_S / 2)
    assert 0 == world.waits.sweep()
    assert world.after(SWEEP_INTERVAL_S)


def test_call_that_ended_meanwhile_is_not_ended_again() -> None:
    """A call may continue during a sweep."""
    world = World()
    ticket = world.waits.begin("a", lambda: world.ended.append("gone"))
    world.waits.end(ticket)
    world.waits.end(ticket)

    assert [] == world.after(WAIT_S_MAX)
