"""The values in docs/DISK_FORMAT.md are those that the code computes."""

import re
from pathlib import Path

import pytest

from merkle.blockrow import decode_block, encode_block
from merkle.checksum import Algorithm, leaf_checksum, window_checksums
from merkle.replica import BlockId, ChecksumType, ContainerId
from merkle.tree import Tree
from merkle.tree_building import TreeBuilder, build_from_rows
from merkle.tree_codec import decode_tree, encode_tree
from tests.support.storage.tree_model import bury
from tests.support.storage.trees import (
    CHUNK_A,
    CHUNK_B,
    CHUNK_C,
    OZONE_BLOCK,
    WINDOW_BYTES,
    block,
    tree_of,
)

DOCUMENT = Path(__file__).parents[3] / "docs" / "DISK_FORMAT.md"
VECTOR = re.compile(r"^\| (.+?) \| `(0x[0-9a-f]+)` \| `(0x[0-9a-f]+)` \|$", re.MULTILINE)
DUMP = re.compile(r"^```\n((?:[0-9a-f]{4}  [0-9a-f ]+\n)+)```$", re.MULTILINE)

CRC32 = ChecksumType.CRC32
ONE = block(1, CHUNK_A, CHUNK_B, checksum_type=CRC32)
TWO = block(2, CHUNK_C, checksum_type=CRC32)
SAME = block(OZONE_BLOCK, CHUNK_A, CHUNK_B, checksum_type=CRC32)
EXAMPLE = block(1, CHUNK_B, metadata=(("key", "b"),))


def leaf(algorithm: Algorithm, offset: int, data: bytes, checksum_type: ChecksumType) -> int:
    """Return the leaf of one chunk."""
    checksums = window_checksums(checksum_type, WINDOW_BYTES, data)
    return leaf_checksum(algorithm, offset, len(data), checksums)


def damaged(algorithm: Algorithm, *pieces: bytes) -> Tree:
    """Return the tree of block 1 as a scan finds it with other data."""
    builder = TreeBuilder(algorithm)
    builder.add_block(1)
    offset = 0
    for piece in pieces:
        checksums = window_checksums(CRC32, WINDOW_BYTES, piece)
        builder.add_chunk(offset, len(piece), checksums, healthy=False)
        offset += len(piece)
    return builder.build()


def flipped(data: bytes) -> bytes:
    """Return the data with the lowest bit of byte 20,000 flipped."""
    return data[:20_000] + bytes([data[20_000] ^ 1]) + data[20_001:]


def vectors(algorithm: Algorithm) -> dict[str, int]:
    """Return every published value by its name."""
    both = tree_of([ONE, TWO], algorithm=algorithm)
    return {
        "leaf of A at 0": leaf(algorithm, 0, CHUNK_A, CRC32),
        "leaf of B at 40,960": leaf(algorithm, 40_960, CHUNK_B, CRC32),
        "leaf of A at 0, type CRC32C": leaf(algorithm, 0, CHUNK_A, ChecksumType.CRC32C),
        "leaf of B at 40,960, type SHA256": leaf(algorithm, 40_960, CHUNK_B, ChecksumType.SHA256),
        "leaf of B at 40,960, type MD5": leaf(algorithm, 40_960, CHUNK_B, ChecksumType.MD5),
        "leaf of B at 40,960, type NONE": leaf(algorithm, 40_960, CHUNK_B, ChecksumType.NONE),
        "block 1": int(both.block_checksums[0]),
        "block 111677748019200001": int(tree_of([SAME], algorithm=algorithm).block_checksums[0]),
        "block 1 without chunks": int(tree_of([block(1)], algorithm=algorithm).block_checksums[0]),
        "root of nothing": tree_of([], algorithm=algorithm).root,
        "root of block 1 without chunks": tree_of([block(1)], algorithm=algorithm).root,
        "root of block 1": tree_of([ONE], algorithm=algorithm).root,
        "root of blocks 1 and 111677748019200001": tree_of([ONE, SAME], algorithm=algorithm).root,
        "root of blocks 1 and 2": both.root,
        "the same, block 1 deleted": bury(both, [1]).root,
        "tombstones, block 1 deleted": bury(both, [1]).tombstones_checksum,
        "root of block 2": tree_of([TWO], algorithm=algorithm).root,
        "root of block 1, lowest bit of byte 20,000 flipped": damaged(
            algorithm, flipped(CHUNK_A), CHUNK_B
        ).root,
        "root of block 1, chunk B lost": damaged(algorithm, CHUNK_A).root,
        "root of block 1, file cut at 20,000": damaged(algorithm, CHUNK_A[:20_000]).root,
    }


def as_shown(data: bytes) -> str:
    """Return the bytes as the document shows them."""
    lines = [data[start : start + 16] for start in range(0, len(data), 16)]
    return "".join(
        f"{16 * number:04x}  {' '.join(filter(None, (line[:8].hex(), line[8:].hex())))}\n"
        for number, line in enumerate(lines)
    )


def section() -> str:
    """Return the part of the document that is about the tree."""
    return DOCUMENT.read_text().partition("## The tree\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_vectors_are_those_computed(algorithm: Algorithm) -> None:
    """
    Every fold, intact and damaged, in both algorithms.
    """
    column = list(Algorithm).index(algorithm) + 1
    published = {found[0]: int(found[column], 16) for found in VECTOR.findall(section())}

    assert vectors(algorithm) == published


def test_the_row_shown_is_the_row_written() -> None:
    """
    Byte for byte, and it can be read.
    """
    row = encode_block(EXAMPLE)

    assert as_shown(row) == DUMP.findall(section())[0]
    assert EXAMPLE == decode_block(BlockId(1), row)


def test_the_file_shown_is_the_file_written() -> None:
    """
    Byte for byte, and it can be read.
    """
    tree = build_from_rows(
        [(BlockId(1), encode_block(EXAMPLE))],
        {BlockId(2): 5},
        algorithm=Algorithm.XXH3_64,
        generation=3,
    )
    encoded = encode_tree(tree, ContainerId(7))

    assert as_shown(encoded) == DUMP.findall(section())[1]
    assert tree == decode_tree(encoded, ContainerId(7))
