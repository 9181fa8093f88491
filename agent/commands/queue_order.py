"""Waiting tasks, ordered so that choosing the next one costs the same however many wait.

    lane      tasks of one priority, type and place: they may run or must wait together
    heads     the first task of each lane; only these can be next
    lateness  a heap of deadlines

Pure: no thread, no clock.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from typing import Final, Generic, Protocol, TypeVar

LATENESS_SLACK: Final = 64  # obsolete deadlines kept before the heap is rebuilt


class QueueItem(Protocol):
    """Attributes of a task that the lanes use. `deadline_at_ms` 0 = none."""

    @property
    def task_type(self) -> str:
        """Type of the task."""
        ...

    @property
    def place(self) -> str:
        """Resource that the task keeps busy."""
        ...

    @property
    def priority(self) -> int:
        """Priority; the lowest comes first."""
        ...

    @property
    def deadline_at_ms(self) -> int:
        """Time after which the task must not begin."""
        ...

    @property
    def identity(self) -> Hashable:
        """Key that is unique among waiting tasks."""
        ...


T = TypeVar("T", bound=QueueItem)


class TaskLanes(Generic[T]):
    """Waiting tasks in the order of arrival."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[int, str, str], OrderedDict[Hashable, tuple[int, T]]] = {}
        self._lane_of: dict[Hashable, tuple[int, str, str]] = {}
        self._late: list[tuple[int, int, Hashable]] = []
        self._counts: Counter[tuple[int, str]] = Counter()
        self._added_count = 0

    def __len__(self) -> int:
        return len(self._lane_of)

    def __iter__(self) -> Iterator[T]:
        """Yield all tasks in the order in which they would run if nothing were busy."""
        numbered = [
            (key[0], number, task)
            for key, lane in self._lanes.items()
            for number, task in lane.values()
        ]
        numbered.sort(key=lambda item: item[:2])
        return (task for _, _, task in numbered)

    def add(self, task: T) -> None:
        """Append a task to its lane."""
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

    def remove(self, task: T) -> None:
        """Remove a task."""
        key = self._lane_of.pop(task.identity)
        lane = self._lanes[key]
        del lane[task.identity]
        if not lane:
            del self._lanes[key]
        self._counts[key[:2]] -= 1

    def heads(self, priority: int) -> list[T]:
        """Return the first task of each lane of a priority, in the order of arrival."""
        firsts = [
            next(iter(lane.values())) for key, lane in self._lanes.items() if key[0] == priority
        ]
        return [task for _, task in sorted(firsts, key=lambda first: first[0])]

    def take_late(self, now_ms: int) -> list[T]:
        """Remove and return the tasks whose deadline has passed, in the order of arrival."""
        late = []
        while self._late and self._late[0][0] <= now_ms:
            item = heapq.heappop(self._late)
            task = self._find(item)
            if task is not None:
                late.append((item[1], task))
                self.remove(task)
        return [task for _, task in sorted(late, key=lambda pair: pair[0])]

    def count(self, priority: int, task_type: str) -> int:
        """Return the number of waiting tasks of a priority and type."""
        return self._counts[priority, task_type]

    def clear(self) -> None:
        """Remove all tasks."""
        for kept in (self._lanes, self._lane_of, self._late, self._counts):
            kept.clear()

    def _find(self, item: tuple[int, int, Hashable]) -> T | None:
        """Return the task of a deadline, if it still waits."""
        _, number, identity = item
        key = self._lane_of.get(identity)
        if key is None:
            return None
        found, task = self._lanes[key][identity]
        return task if found == number else None
