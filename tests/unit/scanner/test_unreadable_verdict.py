"""What could not be read for long is unreadable; all else is read as ever."""

import errno
from collections.abc import Callable

import pytest

from merkle.replica import BlockId
from scanner.chunk_verdict import RepeatedError
from scanner.ports import BlockFileReader, Structure
from scanner.unreadable_verdict import (
    WHY_CHARS_MAX,
    RetryingReader,
    UnreadableRecord,
    incremented,
    is_over,
)
from tests.support.storage.replica_reader import MemoryBlock, MemoryReader, MemoryReplica, noise

DATA = noise(100)


class Refusing(MemoryReader):
    """A reader that fails wherever it is asked for a file's content."""

    number = errno.EACCES

    def open_block(self, block_id: BlockId) -> BlockFileReader:  # noqa: ARG002
        raise OSError(self.number, "no")

    def read_whole(self, block_id: BlockId, length_bytes: int) -> memoryview:  # noqa: ARG002
        raise OSError(self.number, "no")


class RefusingFile(MemoryBlock):
    """An open file whose every answer is a failure."""

    @property
    def size_bytes(self) -> int:
        raise OSError(errno.EACCES, "no")

    def read(self, offset: int, length_bytes: int) -> memoryview:  # noqa: ARG002
        raise OSError(errno.EACCES, "no")

    def reread_past_cache(self, offset: int, length_bytes: int) -> bytes:  # noqa: ARG002
        raise OSError(errno.EACCES, "no")


class OpensRefusing(MemoryReader):
    """A reader whose files open, and then fail."""

    def open_block(self, block_id: BlockId) -> BlockFileReader:
        return RefusingFile(self.replica, block_id)


@pytest.fixture
def replica() -> MemoryReplica:
    """Return one block."""
    result = MemoryReplica()
    result.put(1, DATA)
    result.buried[BlockId(2)] = 5
    result.former[1, 0] = [b"old"]
    return result


def test_readable_file_is_read_as_usual(replica: MemoryReplica) -> None:
    """Rows, files, tombstones and former bytes are passed through."""
    reader = RetryingReader(MemoryReader(replica))
    file = reader.open_block(BlockId(1))

    assert 7 == reader.container_id
    assert [(1, replica.rows[1])] == list(reader.blocks())
    assert replica.rows[1] == reader.row(BlockId(1))
    assert {2: 5} == reader.tombstones()
    assert [b"old"] == reader.former_bytes(BlockId(1), 0)
    assert reader.is_current()
    assert DATA == bytes(reader.read_whole(BlockId(1), 100))
    assert (100, DATA[3:8], DATA[2:5]) == (
        file.size_bytes,
        bytes(file.read(3, 5)),
        file.reread_past_cache(2, 3),
    )
    file.close()
    structure = reader.structure()
    assert isinstance(structure, Structure)
    assert [1] == structure.block_files.tolist()


@pytest.mark.parametrize(
    "ask",
    [
        lambda reader: reader.open_block(BlockId(1)),
        lambda reader: reader.read_whole(BlockId(1), 100),
    ],
    ids=["open", "read"],
)
def test_a_failure_does_not_pass(
    replica: MemoryReplica, ask: Callable[[RetryingReader], object]
) -> None:
    """The failure is final unless the host is short of a resource or the file is missing."""
    reader = Refusing(replica)

    with pytest.raises(RepeatedError):
        ask(RetryingReader(reader))
    reader.number = errno.EMFILE
    with pytest.raises(OSError, match="no") as caught:
        ask(RetryingReader(reader))
    assert not isinstance(caught.value, RepeatedError)
    reader.number = errno.ENOENT
    with pytest.raises(FileNotFoundError):
        ask(RetryingReader(reader))


@pytest.mark.parametrize(
    "ask",
    [
        lambda file: file.size_bytes,
        lambda file: file.read(0, 1),
        lambda file: file.reread_past_cache(0, 1),
    ],
    ids=["size", "read", "reread"],
)
def test_repeated_error_of_an_open_file_is_raised(
    replica: MemoryReplica, ask: Callable[[BlockFileReader], object]
) -> None:
    """This holds for every call of the file."""
    file = RetryingReader(OpensRefusing(replica)).open_block(BlockId(1))

    with pytest.raises(RepeatedError):
        ask(file)


BEGAN_MS = 1_000_000
HOUR_MS = 3_600_000
MONTH_MS = 2_592_000_000  # of 30 days


@pytest.mark.parametrize(
    ("doubt", "expected"),
    [
        (None, False),
        (UnreadableRecord(3, BEGAN_MS, BEGAN_MS, "no"), True),
        (UnreadableRecord(2, BEGAN_MS, BEGAN_MS, "no"), False),
        (UnreadableRecord(3, BEGAN_MS + 1, BEGAN_MS + 1, "no"), False),
    ],
)
def test_three_failures_over_an_hour_are_no_accident(
    doubt: UnreadableRecord | None, expected: bool
) -> None:
    """Many failures at once, or two that are far apart, are not enough."""
    assert expected is is_over(doubt, BEGAN_MS + HOUR_MS)


def test_a_failure_more_is_counted_from_the_first() -> None:
    """The count begins again if the last failure is long past or the clock was set back."""
    had = UnreadableRecord(2, BEGAN_MS - 5, BEGAN_MS, "no")
    late_ms = BEGAN_MS + MONTH_MS

    assert UnreadableRecord(3, BEGAN_MS - 5, BEGAN_MS, "again") == incremented(
        had, BEGAN_MS, "again"
    )
    assert UnreadableRecord(3, BEGAN_MS - 5, late_ms, "again") == incremented(had, late_ms, "again")
    assert UnreadableRecord(1, late_ms + 1, late_ms + 1, "again") == incremented(
        had, late_ms + 1, "again"
    )
    assert UnreadableRecord(1, BEGAN_MS - 1, BEGAN_MS - 1, "again") == incremented(
        had, BEGAN_MS - 1, "again"
    )
    assert UnreadableRecord(1, 7, 7, "first") == incremented(None, 7, "first")


def test_why_it_failed_is_kept_in_brief() -> None:
    """
    A library may say a lot.
    """
    assert UnreadableRecord(1, 7, 7, "x" * WHY_CHARS_MAX) == incremented(
        None, 7, "x" * (WHY_CHARS_MAX + 1)
    )
