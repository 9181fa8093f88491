"""Trees are what their blocks fold to, cost little, and never change."""

from dataclasses import replace

import numpy as np
import pytest

from merkle.checksum import Algorithm
from merkle.damaged_data import DamagedData
from merkle.replica import ID_MAX, BlockId
from merkle.tree import Leaf, Tree, with_tombstones
from merkle.tree_building import TreeBuilder, build_from_rows
from merkle.tree_columns import LENGTH_MASK, OFFSET_BITS
from merkle.tree_summary import TreeSummary
from tests.support.storage.tree_model import bury, merge
from tests.support.storage.trees import (
    CHUNK_A,
    CHUNK_B,
    bad,
    block,
    good,
    leaf_tree,
    rows_of,
    tree_of,
)

BYTES_PER_BLOCK_MAX = 40
BLOCKS = [
    block(3, CHUNK_A, CHUNK_B),
    block(5),
    block(6, CHUNK_B, metadata=(("key", "a"),)),
    block(9, CHUNK_B, CHUNK_B, CHUNK_A),
]


def columns_of(tree: Tree) -> dict[str, object]:
    """Return the tree as it goes over the wire."""
    return {
        "block_ids": tree.block_ids.tolist(),
        "block_checksums": tree.block_checksums.tolist(),
        "deleted": tree.deleted.tolist(),
        "chunk_counts": tree.chunk_counts.tolist(),
        "chunk_offsets": tree.chunk_offsets.tolist(),
        "chunk_lengths": tree.chunk_lengths.tolist(),
        "chunk_checksums": tree.chunk_checksums.tolist(),
        "chunk_healthy": tree.chunk_healthy.tolist(),
    }


@pytest.mark.parametrize("algorithm", list(Algorithm))
class TestBuild:
    def test_rows_and_scan_build_the_same_tree(self, algorithm: Algorithm) -> None:
        """The tree made at a close equals that of a clean scan, with blocks without chunks."""
        tombstones = {BlockId(1): 11, BlockId(7): 77, BlockId(12): 2**64 - 1}

        built = build_from_rows(rows_of(BLOCKS), tombstones, algorithm=algorithm, generation=4)

        assert tree_of(BLOCKS, tombstones, algorithm=algorithm, generation=4) == built
        built.verify()

    def test_empty_tree_has_a_root(self, algorithm: Algorithm) -> None:
        """A container without blocks has a root, which differs from an absent tree."""
        empty = build_from_rows([], {}, algorithm=algorithm)

        assert TreeBuilder(algorithm).build() == empty
        assert (0, 0, 0) == (empty.block_count, empty.tombstone_count, empty.chunk_count)
        assert -1 == empty.index_of(1)
        assert [] == empty.leaves(1)

    def test_a_tombstone_wins_over_the_row(self, algorithm: Algorithm) -> None:
        """
        A delete that has written its tombstone and not yet removed the row has happened.
        """
        built = build_from_rows(rows_of(BLOCKS), {BlockId(3): 33}, algorithm=algorithm)

        assert tree_of(BLOCKS[1:], {3: 33}, algorithm=algorithm) == built

    def test_many_batches_build_one_tree(self, algorithm: Algorithm) -> None:
        """
        More rows than are parsed at once.
        """
        blocks = [block(number, b"%d" % number) for number in range(1, 9_000, 2)]

        built = build_from_rows(iter(rows_of(blocks)), {}, algorithm=algorithm)

        assert tree_of(blocks, algorithm=algorithm) == built


class TestOrder:
    def test_rows_out_of_order_are_refused(self) -> None:
        """A caller that walks the index in the wrong order gets an error."""
        with pytest.raises(ValueError, match="must ascend"):
            build_from_rows(rows_of(BLOCKS[::-1]), {}, algorithm=Algorithm.XXH3_64)

    @pytest.mark.parametrize("block_id", [4, 5, -1, ID_MAX + 1])
    def test_blocks_out_of_order_are_refused(self, block_id: int) -> None:
        """
        Ids ascend and are ids.
        """
        builder = TreeBuilder(Algorithm.XXH3_64)
        builder.add_block(5)

        with pytest.raises(ValueError, match=r"ascend|outside"):
            builder.add_block(block_id)

    @pytest.mark.parametrize(
        "leaf",
        [
            Leaf(20, 10, 1),
            Leaf(19, 10, 1),
            Leaf(30, -1, 1),
            Leaf(1 << OFFSET_BITS, 10, 1),
            Leaf(30, LENGTH_MASK + 1, 1),
        ],
        ids=str,
    )
    def test_chunks_out_of_order_are_refused(self, leaf: Leaf) -> None:
        """
        Offsets ascend, and offset and length are possible.
        """
        builder = TreeBuilder(Algorithm.XXH3_64)
        builder.add_block(5)
        builder.add_leaf(good(20, 1))

        with pytest.raises(ValueError, match=r"ascend|not possible"):
            builder.add_leaf(leaf)

    def test_negative_block_or_offset_is_refused(self) -> None:
        """A negative block id and a negative offset of a first chunk are refused."""
        builder = TreeBuilder(Algorithm.XXH3_64)

        with pytest.raises(ValueError, match="outside"):
            builder.add_block(-1)
        builder.add_block(0)
        with pytest.raises(ValueError, match="not possible"):
            builder.add_leaf(Leaf(-1, 10, 1))

    def test_the_smallest_and_the_largest_fit(self) -> None:
        """
        A chunk of nothing, too.
        """
        tree = leaf_tree({0: [Leaf(0, 0, 1)], ID_MAX: [Leaf(0, 0, 1)]})

        assert [0, ID_MAX] == tree.block_ids.tolist()
        assert [Leaf(0, 0, 1)] == tree.leaves(ID_MAX)

    def test_a_block_that_comes_twice_is_refused(self) -> None:
        """A repeated block is refused, also within a run of columns."""
        run = leaf_tree({4: [], 5: []})
        builder = TreeBuilder(Algorithm.XXH3_64)
        twice = np.array([4, 4], dtype=np.uint64)

        builder.add_blocks(twice, run.chunk_counts, run.chunk_spans, run.chunk_checksums)

        with pytest.raises(ValueError, match="must ascend"):
            builder.build()

    def test_a_chunk_needs_a_block(self) -> None:
        """
        A chunk before any block belongs nowhere.
        """
        with pytest.raises(ValueError, match="before any block"):
            TreeBuilder(Algorithm.XXH3_64).add_chunk(0, 1, b"")

    def test_the_largest_chunk_fits(self) -> None:
        """
        Offset and length share a word, and neither loses a bit.
        """
        extreme = Leaf((1 << OFFSET_BITS) - 1, LENGTH_MASK, 2**64 - 1, healthy=False)

        assert [extreme] == leaf_tree({1: [good(0, 5), extreme]}).leaves(1)[1:]

    @pytest.mark.parametrize("before", [0, 1])
    def test_columns_add_what_one_by_one_adds(self, before: int) -> None:
        """
        Blocks of a run, some with several chunks, behind others or at the beginning.
        """
        whole = leaf_tree(
            {
                2: [good(0, 1)],
                4: [good(0, 2), good(10, 3)],
                6: [],
                8: [good(5, 2**64 - 1, 7)],
            }
        )
        rest = whole.select(whole.block_ids[before:])
        builder = TreeBuilder(Algorithm.XXH3_64)
        for block_id in whole.block_ids[:before].tolist():
            builder.add_block(block_id)
            builder.add_leaf(good(0, 1))

        builder.add_blocks(
            rest.block_ids, rest.chunk_counts, rest.chunk_spans, rest.chunk_checksums
        )

        assert whole == builder.build()

    def test_no_columns_add_nothing(self) -> None:
        """
        A run of no blocks.
        """
        builder = TreeBuilder(Algorithm.XXH3_64)
        nothing = leaf_tree({})

        builder.add_blocks(
            nothing.block_ids, nothing.chunk_counts, nothing.chunk_spans, nothing.chunk_checksums
        )

        assert nothing == builder.build()

    @pytest.mark.parametrize("block_id", [4, 5])
    def test_columns_out_of_order_are_refused(self, block_id: int) -> None:
        """
        The first block of a run lies behind the last before it.
        """
        builder = TreeBuilder(Algorithm.XXH3_64)
        builder.add_block(5)
        late = leaf_tree({block_id: [good(0, 1)]})

        with pytest.raises(ValueError, match="must ascend"):
            builder.add_blocks(
                late.block_ids, late.chunk_counts, late.chunk_spans, late.chunk_checksums
            )


class TestQuestions:
    tree = leaf_tree({2: [good(0, 1), bad(10, 2)], 4: [], 6: [good(0, 3)]}, {5: 55}, generation=8)

    def test_a_block_is_found_by_id(self) -> None:
        """
        Tombstones and chunk-less blocks are blocks; other ids are -1.
        """
        assert [-1, 0, -1, 1, 2, 3, -1] == [self.tree.index_of(i) for i in (1, 2, 3, 4, 5, 6, 7)]

    def test_leaves_come_back(self) -> None:
        """
        A leaf has what the scan saw, health included.
        """
        assert [good(0, 1), bad(10, 2)] == self.tree.leaves(2)
        assert [] == self.tree.leaves(4) + self.tree.leaves(5) + self.tree.leaves(99)
        assert good(0, 3) == self.tree.leaf(2)
        assert slice(2, 3) == self.tree.chunks_of(3)

    def test_columns_come_apart(self) -> None:
        """
        The columns made on demand are those that were put in.
        """
        assert [0, 10, 0] == self.tree.chunk_offsets.tolist()
        assert [10, 10, 10] == self.tree.chunk_lengths.tolist()
        assert [True, False, True] == self.tree.chunk_healthy.tolist()
        assert [2, 0, 0, 1] == self.tree.chunk_counts.tolist()
        assert [2] == self.tree.unhealthy_block_ids().tolist()

    def test_the_summary_counts(self) -> None:
        """The summary distinguishes live blocks from tombstones."""
        expected = TreeSummary(
            Algorithm.XXH3_64, self.tree.root, 8, 3, 1, self.tree.tombstones_checksum
        )

        assert expected == self.tree.summary()

    def test_a_selection_is_the_same_blocks(self) -> None:
        """
        Selecting keeps checksums, and forgets ids that are not here.
        """
        expected = leaf_tree({2: [good(0, 1), bad(10, 2)]}, {5: 55}, generation=8)

        assert expected == self.tree.select([5, 2, 77])
        assert expected == self.tree.select(np.array([2, 5], dtype=np.uint64))
        assert expected == self.tree.select(number for number in (2, 5))

    def test_a_tree_says_what_it_is(self) -> None:
        """
        A log line or a failed assertion names the counts.
        """
        assert "blocks=3, tombstones=1, chunks=3, unhealthy=1" in repr(self.tree)

    def test_another_generation_is_another_tree(self) -> None:
        """
        Equal means equal in everything that is kept.
        """
        assert self.tree != self.tree.with_generation(9)
        assert self.tree == self.tree.with_generation(9).with_generation(8)
        assert (self.tree == "tree") is False

    @pytest.mark.parametrize(
        "other",
        [
            leaf_tree(
                {2: [good(0, 1), good(10, 2)], 4: [], 6: [good(0, 3)]}, {5: 55}, generation=8
            ),
            bury(tree, [BlockId(6)]),
        ],
    )
    def test_equal_roots_make_no_equal_trees(self, other: Tree) -> None:
        """Damaged and deleted chunks are in none of the roots."""
        assert (self.tree.root, self.tree.generation) == (other.root, other.generation)
        assert self.tree != other

    def test_a_tree_cannot_be_changed(self) -> None:
        """
        Trees cross threads: no column can be written.
        """
        for column in self.tree.columns():
            with pytest.raises(ValueError, match="read-only"):
                column[0] = 0


class TestCost:
    def test_a_block_costs_at_most_forty_bytes(self) -> None:
        """
        A tree of one-chunk blocks, beyond its window checksums, which it does not hold.
        """
        count = 1_000
        tree = leaf_tree({number: [good(0, number)] for number in range(1, count + 1)})

        cost_bytes = sum(column.nbytes for column in tree.columns())

        assert cost_bytes <= BYTES_PER_BLOCK_MAX * count

    @pytest.mark.parametrize("healthy", [True, False])
    def test_columns_own_no_more_than_they_show(self, healthy: bool) -> None:
        """
        No column is a view that keeps a larger buffer alive.
        """
        builder = TreeBuilder(Algorithm.XXH3_64)
        for number in range(100):
            builder.add_block(number)
            builder.add_chunk(0, 10, b"1234", healthy)
        tree = bury(builder.build(), range(0, 100, 2))

        assert all(column.base is None for column in tree.columns())


class TestMerge:
    fresh = leaf_tree({1: [good(0, 1)], 3: [good(0, 3)]}, {4: 400, 6: 600}, generation=9)

    def test_without_a_former_tree_the_fresh_one_stands(self) -> None:
        """
        The first tree of a replica.
        """
        assert self.fresh == merge(None, self.fresh)

    def test_deleted_stays_deleted(self) -> None:
        """
        Ozone's rules: sticky tombstones, live blocks of the writer only, its tombstone if both.
        """
        existing = leaf_tree({1: [good(0, 9)], 2: [], 4: [good(0, 4)]}, {3: 33, 5: 55, 6: 66})

        merged = merge(existing, self.fresh)

        expected = leaf_tree({1: [good(0, 1)]}, {3: 33, 4: 400, 5: 55, 6: 600}, generation=9)
        assert expected == merged

    def test_a_scan_that_missed_a_delete_resurrects_nothing(self) -> None:
        """
        Buried while a scan read it: the scan's tree has it live, the merged one does not.
        """
        before = tree_of(BLOCKS)

        merged = merge(bury(before, [3]), before)

        assert (True, before.root) == (bool(merged.deleted[merged.index_of(3)]), before.root)

    def test_merging_twice_is_merging_once(self) -> None:
        """
        A retry after a lost race changes nothing.
        """
        existing = leaf_tree({1: []}, {3: 33, 5: 55})
        once = merge(existing, self.fresh)

        assert once == merge(existing, once)


class TestBury:
    def test_the_root_stays(self) -> None:
        """
        Deleting is no divergence of data; that it happened shows in the other checksum.
        """
        tree = tree_of(BLOCKS)

        buried = bury(tree, [BlockId(3), BlockId(5)])

        assert tree.root == buried.root
        assert tree.tombstones_checksum != buried.tombstones_checksum
        assert [True, True, False, False] == buried.deleted.tolist()
        assert tree.block_checksums.tolist() == buried.block_checksums.tolist()
        assert (2, 2, 4) == (buried.block_count, buried.tombstone_count, buried.chunk_count)

    def test_only_live_blocks_are_buried(self) -> None:
        """
        Unknown ids and tombstones change nothing.
        """
        tree = tree_of(BLOCKS, {4: 44})

        assert tree == bury(tree, [4, 1000])
        assert tree == bury(tree, [])
        none = np.empty(0, dtype=np.uint64)
        assert tree is with_tombstones(tree, block_ids=none, checksums=none)

    def test_everything_can_be_buried(self) -> None:
        """
        A container whose last block is deleted keeps its root.
        """
        tree = tree_of(BLOCKS)
        buried = bury(tree, tree.block_ids)

        assert (tree.root, 0, 0) == (buried.root, buried.block_count, buried.chunk_count)


class TestColumns:
    tree = leaf_tree({2: [good(0, 1), bad(10, 2)], 4: [], 6: [good(0, 3)]}, {5: 55}, generation=8)

    def test_a_tree_arrives_as_it_was_sent(self) -> None:
        """
        Columns from the wire make the same tree.
        """
        received = Tree.from_columns(Algorithm.XXH3_64, **columns_of(self.tree), generation=8)

        assert self.tree == received
        assert 0 == Tree.from_columns(Algorithm.XXH3_64, **columns_of(self.tree)).generation

    @pytest.mark.parametrize(
        ("name", "position", "lie"),
        [
            ("block_ids", 0, 1),
            ("block_ids", 1, 7),
            ("block_ids", 3, 2**63),
            ("block_checksums", 0, 12345),
            ("deleted", 0, True),
            ("deleted", 2, False),
            ("chunk_counts", 0, 3),
            ("chunk_counts", 0, 1),
            ("chunk_offsets", 1, 0),
            ("chunk_offsets", 1, 1 << OFFSET_BITS),
            ("chunk_lengths", 1, LENGTH_MASK + 1),
            ("chunk_checksums", 2, 4),
        ],
    )
    def test_a_peer_that_contradicts_itself_is_refused(
        self, name: str, position: int, lie: object
    ) -> None:
        """
        No node that is not the checksum of its children, and no shape that cannot be.
        """
        columns = columns_of(self.tree)
        columns[name][position] = lie

        with pytest.raises(DamagedData):
            Tree.from_columns(Algorithm.XXH3_64, **columns)

    def test_a_root_that_is_not_the_fold_of_the_blocks_is_refused(self) -> None:
        """The root is refused although every block is the fold of its chunks."""
        self.tree.verify()
        with pytest.raises(DamagedData, match="root is not the fold"):
            replace(self.tree, root=self.tree.root ^ 1).verify()

    @pytest.mark.parametrize("name", list(columns_of(tree)))
    def test_columns_of_different_lengths_are_refused(self, name: str) -> None:
        """
        A page that lost a value is not read in part.
        """
        columns = columns_of(self.tree)
        columns[name] = columns[name][:-1]

        with pytest.raises(DamagedData):
            Tree.from_columns(Algorithm.XXH3_64, **columns)

    @pytest.mark.parametrize("counts", [[4, -1, 0, 0], [2**32 + 2, -(2**32), 0, 1]])
    def test_a_negative_count_is_refused(self, counts: list[int]) -> None:
        """
        Counts that only add up are not enough, nor if they wrap around to the right ones.
        """
        columns = columns_of(self.tree) | {"chunk_counts": counts}

        with pytest.raises(DamagedData):
            Tree.from_columns(Algorithm.XXH3_64, **columns)
