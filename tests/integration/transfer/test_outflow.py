"""Reading the files of a replica that is sent away: many small ones together."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType

import pytest

from agent.store.files import readqueue
from agent.store.files.blockfile import ALIGNMENT_BYTES
from agent.store.files.readqueue import READS_MAX, Read, ReadQueue, address_of
from agent.store.files.writebehind import huge_pages
from agent.store.index.packformat import PackedBlocks
from agent.store.operations.replica_export import ExportFiles, ReadsAhead, WholeFiles, spread_bytes
from merkle.replica import BlockId
from tests.support.faults.page_cache import cached_pages, drop_pages

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
def files(chunks: Path) -> Iterator[ExportFiles]:
    """The files, opened to be sent."""
    opened = ExportFiles(chunks, PackedBlocks.none())
    yield opened
    opened.close()


def read_whole(files: ExportFiles, wanted: list[tuple[int, int]]) -> list[bytes | int]:
    """Return what each file of (number, size) has, or the number of the error."""
    keys = [(BlockId(number), size_bytes) for number, size_bytes in wanted]
    room_bytes = sum(spread_bytes(size) for _, size in keys)
    with closing(WholeFiles(files, keys, room_bytes)) as reading:
        return [
            (found.errno or 0) if isinstance(found, OSError) else bytes(found)
            for found in reading.read_results()
        ]


def together(queue: ReadQueue, reads: list[Read]) -> list[int]:
    """Return what became of reads that were begun together."""
    queue.begin_all(reads)
    return queue.results()


def every(chunks: Path) -> list[bytes]:
    """Return the content of all files."""
    return [(chunks / f"{number}.block").read_bytes() for number in range(1, len(SIZES) + 1)]


def test_many_files_are_read_together(files: ExportFiles, chunks: Path) -> None:
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


def test_files_are_read_one_by_one_without_kernel_queues(
    files: ExportFiles, chunks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine with unknown system call numbers sends the same bytes."""
    monkeypatch.setattr(readqueue, "NUMBERS", {})

    assert every(chunks) == read_whole(files, list(enumerate(SIZES, start=1)))


def test_unreadable_file_does_not_stop_the_other_reads(files: ExportFiles, chunks: Path) -> None:
    """A file is missing, a link, or shorter or longer than its row. Only its own read has an
    error.
    """
    (chunks / "2.block").unlink()
    (chunks / "3.block").unlink()
    (chunks / "3.block").symlink_to("4.block")
    wanted = [(1, 1), (2, 511), (3, 4_000), (4, 5_000), (5, 4_000), (6, 70_000)]

    first, second, third, fourth, fifth, sixth = read_whole(files, wanted)

    assert [errno.ENOENT, errno.ELOOP] == [second, third]
    assert [(chunks / "1.block").read_bytes(), (chunks / "4.block").read_bytes()] == [first, fourth]
    assert (chunks / "5.block").read_bytes()[:4_000] == fifth
    assert (chunks / "6.block").read_bytes() == sixth


def test_files_whose_queue_breaks_are_read_one_by_one(
    files: ExportFiles, chunks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may say that it cannot wait; nothing is lost by it."""
    waits: list[int] = []

    def broken(_queue: ReadQueue, _count: int = 1) -> list[tuple[int, int]]:
        waits.append(1)
        raise OSError(errno.EFAULT, "it cannot say")

    monkeypatch.setattr(ReadQueue, "wait", broken)

    assert every(chunks) == read_whole(files, list(enumerate(SIZES, start=1)))
    assert waits


def test_files_that_nobody_wants_any_more_are_let_go_of(files: ExportFiles, chunks: Path) -> None:
    """Their memory can be used at once, and no descriptor is left open."""
    before = sorted(Path("/proc/self/fd").iterdir())
    keys = [(BlockId(number), size) for number, size in enumerate(SIZES, start=1)]

    for _ in range(100):
        WholeFiles(files, keys, 1024**2).close()
    found = read_whole(files, [(6, 70_000)])

    assert [(chunks / "6.block").read_bytes()] == found
    assert before == sorted(Path("/proc/self/fd").iterdir())


@pytest.fixture
def ahead(files: ExportFiles) -> Iterator[ReadsAhead]:
    """Reads that are waited for later."""
    opened = ReadsAhead(files)
    yield opened
    opened.close()


def pages(count: int) -> memoryview:
    """Return whole pages of memory."""
    return memoryview(huge_pages(count * ALIGNMENT_BYTES))


def test_reads_are_waited_for_in_any_order(ahead: ReadsAhead, chunks: Path) -> None:
    """Each memory has its part of its file, no page was kept, and no descriptor is left open."""
    before = sorted(Path("/proc/self/fd").iterdir())
    places = [(6, 0, 8), (6, 8, 8), (4, 0, 1), (5, 0, 2)]  # block, first page, pages
    memory = [pages(count) for _, _, count in places]
    numbers = [
        ahead.begin(BlockId(block), first * ALIGNMENT_BYTES, target)
        for (block, first, _), target in zip(places, memory, strict=True)
    ]

    counts = [ahead.count(number) for number in reversed(numbers)]

    assert 0 == sum(map(cached_pages, chunks.iterdir()))
    data = {block: (chunks / f"{block}.block").read_bytes() for block, _, _ in places}
    wanted = [
        data[block][first * ALIGNMENT_BYTES :][: count * ALIGNMENT_BYTES]
        for block, first, count in places
    ]
    assert wanted == [bytes(m[:n]) for m, n in zip(memory, reversed(counts), strict=True)]
    assert before == sorted(Path("/proc/self/fd").iterdir())


def test_places_are_used_again(ahead: ReadsAhead, chunks: Path) -> None:
    """The reads under way are as many as the queue's places. One more is refused and not
    started.
    """
    target = pages(1)
    numbers = [ahead.begin(BlockId(4), 0, target) for _ in range(READS_MAX)]
    with pytest.raises(BlockingIOError):
        ahead.begin(BlockId(4), 0, target)
    assert [4_096] * READS_MAX == [ahead.count(number) for number in numbers]

    assert 4_096 == ahead.count(ahead.begin(BlockId(4), 0, target))
    assert (chunks / "4.block").read_bytes() == target


def test_a_read_that_cannot_begin_or_fails_says_so(ahead: ReadsAhead, files: ExportFiles) -> None:
    """A missing file fails at once. A read that the kernel rejects fails when its result is
    requested.
    """
    with pytest.raises(FileNotFoundError):
        ahead.begin(BlockId(999), 0, pages(1))
    number = ahead.begin(BlockId(6), 0, pages(2)[1 : ALIGNMENT_BYTES + 1])  # not at a page
    with pytest.raises(OSError, match="Invalid argument"):
        ahead.count(number)
    assert 0 == ahead.count(ahead.begin(BlockId(6), 1024 * ALIGNMENT_BYTES, pages(1)))
    assert files.size_bytes(BlockId(6)) == 70_000


def test_without_queues_nothing_is_read_ahead(
    files: ExportFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller reads it in another way then."""
    monkeypatch.setattr(readqueue, "NUMBERS", {})
    ahead = ReadsAhead(files)
    with pytest.raises(OSError, match="a queue is full"):
        ahead.begin(BlockId(6), 0, pages(1))
    ahead.close()


def test_a_queue_tells_of_each_read_what_became_of_it(chunks: Path) -> None:
    """A read that the kernel rejects does not delay those behind it."""
    memory = memoryview(huge_pages(3 * 4_096))
    fds = [os.open(chunks / "3.block", os.O_RDONLY | os.O_DIRECT) for _ in range(3)]
    os.close(fds[1])
    queue = ReadQueue()
    try:
        reads = [(fd, address_of(memory[4_096 * i :]), 4_096, 0) for i, fd in enumerate(fds)]
        results = together(queue, reads)
    finally:
        queue.close()
        os.close(fds[0])
        os.close(fds[2])

    assert [4_000, -errno.EBADF, 4_000] == results
    assert memory[:4_000] == memory[2 * 4_096 :][:4_000] == (chunks / "3.block").read_bytes()


def test_a_queue_reads_from_the_start_what_is_whole(chunks: Path) -> None:
    """The queue reads it from the start although its place was used for a later part before."""
    memory = pages(2)
    fd = os.open(chunks / "6.block", os.O_RDONLY | os.O_DIRECT)
    queue = ReadQueue()
    try:
        queue.begin(0, (fd, address_of(memory), 4_096, 8 * 4_096))
        assert [(0, 4_096)] == queue.wait()
        assert [4_096] == together(queue, [(fd, address_of(memory), 4_096, 0)])
        assert [] == together(queue, [])
    finally:
        queue.close()
        os.close(fd)

    assert (chunks / "6.block").read_bytes()[:4_096] == memory[:4_096]


def test_a_queue_that_was_closed_reads_nothing(chunks: Path) -> None:
    """Each read gets an error, and the memory stays as it is."""
    memory = memoryview(huge_pages(4_096))
    fd = os.open(chunks / "3.block", os.O_RDONLY | os.O_DIRECT)
    queue = ReadQueue()
    queue.close()
    try:
        assert [-errno.EINVAL] == together(queue, [(fd, address_of(memory), 4_096, 0)])
    finally:
        os.close(fd)
    assert bytes(4_096) == memory[:4_096]


def test_a_queue_that_is_closed_twice_closes_no_other(chunks: Path) -> None:
    """The kernel gives the next queue the number of the one that has gone."""
    first = ReadQueue()
    number = first._context.value
    first.close()
    second = ReadQueue()
    assert number == second._context.value, "nothing is tested otherwise"
    memory = pages(1)
    fd = os.open(chunks / "3.block", os.O_RDONLY | os.O_DIRECT)
    try:
        first.close()
        assert [4_000] == together(second, [(fd, address_of(memory), 4_096, 0)])
        with pytest.raises(OSError, match="Invalid argument"):
            first.begin(0, (fd, address_of(memory), 4_096, 0))
    finally:
        os.close(fd)
        second.close()


def test_a_queue_that_breaks_ends_what_is_under_way(
    ahead: ReadsAhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read fails, none writes to its memory later, and no descriptor is left."""
    before = sorted(Path("/proc/self/fd").iterdir())
    numbers = [ahead.begin(BlockId(6), 0, pages(8)) for _ in range(3)]

    def broken(_queue: ReadQueue, _count: int = 1) -> list[tuple[int, int]]:
        raise OSError(errno.EFAULT, "it cannot say")

    monkeypatch.setattr(ReadQueue, "wait", broken)
    for number in numbers:
        with pytest.raises(OSError, match="Input/output error"):
            ahead.count(number)
    assert before == sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises(OSError, match="Invalid argument"):
        ahead.begin(BlockId(6), 0, pages(1))
    assert before == sorted(Path("/proc/self/fd").iterdir())
