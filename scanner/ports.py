"""The interfaces through which a scan reads a replica.

The scanner judges data, and implementations of the interfaces access the disk:
`agent.store.scan_reader.StoreReplicaReader` reads a volume, and tests supply damaged data.

Errors are `OSError`. The errno distinguishes faults of the data, the volume and the process
(`scanner.chunk_verdict.read_failure`). If a block is deleted during the scan, `row` returns None.
If the replica is deleted, the store raises its own error, which ends the scan.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from merkle.checksum_columns import U64s
from merkle.replica import BlockId, ContainerId
from scanner.finding import DamageFault


class BlockFileReader(Protocol):
    """An open block file, read past the page cache."""

    @property
    def size_bytes(self) -> int:
        """Current length of the file."""
        ...

    def read(self, offset: int, length_bytes: int) -> memoryview:
        """Read into a reused buffer. The view is valid until the next read of any block.

        The view is shorter than requested only at the end of the file. Raise OSError if the read
        fails.
        """
        ...

    def reread_past_cache(self, offset: int, length_bytes: int) -> bytes:
        """Read these bytes again, past the page cache, into a buffer that `read` does not use."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


@dataclass(frozen=True, slots=True)
class StructureFault:
    """A fault of a replica's files other than block files.

    `is_unreadable` is True if the file may exist, but cannot be accessed.
    """

    fault: DamageFault
    evidence: str
    is_unreadable: bool = False


@dataclass(frozen=True, slots=True)
class Structure:
    """The contents of a replica's directory, except the blocks that rows describe.

    `block_files` has the ids of blocks with a file, ascending. `expected_blocks` has the ids of the
    blocks in the replica's tree and earlier findings, ascending. An expected block with neither
    row nor tombstone is lost. An unexpected file without a row was never committed. If no
    tree can be read, `block_count_min` is the number of blocks in the last tree that was readable;
    0 = unknown.
    """

    faults: tuple[StructureFault, ...]
    block_files: U64s
    expected_blocks: U64s
    block_count_min: int = 0


class ReadSplitting(Protocol):
    """Splits large reads while other tasks need the disk."""

    def piece_bytes(self) -> int:
        """Return the maximum size of one read; 0 = unlimited."""
        ...

    def throttle_part(self, length_bytes: int) -> None:
        """Account for a piece of a read that is not the last piece; wait until the next piece may
        be read."""
        ...


class ReplicaReader(Protocol):
    """A replica as the scanner reads it."""

    @property
    def container_id(self) -> ContainerId:
        """Id of the container."""
        ...

    def blocks(self) -> Iterator[tuple[BlockId, bytes]]:
        """Yield the metadata rows by ascending block id (`merkle.blockrow`)."""
        ...

    def row(self, block_id: BlockId) -> bytes | None:
        """Return the block's current row; None if the block was deleted."""
        ...

    def tombstones(self) -> Mapping[BlockId, int]:
        """Return the deleted blocks and their checksums."""
        ...

    def open_block(self, block_id: BlockId) -> BlockFileReader:
        """Open the block's file; raise FileNotFoundError if there is none."""
        ...

    def read_whole(self, block_id: BlockId, length_bytes: int) -> memoryview:
        """Open the file of a small block, read it, and close the file.

        The view is valid until the next read of any block. It is shorter than `length_bytes` if the
        file is shorter, and longer if the file is longer. Raise OSError if the file cannot be read.
        """
        ...

    def former_bytes(self, block_id: BlockId, offset: int) -> Iterable[bytes]:
        """Return the known earlier contents at this position, newest first; a few at most."""
        ...

    def structure(self) -> Structure:
        """List the replica's files, and check descriptor, tree file and directories."""
        ...

    def is_current(self) -> bool:
        """Return True if the replica still has the generation of the scan's start."""
        ...
