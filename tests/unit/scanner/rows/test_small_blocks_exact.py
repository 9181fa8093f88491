"""Which rows are simple, at each edge."""

import pytest

from merkle.blockrow import encode_block
from merkle.checksum import Algorithm
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo
from scanner.rows.small_blocks import SimpleRun, runs

TYPE = ChecksumType.CRC32C
MAX_BYTES = 1_000


@pytest.mark.parametrize(
    ("chunk", "is_simple"),
    [
        (ChunkInfo(0, 1, TYPE, 512, bytes(4)), True),
        (ChunkInfo(0, MAX_BYTES, TYPE, 2_000, bytes(4)), True),
        (ChunkInfo(0, MAX_BYTES + 1, TYPE, 2_000, bytes(4)), False),
        (ChunkInfo(0, 3, TYPE, 1, bytes(12)), True),
        (ChunkInfo(0, 3, TYPE, 2, bytes(8)), True),
        (ChunkInfo(0, 3, ChecksumType.MD5, 3, bytes(16)), False),
        (ChunkInfo(1, 3, TYPE, 3, bytes(4)), False),
    ],
    ids=str,
)
def test_a_simple_row_has_one_chunk_that_is_what_it_should_be(
    chunk: ChunkInfo, is_simple: bool
) -> None:
    """
    At the beginning, not longer than a read, with as many checksums as it has windows.
    """
    row = encode_block(BlockData(BlockId(1), Bcsid(9), (chunk,)))

    [item] = runs([(BlockId(1), row)], Algorithm.XXH3_64, MAX_BYTES)

    assert is_simple is isinstance(item, SimpleRun)
    if isinstance(item, SimpleRun):
        assert ([1], [9]) == (item.block_ids.tolist(), item.bcsids.tolist())
        assert ([chunk.length_bytes], [chunk.bytes_per_checksum]) == (
            item.lengths_bytes,
            item.window_bytes,
        )
        assert [chunk.length_bytes << 1 | 1] == item.spans.tolist()
