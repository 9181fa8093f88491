"""What a scan needs to see of a replica, and nothing more.

The scanner decides; somebody else touches the disk. `agent.store.scan_reader.DiskReader` implements
these protocols over a volume, tests implement them over damaged or lying ones.

Errors travel as `OSError`: its errno says whether the data, the volume or this process is at
fault (`scanner.chunk_verdict.read_failure`). A block that vanishes is not an error here: `row`
answers None. A replica that vanishes is one, the store's own, and ends the scan.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from merkle.checksum import U64s
from merkle.replica import BlockId, ContainerId
from scanner.finding import Fault


class BlockReader(Protocol):
    """One open block file, read past the page cache."""

    @property
    def size_bytes(self) -> int:
        """Length of the file now."""
        ...

    def read(self, offset: int, length_bytes: int) -> memoryview:
        """Read into a reused buffer; the view is valid until the next read of any block.

        Shorter than asked only where the file ends. Raise OSError when the device fails.
        """
        ...

    def reread_past_cache(self, offset: int, length_bytes: int) -> bytes:
        """Ask the medium again, into another buffer than `read` uses."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


@dataclass(frozen=True, slots=True)
class StructureFault:
    """One thing about a replica's files that no block explains. `is_unreadable`: it may be there,
    but nobody can look."""

    fault: Fault
    evidence: str
    is_unreadable: bool = False


@dataclass(frozen=True, slots=True)
class Structure:
    """What lies in a replica's directory, beside the blocks that its rows describe.

    `block_files` are the ids that have a file. `expected_blocks` are those that the replica had
    when somebody last looked (its tree, earlier findings): one of them without a row and without
    a tombstone was lost, while a file that nobody expects was only never committed. Both ascend.
    Where no tree can be read `block_count_min` is how many blocks the last one had; 0: not known.
    """

    faults: tuple[StructureFault, ...]
    block_files: U64s
    expected_blocks: U64s
    block_count_min: int = 0


class Pieces(Protocol):
    """How a large read is cut while others want the disk, too."""

    def piece_bytes(self) -> int:
        """Return how much to read at once at most; 0 for no limit."""
        ...

    def rest(self, length_bytes: int) -> None:
        """Account for a piece that is not the read's last, and wait until the next one is due."""
        ...


class ReplicaReader(Protocol):
    """One replica as the scanner sees it."""

    @property
    def container_id(self) -> ContainerId:
        """Whose replica this is."""
        ...

    def blocks(self) -> Iterator[tuple[BlockId, bytes]]:
        """Yield the metadata rows by ascending block id (`merkle.blockrow`)."""
        ...

    def row(self, block_id: BlockId) -> bytes | None:
        """Return the block's row as it is now; None when the block is gone."""
        ...

    def tombstones(self) -> Mapping[BlockId, int]:
        """Return the deleted blocks and their checksums."""
        ...

    def open_block(self, block_id: BlockId) -> BlockReader:
        """Open the block's file; raise FileNotFoundError when there is none."""
        ...

    def read_whole(self, block_id: BlockId, length_bytes: int) -> memoryview:
        """Open the block's file, read its first `length_bytes`, close it: one short call.

        For small blocks. The view is valid until the next read of any block; it is shorter than
        asked where the file is, and longer where the file is. Raise OSError.
        """
        ...

    def former_bytes(self, block_id: BlockId, offset: int) -> Iterable[bytes]:
        """Return what is known to have been at this place before, newest first; a few at most."""
        ...

    def structure(self) -> Structure:
        """List the replica's files and judge descriptor, tree file and directories."""
        ...

    def is_current(self) -> bool:
        """Whether the replica is still the one whose scan began: same generation."""
        ...
