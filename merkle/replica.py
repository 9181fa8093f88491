"""The data model of a container replica.

    container ── the unit of replication, about 5 GB
      block   ── one file `<block id>.block`; holds chunks by ascending offset
        chunk ── the unit of one read; carries one checksum per window of its bytes

Names and meanings follow Apache Ozone (docs/VOCABULARY.md). A chunk is a named tuple instead of a
frozen dataclass, because a container has thousands of chunks, and a tuple is created and compared
in a third of the time.
"""

from bisect import bisect_left
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple, NewType

ContainerId = NewType("ContainerId", int)
BlockId = NewType("BlockId", int)  # Ozone: localID; unique within its container
Bcsid = NewType("Bcsid", int)  # block commit sequence id

LAYOUT_VERSION: Final = 1  # version of the data that a datanode stores and serves
ID_MAX: Final = 2**63 - 1  # Ozone's ids are signed 64-bit; larger ones are rejected
CONTAINER_BYTES_MAX: Final = 5 * 1024**3
BLOCK_BYTES_MAX: Final = CONTAINER_BYTES_MAX
CHUNK_BYTES_MAX: Final = 32 * 1024**2  # one chunk is one read buffer and one RPC
CHUNK_BYTES_DEFAULT: Final = 4 * 1024**2
CHUNKS_PER_BLOCK_MAX: Final = 65_535
WINDOW_BYTES_DEFAULT: Final = 16 * 1024
WINDOW_BYTES_MIN: Final = 512  # smaller windows have more checksums than data
WINDOW_BYTES_MAX: Final = CHUNK_BYTES_MAX
METADATA_BYTES_MAX: Final = 64 * 1024  # per block; for a client's notes, not for data

assert CHUNK_BYTES_DEFAULT <= CHUNK_BYTES_MAX <= BLOCK_BYTES_MAX <= CONTAINER_BYTES_MAX
assert WINDOW_BYTES_MIN <= WINDOW_BYTES_DEFAULT <= WINDOW_BYTES_MAX


class ReplicaState(StrEnum):
    """The state of a replica, as its datanode stores it. The names are Ozone's."""

    OPEN = "OPEN"
    CLOSING = "CLOSING"
    QUASI_CLOSED = "QUASI_CLOSED"
    CLOSED = "CLOSED"
    UNHEALTHY = "UNHEALTHY"
    RECOVERING = "RECOVERING"
    DELETED = "DELETED"


WRITABLE_STATES: Final = frozenset({ReplicaState.OPEN, ReplicaState.RECOVERING})
"""States in which a client may write to the replica. In CLOSING, the close has begun, so clients
must not write."""

TREE_STATES: Final = frozenset(
    {ReplicaState.CLOSED, ReplicaState.QUASI_CLOSED, ReplicaState.UNHEALTHY}
)
"""States in which a replica has a tree and may be scanned and reconciled."""


class ChecksumType(IntEnum):
    """The algorithm of the window checksums. The numbers are Ozone's, and are used on the wire and
    on disk."""

    NONE = 1
    CRC32 = 2
    CRC32C = 3
    SHA256 = 4
    MD5 = 5


class ChunkInfo(NamedTuple):
    """A chunk as its writer described it: the bytes `[offset, offset + length_bytes)` of its block.

    `window_checksums` has one checksum per window of `bytes_per_checksum` bytes, concatenated. A
    checksum has 4 bytes, big-endian, for CRC32 and CRC32C; 32 bytes for SHA256; 16 bytes for MD5;
    and no bytes for NONE.
    """

    offset: int
    length_bytes: int
    checksum_type: ChecksumType
    bytes_per_checksum: int
    window_checksums: bytes

    @property
    def end(self) -> int:
        """First offset after the chunk."""
        return self.offset + self.length_bytes


@dataclass(frozen=True, slots=True)
class BlockData:
    """A committed block: its chunks in ascending order of offset, without gaps, and its commit id.
    `metadata` has (key, value) pairs from the client, for instance the block's key."""

    block_id: BlockId
    bcsid: Bcsid
    chunks: tuple[ChunkInfo, ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def length_bytes(self) -> int:
        """Number of bytes of the block: the end of its last chunk."""
        return self.chunks[-1].end if self.chunks else 0

    def chunk_at(self, offset: int) -> ChunkInfo | None:
        """Return the chunk that begins at `offset`, or None."""
        index = bisect_left(self.chunks, (offset,))
        found = self.chunks[index : index + 1]
        return found[0] if found and found[0].offset == offset else None
