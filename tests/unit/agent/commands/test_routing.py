"""Commands: each one is answered, whatever becomes of it."""

import threading
from collections.abc import Sequence

import pytest

from agent.commands.command_queue import TaskLimits
from agent.commands.pool import TaskContext, TaskPool
from agent.commands.routing import CommandRouter, Route
from suture.errors import Code, RefusedError
from suture.wire.v1 import scm_pb2
from tests.support.clock import FakeClock
from tests.support.idle import wait_idle
from tests.support.waiting import wait_until

WAIT_S = 10.0
Status = scm_pb2.CommandStatus


class Desk:
    """Commands over real pools, with handlers that do as they are told."""

    def __init__(self, threads: int = 1, queue_depth_max: int = 10) -> None:
        self.clock = FakeClock()
        self.answers: list[scm_pb2.CommandStatus] = []
        self.queued: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.error: BaseException | None = None
        self.closed: list[int] = []
        limits = TaskLimits(threads, queue_depth_max)
        self.pool = TaskPool(limits, clock=self.clock)
        self.quick = TaskPool(limits, clock=self.clock)
        routes = {
            "close": Route(self.quick, self.close),
            "delete": Route(self.quick, self.delete),
            "reconcile": Route(self.pool, self.reconcile),
            "reregister": Route(self.quick, self.reregister, key_of=lambda _: "reregister"),
        }
        self.registered = 0
        self.commands = CommandRouter(routes, self.answers.append, self.clock)

    def close(
        self, order: scm_pb2.Command, _context: TaskContext, _status: scm_pb2.CommandStatus
    ) -> None:
        self.gate.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        self.closed.append(order.close.container_id)

    def delete(
        self, _order: scm_pb2.Command, _context: TaskContext, _status: scm_pb2.CommandStatus
    ) -> None:
        raise RefusedError(Code.DELETE_ON_OPEN_CONTAINER, "container 5 is open")

    def reconcile(
        self, order: scm_pb2.Command, _context: TaskContext, status: scm_pb2.CommandStatus
    ) -> None:
        status.reconcile.container_id = order.reconcile.container_id
        status.reconcile.result = "converged"

    def reregister(
        self, _order: scm_pb2.Command, _context: TaskContext, _status: scm_pb2.CommandStatus
    ) -> None:
        self.registered += 1

    def queue(self, commands: Sequence[scm_pb2.Command], term: int) -> None:
        """Queue commands of an SCM with that term."""
        self.commands.set_term(term)
        for command in commands:
            self.queued.add(command.command_id)
            self.commands.queue(command)

    def run(self, *commands: scm_pb2.Command, term: int = 1) -> dict[int, scm_pb2.CommandStatus]:
        """Submit, wait until all is done, return the answers by command id."""
        self.queue(commands, term)
        self.gate.set()
        assert wait_idle(self.pool, WAIT_S)
        assert wait_idle(self.quick, WAIT_S)
        wait_until(lambda: not self.queued - {answer.command_id for answer in self.answers})
        return {answer.command_id: answer for answer in self.answers}


def close_command(command_id: int, container_id: int = 5, lifetime_ms: int = 0) -> scm_pb2.Command:
    """Return an order to close."""
    close = scm_pb2.CloseCommand(container_id=container_id)
    return scm_pb2.Command(command_id=command_id, term=1, close=close, lifetime_ms=lifetime_ms)


class TestAnswers:
    def test_a_command_that_was_carried_out(self) -> None:
        """
        Done is answered EXECUTED, with the type and the container.
        """
        answers = Desk().run(close_command(1))

        assert (Status.EXECUTED, "close", 5) == (
            answers[1].state,
            answers[1].type,
            answers[1].container_id,
        )

    def test_a_reconcile_brings_its_outcome(self) -> None:
        """
        The outcome of a reconcile travels in the answer.
        """
        order = scm_pb2.Command(
            command_id=2, term=1, reconcile=scm_pb2.ReconcileCommand(container_id=8)
        )

        answers = Desk().run(order)

        assert "converged" == answers[2].reconcile.result

    def test_a_command_about_the_node_names_no_container(self) -> None:
        """A command that concerns no container runs without one, and once however often it is
        sent.
        """
        orders = [
            scm_pb2.Command(command_id=number, term=1, reregister=scm_pb2.ReregisterCommand())
            for number in (1, 2)
        ]
        desk = Desk()
        desk.gate.clear()
        desk.queue([close_command(7)], 1)  # keeps the only thread busy

        answers = desk.run(*orders)

        assert (Status.EXECUTED, "DUPLICATE") == (answers[1].state, answers[2].code)
        assert 1 == desk.registered

    def test_a_refusal_is_answered_with_its_code(self) -> None:
        """A refusal by the store is answered FAILED, with the stable code and the message."""
        order = scm_pb2.Command(command_id=3, term=1, delete=scm_pb2.DeleteCommand(container_id=5))

        answers = Desk().run(order)

        assert (Status.FAILED, "DELETE_ON_OPEN_CONTAINER", "container 5 is open") == (
            answers[3].state,
            answers[3].code,
            answers[3].message,
        )

    def test_a_task_that_dies_is_answered_too(self) -> None:
        """
        A broken invariant kills the task, not the answer; no detail of it leaves the process.
        """
        desk = Desk()
        desk.error = AssertionError("secret")

        answers = desk.run(close_command(4))

        assert (Status.FAILED, "CONTAINER_INTERNAL_ERROR") == (answers[4].state, answers[4].code)
        assert "secret" not in answers[4].message

    @pytest.mark.parametrize(
        ("order", "why"),
        [
            (close_command(9, container_id=0), "MALFORMED_REQUEST"),
            (close_command(9, container_id=2**63), "MALFORMED_REQUEST"),
            (scm_pb2.Command(command_id=9, term=1), "MALFORMED_REQUEST"),
            (
                scm_pb2.Command(
                    command_id=9, term=1, replicate=scm_pb2.ReplicateCommand(container_id=5)
                ),
                "MALFORMED_REQUEST",  # nobody here carries it out
            ),
        ],
    )
    def test_senseless_command_is_skipped_with_the_reason(
        self, order: scm_pb2.Command, why: str
    ) -> None:
        """The command is not run."""
        desk = Desk()

        answers = desk.run(order)

        assert (Status.SKIPPED, why) == (answers[9].state, answers[9].code)
        assert [] == desk.closed

    def test_a_command_lives_as_long_as_its_sender_said(self) -> None:
        """
        A command that waits longer than its lifetime, counted from its receipt, is not run.
        """
        desk = Desk()
        desk.gate.clear()
        orders = [close_command(1, container_id=1), close_command(2, container_id=2, lifetime_ms=5)]
        desk.queue(orders, 1)

        desk.clock.advance_s(0.005)
        answers = desk.run()

        assert (Status.EXECUTED, Status.SKIPPED) == (answers[1].state, answers[2].state)
        assert "DEADLINE_PASSED" == answers[2].code

    def test_an_older_term_is_stale(self) -> None:
        """
        A command of an SCM that leads no more is skipped.
        """
        desk = Desk()

        answers = desk.run(close_command(9), term=2)

        assert "STALE_TERM" == answers[9].code

    def test_a_duplicate_is_skipped_and_the_first_runs_once(self) -> None:
        """
        The same order twice runs once; the second is answered DUPLICATE.
        """
        desk = Desk()
        desk.gate.clear()

        answers = desk.run(close_command(1), close_command(2))

        assert [5] == desk.closed
        assert (Status.EXECUTED, "DUPLICATE") == (answers[1].state, answers[2].code)

    def test_overload_is_refused_with_a_reason(self) -> None:
        """
        More commands than the queue holds are answered QUEUE_FULL; every command is accounted for.
        """
        desk = Desk(queue_depth_max=2)
        desk.gate.clear()

        answers = desk.run(*[close_command(n, container_id=n) for n in range(1, 21)])

        assert set(range(1, 21)) == set(answers)
        skipped = [a for a in answers.values() if a.state == Status.SKIPPED]
        assert {"QUEUE_FULL"} == {answer.code for answer in skipped}
        assert 20 == len(skipped) + len(desk.closed)
