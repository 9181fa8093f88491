"""Moves commands from the heartbeat into the queues of the pools, a few at a time.

A heartbeat may contain thousands of commands, and Python executes only one thread at a time. If all
commands were queued and started at once, the reads of all clients would be delayed. Therefore, this
worker queues a few commands, pauses, and continues. The pools also start only a limited number of
commands per second. Both limits are far above the rate at which disks and networks complete
commands.
"""

import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

import structlog

from agent.commands.command_queue import TaskRejection
from agent.commands.routing import CommandRouter, kind_of
from suture.runtime.clock import Clock, monotonic_ms
from suture.runtime.loop import Idle, RetryAfter, Step, WakeEvent
from suture.wire.v1 import scm_pb2

WAITING_MAX: Final = 20_000  # about 5 MB; further commands are refused
SLICE_COUNT: Final = 5  # commands per slice; about 0.2 ms of work
SLICE_PAUSE_S: Final = 0.005

log = structlog.get_logger()


class CommandIntake:
    """Worker that queues received commands. Any thread may call `accept`."""

    name = "intake"

    def __init__(self, commands: CommandRouter, clock: Clock, *, bell: WakeEvent) -> None:
        """Create a worker that queues the commands in `commands`. `bell` wakes the loop of the
        worker."""
        self._commands = commands
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: deque[tuple[scm_pb2.Command, int]] = deque()  # (command, arrival time)
        self._counts: Counter[str] = Counter()  # waiting NORMAL commands by type
        self._refused: Counter[str] = Counter()
        self.bell = bell

    def accept(self, commands: Sequence[scm_pb2.Command], term: int) -> None:
        """Accept commands of the SCM with this term. The call does not block.

        If WAITING_MAX commands are waiting, further commands are refused with QUEUE_FULL.
        """
        self._commands.set_term(term)
        now_ms = monotonic_ms(self._clock)
        with self._lock:
            room = WAITING_MAX - len(self._waiting)
            self._waiting.extend((command, now_ms) for command in commands[:room])
            self._counts.update(map(kind_of, filter(is_normal, commands[:room])))
        for command in commands[room:]:
            self._commands.refuse(command, TaskRejection.QUEUE_FULL)
        self.bell.set()

    def queue_counts(self) -> Iterable[scm_pb2.QueueCount]:
        """Yield the number of queued and running commands of each type.

        Commands that are accepted but not yet in a queue are included.
        """
        with self._lock:
            counts = Counter(self._counts)
        # A command that moves to a pool during the count is counted twice, but never omitted.
        for queue in self._commands.queue_counts():
            counts[queue.type] += queue.count
        for task_type, count in counts.items():
            yield scm_pb2.QueueCount(type=task_type, count=count)

    def step(self) -> Step:
        """Move SLICE_COUNT commands into the queues of the pools."""
        with self._lock:
            few = list(islice(self._waiting, SLICE_COUNT))
        now_ms = monotonic_ms(self._clock)
        for command, came_ms in few:
            why = self._commands.queue(command, waited_ms=now_ms - came_ms)
            self._refused[why] += 1
        with self._lock:
            for command, _ in few:
                self._waiting.popleft()
                self._counts[kind_of(command)] -= is_normal(command)
            is_over = not self._waiting
        if not is_over:
            return RetryAfter(SLICE_PAUSE_S)
        del self._refused[""]
        if self._refused:  # one log line for all refused commands; each was answered
            log.info("commands_rejected", **self._refused)
            self._refused.clear()
        return Idle()


def is_normal(command: scm_pb2.Command) -> bool:
    """Return whether a command has normal priority.

    The numbers of queued commands that the agent reports include only such commands.
    """
    return command.priority != scm_pb2.LOW
