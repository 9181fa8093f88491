"""The nouns have Apache Ozone's numbers, and a block ends where its last chunk ends."""

import pytest

from merkle import replica
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo, ReplicaState

MIB = 1024 * 1024


def test_a_chunk_ends_behind_its_last_byte() -> None:
    """
    `end` is the first offset that is not the chunk's.
    """
    assert 150 == ChunkInfo(100, 50, ChecksumType.NONE, 0, b"").end


@pytest.mark.parametrize(
    ("spans", "length_bytes"), [([], 0), ([(0, 10)], 10), ([(0, 10), (10, 5)], 15)]
)
def test_a_block_ends_where_its_last_chunk_ends(
    spans: list[tuple[int, int]], length_bytes: int
) -> None:
    """A block without chunks is empty."""
    chunks = tuple(ChunkInfo(start, size, ChecksumType.NONE, 0, b"") for start, size in spans)

    assert length_bytes == BlockData(BlockId(1), Bcsid(1), chunks).length_bytes


def test_checksum_types_have_ozones_numbers() -> None:
    """The numbers are used on the wire and on disks."""
    assert [("NONE", 1), ("CRC32", 2), ("CRC32C", 3), ("SHA256", 4), ("MD5", 5)] == [
        (each.name, each.value) for each in ChecksumType
    ]


def test_limits_are_the_published_ones() -> None:
    """Clients rely on the accepted sizes, and larger ones are refused."""
    limits = {
        "LAYOUT_VERSION": 1,
        "ID_MAX": 9_223_372_036_854_775_807,
        "CONTAINER_BYTES_MAX": 5 * 1024 * MIB,
        "BLOCK_BYTES_MAX": 5 * 1024 * MIB,
        "CHUNK_BYTES_MAX": 32 * MIB,
        "CHUNK_BYTES_DEFAULT": 4 * MIB,
        "CHUNKS_PER_BLOCK_MAX": 65_535,
        "WINDOW_BYTES_DEFAULT": 16_384,
        "WINDOW_BYTES_MIN": 512,
        "WINDOW_BYTES_MAX": 32 * MIB,
    }

    assert limits == {name: getattr(replica, name) for name in limits}


def test_only_open_and_recovering_replicas_are_written() -> None:
    """A replica that can still be written has no tree."""
    assert {ReplicaState.OPEN, ReplicaState.RECOVERING} == replica.WRITABLE_STATES
    assert {
        ReplicaState.CLOSED,
        ReplicaState.QUASI_CLOSED,
        ReplicaState.UNHEALTHY,
    } == replica.TREE_STATES
