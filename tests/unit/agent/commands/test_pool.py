"""The pool's threads: they run what the queue says, survive what tasks do, and stop in time."""

import threading

import pytest

from agent.commands.command_queue import Task, TaskLimits, TaskRejection
from agent.commands.pool import LATE_CHECK_S, TaskBody, TaskContext, TaskPool
from suture.errors import Code, UnavailableError
from suture.runtime.clock import monotonic_ms
from tests.support.clock import FakeClock
from tests.support.gate import Gate
from tests.support.heard import logged
from tests.support.idle import wait_idle

WAIT_S = 10.0


def done(_context: TaskContext) -> None:
    """Do nothing, well."""


def failing(error: Exception) -> TaskBody:
    """Return a body that raises."""

    def body(_context: TaskContext) -> None:
        raise error

    return body


class TestRunning:
    def test_submitted_tasks_run(self) -> None:
        """A submitted task needs no further call."""
        pool = TaskPool(TaskLimits(2))

        ran: list[int] = []

        for key in range(20):
            assert pool.submit(Task("delete", key), lambda _, key=key: ran.append(key)) is None

        assert wait_idle(pool, WAIT_S)
        assert list(range(20)) == sorted(ran)
        assert pool.stop(WAIT_S)

    def test_the_log_says_how_long_a_task_took(self) -> None:
        """Without the time for which it waited."""
        clock = FakeClock()
        pool = TaskPool(TaskLimits(1), clock=clock)

        def body(_context: TaskContext) -> None:
            clock.advance_s(1.5)

        with logged() as said:
            pool.submit(Task("replicate", 1), body)
            pool.submit(Task("replicate", 2), body)
            assert wait_idle(pool, WAIT_S)
            assert pool.stop(WAIT_S)

        took_ms = [line["duration_ms"] for line in said if line["event"] == "task_finished"]
        assert [1_500, 1_500] == took_ms

    def test_a_task_that_raises_is_logged_and_the_thread_lives(self) -> None:
        """A thread survives the project's own errors and bugs in a task."""
        pool = TaskPool(TaskLimits(1))

        with logged() as said:
            pool.submit(Task("x", 1), failing(UnavailableError(Code.BUSY, "busy")))
            pool.submit(Task("x", 2), failing(ZeroDivisionError("bug")))
            pool.submit(Task("x", 3), done)
            assert wait_idle(pool, WAIT_S)
            assert pool.stop(WAIT_S)

        assert ["task_failed", "task_crashed", "task_finished"] == [line["event"] for line in said]

    def test_no_more_threads_than_the_limit(self) -> None:
        """Two may run at once: two do, and never three."""
        pool, gate = TaskPool(TaskLimits(2)), Gate()
        for key in range(6):
            pool.submit(Task("x", key), gate.body)

        assert gate.entered.acquire(timeout=WAIT_S)
        assert gate.entered.acquire(timeout=WAIT_S)
        assert 2 == pool.running_count()
        gate.go_on.set()

        assert wait_idle(pool, WAIT_S)
        assert 2 == gate.running_max
        assert pool.stop(WAIT_S)

    def test_a_share_leaves_threads_to_others(self) -> None:
        """Reconciles that fill their share do not keep a replication from running."""
        pool, gate = TaskPool(TaskLimits(3, shares={"reconcile": 2})), Gate()
        for key in range(5):
            pool.submit(Task("reconcile", key), gate.body)
        ran = threading.Event()

        def body(_context: TaskContext) -> None:
            ran.set()

        pool.submit(Task("replicate", 1), body)

        assert ran.wait(WAIT_S)
        gate.go_on.set()
        assert wait_idle(pool, WAIT_S)
        assert 2 == gate.running_max
        assert pool.stop(WAIT_S)

    def test_the_room_of_a_heavy_task_is_taken_by_many_at_once(self) -> None:
        """When it ends, all threads that its weight kept idle get work, not only its own."""
        pool, first, heavy, light = TaskPool(TaskLimits(3)), Gate(), Gate(), Gate()
        for gate, tasks in (
            (first, [Task("replicate", key) for key in range(3)]),
            (heavy, [Task("reconstruct", 1, weight=3)]),
        ):
            for task in tasks:
                pool.submit(task, gate.body)
            assert all(gate.entered.acquire(timeout=WAIT_S) for _ in tasks)
            first.go_on.set()
            assert gate is heavy or wait_idle(pool, WAIT_S)
        for key in range(3):
            pool.submit(Task("reconcile", key), light.body)
        heavy.go_on.set()

        assert all(light.entered.acquire(timeout=LATE_CHECK_S / 2) for _ in range(3))
        light.go_on.set()
        assert pool.stop(WAIT_S)

    def test_scale_doubles_what_runs(self) -> None:
        """A node that leaves service works on twice as many commands."""
        pool, gate = TaskPool(TaskLimits(1)), Gate()
        pool.set_scale(2)
        pool.submit(Task("x", 1), gate.body)
        pool.submit(Task("x", 2), gate.body)

        assert gate.entered.acquire(timeout=WAIT_S)
        assert gate.entered.acquire(timeout=WAIT_S)
        gate.go_on.set()

        assert wait_idle(pool, WAIT_S)
        assert 2 == gate.running_max
        assert pool.stop(WAIT_S)

    def test_a_pool_that_grows_begins_what_waits_and_one_that_shrinks_ends_nothing(self) -> None:
        """No further submit is needed. Running tasks continue, and then the old bound holds."""
        pool, gate = TaskPool(TaskLimits(1)), Gate()
        for number in range(3):
            pool.submit(Task("x", number), gate.body)
        assert gate.entered.acquire(timeout=WAIT_S)

        pool.set_scale(2)

        assert gate.entered.acquire(timeout=WAIT_S)
        assert (2, 1) == (pool.running_count(), pool.queued_count())
        pool.set_scale(1)
        assert 2 == pool.running_count()
        gate.go_on.set()
        assert wait_idle(pool, WAIT_S)
        assert 2 == gate.running_max
        assert pool.stop(WAIT_S)

    def test_an_absurd_scale_is_refused(self) -> None:
        """A scale is 1 to 10, as at the incumbent."""
        pool = TaskPool(TaskLimits(1))

        with pytest.raises(ValueError, match="scale 11"):
            pool.set_scale(11)


class TestDeadline:
    def test_a_task_is_told_when_its_deadline_passes(self) -> None:
        """`stop()` turns true at the deadline, so that a long task ends between two chunks."""
        clock = FakeClock()
        pool = TaskPool(TaskLimits(1), clock=clock)
        gate = Gate()
        pool.submit(Task("x", 1, deadline_at_ms=monotonic_ms(clock) + 1_000), gate.body)
        assert gate.entered.acquire(timeout=WAIT_S)

        clock.advance_s(2)

        assert wait_idle(pool, WAIT_S)
        assert pool.stop(WAIT_S)

    def test_a_late_command_never_runs(self) -> None:
        """The command is refused with the reason."""
        clock = FakeClock()
        pool = TaskPool(TaskLimits(1), clock=clock)

        refusal = pool.submit(Task("x", 1, deadline_at_ms=monotonic_ms(clock) - 1), done)

        assert TaskRejection.DEADLINE_PASSED == refusal

    def test_a_task_that_waited_too_long_is_dropped_and_says_so(self) -> None:
        """The sender of the command gets the reason."""
        clock, gate, told = FakeClock(), Gate(), threading.Event()
        pool, reasons = TaskPool(TaskLimits(1), clock=clock), []

        def on_drop(why: TaskRejection) -> None:
            reasons.append(why)
            told.set()

        pool.submit(Task("x", 1), gate.body)
        assert gate.entered.acquire(timeout=WAIT_S)
        late = Task("x", 2, deadline_at_ms=monotonic_ms(clock) + 1_000)
        assert pool.submit(late, done, on_drop=on_drop) is None

        clock.advance_s(2)
        gate.go_on.set()

        assert told.wait(WAIT_S)
        assert [TaskRejection.DEADLINE_PASSED] == reasons
        assert wait_idle(pool, WAIT_S)
        assert pool.stop(WAIT_S)


class TestStop:
    def test_stop_drops_what_waits_and_interrupts_what_runs(self) -> None:
        """A clean stop needs no task to finish its work."""
        pool, gate, reasons = TaskPool(TaskLimits(1)), Gate(), []
        pool.submit(Task("x", 1), gate.body)
        pool.submit(Task("x", 2), gate.body, on_drop=reasons.append)
        assert gate.entered.acquire(timeout=WAIT_S)

        assert pool.stop(WAIT_S)
        assert [TaskRejection.STOPPING] == reasons

        assert (0, 0) == (pool.queued_count(), pool.running_count())
        assert TaskRejection.STOPPING == pool.submit(Task("x", 3), done)

    def test_stop_says_when_a_task_does_not_listen(self) -> None:
        """The deadline of a stop holds, whatever tasks do."""
        pool, entered, go_on = TaskPool(TaskLimits(1)), threading.Event(), threading.Event()

        def deaf(_context: TaskContext) -> None:
            entered.set()
            go_on.wait(WAIT_S)

        pool.submit(Task("x", 1), deaf)
        assert entered.wait(WAIT_S)

        assert not pool.stop(0.01)
        go_on.set()
        assert pool.stop(WAIT_S)
