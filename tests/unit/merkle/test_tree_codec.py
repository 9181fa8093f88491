"""A tree's file is read without a copy, and read whole or not at all."""

from dataclasses import replace

import numpy as np
import pytest

from merkle.checksum import Algorithm, xxh3_64
from merkle.damaged_data import DamagedData
from merkle.replica import ContainerId
from merkle.tree import Tree
from merkle.tree_codec import HEADER, decode_tree, encode_tree
from tests.support.storage.trees import CONTAINER, bad, good, leaf_tree

TREES = {
    "empty": leaf_tree({}),
    "chunk-less": leaf_tree({1: []}),
    "tombstones only": leaf_tree({}, {1: 5, 2: 2**64 - 1}),
    "all kinds": leaf_tree(
        {2: [good(0, 1), bad(10, 2)], 4: [], 6: [good(0, 3)]}, {5: 55}, generation=2**40
    ),
    "ozone": leaf_tree({7: [good(0, 1)]}, {9: 1}, algorithm=Algorithm.CRC32C, generation=1),
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
class TestRoundTrip:
    def test_encoded_tree_is_decoded_again(self, tree: Tree) -> None:
        """The tree is decoded from bytes, a bytearray and a view as an equal tree."""
        encoded = encode_tree(tree, CONTAINER)

        for data in (encoded, bytearray(encoded), memoryview(encoded)):
            assert tree == decode_tree(data, CONTAINER)

    def test_every_flipped_bit_is_noticed(self, tree: Tree) -> None:
        """
        Header, columns, padding and the checksum itself.
        """
        encoded = encode_tree(tree, CONTAINER)
        for position in range(len(encoded)):
            damaged = bytearray(encoded)
            damaged[position] ^= 1 << position % 8

            with pytest.raises(DamagedData, match="tree of container 7"):
                decode_tree(damaged, CONTAINER)

    def test_every_torn_file_is_noticed(self, tree: Tree) -> None:
        """
        Cut anywhere, or with something behind it.
        """
        encoded = encode_tree(tree, CONTAINER)
        for data in [*(encoded[:end] for end in range(len(encoded))), encoded + bytes(8)]:
            with pytest.raises(DamagedData, match="tree of container 7"):
                decode_tree(data, CONTAINER)


def resealed(encoded: bytes, position: int, value: bytes) -> bytes:
    """Return the file with other bytes at a position, under a checksum that fits."""
    content = bytearray(encoded[:-8])
    content[position : position + len(value)] = value
    return bytes(content) + xxh3_64(content).to_bytes(8, "little")


def test_the_tree_of_another_container_is_refused() -> None:
    """
    A file that was moved into the wrong directory is intact, and still not this replica's.
    """
    encoded = encode_tree(TREES["all kinds"], CONTAINER)

    with pytest.raises(DamagedData, match="tree of container 8: is the tree of container 7"):
        decode_tree(encoded, ContainerId(8))


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, b"X", "begins with"),
        (8, b"\x02", "unknown version 2"),
        (10, b"\x03", "unknown version 1 or algorithm 3"),
        (48, b"\xff\xff\xff\xff", "the header says"),
        (32, b"\x00" * 8, "tree of container 7: root is not the fold"),
        (40, b"\x00" * 8, "root is not the fold"),
        (HEADER.size, b"\xff" * 8, "do not ascend"),
    ],
    ids=["magic", "version", "algorithm", "count", "root", "tombstones", "id"],
)
def test_nonsense_under_a_good_checksum_is_damage(
    position: int, value: bytes, message: str
) -> None:
    """Content sealed by a faulty or future writer is refused with the reason."""
    encoded = encode_tree(TREES["all kinds"], CONTAINER)

    with pytest.raises(DamagedData, match=message):
        decode_tree(resealed(encoded, position, value), CONTAINER)


def test_decoding_copies_nothing() -> None:
    """
    Every column is a view of the bytes that were read, and cannot be written.
    """
    encoded = encode_tree(TREES["all kinds"], CONTAINER)
    whole = np.frombuffer(encoded, dtype=np.uint8)

    decoded = decode_tree(encoded, CONTAINER)

    assert all(np.shares_memory(column, whole) for column in decoded.columns())
    assert not any(column.flags.writeable for column in decoded.columns())


def test_columns_begin_aligned() -> None:
    """
    Arithmetic on what was read runs at full speed.
    """
    for tree in TREES.values():
        decoded = decode_tree(encode_tree(tree, CONTAINER), CONTAINER)

        assert all(column.flags.aligned for column in decoded.columns())


def test_a_tree_that_does_not_fold_is_found_by_verify() -> None:
    """
    The codec vouches for the bytes, `verify` for the folds: fsck asks both.
    """
    tree = TREES["all kinds"]
    forged = replace(tree, chunk_checksums=tree.chunk_checksums + np.uint64(1))

    decoded = decode_tree(encode_tree(forged, CONTAINER), CONTAINER)

    with pytest.raises(DamagedData, match="block 2"):
        decoded.verify()
