"""What a scan, or a comparison with peers, can find, and what it means.

A finding is one fault of one replica, with the evidence for it. Corruption is a value here and
never an exception: finding it is the scanner's job.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from merkle.replica import BlockId, ContainerId


class Verdict(StrEnum):
    """The judgement on a chunk or a replica, and what follows from it."""

    OK = "OK"
    CORRUPT = "CORRUPT"  # the medium says so, again and again, to two witnesses: repair
    SUSPECT_HOST = "SUSPECT_HOST"  # memory or a library lied; the medium is fine: do not repair
    CHANGED = "CHANGED"  # written while we read: scan again, do not repair
    GONE = "GONE"  # deleted while we read: forget it
    UNREADABLE = "UNREADABLE"  # EIO: the volume is suspect; the bytes are not served
    TRANSIENT = "TRANSIENT"  # EMFILE, ENOMEM, EINTR: says nothing about the data
    CONTRADICTORY = "CONTRADICTORY"  # rows that are each intact disagree: a person decides


class Fault(StrEnum):
    """What is wrong, as the disk shows it."""

    CHUNK_CHECKSUM = "CHUNK_CHECKSUM"  # bytes differ from the checksums written with them
    CHUNK_SHORT = "CHUNK_SHORT"  # the file ends inside the chunk
    CHUNK_MISSING = "CHUNK_MISSING"  # the file ends before the chunk
    CHUNK_UNREADABLE = "CHUNK_UNREADABLE"  # the device answered with an error instead of bytes
    BLOCK_FILE_MISSING = "BLOCK_FILE_MISSING"
    BLOCK_FILE_LINK = "BLOCK_FILE_LINK"  # a symbolic link in its place leads to the bytes
    BLOCK_ROW_MISSING = "BLOCK_ROW_MISSING"  # a block file that no metadata row describes
    BLOCK_ROW_DAMAGED = "BLOCK_ROW_DAMAGED"
    TRAILING_BYTES = "TRAILING_BYTES"  # bytes behind the last chunk that no checksum covers
    FOREIGN_FILE = "FOREIGN_FILE"  # something in chunks/ that is no block file
    DESCRIPTOR_DAMAGED = "DESCRIPTOR_DAMAGED"
    DESCRIPTOR_MISSING = "DESCRIPTOR_MISSING"
    TREE_DAMAGED = "TREE_DAMAGED"
    TREE_MISSING = "TREE_MISSING"
    TREE_STALE = "TREE_STALE"  # older than the generation the index remembers
    CHUNKS_DIRECTORY_MISSING = "CHUNKS_DIRECTORY_MISSING"
    PEER_CONTRADICTS = "PEER_CONTRADICTS"  # a peer's own row says otherwise of the same bytes
    UNCONFIRMED_DELETE = "UNCONFIRMED_DELETE"  # a peer deleted the block, and nobody confirms it


CONTRADICTING: Final = frozenset({Fault.PEER_CONTRADICTS, Fault.UNCONFIRMED_DELETE})
"""Faults that are between replicas: their verdict is CONTRADICTORY."""


NOTE_FAULTS: Final = frozenset(
    {Fault.FOREIGN_FILE, Fault.TREE_DAMAGED, Fault.TREE_MISSING, Fault.TREE_STALE}
)
"""Faults that cost no data: a stranger's file; a tree, which this scan makes again."""


class Forensic(StrEnum):
    """What kind of accident the bytes look like. It points at a culprit; it changes no verdict."""

    UNKNOWN = "UNKNOWN"  # nobody looked, or the bytes tell nothing
    SINGLE_BIT = "SINGLE_BIT"  # one bit in each wrong window: memory, a bus, a failing cell
    ZEROED = "ZEROED"  # sectors that are zero: a lost write, a hole, a discarded range
    TORN_512 = "TORN_512"  # from a sector on to the end it is not what was written
    TORN_4096 = "TORN_4096"  # likewise, from a page on
    TRUNCATED = "TRUNCATED"  # the file ends too early
    MISDIRECTED = "MISDIRECTED"  # it is what belongs to another place of this replica
    STALE = "STALE"  # it is what was here before the last write: a write that was lost


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of one replica.

    `block_id`, `offset` and `length_bytes` are -1 where the fault is not about a block or chunk.
    `evidence` is what a person needs to believe it: expected and actual checksums, errno, sizes.
    """

    container_id: ContainerId
    verdict: Verdict
    fault: Fault
    block_id: BlockId
    offset: int
    length_bytes: int
    found_at_ms: int
    evidence: str
    forensic: Forensic = Forensic.UNKNOWN

    @property
    def is_damage(self) -> bool:
        """Whether the replica must be called UNHEALTHY for it."""
        return self.verdict in {Verdict.CORRUPT, Verdict.UNREADABLE}

    @property
    def is_contradiction(self) -> bool:
        """Whether it is about the peers, too: no scan of this replica finds or ends it."""
        return self.verdict is Verdict.CONTRADICTORY
