"""Writing the files of an arrival: every byte in its place, what is large durable by itself."""

import os
import resource
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from agent.store.writebehind import BUFFER_BYTES, BUFFERS_COUNT, SYNCED_BYTES_MIN, FileWriter

MIB = 1024**2
STEP_BYTES = 300_007  # of no buffer's size


@contextmanager
def directory(path: Path) -> Iterator[int]:
    """Open a directory."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def write(writer: FileWriter, name: str, data: bytes) -> None:
    """Write one file in steps."""
    writer.begin(name)
    view = memoryview(data)
    for start in range(0, len(view), STEP_BYTES):
        writer.append(view[start : start + STEP_BYTES])
    writer.end()


def write_two(writer: FileWriter, data: bytes) -> None:
    """Write two files and wait for them."""
    write(writer, "1.block", data)
    write(writer, "2.block", data)
    writer.settle()


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
        writer.settle()
    finally:
        sys.setprofile(None)
    return seen


def test_files_written_by_many_threads_hold_what_was_appended(tmp_path: Path) -> None:
    """Files of all sizes, in more pieces than there are buffers, are those that were given."""
    sizes = [
        1,
        BUFFER_BYTES,
        BUFFER_BYTES * BUFFERS_COUNT * 3 + 17,
        SYNCED_BYTES_MIN,
        4_096,
        SYNCED_BYTES_MIN + 5,
    ]
    contents = {f"{index}.block": os.urandom(size) for index, size in enumerate(sizes)}
    with directory(tmp_path) as fd, ThreadPoolExecutor(4) as executor:
        writer = FileWriter(fd, executor.submit)
        for name, data in contents.items():
            write(writer, name, data)
        writer.write_whole([("small.block", memoryview(b"small"))])
        writer.settle()
    contents["small.block"] = b"small"
    assert contents == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def test_a_large_file_is_synced_after_its_last_byte_and_before_it_is_closed(tmp_path: Path) -> None:
    """Nobody has to wait for it again, so it must not count as unsynced without having been."""
    with directory(tmp_path) as fd:
        writer = FileWriter(fd, None)
        calls = calls_to_sync(writer, "1.block", bytes(SYNCED_BYTES_MIN + 1))
        assert calls[-3:] == ["pwrite", "fsync", "close"]
        assert writer.unsynced_count == 0


def test_files_that_were_not_synced_are_counted(tmp_path: Path) -> None:
    """For them the caller has to sync the file system."""
    with directory(tmp_path) as fd:
        writer = FileWriter(fd, None)
        assert "fsync" not in calls_to_sync(writer, "1.block", bytes(SYNCED_BYTES_MIN - 1))
        writer.write_whole([("2.block", memoryview(b"2")), ("3.block", memoryview(b"3"))])
        writer.settle()
        assert writer.unsynced_count == 3


@pytest.mark.parametrize("has_threads", [False, True])
def test_a_failed_write_is_told_and_leaves_no_descriptor_open(
    tmp_path: Path, has_threads: bool
) -> None:
    """What one write failed with comes out of the next call, and `abandon` closes the rest."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    with directory(tmp_path) as fd, ThreadPoolExecutor(4) as executor:
        executor.submit(int).result()
        before = sorted(Path("/proc/self/fd").iterdir())
        writer = FileWriter(fd, executor.submit if has_threads else None)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20 * MIB, limit[1]))
        try:
            with pytest.raises(OSError, match="too large"):
                write_two(writer, bytes(21 * MIB))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            writer.abandon()
        assert before == sorted(Path("/proc/self/fd").iterdir())
