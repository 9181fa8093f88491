"""Decides when a read failure means that data is UNREADABLE: after three failures over at least an
hour.

The cause of a single read failure may be changed permissions, a network outage, or a disk whose
reads differ. Unless its errno is listed as a device error, the failure says nothing about the data.
Scans count such failures (`UnreadableRecord`). After three failures over at least an hour, the next
scan reads through `RetryingReader`, which reports another failure as UNREADABLE for the block. If
the host lacks a resource, data is never reported as UNREADABLE.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from merkle.replica import BlockId, ContainerId
from scanner.chunk_verdict import persistent_error
from scanner.ports import BlockFileReader, Content, ReplicaReader

TRIES_MIN: Final = 3  # a single failure and a retry are not enough
SPAN_MS_MIN: Final = 3_600_000  # longer than an operator's mistake or a server restart
FORGOTTEN_MS: Final = 30 * 24 * 3_600_000  # failures further apart are unrelated
WHY_CHARS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """The number of read failures of a replica, the times of the first and the last, and the last
    reason."""

    count: int
    first_at_ms: int
    last_at_ms: int
    why: str


class UnreadableRecords(Protocol):
    """Stores the read failures of one replica."""

    def record_failure(self, why: str) -> None:
        """Record that a scan ended because of a read failure. When the method returns, the record
        is durable."""
        ...

    def are_over(self) -> bool:
        """Return True if there were enough failures that the next scan must report a read failure
        as UNREADABLE."""
        ...

    def are_noted(self) -> bool:
        """Return True if a read has failed since the last complete scan."""
        ...


def incremented(had: UnreadableRecord | None, now_ms: int, why: str) -> UnreadableRecord:
    """Return the record `had` with one more failure at `now_ms`.

    Begin a new record if `had` is None, or if its last failure is older than FORGOTTEN_MS.
    """
    if had is None or not 0 <= now_ms - had.last_at_ms <= FORGOTTEN_MS:
        had = UnreadableRecord(0, now_ms, now_ms, "")
    return UnreadableRecord(had.count + 1, had.first_at_ms, now_ms, why[:WHY_CHARS_MAX])


def is_over(doubt: UnreadableRecord | None, now_ms: int) -> bool:
    """Return True if the record has at least `TRIES_MIN` failures over at least `SPAN_MS_MIN`."""
    if doubt is None or doubt.count < TRIES_MIN:
        return False
    return now_ms - doubt.first_at_ms >= SPAN_MS_MIN


@contextmanager
def _insisting() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise persistent_error(error) from error


class _InsistentFile:
    """An open block file that raises RepeatedError if a read fails."""

    def __init__(self, file: BlockFileReader) -> None:
        self._file = file
        self.close = file.close

    @property
    def size_bytes(self) -> int:
        """Current length of the file."""
        with _insisting():
            return self._file.size_bytes

    def read(self, offset: int, length_bytes: int) -> memoryview:
        """Read as the wrapped file does. Raise RepeatedError if the read fails."""
        with _insisting():
            return self._file.read(offset, length_bytes)

    def reread_past_cache(self, offset: int, length_bytes: int) -> Content:
        """Read past the page cache as the wrapped file does. Raise RepeatedError if the read
        fails."""
        with _insisting():
            return self._file.reread_past_cache(offset, length_bytes)


class RetryingReader:
    """Wraps a `ReplicaReader`, and raises RepeatedError if a read fails."""

    def __init__(self, reader: ReplicaReader) -> None:
        self._reader = reader
        self.blocks = reader.blocks
        self.row = reader.row
        self.tombstones = reader.tombstones
        self.former_bytes = reader.former_bytes
        self.structure = reader.structure  # the wrapped reader handles `insists` itself
        self.is_current = reader.is_current

    @property
    def container_id(self) -> ContainerId:
        """Id of the container."""
        return self._reader.container_id

    def open_block(self, block_id: BlockId) -> BlockFileReader:
        """Open the file of a block. Raise FileNotFoundError if there is none."""
        with _insisting():
            return _InsistentFile(self._reader.open_block(block_id))

    def read_whole(self, block_id: BlockId, length_bytes: int) -> memoryview:
        """Read a small block as the wrapped reader does. Raise RepeatedError if the read fails."""
        with _insisting():
            return self._reader.read_whole(block_id, length_bytes)
