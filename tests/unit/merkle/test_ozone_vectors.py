"""The crc32c algorithm is Apache Ozone's bit for bit: its worked examples, and ours for xxh3_64.

Examples A to C are reference values that Ozone's Java code was checked against. Each is built both
ways, as a scan does and from index rows.
"""

import pytest

from merkle.checksum import Algorithm
from merkle.replica import BlockData, BlockId, ChecksumType
from merkle.tree import Tree
from merkle.tree_building import TreeBuilder, build_from_rows
from tests.support.storage.tree_model import bury
from tests.support.storage.trees import (
    CHUNK_A,
    CHUNK_B,
    CHUNK_C,
    OZONE_BLOCK,
    block,
    chunk,
    rows_of,
    tree_of,
)

CRC32 = ChecksumType.CRC32


def both_ways(algorithm: Algorithm, *blocks: BlockData) -> Tree:
    """Return the tree of the blocks, having built it twice."""
    scanned = tree_of(blocks, algorithm=algorithm)
    assert scanned == build_from_rows(rows_of(blocks), {}, algorithm=algorithm)
    return scanned


@pytest.mark.parametrize(
    ("checksum_type", "leaves", "block_checksum", "root"),
    [
        (CRC32, [820081075, 703240750], 3656932205, 3849425125),
        (ChecksumType.CRC32C, [378603589, 2000183558], 1703426721, 1334180955),
        (ChecksumType.SHA256, [0xE27015EC, 345183088], 0xD48178EE, 0xA40B41A3),
        (ChecksumType.NONE, [0, 0], 0xDB1F30B1, 0x341FBBDF),
    ],
)
def test_example_a(
    checksum_type: ChecksumType, leaves: list[int], block_checksum: int, root: int
) -> None:
    """
    Two chunks in one block.
    """
    tree = both_ways(Algorithm.CRC32C, block(1, CHUNK_A, CHUNK_B, checksum_type=checksum_type))

    assert leaves == [leaf.checksum for leaf in tree.leaves(1)]
    assert [block_checksum] == tree.block_checksums.tolist()
    assert root == tree.root


def test_example_a_with_two_blocks() -> None:
    """
    The same chunks under another block id.
    """
    tree = both_ways(
        Algorithm.CRC32C,
        block(1, CHUNK_A, CHUNK_B, checksum_type=CRC32),
        block(OZONE_BLOCK, CHUNK_A, CHUNK_B, checksum_type=CRC32),
    )

    assert [3656932205, 2959690867] == tree.block_checksums.tolist()
    assert 158282947 == tree.root


def flipped() -> bytes:
    """Return chunk A with the lowest bit of byte 20,000 flipped."""
    data = bytearray(CHUNK_A)
    data[20_000] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("pieces", "first_leaf", "root"),
    [
        ([flipped(), CHUNK_B], 601916266, 4162499977),
        ([CHUNK_A], 820081075, 3681372725),
        ([CHUNK_A[:20_000]], 1668223812, 4151612455),
    ],
    ids=["bit flipped", "chunk missing", "file cut"],
)
def test_example_b(pieces: list[bytes], first_leaf: int, root: int) -> None:
    """
    Damage to block 1 as a scan folds it; health is in no checksum.
    """
    builder = TreeBuilder(Algorithm.CRC32C)
    builder.add_block(1)
    offset = 0
    for piece in pieces:
        seen = chunk(offset, piece, CRC32)
        builder.add_chunk(offset, seen.length_bytes, seen.window_checksums, healthy=False)
        offset += len(piece)

    tree = builder.build()

    assert (first_leaf, root) == (tree.leaf(0).checksum, tree.root)
    assert len(pieces) == tree.unhealthy_count


def test_example_c() -> None:
    """
    A proper delete leaves the root; a block that just vanished does not.
    """
    first = block(1, CHUNK_A, CHUNK_B, checksum_type=CRC32)
    second = block(2, CHUNK_C, checksum_type=CRC32)
    whole = both_ways(Algorithm.CRC32C, first, second)

    buried = bury(whole, [BlockId(1)])

    assert 4011809073 == whole.root
    assert 4011809073 == buried.root
    assert 4090079006 == both_ways(Algorithm.CRC32C, second).root


def test_fixed_points() -> None:
    """
    An empty container is 0, and a block without chunks is in the tree.
    """
    assert 0 == both_ways(Algorithm.CRC32C).root
    assert [2118332809] == both_ways(Algorithm.CRC32C, block(1)).block_checksums.tolist()
    assert 2938966949 == both_ways(Algorithm.CRC32C, block(1)).root
