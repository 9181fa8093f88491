"""Trees over the wire, page by page."""

from collections.abc import Iterable

import numpy as np
import pytest

from merkle.checksum import Algorithm
from merkle.tree import Leaf, Tree
from merkle.tree_building import TreeBuilder
from merkle.tree_descent import range_checksums, range_starts
from suture.errors import RefusedError
from suture.wire.mapping import tree_pages
from suture.wire.mapping.tree_pages import PAGE_BYTES_MAX, pages, parse_selection
from suture.wire.v1 import datanode_pb2 as pb

MANY = 60_000


def tree_of(block_count: int, *, chunk_count: int = 1, tombstones: Iterable[int] = ()) -> Tree:
    """Return a tree of blocks 1, 2, ... with alike chunks."""
    builder = TreeBuilder(Algorithm.XXH3_64)
    for block in range(1, block_count + 1):
        builder.add_block(block)
        for number in range(chunk_count):
            builder.add_leaf(Leaf(number * 10_000, 10_000, block * 31 + number, number != 1))
    for block in tombstones:
        builder.add_tombstone(block, block)
    return builder.build(generation=5)


def answer(tree: Tree, **request: object) -> list[pb.HashesPage]:
    """Ask a tree, and send the pages over the wire."""
    message = pb.GetContainerHashesRequest(container_id=1, **request)  # type: ignore[arg-type]
    return [
        pb.HashesPage.FromString(page.SerializeToString())
        for page in pages(tree, parse_selection(message))
    ]


class TestWholeTree:
    def test_a_tree_comes_back_equal(self) -> None:
        """Blocks, tombstones, chunks and their health survive the pages."""
        tree = tree_of(100, chunk_count=3, tombstones=[7, 300])

        summary, received = tree_pages.read_tree(answer(tree, level=pb.CHUNKS))

        assert (tree.summary(), tree) == (summary, received)

    def test_a_large_tree_comes_in_bounded_pages(self) -> None:
        """No page is much larger than a mebibyte, and none is a blob of the container."""
        tree = tree_of(MANY)

        received = answer(tree, level=pb.CHUNKS)

        assert len(received) > 1
        assert all(page.ByteSize() <= PAGE_BYTES_MAX for page in received)
        assert tree == tree_pages.read_tree(received)[1]

    def test_a_block_is_never_cut(self) -> None:
        """A block of the most chunks there may be comes in one page."""
        tree = tree_of(2, chunk_count=65_535)

        received = answer(tree, level=pb.CHUNKS)

        assert [1, 1] == [len(page.block_ids) for page in received]
        assert tree == tree_pages.read_tree(received)[1]

    @pytest.mark.parametrize("level", [pb.ROOT, pb.BLOCKS, pb.CHUNKS])
    def test_an_empty_tree_has_a_first_page(self, level: int) -> None:
        """Absence of blocks is not absence of an answer."""
        tree = tree_of(0)

        [page] = answer(tree, level=level)

        assert page.HasField("summary")


class TestSelection:
    def test_only_the_named_blocks_come(self) -> None:
        """Ids that are not here are left out; order and repetition do not matter."""
        tree = tree_of(100)

        _, received = tree_pages.read_tree(
            answer(tree, level=pb.CHUNKS, block_ids=[50, 3, 50, 999])
        )

        assert [3, 50] == received.block_ids.tolist()

    def test_only_the_named_ranges_come(self) -> None:
        """Both ends belong to a range."""
        tree = tree_of(100)
        ranges = [pb.BlockRange(first=0, last=2), pb.BlockRange(first=99, last=500)]

        received = tree_pages.read_blocks(answer(tree, level=pb.BLOCKS, ranges=ranges))

        assert [1, 2, 99, 100] == received.block_ids.tolist()

    def test_range_checksums_are_those_of_the_tree(self) -> None:
        """The asker names where ranges start."""
        tree = tree_of(2_000)
        starts = range_starts(tree)

        _, received = tree_pages.read_ranges(
            answer(tree, level=pb.RANGES, range_starts=starts.tolist()), count=len(starts)
        )

        assert np.array_equal(range_checksums(tree, starts), received)

    @pytest.mark.parametrize(
        "request_",
        [
            {"level": 0},
            {"level": 99},
            {"level": pb.ROOT, "block_ids": [1]},
            {"level": pb.BLOCKS, "block_ids": [1], "ranges": [pb.BlockRange(first=1, last=2)]},
            {"level": pb.BLOCKS, "block_ids": [2**64 - 1]},
            {"level": pb.BLOCKS, "ranges": [pb.BlockRange(first=2, last=1)]},
            {"level": pb.BLOCKS, "ranges": [pb.BlockRange(first=1, last=5)] * 2},
            {"level": pb.BLOCKS, "block_ids": range(1, 65_538)},
            {"level": pb.RANGES},
            {"level": pb.RANGES, "range_starts": [1, 2]},
            {"level": pb.RANGES, "range_starts": [0, 2, 2]},
            {"level": pb.CHUNKS, "range_starts": [0]},
        ],
    )
    def test_nonsense_is_refused(self, request_: dict[str, object]) -> None:
        """A question that means nothing, or too much, is refused before the tree is touched."""
        with pytest.raises(RefusedError):
            answer(tree_of(3), **request_)


class TestBadAnswers:
    def test_a_block_that_its_chunks_do_not_make_is_refused(self) -> None:
        """A tree is self-consistent or it is not taken."""
        [page] = answer(tree_of(3), level=pb.CHUNKS)
        page.chunk_checksums[1] ^= 1

        with pytest.raises(RefusedError, match="not the fold"):
            tree_pages.read_tree([page])

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda page: page.ClearField("summary"),
            lambda page: page.block_deleted.append(True),
            lambda page: page.block_ids.append(1),
            lambda page: page.chunk_lengths.append(7),
            lambda page: page.chunk_lengths.__setitem__(0, 2**32 - 1),
            lambda page: page.chunk_offsets.__setitem__(0, 2**64 - 1),
            lambda page: page.block_chunk_counts.__setitem__(0, 2**32 - 1),
            lambda page: page.block_ids.__setitem__(0, 2**64 - 1),
            lambda page: setattr(page.summary, "algorithm", 9),
        ],
    )
    def test_columns_that_do_not_fit_are_refused(self, spoil: object) -> None:
        """Any message of a peer gives a tree or a refusal."""
        [page] = answer(tree_of(3), level=pb.CHUNKS)
        spoil(page)  # type: ignore[operator]

        with pytest.raises(RefusedError):
            tree_pages.read_tree([page])

    def test_a_peer_that_never_stops_is_cut_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Memory is bounded by us, not by the peer."""
        monkeypatch.setattr(tree_pages, "ROWS_MAX", 1_000)
        [page] = answer(tree_of(100), level=pb.CHUNKS)

        def endless() -> Iterable[pb.HashesPage]:
            for _ in range(100):  # many more rows than are taken
                yield page
            raise AssertionError("it was read on and on")

        with pytest.raises(RefusedError, match="more than"):
            tree_pages.read_tree(endless())
