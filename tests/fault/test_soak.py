"""What the soak relies on: its disks lose what was not synced, and its judges see what is wrong."""

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from suture import KeyNotFound, Unavailable
from suture.errors import Code
from tools.soak.disks import LEFT_BYTES, LoopDisk, NoLoopDevices
from tools.soak.leaks import Growth, Sample, growth, sampled
from tools.soak.load import Fate, Key, Oracle, look
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
    """Though it could be read until then."""
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


def known(fate: Fate) -> Key:
    """Return a key of which this is known."""
    return Key("soak/1/0000001", 1000, fate)


GONE = KeyNotFound(Code.KEY_NOT_FOUND, "no such key")
AWAY = Unavailable(Code.UNAVAILABLE, "nobody answers")


@pytest.mark.parametrize(
    ("fate", "answer", "blames"),
    [
        (Fate.STORED, "right", 0),
        (Fate.STORED, "wrong", 1),
        (Fate.STORED, GONE, 1),
        (Fate.STORED, AWAY, 0),
        (Fate.GONE, GONE, 0),
        (Fate.GONE, "right", 1),
        (Fate.EITHER_STORED, GONE, 0),
        (Fate.EITHER_STORED, "right", 0),
        (Fate.EITHER_STORED, "wrong", 1),
        (Fate.EITHER_GONE, GONE, 0),
        (Fate.EITHER_GONE, "right", 0),
    ],
)
def test_a_key_is_judged_by_what_was_acknowledged(
    fate: Fate, answer: str | Exception, blames: int
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

    assert 12 < leaks.threads_per_h < 18
    assert abs(swings.threads_per_h) < 3
    assert ["leaks: 15 threads more each hour, at most 6"] == leaking([leaks, swings])


def test_a_short_life_is_not_judged() -> None:
    """What a process takes in its first minutes says nothing about an hour."""
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
