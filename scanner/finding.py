"""The faults that scans, and comparisons with peers, find in a replica.

A finding describes one fault of one replica, with its evidence. The scanner returns corruption as a
value and does not raise an exception.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from merkle.replica import BlockId, ContainerId


class Verdict(StrEnum):
    """The result of the check of a chunk or a replica. The result determines whether the datanode
    reports damage and repairs it."""

    OK = "OK"
    CORRUPT = "CORRUPT"  # repeated reads are wrong, by two implementations: repair
    SUSPECT_HOST = "SUSPECT_HOST"  # memory or a library is faulty, not the disk: no repair
    CHANGED = "CHANGED"  # written during the read: scan again, do not repair
    GONE = "GONE"  # deleted during the read: ignore it
    UNREADABLE = "UNREADABLE"  # a device error such as EIO: the volume is suspect
    TRANSIENT = "TRANSIENT"  # EMFILE, ENOMEM, EINTR: not a fault of the data
    CONTRADICTORY = "CONTRADICTORY"  # intact rows disagree: an operator decides


class DamageFault(StrEnum):
    """The kind of a fault, as it was found on disk."""

    CHUNK_CHECKSUM = "CHUNK_CHECKSUM"  # bytes differ from the checksums written with them
    CHUNK_SHORT = "CHUNK_SHORT"  # the file ends inside the chunk
    CHUNK_MISSING = "CHUNK_MISSING"  # the file ends before the chunk
    CHUNK_UNREADABLE = "CHUNK_UNREADABLE"  # the device answered with an error instead of bytes
    BLOCK_FILE_MISSING = "BLOCK_FILE_MISSING"
    BLOCK_FILE_LINK = "BLOCK_FILE_LINK"  # a symbolic link instead of the block file
    BLOCK_ROW_MISSING = "BLOCK_ROW_MISSING"  # a block file without a metadata row
    BLOCK_ROW_DAMAGED = "BLOCK_ROW_DAMAGED"
    TRAILING_BYTES = "TRAILING_BYTES"  # bytes after the last chunk that no checksum covers
    FOREIGN_FILE = "FOREIGN_FILE"  # something in chunks/ that is not a block file
    DESCRIPTOR_DAMAGED = "DESCRIPTOR_DAMAGED"
    DESCRIPTOR_MISSING = "DESCRIPTOR_MISSING"
    TREE_DAMAGED = "TREE_DAMAGED"
    TREE_MISSING = "TREE_MISSING"
    TREE_STALE = "TREE_STALE"  # older than the generation in the index
    CHUNKS_DIRECTORY_MISSING = "CHUNKS_DIRECTORY_MISSING"
    PEER_CONTRADICTS = "PEER_CONTRADICTS"  # a peer's intact row differs for the same bytes
    UNCONFIRMED_DELETE = "UNCONFIRMED_DELETE"  # a peer's delete that nothing confirms


NO_BLOCK: Final = BlockId(-1)
"""The block id of a finding that is not about a single block."""

CONTRADICTING: Final = frozenset({DamageFault.PEER_CONTRADICTS, DamageFault.UNCONFIRMED_DELETE})
"""Faults in which two replicas contradict each other. Their verdict is CONTRADICTORY."""


NOTE_FAULTS: Final = frozenset(
    {
        DamageFault.FOREIGN_FILE,
        DamageFault.TREE_DAMAGED,
        DamageFault.TREE_MISSING,
        DamageFault.TREE_STALE,
    }
)
"""Faults that do not lose data: a foreign file, or a fault of the tree file, which the scan
replaces."""


class Forensic(StrEnum):
    """The probable cause of damage, derived from the damaged bytes. It does not change the
    verdict."""

    UNKNOWN = "UNKNOWN"  # not examined, or the bytes show nothing
    SINGLE_BIT = "SINGLE_BIT"  # one bit in each wrong window: memory, a bus, a failing cell
    ZEROED = "ZEROED"  # sectors that are zero: a lost write, a hole, a discarded range
    TORN_512 = "TORN_512"  # wrong from the start of a sector to the chunk's end
    TORN_4096 = "TORN_4096"  # wrong from the start of a page to the chunk's end
    TRUNCATED = "TRUNCATED"  # the file ends too early
    MISDIRECTED = "MISDIRECTED"  # data of another chunk of this replica
    STALE = "STALE"  # the data before the last write: a lost write


@dataclass(frozen=True, slots=True)
class ScanFinding:
    """A fault of one replica, with its evidence.

    If the fault is not about a block or chunk, `block_id`, `offset` and `length_bytes` are -1.
    `evidence` is a text for an operator with the facts: expected and actual checksums, errno,
    sizes.
    """

    container_id: ContainerId
    verdict: Verdict
    fault: DamageFault
    block_id: BlockId
    offset: int
    length_bytes: int
    found_at_ms: int
    evidence: str
    forensic: Forensic = Forensic.UNKNOWN

    @property
    def is_damage(self) -> bool:
        """True if the datanode must mark the replica UNHEALTHY because of this fault."""
        return self.verdict in {Verdict.CORRUPT, Verdict.UNREADABLE}

    @property
    def is_contradiction(self) -> bool:
        """True if the fault is a contradiction between two replicas. A scan of one replica cannot
        find or clear such a fault."""
        return self.verdict is Verdict.CONTRADICTORY


def replica_damage(
    container_id: ContainerId,
    fault: DamageFault,
    found_at_ms: int,
    evidence: str,
    block_id: BlockId = NO_BLOCK,
) -> ScanFinding:
    """Return a finding with the verdict CORRUPT about a complete replica or a complete block."""
    verdict = Verdict.CORRUPT
    return ScanFinding(container_id, verdict, fault, block_id, -1, -1, found_at_ms, evidence)
