"""Changes that wait at the same time share a commit; none fails for another, none is lost."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.store.index.environment import Index
from agent.store.index.group_commit import GROUP_MAX, GroupCommit
from agent.store.index.transactions import IndexChange
from merkle.replica import BlockId, ContainerId
from suture.errors import Code, RefusedError

ONE = ContainerId(1)
WAITING = 8
MIB = 1024**2


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """An empty index."""
    tmp_path.joinpath("db").mkdir()
    opened = Index(tmp_path / "db", map_bytes=MIB)
    yield opened
    opened.close()


class Gate:
    """A change that is in its transaction until it is let go."""

    def __init__(self) -> None:
        self.is_inside = threading.Event()
        self.may_end = threading.Event()

    def __call__(self, _rows: IndexChange) -> None:
        self.is_inside.set()
        assert self.may_end.wait(30)


def version(index: Index) -> int:
    """Return how many commits there were."""
    with index.read() as rows:
        return rows.version()


def putting(block_id: int, row: bytes = b"row") -> Callable[[IndexChange], int]:
    """Return a change that puts a row, and returns its number."""

    def put(rows: IndexChange) -> int:
        rows.put_block(ONE, BlockId(block_id), row)
        return block_id

    return put


def refusing(rows: IndexChange) -> None:
    """Put a row and refuse."""
    rows.put_block(ONE, BlockId(999), b"never")
    raise RefusedError(Code.INELIGIBLE, "no")


def behind_a_gate(
    index: Index, changes: list[Callable[[IndexChange], object]]
) -> tuple[int, list["Future[object]"]]:
    """Have changes wait behind one that is in its transaction; return how many commits they took,
    and what came of each."""
    gate = Gate()
    with ThreadPoolExecutor(len(changes) + 1) as pool:
        first = pool.submit(index.write, gate)
        assert gate.is_inside.wait(30)
        before = version(index)
        others = [pool.submit(index.write, change) for change in changes]
        while len(index._commits._waiting) < len(changes):
            assert not first.done()
        gate.may_end.set()
        first.result()
        for other in others:
            other.exception()
    return version(index) - before, others


def block_ids(index: Index) -> set[int]:
    """Return the blocks that have rows."""
    with index.read() as rows:
        return {int(block_id) for block_id, _ in rows.blocks(ONE)}


def test_waiting_changes_share_a_commit(index: Index) -> None:
    """Each change gets its own result."""
    wanted = range(1, WAITING + 1)

    commits, futures = behind_a_gate(index, [putting(number) for number in wanted])

    assert 1 == commits
    assert list(wanted) == [future.result() for future in futures]
    assert set(wanted) == block_ids(index)


def test_alone_is_at_once(index: Index) -> None:
    """No change waits for others, and a later one leads its own commit."""
    for number in range(1, 4):
        before = version(index)
        assert number == index.write(putting(number))
        assert 1 == version(index) - before


def test_failing_change_of_a_shared_commit_fails_alone(index: Index) -> None:
    """The other changes are durable, and nothing of the failed one is."""
    changes = [putting(1), refusing, putting(2), putting(3)]

    _, futures = behind_a_gate(index, changes)

    failures = [future.exception() for future in futures]
    assert [None, RefusedError, None, None] == [error and type(error) for error in failures]
    assert {1, 2, 3} == block_ids(index)


def test_a_group_that_fills_the_map_is_recorded_whole(index: Index) -> None:
    """
    Changes that fit one by one, and not together, have the map grown.
    """
    row = bytes(MIB // 4)

    _, futures = behind_a_gate(index, [putting(n, row) for n in range(1, WAITING + 1)])

    assert all(future.exception() is None for future in futures)
    assert set(range(1, WAITING + 1)) == block_ids(index)


def test_a_crowd_is_served_in_groups(index: Index) -> None:
    """One commit serves as many writers as it takes, and the others follow."""
    count = GROUP_MAX + 3

    commits, futures = behind_a_gate(index, [putting(number) for number in range(1, count + 1)])

    assert 2 == commits
    assert list(range(1, count + 1)) == [future.result() for future in futures]


def test_many_threads_lose_nothing() -> None:
    """A thread may arrive when another gives up the lead. Each change is made once, and no
    thread waits for ever.
    """
    made: list[int] = []

    def attempt(changes: list[int]) -> list[int]:
        made.extend(changes)
        return [-change for change in changes]

    commits: GroupCommit[int] = GroupCommit(attempt, lambda: None)  # type: ignore[arg-type]
    threads, each = 8, 2_000

    def write(thread: int) -> bool:
        numbers = range(thread * each, (thread + 1) * each)
        return all(commits.write(number) == -number for number in numbers)

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(write, thread) for thread in range(threads)]
        assert all(future.result(timeout=60) for future in futures)

    assert sorted(made) == list(range(threads * each))
    assert not commits._waiting


def test_served_thread_leads_no_commit() -> None:
    """A leader takes no change twice, and no thread leads without a change of its own."""
    groups: list[list[int]] = []
    is_inside, may_end = threading.Event(), threading.Event()

    def attempt(changes: list[int]) -> list[int]:
        groups.append(list(changes))
        is_inside.set()
        assert may_end.wait(30)
        return [-change for change in changes]

    commits: GroupCommit[int] = GroupCommit(attempt, lambda: None)  # type: ignore[arg-type]
    with ThreadPoolExecutor(WAITING + 1) as pool:
        first = pool.submit(commits.write, 0)
        assert is_inside.wait(30)
        others = [pool.submit(commits.write, number) for number in range(1, WAITING + 1)]
        while len(commits._waiting) < WAITING:
            assert not first.done()
        may_end.set()
        assert [-number for number in range(WAITING + 1)] == [
            future.result(timeout=30) for future in (first, *others)
        ]

    assert [[0], list(range(1, WAITING + 1))] == [sorted(group) for group in groups]
    assert -9 == commits.write(9)


def test_a_leader_that_fails_passes_the_lead_on() -> None:
    """Its own thread gets the error, and a later thread leads."""

    def attempt(changes: list[int]) -> list[int]:
        if changes == [13]:
            raise RefusedError(Code.INELIGIBLE, "no")
        return [-change for change in changes]

    commits: GroupCommit[int] = GroupCommit(attempt, lambda: None)  # type: ignore[arg-type]
    with pytest.raises(RefusedError):
        commits.write(13)

    results: list[int] = []
    later = threading.Thread(target=lambda: results.append(commits.write(1)), daemon=True)
    later.start()
    later.join(30)
    assert [-1] == results
