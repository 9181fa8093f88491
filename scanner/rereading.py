"""Reading that insists: what could not be read again and again is unreadable, whatever the errno.

A failure that nobody listed as the device's is no verdict, because it may pass. Where it has not
passed for long (who reads keeps count), the next scan reads through this: the same failure is then
the verdict on what fails, block by block. A host that is short of something never is.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from merkle.replica import BlockId, ContainerId
from scanner.chunk_verdict import insisted
from scanner.ports import BlockReader, ReplicaReader, Structure


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
