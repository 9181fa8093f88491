"""Reading the files of a replica that is sent away: many small ones together."""

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from agent.store import readqueue
from agent.store.outflow import BlockFiles, spread_bytes
from agent.store.readqueue import READS_MAX, ReadQueue, address_of
from agent.store.writebehind import huge_pages
from merkle.replica import BlockId
from tests.support.page_cache import cached_pages, drop_pages

SIZES = [1, 511, 4_000, 4_096, 4_097, 70_000, *range(100, 100 + 2 * READS_MAX)]


@pytest.fixture
def chunks(tmp_path: Path) -> Path:
    """Block files 1, 2, ... of SIZES, on the disk and not in the page cache."""
    for number, size_bytes in enumerate(SIZES, start=1):
        path = tmp_path / f"{number}.block"
        path.write_bytes(os.urandom(size_bytes))
        drop_pages(path)
    return tmp_path


@pytest.fixture
def files(chunks: Path) -> Iterator[BlockFiles]:
    """The files, opened to be sent."""
    opened = BlockFiles(chunks)
    yield opened
    opened.close()


def read_whole(files: BlockFiles, wanted: list[tuple[int, int]]) -> list[bytes | int]:
    """Return what each file of (number, size) has, or the number of the error."""
    keys = [(BlockId(number), size_bytes) for number, size_bytes in wanted]
    buffer = memoryview(huge_pages(sum(spread_bytes(size) for _, size in keys)))
    return [
        (found.errno or 0) if isinstance(found, OSError) else bytes(found)
        for found in files.read_whole(keys, buffer)
    ]


def every(chunks: Path) -> list[bytes]:
    """Return the content of all files."""
    return [(chunks / f"{number}.block").read_bytes() for number in range(1, len(SIZES) + 1)]


def test_many_files_are_read_together(files: BlockFiles, chunks: Path) -> None:
    """Each byte is in its place, no file was read by itself, and no page of one was kept."""
    seen: list[str] = []

    def watch(_frame: FrameType, event: str, argument: object) -> None:
        if event == "c_call":
            seen.append(getattr(argument, "__name__", ""))

    sys.setprofile(watch)
    try:
        found = read_whole(files, list(enumerate(SIZES, start=1)))
    finally:
        sys.setprofile(None)

    assert 0 == sum(map(cached_pages, chunks.iterdir()))
    assert every(chunks) == found
    assert "preadv" not in seen


def test_where_the_kernel_has_no_queues_each_is_read_by_itself(
    files: BlockFiles, chunks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose calls we do not know sends the same bytes."""
    monkeypatch.setattr(readqueue, "NUMBERS", {})

    assert every(chunks) == read_whole(files, list(enumerate(SIZES, start=1)))


def test_one_file_that_cannot_be_read_says_why_and_the_others_are_read(
    files: BlockFiles, chunks: Path
) -> None:
    """Missing, a link, shorter or longer than its row says: each is told of that file alone."""
    (chunks / "2.block").unlink()
    (chunks / "3.block").unlink()
    (chunks / "3.block").symlink_to("4.block")
    wanted = [(1, 1), (2, 511), (3, 4_000), (4, 5_000), (5, 4_000), (6, 70_000)]

    first, second, third, fourth, fifth, sixth = read_whole(files, wanted)

    assert [errno.ENOENT, errno.ELOOP] == [second, third]
    assert [(chunks / "1.block").read_bytes(), (chunks / "4.block").read_bytes()] == [first, fourth]
    assert (chunks / "5.block").read_bytes()[:4_000] == fifth
    assert (chunks / "6.block").read_bytes() == sixth


def test_a_queue_tells_of_each_read_what_became_of_it(chunks: Path) -> None:
    """One that the kernel does not take holds up none of those behind it."""
    memory = memoryview(huge_pages(3 * 4_096))
    fds = [os.open(chunks / "3.block", os.O_RDONLY | os.O_DIRECT) for _ in range(3)]
    os.close(fds[1])
    queue = ReadQueue()
    try:
        reads = [(fd, address_of(memory[4_096 * index :]), 4_096) for index, fd in enumerate(fds)]
        results = queue.read(reads)
    finally:
        queue.close()
        os.close(fds[0])
        os.close(fds[2])

    assert [4_000, -errno.EBADF, 4_000] == results
    assert memory[:4_000] == memory[2 * 4_096 :][:4_000] == (chunks / "3.block").read_bytes()


def test_a_queue_that_was_closed_reads_nothing(chunks: Path) -> None:
    """It says so of each read, and leaves the memory as it is."""
    memory = memoryview(huge_pages(4_096))
    fd = os.open(chunks / "3.block", os.O_RDONLY | os.O_DIRECT)
    queue = ReadQueue()
    queue.close()
    try:
        assert [-errno.EINVAL] == queue.read([(fd, address_of(memory), 4_096)])
    finally:
        os.close(fd)
    assert bytes(4_096) == memory[:4_096]
