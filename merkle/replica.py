"""The data model of a container replica.

    container ── the unit of replication, about 5 GB
      block   ── one file `<block id>.block`; holds chunks by ascending offset
        chunk ── the unit of one read; carries one checksum per window of its bytes

Names and meanings follow Apache Ozone (docs/VOCABULARY.md). A chunk is a named tuple instead of a
frozen dataclass, because a container has thousands of chunks, and a tuple is created and compared
in a third of the time.
"""

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
    """State of a replica, as its datanode records it. The names are Ozone's."""

    OPEN = "OPEN"
    CLOSING = "CLOSING"
    QUASI_CLOSED = "QUASI_CLOSED"
    CLOSED = "CLOSED"
    UNHEALTHY = "UNHEALTHY"
    RECOVERING = "RECOVERING"
    DELETED = "DELETED"


WRITABLE_STATES: Final = frozenset({ReplicaState.OPEN, ReplicaState.RECOVERING})
"""States in which a client may write; not in CLOSING, because the close has begun."""

TREE_STATES: Final = frozenset(
    {ReplicaState.CLOSED, ReplicaState.QUASI_CLOSED, ReplicaState.UNHEALTHY}
)
"""States in which a replica has a tree and may be scanned and reconciled."""


class ChecksumType(IntEnum):
    """Algorithm of the window checksums. Wire and disk use the numbers, which are Ozone's."""

    NONE = 1
    CRC32 = 2
    CRC32C = 3
    SHA256 = 4
    MD5 = 5


class ChunkInfo(NamedTuple):
    """A chunk as its writer described it: `[offset, offset + length_bytes)` of the block.

    `window_checksums` holds one value per window of `bytes_per_checksum` bytes, concatenated: 4
    bytes big-endian for CRC32 and CRC32C, 32 raw bytes for SHA256, 16 for MD5, none for NONE.
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
    """A committed block: its chunks by ascending offset, without holes, and its commit id.

    `metadata` comes from the client, for instance the block's key.
    """

    block_id: BlockId
    bcsid: Bcsid
    chunks: tuple[ChunkInfo, ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def length_bytes(self) -> int:
        """Bytes of the block: the end of its last chunk."""
        return self.chunks[-1].end if self.chunks else 0

    def chunk_at(self, offset: int) -> ChunkInfo | None:
        """Return the chunk that begins at `offset`; None if no chunk does."""
        return next((chunk for chunk in self.chunks if chunk.offset == offset), None)
