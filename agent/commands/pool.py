"""Pools of threads that execute commands.

Each thread takes a task from the queue (`agent.commands.command_queue`) and executes it with a
`TaskContext`. If a task raises an exception, the thread logs the exception and takes the next task.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from agent.commands.command_queue import (
    DequeueResult,
    DroppedTask,
    Task,
    TaskLimits,
    TaskQueue,
    TaskRejection,
)
from agent.commands.start_rate_limiter import StartRateLimiter
from suture.errors import SutureError
from suture.runtime.clock import Clock, SystemClock, monotonic_ms
from suture.runtime.loop import ERROR_TEXT_MAX
from suture.runtime.tracing import span

THREADS_MAX: Final = 256
LATE_CHECK_S: Final = 10.0  # interval at which an idle thread drops expired tasks
SCALE_MAX: Final = 10  # ozone: hdds.datanode.replication.outofservice.limit.factor

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TaskContext:
    """Information for a running task about when it must stop.

    `stop()` returns True if the pool shuts down, or if the deadline of the task has passed. The
    task must then end soon. `deadline_at_ms` is monotonic time; 0 means no deadline.
    """

    stop: Callable[[], bool]
    deadline_at_ms: int


TaskBody = Callable[[TaskContext], None]
OnDrop = Callable[[TaskRejection], None]


@dataclass(frozen=True, slots=True)
class _Entry:
    body: TaskBody
    on_drop: OnDrop | None


class TaskPool:
    """A limited number of threads that execute the tasks of a limited queue."""

    def __init__(
        self,
        limits: TaskLimits,
        *,
        name: str = "task",
        clock: Clock | None = None,
        turnstile: StartRateLimiter | None = None,
    ) -> None:
        """Create a pool. Its threads are started when tasks are submitted.

        `turnstile` limits the number of tasks that start per second; None means no limit.
        """
        self._turnstile = turnstile
        _check_threads(limits)
        self._limits = limits
        self._name = name
        self._clock = clock or SystemClock()
        lock = threading.Lock()
        self._work_came = threading.Condition(lock)  # idle threads wait for it
        self._changed = threading.Condition(lock)  # `stop` waits for it until all tasks have ended
        self._queue = TaskQueue(limits)
        self._entries: dict[tuple[str, Hashable], _Entry] = {}
        self._threads: list[threading.Thread] = []
        self._scale = 1.0
        self._stopping = threading.Event()

    def submit(
        self, task: Task, body: TaskBody, *, on_drop: OnDrop | None = None
    ) -> TaskRejection | None:
        """Add a task to the queue. Return None, or the reason if the task was refused. The call
        does not block.

        A queued task may be dropped because its deadline has passed, because another SCM has become
        the leader, or because the pool stops. Another thread then calls `on_drop`. Therefore, every
        queued task ends with a call of either `body` or `on_drop`.
        """
        with self._changed:
            refusal = self._queue.submit(task, monotonic_ms(self._clock))
            if refusal is None:
                self._entries[task.identity] = _Entry(body, on_drop)
                self._add_thread()
                self._work_came.notify()
        if refusal is not None:
            log.debug("task_rejected", **_named(task), why=refusal.value)
        return refusal

    def set_term(self, term: int) -> None:
        """Record the election term of the SCM leader. Waiting commands of earlier leaders are
        dropped."""
        with self._changed:
            self._queue.set_term(term)
            self._work_came.notify()

    def set_scale(self, factor: float) -> None:
        """Multiply the limits of threads, queue length and task types by `factor`.

        Raise ValueError if `factor` is less than 1 or more than SCALE_MAX.
        """
        if not 1 <= factor <= SCALE_MAX:
            raise ValueError(f"scale {factor} is not within 1..{SCALE_MAX}")
        limits = self._limits
        scaled = replace(
            limits,
            running_max=min(int(limits.running_max * factor), THREADS_MAX),
            queue_depth_max=int(limits.queue_depth_max * factor),
            shares={name: int(share * factor) for name, share in limits.shares.items()},
            per_place_max=int(limits.per_place_max * factor),
        )
        with self._changed:
            self._scale = factor
            self._queue.set_limits(scaled)
            while self._add_thread():  # threads for the waiting tasks
                pass
            self._work_came.notify_all()

    def loads(self) -> dict[str, int]:
        """Return the load of each task type: the number of running tasks plus waiting NORMAL tasks.

        The result has all types of which a task was queued since the start.
        """
        with self._changed:
            return self._queue.loads()

    def queued_count(self) -> int:
        """Return the number of waiting tasks."""
        with self._changed:
            return self._queue.queued_count

    def running_count(self) -> int:
        """Return the number of running tasks."""
        with self._changed:
            return self._queue.running_count

    def request_stop(self) -> None:
        """Drop all waiting tasks, and request running tasks to stop. The call does not block."""
        with self._changed:
            self._stopping.set()
            dropped = self._forget(self._queue.stop())
            self._work_came.notify_all()
        self._tell(dropped)

    def stop(self, deadline_s: float) -> bool:
        """Request all tasks to stop, and wait for at most `deadline_s` seconds.

        Return True if all tasks have ended.
        """
        self.request_stop()
        with self._changed:
            drained = self._changed.wait_for(
                lambda: not self._queue.running_count, timeout=deadline_s
            )
        if not drained:
            log.warning("tasks_still_running", running_count=self.running_count())
        return drained

    def _add_thread(self) -> bool:
        """Start one more thread if there are more tasks than threads, and the limit allows it.

        Return True if a thread was started.
        """
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        allowed = min(int(self._limits.running_max * self._scale), THREADS_MAX)
        busy = self._queue.running_count + self._queue.queued_count
        if len(self._threads) >= min(allowed, busy) or self._stopping.is_set():
            return False
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return True

    def _work(self) -> None:
        while True:
            with self._changed:
                taken = self._next()
                dropped = self._forget(taken.dropped)
                entry = None if taken.task is None else self._entries.pop(taken.task.identity)
            self._tell(dropped)
            if taken.task is not None and entry is not None:
                self._run(taken.task, entry)
                with self._changed:
                    self._queue.finish(taken.task)
                    self._changed.notify_all()
            elif self._stopping.is_set():
                return

    def _next(self) -> DequeueResult:
        """Wait until a task may run, or until tasks were dropped. Return these tasks.

        If the pool stops, return an empty result.
        """
        while not self._stopping.is_set():
            taken = self._queue.pop(monotonic_ms(self._clock))
            if taken.task is not None or taken.dropped:
                self._work_came.notify()  # more tasks may be able to run
                return taken
            self._work_came.wait(timeout=LATE_CHECK_S)
        return DequeueResult(None)

    def _forget(self, dropped: Sequence[DroppedTask]) -> list[tuple[DroppedTask, OnDrop | None]]:
        """Remove dropped tasks from the pool, and return each of them with its `on_drop` callback.

        The caller must call these callbacks after it has released the lock.
        """
        return [(item, self._entries.pop(item.task.identity).on_drop) for item in dropped]

    def _tell(self, told: Sequence[tuple[DroppedTask, OnDrop | None]]) -> None:
        for item, on_drop in told:
            log.warning("task_dropped", **_named(item.task), why=item.why.value)
            if on_drop is not None:
                try:
                    on_drop(item.why)
                except Exception:  # the thread must survive errors of callbacks
                    log.exception("drop_callback_failed", **_named(item.task))

    def _run(self, task: Task, entry: _Entry) -> None:
        ids = dict(task.about)
        with structlog.contextvars.bound_contextvars(**_named(task)), span(task.task_type, **ids):
            self._execute(task, entry)

    def _execute(self, task: Task, entry: _Entry) -> None:
        context = TaskContext(lambda: self._must_stop(task), task.deadline_at_ms)
        if self._turnstile is not None:
            self._stopping.wait(self._turnstile.delay_s())
        began_ms = monotonic_ms(self._clock)
        try:
            entry.body(context)
        except SutureError as error:
            log.warning("task_failed", code=error.code.value, error=str(error)[:ERROR_TEXT_MAX])
        except Exception:  # log the error; the thread continues
            log.exception("task_crashed")
        else:
            log.info("task_finished", duration_ms=monotonic_ms(self._clock) - began_ms)

    def _must_stop(self, task: Task) -> bool:
        is_late = 0 < task.deadline_at_ms <= monotonic_ms(self._clock)
        return self._stopping.is_set() or is_late


def _check_threads(limits: TaskLimits) -> None:
    if limits.running_max > THREADS_MAX:
        raise ValueError(f"{limits.running_max} threads are more than {THREADS_MAX}")


def _named(task: Task) -> dict[str, object]:
    """Return the log fields of a task, including the ids of its command."""
    return {"task": task.task_type, "key": str(task.key), **dict(task.about)}
