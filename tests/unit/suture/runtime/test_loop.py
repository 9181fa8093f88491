"""The loop: it waits as asked, survives its worker's errors, and shows who hangs."""

import threading
import time
from collections.abc import Callable

import pytest

from suture.runtime import loop as runtime_loop
from suture.runtime.loop import (
    BACKOFF_MAX_S,
    Backoff,
    Busy,
    Idle,
    NoMoreWork,
    ProgressMarker,
    RetryAfter,
    Step,
    WakeEvent,
    WorkerLoop,
    WorkerLoops,
    WorkerState,
)
from tests.support.clock import FakeClock

WAIT_S = 10.0


class Scripted:
    """A worker that does what the test says, step by step; the last one again and again."""

    def __init__(self, *steps: Step | Exception | Callable[[], Step]) -> None:
        self._steps = list(steps)
        self.count = 0

    @property
    def name(self) -> str:
        return "scripted"

    def step(self) -> Step:
        wanted = self._steps[min(self.count, len(self._steps) - 1)]
        self.count += 1
        if isinstance(wanted, Exception):
            raise wanted
        return wanted() if callable(wanted) else wanted


class TestRunStep:
    @pytest.mark.parametrize(
        ("wish", "delay_s"),
        [
            (Busy(), 0.0),
            (RetryAfter(3.5), 3.5),
            (Backoff(2.5), 2.5),
            (Idle(), 7.0),
            (NoMoreWork(), None),
        ],
    )
    def test_the_worker_says_when_it_wants_to_run_again(
        self, wish: Step, delay_s: float | None
    ) -> None:
        """Each answer of a worker has its wait."""
        loop = WorkerLoop(Scripted(wish), idle_s=7.0)

        assert delay_s == loop.run_step()

    def test_an_error_is_counted_kept_and_survived(self) -> None:
        """A worker that fails is seen, and runs again."""
        loop = WorkerLoop(Scripted(ValueError("disk on fire"), Busy()))

        loop.run_step()
        failed = loop.status()
        loop.run_step()

        assert (WorkerState.BACKING_OFF, 1) == (failed.state, failed.error_count)
        assert "ValueError: disk on fire" == failed.last_error
        assert 1 == loop.status().step_count

    def test_errors_in_a_row_back_off_up_to_a_bound(self) -> None:
        """A worker that only fails costs less and less, but is never given up."""
        loop = WorkerLoop(Scripted(ValueError("again")))

        delays = [loop.run_step() for _ in range(10)]

        assert [1.0, 2.0, 4.0] == delays[:3]
        assert BACKOFF_MAX_S == delays[-1]

    def test_a_success_forgets_the_backoff(self) -> None:
        """The next error starts small again."""
        loop = WorkerLoop(Scripted(ValueError("a"), ValueError("b"), Busy(), ValueError("c")))

        assert [1.0, 2.0, 0.0, 1.0] == [loop.run_step() for _ in range(4)]


class TestThread:
    def test_a_done_worker_ends_its_thread(self) -> None:
        """Done is done."""
        loop = WorkerLoop(Scripted(Busy(), NoMoreWork()))

        loop.start()

        assert loop.join(WAIT_S)
        assert WorkerState.DONE == loop.status().state

    @pytest.mark.parametrize("wish", [RetryAfter(3600.0), Backoff(3600.0)])
    def test_stop_ends_a_wait(self, wish: Step, monkeypatch: pytest.MonkeyPatch) -> None:
        """A loop that waits for an hour still stops at once, not after a piece of its wait."""
        monkeypatch.setattr(runtime_loop, "IDLE_S_DEFAULT", 3600.0)
        entered = threading.Event()

        def step() -> Step:
            entered.set()
            return wish

        loop = WorkerLoop(Scripted(step))
        loop.start()
        assert entered.wait(WAIT_S)

        loop.request_stop()

        assert loop.join(WAIT_S)
        assert WorkerState.STOPPED == loop.status().state

    def test_wake_ends_a_wait(self) -> None:
        """New work does not wait for the idle time to pass."""
        first, second = threading.Event(), threading.Event()

        def step() -> Step:
            (second if first.is_set() else first).set()
            return Idle()

        loop = WorkerLoop(Scripted(step), idle_s=3600.0)
        loop.start()
        assert first.wait(WAIT_S)

        loop.wake()

        assert second.wait(WAIT_S)
        loop.request_stop()
        assert loop.join(WAIT_S)

    def test_resting_worker_is_not_woken_early(self) -> None:
        """A worker that is woken during its rest takes its next step on time. It has not missed
        the calls: after a step without work it takes one more.
        """
        bell, seen_s = WakeEvent(), list[float]()
        began, ended = threading.Event(), threading.Event()

        def step() -> Step:
            seen_s.append(time.monotonic())
            began.set()
            if len(seen_s) == 3:
                ended.set()
            return Backoff(0.2) if len(seen_s) == 1 else Idle()

        loop = WorkerLoop(Scripted(step), bell=bell, idle_s=3600.0)
        loop.start()
        assert began.wait(WAIT_S)

        for _ in range(1000):
            bell.set()

        assert ended.wait(WAIT_S)
        assert seen_s[1] - seen_s[0] >= 0.2
        loop.request_stop()
        assert loop.join(WAIT_S)

    def test_worker_that_failed_after_a_rest_is_woken(self) -> None:
        """An error ends the rest, so a call wakes the worker although it would wait for a
        minute.
        """
        again = threading.Event()

        def step() -> Step:
            again.set()
            return Idle()

        failures = [ValueError("disk on fire") for _ in range(6)]
        loop = WorkerLoop(Scripted(Backoff(0.001), *failures, step), idle_s=3600.0)
        loop.start()

        ends_s = time.monotonic() + WAIT_S
        while not again.wait(0.01) and time.monotonic() < ends_s:  # it may not wait yet
            loop.wake()

        assert again.is_set()
        loop.request_stop()
        assert loop.join(WAIT_S)

    def test_a_set_stops_within_its_deadline_and_names_who_did_not(self) -> None:
        """The shutdown has a deadline, and names the workers that missed it."""
        entered, go_on = threading.Event(), threading.Event()

        def hang() -> Step:
            entered.set()
            go_on.wait(WAIT_S)
            return NoMoreWork()

        loops = WorkerLoops([WorkerLoop(Scripted(hang))])
        loops.start()
        assert entered.wait(WAIT_S)

        assert ("scripted",) == loops.stop(0.01)
        go_on.set()
        assert () == loops.stop(WAIT_S)


class TestWatching:
    def test_a_step_that_hangs_is_named(self) -> None:
        """A loop without a sign of life keeps the watchdog hungry."""
        clock, entered, go_on = FakeClock(), threading.Event(), threading.Event()

        def hang() -> Step:
            entered.set()
            go_on.wait(WAIT_S)
            return NoMoreWork()

        loops = WorkerLoops([WorkerLoop(Scripted(hang), clock=clock)])
        loops.start()
        assert entered.wait(WAIT_S)

        clock.advance_s(61)

        assert ("scripted",) == loops.stalled(60)
        go_on.set()
        assert () == loops.stop(WAIT_S)
        assert () == loops.stalled(60)

    def test_a_long_step_that_beats_is_not_named(self) -> None:
        """A scan of hours is fine while it reads."""
        clock, entered, go_on = FakeClock(), threading.Event(), threading.Event()
        pulse = ProgressMarker(clock)

        def hang() -> Step:
            entered.set()
            go_on.wait(WAIT_S)
            return NoMoreWork()

        loops = WorkerLoops([WorkerLoop(Scripted(hang), clock=clock, pulse=pulse)])
        loops.start()
        assert entered.wait(WAIT_S)

        clock.advance_s(61)
        pulse.mark()

        assert () == loops.stalled(60)
        go_on.set()
        assert () == loops.stop(WAIT_S)
