"""When is what cannot be read UNREADABLE: what failed three times, over an hour, does not pass.

One failure says nothing about the data, whatever its errno, if nobody listed that as the device's:
rights that somebody is just changing, a network that comes back, a medium of which no two reads of
a chunk agree. Scans count them (`Doubt`); from the third on, an hour after the first, the next scan
reads through `Insistent`: the same failure is then the verdict on what fails, block by block. A
host that is short of something never is.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from merkle.replica import BlockId, ContainerId
from scanner.chunk_verdict import insisted
from scanner.ports import BlockReader, ReplicaReader, Structure

TRIES_MIN: Final = 3  # one may be an accident, and the second its echo
SPAN_MS_MIN: Final = 3_600_000  # longer than an operator's slip, or a restart of what serves a disk
FORGOTTEN_MS: Final = 30 * 24 * 3_600_000  # failures that lie further apart are not one trouble
WHY_CHARS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Doubt:
    """How often, since when and until when a replica could not be read, and why last."""

    count: int
    first_at_ms: int
    last_at_ms: int
    why: str


class KeptDoubts(Protocol):
    """What is kept of one replica, wherever that is."""

    def note(self, why: str) -> None:
        """Count a scan that ended because something could not be read; durable when it returns."""
        ...

    def are_over(self) -> bool:
        """Return whether what fails now is to be called UNREADABLE."""
        ...

    def are_noted(self) -> bool:
        """Return whether any scan since the last whole one could not read something."""
        ...


def grown(had: Doubt | None, now_ms: int, why: str) -> Doubt:
    """Return the doubt after one failure more."""
    if had is None or not 0 <= now_ms - had.last_at_ms <= FORGOTTEN_MS:
        had = Doubt(0, now_ms, now_ms, "")
    return Doubt(had.count + 1, had.first_at_ms, now_ms, why[:WHY_CHARS_MAX])


def is_over(doubt: Doubt | None, now_ms: int) -> bool:
    """Return whether failures have become so many, over so long a time, that they do not pass."""
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
        raise insisted(error) from error


class _InsistentFile:
    """One open block file."""

    def __init__(self, file: BlockReader) -> None:
        self._file = file
        self.close = file.close

    @property
    def size_bytes(self) -> int:
        """Length of the file now."""
        with _insisting():
            return self._file.size_bytes

    def read(self, offset: int, length_bytes: int) -> memoryview:
        """Read as the file does."""
        with _insisting():
            return self._file.read(offset, length_bytes)

    def reread_past_cache(self, offset: int, length_bytes: int) -> bytes:
        """Ask the medium again as the file does."""
        with _insisting():
            return self._file.reread_past_cache(offset, length_bytes)


class Insistent:
    """A `ReplicaReader` over another."""

    def __init__(self, reader: ReplicaReader) -> None:
        self._reader = reader
        self.blocks = reader.blocks
        self.row = reader.row
        self.is_current = reader.is_current

    @property
    def container_id(self) -> ContainerId:
        """Whose replica this is."""
        return self._reader.container_id

    def tombstones(self) -> Mapping[BlockId, int]:
        """Return the deleted blocks and their checksums."""
        return self._reader.tombstones()

    def open_block(self, block_id: BlockId) -> BlockReader:
        """Open the block's file; raise FileNotFoundError when there is none."""
        with _insisting():
            return _InsistentFile(self._reader.open_block(block_id))

    def read_whole(self, block_id: BlockId, length_bytes: int) -> memoryview:
        """Read a small block as the reader does."""
        with _insisting():
            return self._reader.read_whole(block_id, length_bytes)

    def former_bytes(self, block_id: BlockId, offset: int) -> Iterable[bytes]:
        """Return what was at this place before."""
        return self._reader.former_bytes(block_id, offset)

    def structure(self) -> Structure:
        """List the replica's files as the reader does, which insists by itself."""
        return self._reader.structure()
