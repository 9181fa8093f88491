"""Writing the files of an arrival: every byte in its place, what is large durable by itself."""

import os
import resource
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from agent.store.files.writebehind import (
    BUFFER_BYTES,
    BUFFERS_COUNT,
    CACHED_BYTES_MAX,
    CACHED_COUNT_MAX,
    LARGE_BYTES_MIN,
    SMALL_BYTES_MAX,
    FileWriter,
)
from suture.runtime.durable import sync_file_system
from tests.support.faults.page_cache import cached_pages

MIB = 1024**2
STEP_BYTES = 300_007  # of no buffer's size
BYTES_PER_STAT_BLOCK = 512  # stat(2)


@contextmanager
def directory(path: Path) -> Iterator[int]:
    """Open a directory."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def write(writer: FileWriter, name: str, data: bytes, *, is_announced: bool = True) -> None:
    """Write one file in steps."""
    writer.begin(name, len(data) if is_announced else 0)
    view = memoryview(data)
    for start in range(0, len(view), STEP_BYTES):
        writer.append(view[start : start + STEP_BYTES])
    writer.end()


def write_two(writer: FileWriter, data: bytes, *, is_announced: bool) -> None:
    """Write two files and wait for them."""
    write(writer, "1.block", data, is_announced=is_announced)
    write(writer, "2.block", data, is_announced=is_announced)
    writer.wait_written()


def calls_to_sync(writer: FileWriter, name: str, data: bytes) -> list[str]:
    """Return the calls that made a file durable or ended it, in their order."""
    seen: list[str] = []

    def watch(_frame: FrameType, event: str, argument: object) -> None:
        called = getattr(argument, "__name__", "")
        if event == "c_call" and called in {"fsync", "pwrite", "close"}:
            seen.append(called)

    sys.setprofile(watch)
    try:
        write(writer, name, data)
        writer.wait_written()
    finally:
        sys.setprofile(None)
    return seen


def test_files_written_by_many_threads_hold_what_was_appended(tmp_path: Path) -> None:
    """Files of all sizes, in more pieces than there are buffers, are those that were given."""
    sizes = [
        1,
        BUFFER_BYTES,
        BUFFER_BYTES * BUFFERS_COUNT * 3 + 17,
        LARGE_BYTES_MIN,
        4_096,
        LARGE_BYTES_MIN + 5,
    ]
    contents = {f"{index}.block": os.urandom(size) for index, size in enumerate(sizes)}
    with directory(tmp_path) as fd, ThreadPoolExecutor(4) as executor:
        writer = FileWriter(fd, executor.submit)
        for name, data in contents.items():
            write(writer, name, data)
        writer.write_whole([("small.block", memoryview(b"small"))])
        writer.wait_written()
    contents["small.block"] = b"small"
    assert contents == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def test_a_large_file_is_synced_after_its_last_byte_and_before_it_is_closed(tmp_path: Path) -> None:
    """A synced file is not synced again, so it must not count as unsynced."""
    with directory(tmp_path) as fd:
        writer = FileWriter(fd, None)
        calls = calls_to_sync(writer, "1.block", bytes(LARGE_BYTES_MIN + 1))
        assert calls[-3:] == ["pwrite", "fsync", "close"]
        assert writer.unsynced_count == 0


def test_files_that_were_not_synced_are_counted(tmp_path: Path) -> None:
    """For them the caller has to sync the file system."""
    with directory(tmp_path) as fd:
        writer = FileWriter(fd, None)
        assert "fsync" not in calls_to_sync(writer, "1.block", bytes(LARGE_BYTES_MIN - 1))
        writer.write_whole([("2.block", memoryview(b"2")), ("3.block", memoryview(b"3"))])
        writer.wait_written()
        assert writer.unsynced_count == 3


def test_small_files_leave_the_page_cache_some_at_a_time(tmp_path: Path) -> None:
    """Small files are synced together beside the writing, and the caller has to drop only the
    last ones.
    """
    early = [f"{number}.block" for number in range(CACHED_BYTES_MAX // SMALL_BYTES_MAX)]
    names = [*early, "late.block"]
    data = os.urandom(SMALL_BYTES_MAX)
    with directory(tmp_path) as fd, ThreadPoolExecutor(4) as executor:
        writer = FileWriter(fd, executor.submit)
        for start in range(0, len(names), 16):
            writer.write_whole([(name, memoryview(data)) for name in names[start:][:16]])
        writer.wait_written()
        left = sum(cached_pages(tmp_path / name) for name in early)
        sync_file_system(fd)
        writer.drop_cached()
    assert 0 == left
    assert 0 == cached_pages(tmp_path / "late.block")
    assert {data} == {(tmp_path / name).read_bytes() for name in names}


def test_files_that_are_in_memory_alone_are_not_asked_to_leave_it() -> None:
    """The kernel would look for the pages of each on every processor: that took half of a copy."""
    calls: list[str] = []

    def watch(_frame: FrameType, event: str, argument: object) -> None:
        if event == "c_call":
            calls.append(getattr(argument, "__name__", ""))

    with tempfile.TemporaryDirectory(dir="/dev/shm") as path, directory(Path(path)) as fd:
        writer = FileWriter(fd, None)
        writer.write_whole([("1.block", memoryview(b"x"))])
        sys.setprofile(watch)
        try:
            writer.drop_cached()
        finally:
            sys.setprofile(None)
    assert "posix_fadvise" not in calls


def test_files_between_small_and_large_pass_the_page_cache_by(tmp_path: Path) -> None:
    """Such files do not wait for others, because each is worth a request to the disk."""
    with directory(tmp_path) as fd:
        writer = FileWriter(fd, None)
        writer.write_whole([("1.block", memoryview(bytes(SMALL_BYTES_MAX + 1)))])
        sync_file_system(fd)
        assert 0 == cached_pages(tmp_path / "1.block")


def test_a_sync_beside_that_fails_is_told(tmp_path: Path) -> None:
    """A file that has gone before it was synced is none that has arrived."""
    with directory(tmp_path) as fd, ThreadPoolExecutor(4) as executor:
        writer = FileWriter(fd, executor.submit)
        writer.write_whole([("0.block", memoryview(b"0"))])
        writer.wait_written()
        (tmp_path / "0.block").unlink()
        files = [(f"{number}.block", memoryview(b"x")) for number in range(1, CACHED_COUNT_MAX)]
        writer.write_whole(files)
        with pytest.raises(FileNotFoundError):
            writer.wait_written()
        writer.abandon()


def test_a_write_that_stops_early_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may take less than it was given."""
    write_some, data = os.write, bytes(range(200)) * 7
    taken: list[int] = []

    def half(fd: int, given: memoryview) -> int:
        taken.append(write_some(fd, given[: len(given) // 2]))
        return taken[-1]

    with directory(tmp_path) as fd:
        writer = FileWriter(fd, None)
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", half)
            writer.write_whole([("1.block", memoryview(data))])

    assert [len(data) // 2] == taken
    assert data == (tmp_path / "1.block").read_bytes()


def test_whole_files_are_created_by_one_thread_at_a_time(tmp_path: Path) -> None:
    """A directory has one lock: threads that fight for it take twice the processor time."""
    busy: list[str] = []
    most: list[int] = []

    def watch(_frame: FrameType, event: str, argument: object) -> None:
        if getattr(argument, "__name__", "") != "open" or not event.startswith("c_"):
            return
        if event == "c_call":
            busy.append(threading.current_thread().name)
            most.append(len(busy))
        else:
            busy.remove(threading.current_thread().name)

    threading.setprofile(watch)
    try:
        with directory(tmp_path) as fd, ThreadPoolExecutor(4) as executor:
            writer = FileWriter(fd, executor.submit)
            for start in range(0, 2_000, 100):
                names = [f"{number}.block" for number in range(start, start + 100)]
                writer.write_whole([(name, memoryview(b"x")) for name in names])
            writer.wait_written()
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    assert 2_000 == len(most)
    assert 1 == max(most)


def test_a_large_file_has_its_place_before_its_bytes(tmp_path: Path) -> None:
    """A full disk is reported before a byte is sent, and several writes go to one file at once."""
    with directory(tmp_path) as fd:
        writer = FileWriter(fd, None)
        allocated_bytes = writer.begin("1.block", LARGE_BYTES_MIN)
        facts = (tmp_path / "1.block").stat()
        writer.abandon()
        assert LARGE_BYTES_MIN == allocated_bytes == facts.st_size
        assert LARGE_BYTES_MIN <= facts.st_blocks * BYTES_PER_STAT_BLOCK

        assert 0 == writer.begin("2.block", LARGE_BYTES_MIN - 1)
        assert 0 == (tmp_path / "2.block").stat().st_size
        writer.abandon()


def test_a_file_that_is_in_memory_alone_gets_no_place_before() -> None:
    """The kernel would write zeros to all of it first."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path, directory(Path(path)) as fd:
        writer = FileWriter(fd, None)
        assert 0 == writer.begin("1.block", LARGE_BYTES_MIN)
        writer.abandon()


@pytest.mark.parametrize("is_announced", [False, True])
@pytest.mark.parametrize("has_threads", [False, True])
def test_a_failed_write_is_told_and_leaves_no_descriptor_open(
    tmp_path: Path, has_threads: bool, is_announced: bool
) -> None:
    """The error of a write is raised by the next call, and `abandon` closes the rest. A file
    without room fails at once.
    """
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    with directory(tmp_path) as fd, ThreadPoolExecutor(4) as executor:
        executor.submit(int).result()
        before = sorted(Path("/proc/self/fd").iterdir())
        writer = FileWriter(fd, executor.submit if has_threads else None)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20 * MIB, limit[1]))
        try:
            with pytest.raises(OSError, match="too large"):
                write_two(writer, bytes(21 * MIB), is_announced=is_announced)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            writer.abandon()
        assert before == sorted(Path("/proc/self/fd").iterdir())
