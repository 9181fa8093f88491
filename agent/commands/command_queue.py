"""Queue of the SCM's commands: selects the next task to run, and refuses or drops tasks.

    submit ──► queued ──► running ──► finish
       │          └──► dropped: its deadline passed, or its term is stale
       └──► refused: DUPLICATE, QUEUE_FULL, DEADLINE_PASSED, STALE_TERM, STOPPING

A term is the number of an election of the SCM leader. The term of a task is stale if another SCM
has become the leader since the task was ordered. NORMAL tasks run before LOW tasks, and older tasks
before newer ones. Each task type has a maximum number of running tasks. If a type has reached its
maximum, its tasks wait, and tasks of other types may run before them. Therefore, reconciles can
never use all the threads that the replication of missing replicas needs. A task also waits if too
many running tasks use the same resource (`place`, such as a volume). A task with a large weight
that waits for free capacity blocks all later tasks, because they could otherwise starve it.

The module has no threads and no clock; `agent.commands.pool` provides both. Not thread-safe.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final

QUEUE_DEPTH_MAX_DEFAULT: Final = 1_000
LATENESS_SLACK: Final = 64  # obsolete entries at which the heap of deadlines is rebuilt
TASK_TYPES_MAX: Final = 32  # limited, because types are metric labels


class TaskPriority(IntEnum):
    """Priority of a task. NORMAL tasks run before LOW tasks."""

    NORMAL = 0
    LOW = 1


class TaskRejection(StrEnum):
    """Reason why a task was not queued."""

    DUPLICATE = "DUPLICATE"  # a task with the same key is queued or running
    QUEUE_FULL = "QUEUE_FULL"
    DEADLINE_PASSED = "DEADLINE_PASSED"
    STALE_TERM = "STALE_TERM"  # the SCM that ordered it is no longer the leader
    STOPPING = "STOPPING"


@dataclass(frozen=True, slots=True)
class Task:
    """A command to run. Two tasks with the same `task_type` and `key` are duplicates.

    `deadline_at_ms` is monotonic time; 0 means no deadline. `term` is the election term of the SCM
    that ordered the task. It is 0 for a task that no SCM has ordered; such a task is never dropped
    because of its term. `weight` is the capacity that the task uses. A light task has weight 1, and
    a task with a weight above `running_max` runs alone. `place` is the resource that the task uses,
    for example a volume, or "". `about` contains ids for the log.
    """

    task_type: str
    key: Hashable
    priority: TaskPriority = TaskPriority.NORMAL
    deadline_at_ms: int = 0
    term: int = 0
    weight: int = 1
    place: str = ""
    about: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if self.weight < 1:
            raise ValueError(f"invalid task weight {self.weight}")

    @property
    def identity(self) -> tuple[str, Hashable]:
        """Key of the task. Two tasks with the same key are duplicates."""
        return self.task_type, self.key


@dataclass(frozen=True, slots=True)
class DroppedTask:
    """A task that was removed from the queue before it could run, and the reason."""

    task: Task
    why: TaskRejection


@dataclass(frozen=True, slots=True)
class DequeueResult:
    """Result of `TaskQueue.pop`.

    `task` is the task to run now, or None if no task may run. `dropped` are the tasks that were
    removed from the queue without running.
    """

    task: Task | None
    dropped: tuple[DroppedTask, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Limits of a queue.

    `running_max` is the maximum total weight of the running tasks. `shares` is the maximum number
    of running tasks by type. `per_place_max` is the maximum number of running tasks that use one
    resource; 0 means unlimited.
    """

    running_max: int
    queue_depth_max: int = QUEUE_DEPTH_MAX_DEFAULT
    shares: Mapping[str, int] = field(default_factory=dict)
    per_place_max: int = 0

    def __post_init__(self) -> None:
        if self.running_max < 1 or self.queue_depth_max < 1 or self.per_place_max < 0:
            raise ValueError(f"task limits must be at least 1: {self}")
        if any(share < 1 for share in self.shares.values()):
            raise ValueError(f"a share below 1 would never run its type: {dict(self.shares)}")


class TaskLanes:
    """The waiting tasks, grouped so that the next task is found quickly, even if many tasks wait.

    A group (lane) contains the tasks with the same priority, type and resource. The same limits
    apply to all tasks of a group. Therefore, only the first task of each group can be the next to
    run. A heap contains the deadlines of all tasks.
    """

    def __init__(self) -> None:
        self._lanes: dict[tuple[int, str, str], OrderedDict[Hashable, tuple[int, Task]]] = {}
        self._lane_of: dict[Hashable, tuple[int, str, str]] = {}
        self._late: list[tuple[int, int, Hashable]] = []
        self._counts: Counter[tuple[int, str]] = Counter()
        self._added_count = 0

    def __len__(self) -> int:
        return len(self._lane_of)

    def __iter__(self) -> Iterator[Task]:
        """Yield all tasks in the order in which they would run without limits."""
        numbered = [
            (key[0], number, task)
            for key, lane in self._lanes.items()
            for number, task in lane.values()
        ]
        numbered.sort(key=lambda item: item[:2])
        return (task for _, _, task in numbered)

    def add(self, task: Task) -> None:
        """Add a task at the end of its group."""
        assert task.identity not in self._lane_of, f"{task} waits already"
        key = (task.priority, task.task_type, task.place)
        self._added_count += 1
        self._lanes.setdefault(key, OrderedDict())[task.identity] = (self._added_count, task)
        self._lane_of[task.identity] = key
        self._counts[key[:2]] += 1
        if task.deadline_at_ms:
            heapq.heappush(self._late, (task.deadline_at_ms, self._added_count, task.identity))
            if len(self._late) > 2 * len(self) + LATENESS_SLACK:
                self._late = [item for item in self._late if self._find(item) is not None]
                heapq.heapify(self._late)

    def remove(self, task: Task) -> None:
        """Remove a waiting task."""
        key = self._lane_of.pop(task.identity)
        lane = self._lanes[key]
        del lane[task.identity]
        if not lane:
            del self._lanes[key]
        self._counts[key[:2]] -= 1

    def heads(self, priority: int) -> list[Task]:
        """Return the first task of each group with this priority, in the order of arrival."""
        firsts = [
            next(iter(lane.values())) for key, lane in self._lanes.items() if key[0] == priority
        ]
        return [task for _, task in sorted(firsts, key=lambda first: first[0])]

    def pop_expired(self, now_ms: int) -> list[Task]:
        """Remove the tasks whose deadline has passed, and return them in the order of arrival."""
        late = []
        while self._late and self._late[0][0] <= now_ms:
            item = heapq.heappop(self._late)
            task = self._find(item)
            if task is not None:
                late.append((item[1], task))
                self.remove(task)
        return [task for _, task in sorted(late, key=lambda pair: pair[0])]

    def count(self, priority: int, task_type: str) -> int:
        """Return the number of waiting tasks with this priority and type."""
        return self._counts[priority, task_type]

    def clear(self) -> None:
        """Remove all waiting tasks."""
        for kept in (self._lanes, self._lane_of, self._late, self._counts):
            kept.clear()

    def _find(self, item: tuple[int, int, Hashable]) -> Task | None:
        """Return the task of an entry in the heap of deadlines. Return None if the task no longer
        waits."""
        _, number, identity = item
        key = self._lane_of.get(identity)
        if key is None:
            return None
        found, task = self._lanes[key][identity]
        return task if found == number else None


class TaskQueue:
    """Queue of the tasks that wait to run. It also counts the running tasks."""

    def __init__(self, limits: TaskLimits) -> None:
        self._limits = limits
        self._waiting = TaskLanes()
        self._stale: list[Task] = []  # dropped tasks that `pop` has not returned yet
        self._known: set[tuple[str, Hashable]] = set()
        self._running: Counter[str] = Counter()  # running tasks per type
        self._places: Counter[str] = Counter()  # running tasks per resource
        self._weight = 0  # total weight of running tasks
        self._term = 0
        self._is_stopping = False

    def submit(self, task: Task, now_ms: int) -> TaskRejection | None:
        """Add a task to the queue. Return None, or the reason if the task was refused."""
        refusal = self._refusal(task, now_ms)
        if refusal is None:
            self._known.add(task.identity)
            self._waiting.add(task)
            self._running.setdefault(task.task_type, 0)
            assert len(self._running) <= TASK_TYPES_MAX, f"too many task types: {task.task_type}"
        return refusal

    def pop(self, now_ms: int) -> DequeueResult:
        """Select the task to run now, and count it as running.

        Tasks whose deadline has passed, and tasks of an earlier SCM leader, are dropped. The `task`
        of the result is None if no task may run now.
        """
        if self._is_stopping:
            return DequeueResult(None)
        dropped = self._drop_useless(now_ms)
        task = self._next()
        if task is not None:
            self._waiting.remove(task)
            self._running[task.task_type] += 1
            self._weight += task.weight
            self._places[task.place] += 1
        return DequeueResult(task, dropped)

    def finish(self, task: Task) -> None:
        """Record that a task has ended. `pop` must have returned the task before."""
        assert task.identity in self._known, f"{task} is not running"
        assert self._running[task.task_type] > 0, f"no {task.task_type} is running"
        self._known.discard(task.identity)
        self._running[task.task_type] -= 1
        self._weight -= task.weight
        self._places[task.place] -= 1

    def set_limits(self, limits: TaskLimits) -> None:
        """Change the limits of the queue. No queued or running task is dropped."""
        self._limits = limits

    def set_term(self, term: int) -> None:
        """Record the election term of the SCM leader. Waiting tasks of earlier leaders will be
        dropped.

        If `term` is not higher than the recorded term, do nothing.
        """
        if term <= self._term:
            return
        self._term = term
        for task in [task for task in self._waiting if self._is_stale(task)]:
            self._waiting.remove(task)
            self._stale.append(task)

    def stop(self) -> tuple[DroppedTask, ...]:
        """Drop and return all waiting tasks. Refuse all tasks that are submitted later."""
        self._is_stopping = True
        stale, waiting = self._drop(self._stale, TaskRejection.STALE_TERM), list(self._waiting)
        self._waiting.clear()
        self._stale = []
        return stale + self._drop(waiting, TaskRejection.STOPPING)

    @property
    def running_count(self) -> int:
        """Number of running tasks."""
        return self._running.total()

    @property
    def queued_count(self) -> int:
        """Number of waiting tasks, including the tasks that the next `pop` will drop."""
        return len(self._waiting) + len(self._stale)

    def loads(self) -> dict[str, int]:
        """Return the load of each task type: the number of running tasks plus waiting NORMAL tasks.

        The result has all types of which a task was queued since the start.
        """
        return {
            task_type: running_count + self._waiting.count(TaskPriority.NORMAL, task_type)
            for task_type, running_count in self._running.items()
        }

    def _refusal(self, task: Task, now_ms: int) -> TaskRejection | None:
        if self._is_stopping:
            return TaskRejection.STOPPING
        if _is_late(task, now_ms):
            return TaskRejection.DEADLINE_PASSED
        if self._is_stale(task):
            return TaskRejection.STALE_TERM
        if task.identity in self._known:
            return TaskRejection.DUPLICATE
        if self.queued_count >= self._limits.queue_depth_max:
            return TaskRejection.QUEUE_FULL
        return None

    def _drop_useless(self, now_ms: int) -> tuple[DroppedTask, ...]:
        """Remove the tasks whose deadline has passed, and the tasks of earlier SCM leaders.

        Return these tasks, each with the reason.
        """
        stale, self._stale = self._stale, []
        late = self._waiting.pop_expired(now_ms)
        return self._drop(late, TaskRejection.DEADLINE_PASSED) + self._drop(
            stale, TaskRejection.STALE_TERM
        )

    def _drop(self, tasks: Iterable[Task], why: TaskRejection) -> tuple[DroppedTask, ...]:
        """Convert tasks to dropped tasks with the reason `why`. New tasks with the same keys may
        then be queued."""
        dropped = tuple(DroppedTask(task, why) for task in tasks)
        self._known.difference_update(item.task.identity for item in dropped)
        return dropped

    def _next(self) -> Task | None:
        """Return the first task whose type and resource are below their limits. Return None if
        there is none.

        If this task needs more capacity than is free, also return None, so that no later task
        starves it.
        """
        if self._weight >= self._limits.running_max:
            return None
        for level in TaskPriority:
            for task in self._waiting.heads(level):
                if not self._is_busy(task):
                    has_room = self._weight + task.weight <= self._limits.running_max
                    return task if has_room or not self._weight else None
        return None

    def _is_busy(self, task: Task) -> bool:
        """Return whether a task cannot start now, because too many tasks of the same type or on the
        same resource are running."""
        limits = self._limits
        running = self._running[task.task_type]
        if running >= limits.shares.get(task.task_type, running + 1):
            return True
        at_place = self._places[task.place] if task.place else 0
        return 0 < limits.per_place_max <= at_place

    def _is_stale(self, task: Task) -> bool:
        return 0 < task.term < self._term


def _is_late(task: Task, now_ms: int) -> bool:
    return 0 < task.deadline_at_ms <= now_ms
