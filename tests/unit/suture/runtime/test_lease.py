"""Leases: one holder per container, waiting with a bound, and the memory of our own writes."""

import threading

import pytest

from agent.leases import ContainerLeases
from merkle.replica import ContainerId
from suture.errors import Code, UnavailableError
from tests.support.clock import FakeClock
from tests.support.leases import is_held

ONE, TWO = ContainerId(1), ContainerId(2)
WAIT_S = 10.0


class Holder:
    """A thread that holds a lease until it is told to let go."""

    def __init__(self, leases: ContainerLeases, container_id: ContainerId) -> None:
        self._leases, self._container_id = leases, container_id
        self._let_go = threading.Event()
        self._held = threading.Event()
        self._thread = threading.Thread(target=self._run, name="the-holder")

    def __enter__(self) -> "Holder":
        self._thread.start()
        assert self._held.wait(WAIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()
        self._thread.join(WAIT_S)

    def let_go(self) -> None:
        self._let_go.set()

    def _run(self) -> None:
        with self._leases.hold(self._container_id, WAIT_S):
            self._held.set()
            self._let_go.wait(WAIT_S)


class TestHold:
    def test_a_held_lease_refuses_the_second_as_busy(self) -> None:
        """The error of the timed-out waiter names the holder."""
        leases = ContainerLeases()

        with (
            Holder(leases, ONE),
            pytest.raises(UnavailableError, match="the-holder") as caught,
            leases.hold(ONE, timeout_s=0.01),
        ):
            pytest.fail("two holders of one lease")

        assert Code.BUSY == caught.value.code

    def test_containers_do_not_wait_for_each_other(self) -> None:
        """A lease is about one container."""
        leases = ContainerLeases()

        with Holder(leases, ONE), leases.hold(TWO, timeout_s=0.01):
            assert is_held(leases, ONE)

    def test_a_waiter_gets_the_lease_when_it_is_free(self) -> None:
        """A release wakes the waiter before its timeout."""
        leases, got_it = ContainerLeases(), threading.Event()

        def wait() -> None:
            with leases.hold(ONE, timeout_s=3600.0):
                got_it.set()

        waiter = threading.Thread(target=wait, daemon=True)
        with Holder(leases, ONE):
            waiter.start()
            waited = not got_it.wait(0.05)

        assert waited
        assert got_it.wait(WAIT_S)

    def test_an_error_inside_releases(self) -> None:
        """A task that fails does not lock its container for ever."""
        leases = ContainerLeases()

        with pytest.raises(ZeroDivisionError), leases.hold(ONE, 0.01):
            raise ZeroDivisionError

        assert not is_held(leases, ONE)

    def test_asking_twice_from_one_thread_is_a_bug_that_shows(self) -> None:
        """A re-entrant hold fails at once instead of after its timeout."""
        leases = ContainerLeases()

        with (
            leases.hold(ONE),
            pytest.raises(AssertionError, match="already holds"),
            leases.hold(ONE),
        ):
            pytest.fail("held twice")

    def test_the_number_of_waiters_is_bounded(self) -> None:
        """Overload refuses at once instead of piling up threads."""
        leases = ContainerLeases(waiters_max=0)

        with (
            Holder(leases, ONE),
            pytest.raises(UnavailableError, match="already wait"),
            leases.hold(ONE, WAIT_S),
        ):
            pytest.fail("two holders of one lease")

    def test_many_threads_never_overlap(self) -> None:
        """Mutual exclusion holds under contention."""
        leases, inside, overlaps = ContainerLeases(), [0], []

        def work() -> None:
            for _ in range(50):
                with leases.hold(ONE, WAIT_S):
                    inside[0] += 1
                    if inside[0] > 1:
                        overlaps.append(inside[0])
                    inside[0] -= 1

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)

        assert [] == overlaps


class TestOwnWrites:
    def test_writes_are_remembered_for_a_while(self) -> None:
        """The change watch must not take the agent's own repair for a foreign change."""
        clock = FakeClock()
        leases = ContainerLeases(clock=clock)

        with leases.hold(ONE):
            assert leases.written_within(ONE, 2.0)

        assert leases.written_within(ONE, 2.0)
        clock.advance_s(2.0)
        assert not leases.written_within(ONE, 2.0)

    def test_a_scan_is_no_write(self) -> None:
        """Holding without writing hides nothing from the watch."""
        leases = ContainerLeases()

        with leases.hold(ONE, writes_chunks=False):
            assert not leases.written_within(ONE, 60.0)

        assert not leases.written_within(ONE, 60.0)
