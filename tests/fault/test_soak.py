"""What the soak relies on: its disks lose what was not synced, and its judges see what is wrong."""

import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.commands.command_queue import Task, TaskLimits
from agent.commands.pool import TaskContext, TaskPool
from suture import KeyNotFound, UnavailableError
from suture.errors import Code
from tools.demo.stage import wait_until
from tools.soak.child import launched_watched, note_pools, path_of, told
from tools.soak.disks import LEFT_BYTES, LoopDisk, NoLoopDevices
from tools.soak.footprints import Growth, Sample, Threads, growth, sampled, threads_of
from tools.soak.load import Key, KeyState, Oracle, look
from tools.soak.verdict import LIFE_S_MIN, leaking

pytestmark = pytest.mark.fault

MIB = 1024**2


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    """Return a disk on a loop device; there is none for whom may not mount."""
    made = LoopDisk(tmp_path / "mounted", tmp_path / "image", 32 * MIB)
    try:
        made.make()
    except NoLoopDevices as error:
        made.remove()
        pytest.skip(f"no loop devices here: {str(error)[:200]}")
    yield made
    made.remove()


def written(path: Path, content: bytes, *, synced: bool) -> None:
    """Write a file, and its name if it is to last."""
    path.write_bytes(content)
    if synced:
        for one in (path, path.parent):
            fd = os.open(one, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)


def test_a_power_cut_loses_what_was_not_synced_and_nothing_else(disk: LoopDisk) -> None:
    """The unsynced file could be read until the power cut."""
    written(disk.path / "kept", b"k" * 10_000, synced=True)
    written(disk.path / "lost", b"l" * 10_000, synced=False)
    before = sorted(path.name for path in disk.path.iterdir())

    assert disk.cut_power()
    with pytest.raises(OSError, match=r"."):
        (disk.path / "more").write_bytes(b"m")
    disk.power_on()

    assert "lost" in before
    assert not (disk.path / "lost").exists() or not (disk.path / "lost").read_bytes()
    assert b"k" * 10_000 == (disk.path / "kept").read_bytes()


def test_a_full_disk_has_room_again(disk: LoopDisk) -> None:
    """Nothing of any size can be written while it is full."""
    assert disk.fill()
    with pytest.raises(OSError, match="space"):
        (disk.path / "more").write_bytes(os.urandom(2 * LEFT_BYTES))
    disk.free()
    (disk.path / "more").write_bytes(os.urandom(MIB))

    assert MIB == (disk.path / "more").stat().st_size


class Answers:
    """A client that says what a test wants of a key."""

    def __init__(self, answer: bytes | Exception) -> None:
        self._answer = answer

    def get(self, _key: str) -> bytes:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def known(fate: KeyState) -> Key:
    """Return a key of which this is known."""
    return Key("soak/1/0000001", 1000, fate)


GONE = KeyNotFound(Code.KEY_NOT_FOUND, "no such key")
AWAY = UnavailableError(Code.UNAVAILABLE, "nobody answers")


@pytest.mark.parametrize(
    ("fate", "answer", "blames"),
    [
        (KeyState.STORED, "right", 0),
        (KeyState.STORED, "wrong", 1),
        (KeyState.STORED, GONE, 1),
        (KeyState.STORED, AWAY, 0),
        (KeyState.GONE, GONE, 0),
        (KeyState.GONE, "right", 1),
        (KeyState.EITHER_STORED, GONE, 0),
        (KeyState.EITHER_STORED, "right", 0),
        (KeyState.EITHER_STORED, "wrong", 1),
        (KeyState.EITHER_GONE, GONE, 0),
        (KeyState.EITHER_GONE, "right", 0),
    ],
)
def test_a_key_is_judged_by_what_was_acknowledged(
    fate: KeyState, answer: str | Exception, blames: int
) -> None:
    """Lost, back, or other bytes; what failed may be either, but nothing else."""
    key, oracle = known(fate), Oracle(1)
    content = {"right": key.content(), "wrong": key.content()[:-1] + b"?"}
    client: Any = Answers(content[answer] if isinstance(answer, str) else answer)

    look(client, key, oracle)

    assert blames == len(oracle.wrong), oracle.wrong


def life(minutes: float, per_h: float, noise: float = 0.0) -> list[Sample]:
    """Return the samples of a process that grows evenly."""
    chance = random.Random(1)
    return [
        Sample(at_s, 10**8, 50, int(40 + per_h * at_s / 3600 + chance.uniform(-noise, noise)))
        for at_s in range(0, int(minutes * 60), 5)
    ]


def test_growth_is_seen_through_noise() -> None:
    """A thread every four minutes; none, though their number goes up and down."""
    leaks, swings = growth("leaks", life(60, 15, 2)), growth("swings", life(60, 0, 4))

    assert 12 < leaks.held_threads_per_h < 18
    assert abs(swings.held_threads_per_h) < 3
    assert ["leaks: 15 threads at work more each hour, at most 6"] == leaking([leaks, swings])


def test_a_pool_that_fills_is_no_leak() -> None:
    """Threads came all the time, and they are idle workers of pools; work that stays is one."""
    filled = [replace(one, resting=one.threads - 40) for one in life(60, 30)]
    stuck = [replace(one, resting=9) for one in life(60, 30)]

    assert [] == leaking([growth("fills", filled)])
    assert ["stuck: 30 threads at work more each hour, at most 6"] == leaking(
        [growth("stuck", stuck)]
    )


def test_idle_threads_of_more_pools_than_there_should_be_are_a_leak() -> None:
    """Each pool keeps to its bound: two by one name do not keep to that of one."""
    bounds = {"fetch": 4, "rpc": 64}

    assert [] == Threads({"fetch": 4, "rpc": 9, "web": 1}, {"fetch": 4}, bounds).beyond()
    assert ["8 threads called fetch, of a pool of 4"] == Threads(
        {"fetch": 8, "rpc": 9}, {"fetch": 8}, bounds
    ).beyond()


def test_threads_are_at_rest_that_wait_for_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for anything but work are not counted, in pools of either kind."""
    for pool in (ThreadPoolExecutor, TaskPool):
        monkeypatch.setattr(pool, "__init__", pool.__init__)  # to be as it was, afterwards
    bounds: dict[str, int] = {}
    note_pools(bounds)
    stop, busy_count = threading.Event(), threading.Semaphore(0)

    def work() -> None:
        busy_count.release()
        stop.wait()

    def task(_: TaskContext) -> None:
        work()

    tasks = TaskPool(TaskLimits(5, 10), name="soaked-task")
    with ThreadPoolExecutor(7, thread_name_prefix="soaked") as executor:
        try:
            executor.submit(work)
            executor.submit(work)
            tasks.submit(Task("scan", 1), task)
            tasks.submit(Task("scan", 2), lambda _: None)
            for _ in range(3):
                busy_count.acquire()
            wait_until(lambda: resting_of("soaked", "soaked-task") == [0, 1], "one task is done")
        finally:
            stop.set()
        wait_until(lambda: resting_of("soaked", "soaked-task") == [2, 2], "all wait for work")
    tasks.stop(10)

    assert {"soaked": 7, "soaked-task": 5} == {k: v for k, v in bounds.items() if "soaked" in k}


def resting_of(*kinds: str) -> list[int]:
    """Return how many threads of some kinds wait for work in this process."""
    resting = told({})["resting"]
    assert isinstance(resting, Counter)
    return [resting[kind] for kind in kinds]


def test_a_process_says_what_its_threads_do(tmp_path: Path) -> None:
    """While it runs, as the program that was named."""
    with (tmp_path / "log").open("ab") as log:
        words = ["http.server", "0", "--bind", "127.0.0.1"]
        process = launched_watched(tmp_path, words, log)
    try:
        wait_until(path_of(tmp_path, process.pid).exists, "it has written")
        threads = threads_of(tmp_path, process.pid)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    assert {"MainThread": 1, "watcher": 1} == threads.threads
    assert 0 == threads.resting_count
    assert Threads() == threads_of(tmp_path, 2**22 + 1)


def test_a_short_life_is_not_judged() -> None:
    """Memory use in the first minutes of a process says nothing about an hour."""
    short = Growth("new", LIFE_S_MIN - 1, 10**8, 10**9, 50, 1000, 40, 1000)

    assert [] == leaking([short])


def test_a_process_is_sampled_as_the_kernel_counts() -> None:
    """Memory, descriptors, threads; of one that has ended, nothing."""
    before = sampled(os.getpid())
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    fd = os.open("/dev/null", os.O_RDONLY)
    after = sampled(os.getpid())
    os.close(fd)
    stop.set()
    thread.join()

    assert before is not None
    assert after is not None
    assert (1, 1) == (after.threads - before.threads, after.descriptors - before.descriptors)
    assert after.anon_bytes > MIB
    assert sampled(2**22 + 1) is None
