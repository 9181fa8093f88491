"""Scenarios of the task queue as text, for tests/golden/tasks.

limits 2 running, 5 waiting, reconcile 1, 1 a place
at 10                                   the clock, in ms
term 3
submit replicate 7 low until 20 of term 2 weighs 3 on disk1
take                                    as many as may run
finish replicate 7
stop
loads                                   waiting, unless low, and running
"""

from collections.abc import Sequence

from agent.commands.command_queue import Task, TaskLimits, TaskPriority, TaskQueue


def answer(statements: Sequence[str]) -> list[str]:
    """Run a scenario on a task queue; return the queue's answers as lines of text."""
    world = _World()
    for statement in statements:
        world.do(statement.split())
    return world.said


class _World:
    def __init__(self) -> None:
        self.queue = TaskQueue(TaskLimits(10))
        self.now_ms = 0
        self.running: dict[tuple[str, str], Task] = {}
        self.said: list[str] = []

    def do(self, words: list[str]) -> None:
        """Execute one statement of a scenario."""
        match words:
            case ["limits", *rest]:
                self.queue.set_limits(limits(" ".join(rest)))
            case ["at", text]:
                self.now_ms = int(text)
            case ["term", text]:
                self.queue.set_term(int(text))
            case ["submit", kind, key, *rest]:
                refusal = self.queue.submit(task(kind, key, rest), self.now_ms)
                if refusal is not None:
                    self.said.append(f"refused {kind} {key}: {refusal}")
            case ["take"]:
                self._take()
            case ["finish", kind, key]:
                self.queue.finish(self.running.pop((kind, key)))
            case ["stop"]:
                for item in self.queue.stop():
                    self.said.append(f"dropped {name(item.task)}: {item.why}")
            case ["loads"]:
                loads = sorted(self.queue.loads().items())
                self.said += [f"{kind}: {count}" for kind, count in loads]
            case _:
                raise ValueError(f"no such statement: {words}")

    def _take(self) -> None:
        while True:
            taken = self.queue.pop(self.now_ms)
            for item in taken.dropped:
                self.said.append(f"dropped {name(item.task)}: {item.why}")
            if taken.task is None:
                self.said.append("nothing more may run")
                return
            self.running[taken.task.task_type, str(taken.task.key)] = taken.task
            self.said.append(f"runs {name(taken.task)}")


def limits(text: str) -> TaskLimits:
    """Return the limits that a text such as `2 running, 5 waiting, reconcile 1` gives."""
    numbers: dict[str, int] = {}
    shares: dict[str, int] = {}
    for part in text.split(", "):
        match part.split():
            case [count, "running"]:
                numbers["running_max"] = int(count)
            case [count, "waiting"]:
                numbers["queue_depth_max"] = int(count)
            case [count, "a", "place"]:
                numbers["per_place_max"] = int(count)
            case [kind, count]:
                shares[kind] = int(count)
            case words:
                raise ValueError(f"no such limit: {words}")
    return TaskLimits(**numbers, shares=shares)


def task(kind: str, key: str, rest: list[str]) -> Task:
    """Return the task that the words of a `submit` statement describe."""
    words = list(rest)
    fields: dict[str, object] = {}
    while words:
        match words:
            case ["low", *words]:
                fields["priority"] = TaskPriority.LOW
            case ["until", text, *words]:
                fields["deadline_at_ms"] = int(text)
            case ["of", "term", text, *words]:
                fields["term"] = int(text)
            case ["weighs", text, *words]:
                fields["weight"] = int(text)
            case ["on", place, *words]:
                fields["place"] = place
            case _:
                raise ValueError(f"no such property: {words}")
    return Task(kind, key, **fields)  # type: ignore[arg-type]


def name(item: Task) -> str:
    """Return the name of a task in a transcript."""
    return f"{item.task_type} {item.key}"
