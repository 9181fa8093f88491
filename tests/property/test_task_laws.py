"""The queue of commands: laws that hold for any sequence of submissions, takes and ends."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.commands.command_queue import (
    Task,
    TaskLimits,
    TaskPriority,
    TaskQueue,
    TaskRejection,
)

KINDS = ("replicate", "reconstruct", "reconcile")

limits_of_any_size = st.builds(
    TaskLimits,
    running_max=st.integers(1, 6),
    queue_depth_max=st.integers(1, 12),
    shares=st.dictionaries(st.sampled_from(KINDS), st.integers(1, 3)),
    per_place_max=st.integers(0, 2),
)
tasks = st.builds(
    Task,
    task_type=st.sampled_from(KINDS),
    key=st.integers(1, 8),
    priority=st.sampled_from(TaskPriority),
    deadline_at_ms=st.sampled_from([0, 0, 5, 20]),
    term=st.sampled_from([0, 1, 2]),
    weight=st.integers(1, 4),
    place=st.sampled_from(["", "disk1", "disk2"]),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), tasks),
        st.tuples(st.just("take"), st.none()),
        st.tuples(st.just("finish"), st.integers(0, 100)),
        st.tuples(st.just("wait"), st.integers(1, 10)),
        st.tuples(st.just("term"), st.integers(1, 2)),
    ),
    max_size=60,
)


@dataclass
class World:
    """A queue, and what it should have in it."""

    limits: TaskLimits
    now_ms: int = 0
    running: list[Task] = field(default_factory=list)
    waiting: list[Task] = field(default_factory=list)
    ended: int = 0
    refused: int = 0

    def __post_init__(self) -> None:
        self.queue = TaskQueue(self.limits)

    def do(self, what: str, argument: object) -> None:
        """Carry out one step."""
        if what == "submit":
            assert isinstance(argument, Task)
            if self.queue.submit(argument, self.now_ms) is None:
                self.waiting.append(argument)
            else:
                self.refused += 1
        elif what == "take":
            self.take()
        elif what == "finish" and self.running:
            assert isinstance(argument, int)
            task = self.running.pop(argument % len(self.running))
            self.queue.finish(task)
            self.ended += 1
        elif what == "wait":
            assert isinstance(argument, int)
            self.now_ms += argument
        elif what == "term":
            assert isinstance(argument, int)
            self.queue.set_term(argument)

    def take(self) -> Task | None:
        """Take one task; check who was passed over."""
        taken = self.queue.pop(self.now_ms)
        for item in taken.dropped:
            self.waiting.remove(item.task)
            self.ended += 1
        if taken.task is None:
            return None
        self.waiting.remove(taken.task)
        if taken.task.priority is TaskPriority.LOW:
            assert all(self.is_held(task) for task in self.waiting if task.priority == 0)
        self.running.append(taken.task)
        return taken.task

    def is_held(self, task: Task) -> bool:
        """Whether a task must wait whatever runs beside it: its type or its place is busy."""
        kinds = [other.task_type for other in self.running].count(task.task_type)
        places = [other.place for other in self.running].count(task.place)
        busy_place = bool(task.place) and 0 < self.limits.per_place_max <= places
        return busy_place or kinds >= self.limits.shares.get(task.task_type, kinds + 1)

    def check_bounds(self) -> None:
        """Assert that no limit is exceeded."""
        assert len(self.waiting) <= self.limits.queue_depth_max
        weight = sum(task.weight for task in self.running)
        assert weight <= self.limits.running_max or len(self.running) == 1
        for kind, share in self.limits.shares.items():
            assert [task.task_type for task in self.running].count(kind) <= share
        for place in {task.place for task in self.running if task.place}:
            at_place = [task.place for task in self.running].count(place)
            assert not self.limits.per_place_max or at_place <= self.limits.per_place_max
        identities = [task.identity for task in self.running + self.waiting]
        assert len(identities) == len(set(identities))


@given(limits_of_any_size, steps)
@settings(max_examples=300)
def test_no_bound_is_ever_exceeded(limits: TaskLimits, sequence: list[tuple[str, object]]) -> None:
    """Queue, threads, shares and places keep their limits, and no task is there twice."""
    world = World(limits)

    for what, argument in sequence:
        world.do(what, argument)
        world.check_bounds()
        assert world.queue.queued_count == len(world.waiting)
        assert world.queue.running_count == len(world.running)


@given(limits_of_any_size, steps)
@settings(max_examples=300)
def test_every_submitted_task_runs_or_is_dropped(
    limits: TaskLimits, sequence: list[tuple[str, object]]
) -> None:
    """When no more tasks are submitted, each one runs or is dropped, and none is left."""
    world = World(limits)
    submitted = sum(1 for what, _ in sequence if what == "submit")
    for what, argument in sequence:
        world.do(what, argument)

    for _ in range(200):
        while world.take() is not None:
            world.check_bounds()
        if not world.running:
            break
        world.do("finish", 0)

    assert ([], []) == (world.waiting, world.running)
    assert submitted == world.ended + world.refused
    assert not any(world.queue.loads().values())


@given(st.lists(tasks, max_size=20))
def test_stopping_accounts_for_all(wanted: list[Task]) -> None:
    """Every task that waits when the queue stops is dropped, once, and none is taken after."""
    queue = TaskQueue(TaskLimits(2, 10))
    waiting = [task for task in wanted if queue.submit(task, 0) is None]

    dropped = queue.stop()

    assert sorted(map(str, waiting)) == sorted(str(item.task) for item in dropped)
    assert {TaskRejection.STOPPING} >= {item.why for item in dropped}
    assert queue.pop(0).task is None
