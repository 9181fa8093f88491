"""Descending finds what whole trees would show, and believes no peer that contradicts itself."""

import numpy as np
import pytest

from merkle.checksum import FOLDS, Algorithm
from merkle.damaged_data import DamagedData
from merkle.replica import ID_MAX
from merkle.tree import Tree
from merkle.tree_descent import (
    check_ranges,
    differing_blocks,
    differing_ranges,
    partial_tree,
    range_checksums,
    range_starts,
)
from tests.support.storage.tree_model import bury
from tests.support.storage.trees import bad, good, leaf_tree

TREE = leaf_tree({number: [good(0, number)] for number in range(10, 1_010, 10)})


def partial(rows: Tree, detailed: Tree) -> Tree:
    """Return what is known of a peer that sent the rows of one tree and the chunks of another."""
    return partial_tree(
        rows.algorithm,
        block_ids=rows.block_ids,
        block_checksums=rows.block_checksums,
        deleted=rows.deleted,
        detailed=detailed,
    )


class TestRanges:
    def test_ranges_cover_every_id(self) -> None:
        """
        The first begins at 0, the last is open, so that no block falls between two.
        """
        assert [0, 310, 610, 910] == range_starts(TREE, 30).tolist()
        assert [0] == range_starts(leaf_tree({})).tolist()
        assert [0] == range_starts(leaf_tree({0: []})).tolist()

    def test_equal_trees_have_equal_ranges(self) -> None:
        """
        Nothing to descend into.
        """
        starts = range_starts(TREE, 7)
        checksums = range_checksums(TREE, starts)

        assert [] == differing_ranges(checksums, checksums, starts)

    @pytest.mark.parametrize(
        ("theirs", "expected"),
        [
            (leaf_tree({5: []}), [(0, ID_MAX)]),
            (bury(TREE, [310]), [(310, 609)]),
            (TREE.select(range(0, 1_000, 10)), [(910, ID_MAX)]),
            (bury(TREE, [300, 310]), [(0, 609)]),
            (bury(TREE, [10, 1_000]), [(0, 309), (910, ID_MAX)]),
        ],
    )
    def test_ranges_that_differ_are_named(
        self, theirs: Tree, expected: list[tuple[int, int]]
    ) -> None:
        """A range differs if only a delete differs and every block checksum agrees. Neighbours
        are joined.
        """
        starts = range_starts(TREE, 30)

        ranges = differing_ranges(
            range_checksums(TREE, starts), range_checksums(theirs, starts), starts
        )

        assert expected == ranges

    def test_unhealthy_blocks_can_be_asked_for_too(self) -> None:
        """
        Health is in no checksum, so equal ranges may hide a chunk that a peer can heal.
        """
        starts = range_starts(TREE, 30)
        checksums = range_checksums(TREE, starts)

        ranges = differing_ranges(checksums, checksums, starts, also=[310, 609, 2_000])

        assert [(310, 609), (910, ID_MAX)] == ranges

    def test_an_answer_of_another_length_is_refused(self) -> None:
        """
        Range checksums mean nothing without their ranges.
        """
        with pytest.raises(DamagedData, match="2 range checksums for 1 ranges"):
            differing_ranges([1], [1, 2], [0])

    @pytest.mark.parametrize("starts", [[], [1], [0, 5, 5], [0, 9, 5]])
    def test_starts_that_do_not_ascend_are_refused(self, starts: list[int]) -> None:
        """
        A peer that asks nonsense gets an error, not a wrong answer.
        """
        with pytest.raises(ValueError, match="ascend from 0"):
            range_checksums(TREE, starts)

    @pytest.mark.parametrize("algorithm", list(Algorithm))
    def test_a_range_folds_rows_of_seventeen_bytes(self, algorithm: Algorithm) -> None:
        """
        The published layout; an empty range folds nothing.
        """
        tree = leaf_tree({}, {1: 2}, algorithm=algorithm)
        row = (1).to_bytes(8) + (2).to_bytes(8) + b"\x01"

        checksums = range_checksums(tree, [0, 5]).tolist()

        assert [FOLDS[algorithm](row), FOLDS[algorithm](b"")] == checksums


class TestBlocks:
    mine = leaf_tree(
        {1: [good(0, 1)], 2: [good(0, 2)], 3: [bad(0, 3)], 6: [good(0, 6)]}, {4: 4, 5: 5}
    )

    def test_only_blocks_with_something_to_take_are_fetched(self) -> None:
        """
        Live at the peer and here absent, different or unhealthy; tombstones need no chunks.
        """
        theirs = leaf_tree(
            {
                1: [good(0, 1)],  # equal
                2: [good(0, 99)],  # differs
                3: [bad(0, 3)],  # equal, unhealthy here
                4: [good(0, 4)],  # deleted here
                7: [good(0, 7)],  # absent here
            },
            {6: 6, 8: 8},  # deleted there
        )

        wanted = differing_blocks(
            self.mine, theirs.block_ids, theirs.block_checksums, theirs.deleted
        )

        assert [2, 3, 7] == wanted.tolist()

    def test_the_last_block_is_compared_too(self) -> None:
        """
        A block that is equal is not fetched, wherever it stands.
        """
        same = leaf_tree({1: [good(0, 1)], 6: [good(0, 6)]})

        wanted = differing_blocks(same, same.block_ids, same.block_checksums, same.deleted)

        assert [] == wanted.tolist()

    def test_an_empty_replica_fetches_every_live_block(self) -> None:
        """
        Nothing here is nothing to compare with.
        """
        wanted = differing_blocks(leaf_tree({}), [1, 2], [5, 6], [False, True])

        assert [1] == wanted.tolist()


class TestPartialTree:
    whole = leaf_tree({1: [good(0, 1)], 2: [good(0, 2), bad(10, 3)], 5: []}, {3: 3})

    def test_rows_and_some_chunks_make_a_tree(self) -> None:
        """
        Every block is there by checksum, the fetched ones with their chunks.
        """
        theirs = partial(self.whole, self.whole.select([2]))

        assert self.whole.summary() == theirs.summary()
        assert [good(0, 2), bad(10, 3)] == theirs.leaves(2)
        assert [] == theirs.leaves(1)

    @pytest.mark.parametrize(
        "detailed",
        [
            leaf_tree({2: [good(0, 2)]}),
            leaf_tree({3: [good(0, 2)]}),
            leaf_tree({9: [good(0, 2)]}),
            leaf_tree({}, {2: 2}),
        ],
        ids=["other chunks", "of a tombstone", "of no row", "deleted meanwhile"],
    )
    def test_chunks_must_be_those_of_the_rows(self, detailed: Tree) -> None:
        """No plan is made from contradictory answers of a peer."""
        with pytest.raises(DamagedData, match="chunks of block"):
            partial(self.whole, detailed)

    @pytest.mark.parametrize("block_id", [0, 4, 9])
    def test_chunks_of_a_block_without_a_row_are_named(self, block_id: int) -> None:
        """
        In front of the rows, between them and behind them.
        """
        with pytest.raises(DamagedData, match=f"block {block_id}, which no row mentions"):
            partial(self.whole, leaf_tree({block_id: [good(0, 2)]}))

    def test_chunks_of_the_last_row_are_taken(self) -> None:
        """
        The last block is a block like any other.
        """
        rows = leaf_tree({1: [good(0, 1)], 2: [good(0, 2)]})

        assert [good(0, 2)] == partial(rows, rows.select([2])).leaves(2)

    def test_rows_of_unequal_length_are_refused(self) -> None:
        """
        A page that lost a value is not read in part.
        """
        with pytest.raises(DamagedData, match="rows of 2 blocks"):
            partial_tree(
                Algorithm.XXH3_64,
                block_ids=[1, 2],
                block_checksums=[1],
                deleted=[False, False],
                detailed=leaf_tree({}),
            )

    def test_chunks_without_rows_are_refused(self) -> None:
        """Chunks need a row."""
        with pytest.raises(DamagedData, match="which no row mentions"):
            partial(leaf_tree({}), leaf_tree({2: [good(0, 2)]}))

    def test_rows_must_fold_to_what_was_advertised(self) -> None:
        """
        Range checksums bind the rows that follow them, in the scope that was asked for.
        """
        starts = range_starts(TREE, 30)
        advertised = range_checksums(TREE, starts)
        scope = [(310, 609)]
        rows = TREE.select(range(310, 610))

        check_ranges(rows, starts, advertised, scope)

        with pytest.raises(DamagedData, match="blocks from 310 on"):
            check_ranges(bury(rows, [400]), starts, advertised, scope)

    @pytest.mark.parametrize("scope", [[(0, 5), (310, 310)], [(310, 310), (900, 910)]])
    def test_any_range_of_the_scope_is_checked(self, scope: list[tuple[int, int]]) -> None:
        """
        A range that begins where a part of the scope ends is in it; the other parts do not matter.
        """
        starts = range_starts(TREE, 30)
        advertised = range_checksums(TREE, starts)

        with pytest.raises(DamagedData, match="blocks from 310 on"):
            check_ranges(bury(TREE, [310]), starts, advertised, scope)


def test_starts_are_a_copy() -> None:
    """
    Setting the first start to 0 changes no tree.
    """
    range_starts(TREE, 30)

    assert np.uint64(10) == TREE.block_ids[0]
