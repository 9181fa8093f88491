"""The queue machine: order, shares, duplicates, deadlines and terms, without a thread or clock."""

from pathlib import Path

import pytest

from agent.commands.command_queue import (
    DroppedTask,
    Task,
    TaskLimits,
    TaskPriority,
    TaskQueue,
    TaskRejection,
)
from tests.support.task_scenario import answer
from tests.support.transcript import check_transcript

NOW_MS = 1_000
GOLDEN = Path(__file__).parents[3] / "golden" / "tasks"


def queue(running_max: int = 10, queue_depth_max: int = 100, **shares: int) -> TaskQueue:
    """Return a queue with room unless a test says otherwise."""
    return TaskQueue(TaskLimits(running_max, queue_depth_max, shares))


def reconcile(key: int, **changes: object) -> Task:
    """Return a reconcile task of container `key`."""
    return Task("reconcile", key, **changes)  # type: ignore[arg-type]


def submitted(tasks: TaskQueue, *wanted: Task) -> TaskQueue:
    """Submit tasks that must be accepted."""
    for task in wanted:
        assert tasks.submit(task, NOW_MS) is None
    return tasks


def taken(tasks: TaskQueue, now_ms: int = NOW_MS) -> list[Task]:
    """Take until nothing may run."""
    result = []
    while (task := tasks.pop(now_ms).task) is not None:
        result.append(task)
    return result


class TestScenarios:
    @pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("*.txt")))
    def test_the_queue_does_as_written(self, name: str, request: pytest.FixtureRequest) -> None:
        """Every scenario in tests/golden/tasks gives the recorded answer."""
        rewrite = bool(request.config.getoption("--rewrite-golden"))

        count = check_transcript(GOLDEN / name, answer, rewrite=rewrite)

        assert count > 0


class TestOrder:
    def test_first_come_is_first_served(self) -> None:
        """Tasks of one priority run in the order in which they came."""
        tasks = submitted(queue(), reconcile(3), reconcile(1), reconcile(2))

        assert [reconcile(3), reconcile(1), reconcile(2)] == taken(tasks)

    def test_normal_overtakes_low(self) -> None:
        """A NORMAL task runs before every LOW one, however long those have waited."""
        low, normal = reconcile(1, priority=TaskPriority.LOW), reconcile(2)
        tasks = submitted(queue(), low, normal)

        assert [normal, low] == taken(tasks)

    def test_a_full_share_lets_other_types_pass(self) -> None:
        """Reconcile at its share waits, and the replication behind it runs."""
        replicate = Task("replicate", 9)
        tasks = submitted(queue(reconcile=1), reconcile(1), reconcile(2), replicate, reconcile(3))

        assert [reconcile(1), replicate] == taken(tasks)

    def test_a_freed_share_goes_to_the_first_that_waited(self) -> None:
        """Tasks that were passed over keep their place in the line."""
        replicate = Task("replicate", 9)
        tasks = submitted(queue(reconcile=1), reconcile(1), reconcile(2), replicate, reconcile(3))
        assert [reconcile(1), replicate] == taken(tasks)

        tasks.finish(reconcile(1))

        assert [reconcile(2)] == taken(tasks)

    def test_no_more_run_than_allowed(self) -> None:
        """The limit of running tasks holds for all types together."""
        tasks = submitted(queue(running_max=2), reconcile(1), Task("delete", 1), Task("delete", 2))

        assert [reconcile(1), Task("delete", 1)] == taken(tasks)


class TestRefusal:
    def test_a_queued_task_refuses_its_twin(self) -> None:
        """The same type and key is one task, whatever else differs."""
        tasks = submitted(queue(), reconcile(1))

        assert TaskRejection.DUPLICATE == tasks.submit(
            reconcile(1, priority=TaskPriority.LOW), NOW_MS
        )

    def test_a_running_task_refuses_its_twin(self) -> None:
        """Running counts like queued, until the task has finished."""
        tasks = submitted(queue(), reconcile(1))
        (running,) = taken(tasks)

        assert TaskRejection.DUPLICATE == tasks.submit(reconcile(1), NOW_MS)
        tasks.finish(running)
        assert tasks.submit(reconcile(1), NOW_MS) is None

    def test_another_type_is_no_twin(self) -> None:
        """Delete and reconcile of one container are two tasks."""
        tasks = submitted(queue(), reconcile(1))

        assert tasks.submit(Task("delete", 1), NOW_MS) is None

    def test_a_full_queue_refuses(self) -> None:
        """The queue never grows beyond its bound."""
        tasks = submitted(queue(queue_depth_max=2), reconcile(1), reconcile(2))

        assert TaskRejection.QUEUE_FULL == tasks.submit(reconcile(3), NOW_MS)
        assert 2 == tasks.queued_count

    def test_a_queue_of_one_holds_one(self) -> None:
        """The smallest bound is a bound, not an error."""
        tasks = submitted(queue(queue_depth_max=1), reconcile(1))

        assert TaskRejection.QUEUE_FULL == tasks.submit(reconcile(2), NOW_MS)

    def test_a_passed_deadline_is_refused_at_the_door(self) -> None:
        """A command that came too late is not queued."""
        assert TaskRejection.DEADLINE_PASSED == queue().submit(
            reconcile(1, deadline_at_ms=NOW_MS), NOW_MS
        )

    def test_an_old_term_is_refused_at_the_door(self) -> None:
        """An SCM that leads no more is not obeyed."""
        tasks = queue()
        tasks.set_term(7)

        assert TaskRejection.STALE_TERM == tasks.submit(reconcile(1, term=6), NOW_MS)
        assert tasks.submit(reconcile(1, term=7), NOW_MS) is None

    def test_a_term_never_goes_back(self) -> None:
        """A late message of an old leader cannot lower the term."""
        tasks = queue()
        tasks.set_term(7)

        tasks.set_term(3)

        assert TaskRejection.STALE_TERM == tasks.submit(reconcile(1, term=6), NOW_MS)

    def test_our_own_tasks_have_no_term(self) -> None:
        """Term 0 is never stale."""
        tasks = queue()
        tasks.set_term(7)

        assert tasks.submit(reconcile(1), NOW_MS) is None

    def test_a_stopped_queue_takes_and_gives_nothing(self) -> None:
        """After stop what waited is dropped, and newcomers are refused."""
        tasks = submitted(queue(), reconcile(1), reconcile(2))

        assert [reconcile(1), reconcile(2)] == [item.task for item in tasks.stop()]
        assert TaskRejection.STOPPING == tasks.submit(reconcile(3), NOW_MS)
        assert [] == taken(tasks)


class TestDropping:
    def test_a_deadline_that_passes_in_the_queue_drops_the_task(self) -> None:
        """The task does not run, and its key is free again."""
        late = reconcile(1, deadline_at_ms=NOW_MS + 10)
        tasks = submitted(queue(), late, reconcile(2))

        result = tasks.pop(NOW_MS + 10)

        assert reconcile(2) == result.task
        assert (DroppedTask(late, TaskRejection.DEADLINE_PASSED),) == result.dropped
        assert tasks.submit(reconcile(1), NOW_MS) is None

    def test_a_new_leader_drops_what_the_old_one_ordered(self) -> None:
        """Queued commands of an older term are dropped when their turn comes."""
        old = reconcile(1, term=6)
        tasks = submitted(queue(), old)

        tasks.set_term(7)

        assert (DroppedTask(old, TaskRejection.STALE_TERM),) == tasks.pop(NOW_MS).dropped

    def test_the_first_millisecond_is_a_deadline_too(self) -> None:
        """Only 0 means none."""
        assert TaskRejection.DEADLINE_PASSED == queue().submit(reconcile(1, deadline_at_ms=1), 1)

    def test_task_to_be_dropped_still_counts_as_queued(self) -> None:
        """The task takes room until its drop is reported."""
        tasks = submitted(queue(queue_depth_max=2), reconcile(1, term=6), reconcile(2))

        tasks.set_term(7)

        assert 2 == tasks.queued_count
        assert TaskRejection.QUEUE_FULL == tasks.submit(reconcile(3), NOW_MS)

    def test_a_stopped_queue_tells_of_what_was_stale_once(self) -> None:
        """The stop drops the tasks that a new leader made stale."""
        old = reconcile(1, term=6)
        tasks = submitted(queue(), old)
        tasks.set_term(7)

        assert (DroppedTask(old, TaskRejection.STALE_TERM),) == tasks.stop()
        assert (0, ()) == (tasks.queued_count, tasks.stop())


class TestLoads:
    def test_load_counts_running_and_normal_waiting_tasks_by_type(self) -> None:
        """LOW tasks that wait, refused tasks and ended tasks are no load."""
        tasks = submitted(queue(), *(reconcile(key) for key in range(4)))
        for task in taken(tasks)[:3]:
            tasks.finish(task)
        submitted(tasks, reconcile(7))
        submitted(tasks, *(reconcile(key, priority=TaskPriority.LOW) for key in (8, 9)))
        tasks.submit(reconcile(7), NOW_MS)

        assert {"reconcile": 2} == tasks.loads()

    def test_finishing_what_does_not_run_is_a_bug(self) -> None:
        """A pool that finishes a task twice gets an error at once."""
        tasks = submitted(queue(), reconcile(1))
        (running,) = taken(tasks)
        tasks.finish(running)

        with pytest.raises(AssertionError, match="is not running"):
            tasks.finish(running)


class TestLimits:
    @pytest.mark.parametrize(
        "wrong", [(0, 1, {}), (1, 0, {}), (1, 1, {"reconcile": 0}), (1, 1, {}, -1)]
    )
    def test_limits_that_would_run_nothing_are_refused(
        self, wrong: tuple[int, int, dict[str, int]]
    ) -> None:
        """A pool that can never run a type is a configuration error."""
        with pytest.raises(ValueError, match=r"limit|share"):
            TaskLimits(*wrong)

    def test_a_task_without_weight_is_refused(self) -> None:
        """A task without weight would never count towards the limit of running tasks."""
        with pytest.raises(ValueError, match="invalid task weight 0"):
            reconcile(1, weight=0)

    def test_a_thousand_tasks_wait_unless_limits_say_otherwise(self) -> None:
        """One more is refused."""
        tasks = submitted(TaskQueue(TaskLimits(1)), *map(reconcile, range(1_000)))

        assert TaskRejection.QUEUE_FULL == tasks.submit(reconcile(1_000), NOW_MS)

    def test_any_number_runs_at_a_place_unless_limits_say_otherwise(self) -> None:
        """A limit of places is asked for."""
        tasks = submitted(queue(), *(reconcile(key, place="disk1") for key in range(5)))

        assert 5 == len(taken(tasks))

    def test_a_place_is_free_again_when_its_task_has_ended(self) -> None:
        """One task leaves and one may start, not two."""
        tasks = TaskQueue(TaskLimits(10, per_place_max=1))
        submitted(tasks, *(reconcile(key, place="disk1") for key in range(4)))
        (first,) = taken(tasks)

        tasks.finish(first)

        assert [reconcile(1, place="disk1")] == taken(tasks)
        tasks.finish(reconcile(1, place="disk1"))
        assert [reconcile(2, place="disk1")] == taken(tasks)

    def test_tasks_without_a_place_share_none(self) -> None:
        """The limit of a place is no limit of those that keep nothing in particular busy."""
        tasks = submitted(TaskQueue(TaskLimits(10, per_place_max=1)), reconcile(1), reconcile(2))

        assert [reconcile(1), reconcile(2)] == taken(tasks)

    def test_names_of_types_are_bounded(self) -> None:
        """The names are labels of metrics, so the thirty-third is a defect of the agent."""
        tasks = submitted(queue(), *(Task(f"type{number}", 1) for number in range(32)))

        with pytest.raises(AssertionError, match="too many task types: type32"):
            tasks.submit(Task("type32", 1), NOW_MS)
