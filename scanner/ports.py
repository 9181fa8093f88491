"""The interfaces through which a scan reads a replica.

The scanner decides, and the implementations access the disk:
`agent.store.scan_reader.StoreReplicaReader` over a volume, and tests over damaged or lying data.

Errors are `OSError`: the errno says whether the data, the volume or this process is at fault
(`scanner.chunk_verdict.read_failure`). A block that vanishes is no error here: `row` returns None.
A replica that vanishes is one, the store's own, and ends the scan.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from merkle.checksum import U64s
from merkle.replica import BlockId, ContainerId
from scanner.finding import DamageFault


class BlockFileReader(Protocol):
    """An open block file, read past the page cache."""

    @property
    def size_bytes(self) -> int:
        """Current length of the file."""
        ...

    def read(self, offset: int, length_bytes: int) -> memoryview:
        """Read into a reused buffer; the view is valid until the next read of any block.

        Shorter than requested only at the end of the file. Raise OSError if the device fails.
        """
        ...

    def reread_past_cache(self, offset: int, length_bytes: int) -> bytes:
        """Read from the medium again, into another buffer than `read` uses."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


@dataclass(frozen=True, slots=True)
class StructureFault:
    """A fault of a replica's files that is not a block's. `is_unreadable`: the file may exist, but
    cannot be accessed.
    """

    fault: DamageFault
    evidence: str
    is_unreadable: bool = False


@dataclass(frozen=True, slots=True)
class Structure:
    """The contents of a replica's directory, besides the blocks that its rows describe.

    `block_files` are the ids that have a file. `expected_blocks` are those that the replica had
    when last examined (its tree, earlier findings): one of them without a row and without a
    tombstone was lost, while an unexpected file was merely never committed. Both ascend. If no tree
    can be read, `block_count_min` is the number of blocks of the last one; 0: unknown.
    """

    faults: tuple[StructureFault, ...]
    block_files: U64s
    expected_blocks: U64s
    block_count_min: int = 0


class ReadSplitting(Protocol):
    """The division of a large read while others need the disk."""

    def piece_bytes(self) -> int:
        """Return the maximum size of one read; 0 = unlimited."""
        ...

    def rest(self, length_bytes: int) -> None:
        """Account for a piece that is not the read's last, and wait until the next is due."""
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
        """Return the block's current row; None if the block is gone."""
        ...

    def tombstones(self) -> Mapping[BlockId, int]:
        """Return the deleted blocks and their checksums."""
        ...

    def open_block(self, block_id: BlockId) -> BlockFileReader:
        """Open the block's file; raise FileNotFoundError if there is none."""
        ...

    def read_whole(self, block_id: BlockId, length_bytes: int) -> memoryview:
        """Open the block's file, read its first `length_bytes`, close it: one short call.

        For small blocks. The view is valid until the next read of any block; it is shorter than
        requested if the file is, and longer if the file is. Raise OSError.
        """
        ...

    def former_bytes(self, block_id: BlockId, offset: int) -> Iterable[bytes]:
        """Return the known earlier contents of this place, newest first; a few at most."""
        ...

    def structure(self) -> Structure:
        """List the replica's files, and judge descriptor, tree file and directories."""
        ...

    def is_current(self) -> bool:
        """Return True if the replica is still the one whose scan began: same generation."""
        ...
