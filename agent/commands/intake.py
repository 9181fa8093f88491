"""Intake of commands from the heartbeat into the pools, a few at a time.

A heartbeat may bring thousands of commands, and Python runs one thread at a time. If the intake
queued all commands at once, and the pools started them as fast as possible, every client's read
would be delayed. The intake therefore queues commands in slices with pauses in between, and the
pools start them at a limited rate. Both limits are far above the rate at which disks and networks
complete commands.
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
    """Worker of the intake loop. Any thread may call `accept`."""

    name = "intake"

    def __init__(self, commands: CommandRouter, clock: Clock, *, bell: WakeEvent) -> None:
        """Queue commands in `commands`. `bell` wakes the worker's loop."""
        self._commands = commands
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: deque[tuple[scm_pb2.Command, int]] = deque()  # (command, arrival time)
        self._counts: Counter[str] = Counter()  # waiting NORMAL commands by type
        self._refused: Counter[str] = Counter()
        self.bell = bell

    def accept(self, commands: Sequence[scm_pb2.Command], term: int) -> None:
        """Accept commands of the SCM with this term. The call never blocks.

        If `WAITING_MAX` commands are waiting, refuse further commands with QUEUE_FULL.
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
        """Return the number of queued and running commands by type, including those in the
        intake."""
        with self._lock:
            counts = Counter(self._counts)
        # A command that moves to a pool during the count is counted twice, but never omitted.
        for queue in self._commands.queue_counts():
            counts[queue.type] += queue.count
        for task_type, count in counts.items():
            yield scm_pb2.QueueCount(type=task_type, count=count)

    def step(self) -> Step:
        """Queue one slice of commands."""
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
    """Return whether a command has normal priority. Only such commands count in the reported
    queues."""
    return command.priority != scm_pb2.LOW
