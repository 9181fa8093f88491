"""Which versions of a chunk exclude each other, and how a person is told of them."""

import pytest

from agent.plan.chunk_versions import contested_offsets, format_versions, leaf_of
from merkle.checksum import Algorithm
from merkle.replica import ChecksumType, ChunkInfo
from merkle.tree_building import TreeBuilder
from tests.support.storage.trees import good


@pytest.mark.parametrize(
    ("spans", "contested"),
    [
        ([], set()),
        ([(0, 10), (10, 10), (30, 10)], set()),
        ([(0, 11), (10, 10)], {0, 10}),
        ([(0, 100), (10, 5), (50, 10)], {0, 10, 50}),
        ([(0, 10), (20, 100), (30, 5), (119, 1), (120, 1)], {20, 30, 119}),
        ([(0, 10), (5, 5), (8, 10)], {0, 5, 8}),
        ([(0, 10), (0, 5), (7, 10)], {0, 7}),
    ],
    ids=str,
)
def test_chunks_that_overlap_are_contested(
    spans: list[tuple[int, int]], contested: set[int]
) -> None:
    """An overlap with a chunk that began much earlier counts; neighbours do not overlap."""
    leaves = [good(offset, number, size) for number, (offset, size) in enumerate(spans)]

    assert contested == contested_offsets(leaves)
    assert contested == contested_offsets(reversed(leaves))


def test_two_versions_of_one_chunk_are_contested() -> None:
    """
    Same place, other content.
    """
    assert {7} == contested_offsets([good(7, 1), good(7, 2)])


def test_a_person_is_told_who_says_what() -> None:
    """
    Our own row first, or that it is lost.
    """
    versions = [("dn2", good(0, 0xAB, 5)), ("dn3", good(0, 0xCD, 6))]

    assert "here 4 bytes 0xef; dn2 5 bytes 0xab; dn3 6 bytes 0xcd" == format_versions(
        good(0, 0xEF, 4), versions
    )
    assert "our row is lost; dn2 5 bytes 0xab" == format_versions(None, versions[:1])


def test_a_row_says_what_a_whole_chunk_has_for_a_leaf() -> None:
    """
    That of a tree which was built from it.
    """
    chunk = ChunkInfo(40, 9, ChecksumType.CRC32, 16, b"sums")
    builder = TreeBuilder(Algorithm.XXH3_64)
    builder.add_block(1)
    builder.add_chunk(40, 9, b"sums")
    tree = builder.build()

    assert tree.leaves(1) == [leaf_of(tree, chunk)]
