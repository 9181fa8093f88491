"""Sends each command of the SCM to a thread pool, and sends an answer for each command.

`CommandHandlers.routes` assigns the types of commands to the pools. A command may be refused or
dropped, because it is a duplicate, another SCM has become the leader, its deadline has passed, the
queue is full, or the agent stops. The answer is then SKIPPED, with the reason. Every command gets
an answer.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from agent.commands.command_queue import Task, TaskPriority, TaskRejection
from agent.commands.pool import TaskBody, TaskContext, TaskPool
from merkle.replica import ID_MAX
from suture.errors import Code, SutureError
from suture.runtime.clock import Clock, monotonic_ms
from suture.wire.v1 import scm_pb2

ANSWER_TEXT_MAX: Final = 500  # maximum length of the error text in an answer

Answer = Callable[[scm_pb2.CommandStatus], None]
CarryOut = Callable[[scm_pb2.Command, TaskContext, scm_pb2.CommandStatus], None]
"""Function that executes a command and stores the outcome in the status.

It raises SutureError if the command fails.
"""
KeyOf = Callable[[scm_pb2.Command], Hashable]


@dataclass(frozen=True, slots=True)
class Route:
    """The pool and the function that execute one type of command.

    `key_of` returns a key that is equal for duplicate commands. If `key_of` is None, the key is the
    container id. `place_of` returns the resource that a command uses, for example a volume.
    """

    pool: TaskPool
    carry_out: CarryOut
    key_of: KeyOf | None = None
    weight: int = 1
    place_of: Callable[[scm_pb2.Command], str] = lambda _: ""


class CommandRouter:
    """Adds commands to the queues of the pools, and answers each command."""

    def __init__(self, routes: Mapping[str, Route], answer: Answer, clock: Clock) -> None:
        """Create a router. The keys of `routes` are field names of commands. `answer` sends an
        answer to the SCM."""
        self._routes = dict(routes)
        self._pools = list(dict.fromkeys(route.pool for route in routes.values()))
        self._answer = answer
        self._clock = clock

    def set_term(self, term: int) -> None:
        """Record the election term of the SCM leader. Waiting commands of earlier leaders are
        dropped."""
        for pool in self._pools:
            pool.set_term(term)

    def refuse(self, command: scm_pb2.Command, why: TaskRejection) -> None:
        """Answer a command that will not be executed, with the reason `why`."""
        self._answer(skipped(command, why.value))

    def queue_counts(self) -> Iterable[scm_pb2.QueueCount]:
        """Yield the number of queued and running tasks of each type. Queued LOW tasks are not
        counted."""
        for pool in self._pools:
            for task_type, count in pool.loads().items():
                yield scm_pb2.QueueCount(type=task_type, count=count)

    def queue(self, command: scm_pb2.Command, *, waited_ms: int = 0) -> str:
        """Add a command to the queue of its pool. Return "".

        If the command cannot be queued, answer it and return the reason. `waited_ms` is the time
        since the command arrived. This time is subtracted from the lifetime of the command.
        """
        kind = kind_of(command)
        container_id = container_of(command)
        route = self._routes.get(kind)
        if route is None or (route.key_of is None and not 1 <= container_id <= ID_MAX):
            self._answer(skipped(command, Code.MALFORMED_REQUEST.value))
            return Code.MALFORMED_REQUEST.value
        task = Task(
            task_type=kind,
            key=container_id if route.key_of is None else route.key_of(command),
            priority=TaskPriority.LOW if command.priority == scm_pb2.LOW else TaskPriority.NORMAL,
            deadline_at_ms=self._deadline_at_ms(command, waited_ms),
            term=command.term,
            weight=route.weight,
            place=route.place_of(command),
            about=ids_of(command),
        )

        def skip(why: TaskRejection) -> None:
            self.refuse(command, why)

        refusal = route.pool.submit(task, self._body(command, route.carry_out), on_drop=skip)
        if refusal is None:
            return ""
        skip(refusal)
        return refusal.value

    def _deadline_at_ms(self, command: scm_pb2.Command, waited_ms: int) -> int:
        """Return the deadline of a command in milliseconds of the monotonic clock; 0 means no
        deadline.

        A command contains a lifetime instead of a deadline, because the clocks of the SCM and of
        this host may differ.
        """
        came_ms = monotonic_ms(self._clock) - waited_ms
        return max(1, came_ms + command.lifetime_ms) if command.lifetime_ms else 0

    def _body(self, command: scm_pb2.Command, carry_out: CarryOut) -> TaskBody:
        """Return the function that the pool calls. It executes the command and answers it."""

        def body(context: TaskContext) -> None:
            status = answer_to(command, scm_pb2.CommandStatus.EXECUTED)
            try:
                carry_out(command, context, status)
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

        return body


def kind_of(command: scm_pb2.Command) -> str:
    """Return the type of a command as text, for example "reconcile"."""
    return command.WhichOneof("command") or "unknown"


def container_of(command: scm_pb2.Command) -> int:
    """Return the id of the container that the command names; 0 if it names no container."""
    kind = command.WhichOneof("command")
    return 0 if kind is None else int(getattr(getattr(command, kind), "container_id", 0))


def ids_of(command: scm_pb2.Command) -> tuple[tuple[str, int], ...]:
    """Return the ids in a command as fields for the log."""
    container_id = container_of(command)
    ids = (("command_id", command.command_id), ("container_id", container_id))
    return ids if container_id else ids[:1]


def answer_to(
    command: scm_pb2.Command, state: scm_pb2.CommandStatus.State
) -> scm_pb2.CommandStatus:
    """Return an answer to a command, with the given state and the ids of the command.

    The caller adds the outcome.
    """
    return scm_pb2.CommandStatus(
        command_id=command.command_id,
        type=kind_of(command),
        container_id=container_of(command),
        state=state,
    )


def skipped(command: scm_pb2.Command, why: str) -> scm_pb2.CommandStatus:
    """Return the answer to a command that will not be executed, with the reason `why`."""
    status = answer_to(command, scm_pb2.CommandStatus.SKIPPED)
    status.code = why
    return status
