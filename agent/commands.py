"""What the SCM orders: each command becomes a task in a bounded pool, and every one is answered.

    close      small pool; OPEN -> CLOSING -> CLOSED or QUASI_CLOSED
    delete     small pool
    reconcile, reconstruct  the task pool, within their shares of the threads

A command that will not run (duplicate, stale term, late, queue full, shutdown) is answered SKIPPED
with the reason; nothing is dropped in silence.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from agent.errors import Code, Refused, SutureError
from agent.rpc.v1 import scm_pb2
from agent.runtime.clock import Clock, monotonic_ms
from agent.runtime.pool import TaskBody, TaskContext, TaskPool
from agent.tasks import Priority, Refusal, Task, TaskOutcome
from merkle.replica import ID_MAX

ANSWER_TEXT_MAX: Final = 500  # characters of an error that travel back
LONG_KINDS: Final = frozenset({"reconcile", "reconstruct"})  # of minutes, in the task pool

Answer = Callable[[scm_pb2.CommandStatus], None]


@dataclass(frozen=True, slots=True)
class Handlers:
    """What carries the commands out; each raises SutureError when it cannot."""

    close: Callable[[scm_pb2.CloseCommand], None]
    delete: Callable[[scm_pb2.DeleteCommand], None]
    reconcile: Callable[[scm_pb2.ReconcileCommand, TaskContext], scm_pb2.ReconcileOutcome]
    reconstruct: Callable[[scm_pb2.ReconstructCommand, TaskContext], scm_pb2.ReconstructOutcome]


class Commands:
    """Takes commands from the heartbeat, gives them to the pools, answers each of them."""

    def __init__(
        self,
        handlers: Handlers,
        pool: TaskPool,
        quick: TaskPool,
        answer: Answer,
        clock: Clock,
    ) -> None:
        self._handlers = handlers
        self._pool = pool
        self._quick = quick
        self._answer = answer
        self._clock = clock

    def submit(self, commands: Sequence[scm_pb2.Command], term: int) -> None:
        """Queue `commands`; never waits."""
        self._pool.set_term(term)
        self._quick.set_term(term)
        for command in commands:
            self._submit(command)

    def queue_counts(self) -> Iterable[scm_pb2.QueueCount]:
        """Return queued and running tasks by type; LOW ones are not counted as queued."""
        for pool in (self._pool, self._quick):
            for task_type, counts in pool.counts().items():
                yield scm_pb2.QueueCount(type=task_type, count=counts.queued + counts.running)

    def _submit(self, command: scm_pb2.Command) -> None:
        kind = command.WhichOneof("command")
        container_id = 0 if kind is None else int(getattr(command, kind).container_id)
        if kind is None or not 1 <= container_id <= ID_MAX:
            self._answer(skipped(command, kind or "unknown", container_id, "MALFORMED_REQUEST"))
            return
        task = Task(
            task_type=kind,
            key=container_id,
            priority=Priority.LOW if command.priority == scm_pb2.LOW else Priority.NORMAL,
            deadline_at_ms=self._deadline_at_ms(command),
            term=command.term,
        )
        pool = self._pool if kind in LONG_KINDS else self._quick

        def skip(why: Refusal) -> None:
            self._answer(skipped(command, kind, container_id, why.value))

        refusal = pool.submit(task, self._body(command, kind, container_id), on_drop=skip)
        if refusal is not None:
            skip(refusal)

    def _deadline_at_ms(self, command: scm_pb2.Command) -> int:
        """Return when the command is too late by our own clock, so that clocks may differ."""
        return monotonic_ms(self._clock) + command.lifetime_ms if command.lifetime_ms else 0

    def _body(self, command: scm_pb2.Command, kind: str, container_id: int) -> TaskBody:
        """Return what runs in the pool: carry out, answer, and say how it went."""

        def body(context: TaskContext) -> TaskOutcome:
            status = scm_pb2.CommandStatus(
                command_id=command.command_id,
                type=kind,
                container_id=container_id,
                state=scm_pb2.CommandStatus.EXECUTED,
            )
            try:
                self._carry_out(command, kind, context, status)
            except SutureError as error:
                status.state = scm_pb2.CommandStatus.FAILED
                status.code, status.message = error.code.value, str(error)[:ANSWER_TEXT_MAX]
                raise
            except BaseException:
                status.state = scm_pb2.CommandStatus.FAILED
                status.code = Code.CONTAINER_INTERNAL_ERROR.value
                status.message = "the task died; the datanode's log says why"
                raise
            finally:
                self._answer(status)
            return TaskOutcome.DONE

        return body

    def _carry_out(
        self,
        command: scm_pb2.Command,
        kind: str,
        context: TaskContext,
        status: scm_pb2.CommandStatus,
    ) -> None:
        match kind:
            case "close":
                self._handlers.close(command.close)
            case "delete":
                self._handlers.delete(command.delete)
            case "reconcile":
                status.reconcile.CopyFrom(self._handlers.reconcile(command.reconcile, context))
            case "reconstruct":
                outcome = self._handlers.reconstruct(command.reconstruct, context)
                status.reconstruct.CopyFrom(outcome)
            case _:
                raise Refused(Code.MALFORMED_REQUEST, f"command of unknown type {kind}")


def skipped(
    command: scm_pb2.Command, kind: str, container_id: int, why: str
) -> scm_pb2.CommandStatus:
    """Return the answer to a command that will not run."""
    return scm_pb2.CommandStatus(
        command_id=command.command_id,
        type=kind,
        container_id=container_id,
        state=scm_pb2.CommandStatus.SKIPPED,
        code=why,
    )
