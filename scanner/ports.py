"""The interfaces through which a scan reads a replica.

The scanner verifies data, and implementations of the interfaces access the disk.
`agent.store.scan_reader.StoreReplicaReader` reads a volume; tests supply damaged data.

Read errors are raised as `OSError`. The errno distinguishes faults of the data, the volume and the
process (`scanner.chunk_verdict.read_failure`). If a block is deleted during the scan, `row` returns
None. If the replica is deleted, the implementation raises its own error, which ends the scan.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from merkle.checksum_columns import U64s
from merkle.replica import BlockId, ContainerId
from scanner.finding import DamageFault

Content: TypeAlias = bytes | memoryview


class BlockFileReader(Protocol):
    """An open block file, which is read past the page cache."""

    @property
    def size_bytes(self) -> int:
        """Current length of the file."""
        ...

    def read(self, offset: int, length_bytes: int) -> memoryview:
        """Read bytes into a buffer that the next read of any block uses again. Return a view of the
        buffer.

        The view is shorter than `length_bytes` only at the end of the file. Raise OSError if the
        read fails.
        """
        ...

    def reread_past_cache(self, offset: int, length_bytes: int) -> Content:
        """Read bytes past the page cache into a buffer that `read` does not use. Return the bytes.
        A view is valid until the next reread of any block."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


@dataclass(frozen=True, slots=True)
class StructureFault:
    """A fault of a replica's directory or of one of its files, except the block files.

    If `is_unreadable` is True, the file may exist, but cannot be accessed.
    """

    fault: DamageFault
    evidence: str
    is_unreadable: bool = False


@dataclass(frozen=True, slots=True)
class Structure:
    """The files in a replica's directory, and the blocks that the replica should have.

    `block_files` has the ids of the blocks with a file, in ascending order. `expected_blocks` has
    the ids of the blocks in the replica's tree and in earlier findings, in ascending order. An
    expected block with neither row nor tombstone is lost. A file without a row, whose block is not
    expected, was never committed. If the tree cannot be read, `block_count_min` is the number of
    blocks in the last readable tree; 0 = unknown.
    """

    faults: tuple[StructureFault, ...]
    block_files: U64s
    expected_blocks: U64s
    block_count_min: int = 0


class ReadSplitting(Protocol):
    """Splits large reads of a scan while other tasks need the disk."""

    def piece_bytes(self) -> int:
        """Return the maximum number of bytes of one read; 0 = unlimited."""
        ...

    def throttle_part(self, length_bytes: int) -> None:
        """Count the bytes of a piece of a read, and wait until the next piece may be read. Not
        called for the last piece."""
        ...


class ReplicaReader(Protocol):
    """Gives a scan access to the rows and files of one replica."""

    @property
    def container_id(self) -> ContainerId:
        """Id of the container."""
        ...

    def blocks(self) -> Iterator[tuple[BlockId, bytes]]:
        """Yield (block id, row) for each block, in ascending order of the ids. `merkle.blockrow`
        describes the rows."""
        ...

    def row(self, block_id: BlockId) -> bytes | None:
        """Return the current row of a block. Return None if the block was deleted."""
        ...

    def tombstones(self) -> Mapping[BlockId, int]:
        """Return the checksum of each deleted block, by block id."""
        ...

    def open_block(self, block_id: BlockId) -> BlockFileReader:
        """Open the file of a block. Raise FileNotFoundError if there is none."""
        ...

    def read_whole(self, block_id: BlockId, length_bytes: int) -> memoryview:
        """Read the complete file of a small block. The method opens and closes the file.

        Return a view that is valid until the next read of any block. If the file does not have
        `length_bytes` bytes, the view is shorter or longer. Raise OSError if the file cannot be
        read.
        """
        ...

    def former_bytes(self, block_id: BlockId, offset: int) -> Iterable[bytes]:
        """Return a few known earlier contents of the chunk at this position, the newest first."""
        ...

    def structure(self) -> Structure:
        """List the replica's files, and check its descriptor, tree file and directories."""
        ...

    def is_current(self) -> bool:
        """Return True if the replica still has the generation that it had at the start of the
        scan."""
        ...
