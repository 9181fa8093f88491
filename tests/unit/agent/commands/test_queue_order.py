"""What waits in a queue of tasks, against a list that is searched from the front."""

import random
from dataclasses import dataclass, field

import pytest

from agent.commands.command_queue import Task, TaskLanes, TaskPriority

PRIORITIES = (TaskPriority.NORMAL, TaskPriority.LOW)


@dataclass
class Line:
    """The same as a plain list: who came first stands first."""

    tasks: list[Task] = field(default_factory=list)

    def find(self, key: int) -> Task | None:
        """Return the task with a key."""
        return next((task for task in self.tasks if task.key == key), None)

    def heads(self, priority: int) -> list[Task]:
        """Return the first of each type and place."""
        firsts: dict[tuple[str, str], Task] = {}
        for task in self.tasks:
            if task.priority == priority:
                firsts.setdefault((task.task_type, task.place), task)
        return list(firsts.values())

    def take_late(self, now_ms: int) -> list[Task]:
        """Take out whose deadline has come."""
        late = [
            task for task in self.tasks if task.deadline_at_ms and task.deadline_at_ms <= now_ms
        ]
        self.tasks = [task for task in self.tasks if task not in late]
        return late


def any_task(chance: random.Random, now_ms: int) -> Task:
    """Return a task with a key of few, so that keys come back with other deadlines."""
    return Task(
        "only",
        chance.randrange(100),
        chance.choice(PRIORITIES),
        deadline_at_ms=chance.choice((0, now_ms + chance.randrange(1, 400))),
        place=chance.choice(("", "disk1", "disk2")),
    )


@pytest.mark.parametrize("seed", range(6))
def test_lanes_say_what_a_plain_list_says(seed: int) -> None:
    """The lanes have the same order, the same heads and the same late tasks as a plain list."""
    chance = random.Random(seed)
    lanes, line = TaskLanes(), Line()

    for now_ms in range(1, 1_200):
        task = any_task(chance, now_ms)
        known = line.find(int(str(task.key)))
        if known is None:
            lanes.add(task)
            line.tasks.append(task)
        elif chance.random() < 0.7:
            lanes.remove(known)
            line.tasks.remove(known)
        if chance.random() < 0.1:
            assert line.take_late(now_ms) == lanes.pop_expired(now_ms)

        assert len(line.tasks) == len(lanes)
        for priority in PRIORITIES:
            of_priority = [task for task in line.tasks if task.priority == priority]
            assert len(of_priority) == lanes.count(priority, "only")
            assert line.heads(priority) == lanes.heads(priority)
    assert sorted(line.tasks, key=lambda task: task.priority) == list(lanes)


def test_deadlines_of_tasks_that_are_gone_are_forgotten() -> None:
    """The lanes keep at most two deadlines for each waiting task and 64 more."""
    lanes = TaskLanes()
    most = 0

    for key in range(1_000):
        task = Task("only", key, deadline_at_ms=10**9)
        lanes.add(task)
        most = max(most, len(lanes._late))
        lanes.remove(task)

    assert 2 * 1 + 64 == most


def test_late_tasks_are_found_however_many_tasks_passed_through() -> None:
    """Deadlines are forgotten only for tasks that are gone."""
    lanes = TaskLanes()
    deadlines_ms = random.Random(5).sample(range(1, 1_000), 20)
    waiting = {at_ms: Task("only", -at_ms, deadline_at_ms=at_ms) for at_ms in deadlines_ms}
    for task in waiting.values():
        lanes.add(task)
    most = 0

    for key in range(500):
        passing = Task("only", key, deadline_at_ms=random.Random(key).randrange(1, 10_000))
        lanes.add(passing)
        most = max(most, len(lanes._late))
        lanes.remove(passing)

    assert 2 * 21 + 64 == most
    for at_ms, task in sorted(waiting.items()):
        assert [] == lanes.pop_expired(at_ms - 1)
        assert [task] == lanes.pop_expired(at_ms)


def test_cleared_lanes_hold_nothing() -> None:
    """Cleared lanes hold no task, no count and no deadline."""
    lanes = TaskLanes()
    lanes.add(Task("only", 1, deadline_at_ms=5))

    lanes.clear()

    assert (0, [], 0, []) == (
        len(lanes),
        list(lanes),
        lanes.count(TaskPriority.NORMAL, "only"),
        lanes.pop_expired(10),
    )
