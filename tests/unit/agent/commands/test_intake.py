"""The way of commands from the heartbeat to the pools: a few at a time, all of them answered."""

import pytest

from agent.commands import intake as module
from agent.commands.command_queue import TaskLimits
from agent.commands.intake import SLICE_COUNT, SLICE_PAUSE_S, CommandIntake
from agent.commands.pool import TaskContext, TaskPool
from agent.commands.routing import CommandRouter, Route
from agent.commands.start_rate_limiter import StartRateLimiter
from suture.runtime.loop import Idle, RetryAfter, WakeEvent
from suture.wire.v1 import scm_pb2
from tests.support.clock import FakeClock
from tests.support.idle import wait_idle

WAIT_S = 10.0


class Desk:
    """An intake over a real pool that closes containers."""

    def __init__(self, queue_depth_max: int = 100) -> None:
        self.clock = FakeClock()
        self.answers: list[scm_pb2.CommandStatus] = []
        self.closed: list[int] = []
        self.pool = TaskPool(TaskLimits(1, queue_depth_max), clock=self.clock)
        commands = CommandRouter(
            {"close": Route(self.pool, self.close)}, self.answers.append, self.clock
        )
        self.intake = CommandIntake(commands, self.clock, bell=WakeEvent())

    def close(
        self, order: scm_pb2.Command, _context: TaskContext, _status: scm_pb2.CommandStatus
    ) -> None:
        self.closed.append(order.close.container_id)

    def counts(self) -> dict[str, int]:
        return {queue.type: queue.count for queue in self.intake.queue_counts()}


def close_command(number: int, *, lifetime_ms: int = 0, low: bool = False) -> scm_pb2.Command:
    """Return an order to close."""
    return scm_pb2.Command(
        command_id=number,
        term=1,
        close=scm_pb2.CloseCommand(container_id=number),
        lifetime_ms=lifetime_ms,
        priority=scm_pb2.LOW if low else scm_pb2.NORMAL,
    )


def test_a_storm_is_queued_in_slices_and_all_of_it_is_answered() -> None:
    """Between two slices there is a pause in which others run; the order stays."""
    desk = Desk()
    numbers = list(range(1, 2 * SLICE_COUNT + 2))

    desk.intake.accept([close_command(number) for number in numbers], 1)

    assert [] == desk.answers
    assert RetryAfter(SLICE_PAUSE_S) == desk.intake.step()
    assert wait_idle(desk.pool, WAIT_S)
    assert numbers[:SLICE_COUNT] == desk.closed
    assert [RetryAfter(SLICE_PAUSE_S), Idle()] == [desk.intake.step() for _ in range(2)]
    assert wait_idle(desk.pool, WAIT_S)
    assert numbers == desk.closed == [answer.command_id for answer in desk.answers]


def test_commands_waiting_in_the_intake_are_in_the_reported_queue() -> None:
    """Otherwise the SCM would take them for lost. LOW commands are no load and are not counted."""
    desk = Desk()

    desk.intake.accept([close_command(1), close_command(2), close_command(3, low=True)], 1)

    assert {"close": 2} == desk.counts()
    desk.intake.step()
    assert wait_idle(desk.pool, WAIT_S)
    assert {"close": 0} == desk.counts()


def test_no_more_waits_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command beyond the bound is refused at once, with a reason."""
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    desk = Desk()

    desk.intake.accept([close_command(number) for number in (1, 2, 3)], 1)
    desk.intake.accept([close_command(4)], 1)

    assert [(3, "QUEUE_FULL"), (4, "QUEUE_FULL")] == [
        (answer.command_id, answer.code) for answer in desk.answers
    ]


def test_a_lifetime_runs_while_a_command_waits_here() -> None:
    """A command that came 10 ms ago and lives 5 ms is not run."""
    desk = Desk()
    desk.intake.accept([close_command(1, lifetime_ms=5), close_command(2, lifetime_ms=15)], 1)

    desk.clock.advance_s(0.010)
    desk.intake.step()

    assert wait_idle(desk.pool, WAIT_S)
    assert [(1, "DEADLINE_PASSED"), (2, "")] == [(a.command_id, a.code) for a in desk.answers]


def test_a_new_leader_is_obeyed_at_once() -> None:
    """Commands of an older term are refused though they came before."""
    desk = Desk()
    desk.intake.accept([close_command(1)], 1)

    desk.intake.accept([], 2)
    desk.intake.step()

    assert ["STALE_TERM"] == [answer.code for answer in desk.answers]


def test_a_turnstile_lets_so_many_through_a_second() -> None:
    """After a pause a burst passes at once, then one pass each step."""
    clock = FakeClock()
    turnstile = StartRateLimiter(clock, per_s=10, burst=3)

    first = [turnstile.delay_s() for _ in range(5)]
    clock.advance_s(100)
    second = [turnstile.delay_s() for _ in range(4)]

    assert pytest.approx([0, 0, 0, 0.1, 0.2]) == first
    assert pytest.approx([0, 0, 0, 0.1]) == second
