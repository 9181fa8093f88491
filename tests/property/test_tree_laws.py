"""The laws of trees: what holds for all of them, found or refuted by search."""

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.scans import reference_tree
from merkle.checksum import Algorithm, block_checksum, leaf_checksum
from merkle.checksum_columns import container_checksum
from merkle.diff import REPAIRED_KINDS, DifferenceKind, Divergence, SummaryComparison, compare, diff
from merkle.replica import BlockData
from merkle.tree import Tree
from merkle.tree_building import build_from_rows
from merkle.tree_descent import (
    check_ranges,
    differing_blocks,
    differing_ranges,
    partial_tree,
    range_checksums,
    range_starts,
)
from tests.support.storage.tree_model import apply_divergence, bury, merge
from tests.support.storage.tree_strategies import (
    ALGORITHMS,
    BLOCK_IDS,
    CHECKSUMS,
    Estranged,
    blocks,
    estranged,
    trees,
)
from tests.support.storage.trees import rows_of, tree_of

EXAMPLES = 90
laws = settings(max_examples=EXAMPLES, deadline=None)  # the machine's mood is no law


def tombstones(tree: Tree) -> set[int]:
    """Return the ids of what was deleted."""
    return set(tree.block_ids[tree.deleted].tolist())


class TestBuilding:
    @laws
    @given(blocks(), st.dictionaries(BLOCK_IDS, CHECKSUMS, max_size=3), ALGORITHMS)
    def test_tree_built_from_rows_equals_the_plain_reference(
        self, content: list[BlockData], deleted: dict[int, int], algorithm: Algorithm
    ) -> None:
        """Built from rows, as in a scan, and plainly, it is one tree, and every node folds its
        children.
        """
        rows = rows_of(content)

        built = build_from_rows(rows, deleted, algorithm=algorithm)

        assert tree_of(content, deleted, algorithm=algorithm) == built
        plain = reference_tree.build(rows, deleted, algorithm)
        assert plain == reference_tree.from_tree(built)
        built.verify()

    @laws
    @given(blocks(), ALGORITHMS)
    def test_a_tree_is_the_fold_of_its_parts(
        self, content: list[BlockData], algorithm: Algorithm
    ) -> None:
        """
        The columns compute what the published rules say, one value at a time.
        """
        leaves = {
            block.block_id: [
                leaf_checksum(algorithm, chunk.offset, chunk.length_bytes, chunk.window_checksums)
                for chunk in block.chunks
            ]
            for block in content
        }
        checksums = [block_checksum(algorithm, *item) for item in leaves.items()]

        tree = build_from_rows(rows_of(content), {}, algorithm=algorithm)

        assert checksums == tree.block_checksums.tolist()
        assert container_checksum(algorithm, checksums) == tree.root

    @laws
    @given(trees())
    def test_a_tree_survives_the_wire(self, tree: Tree) -> None:
        """
        Taken apart into columns and put together again.
        """
        assert tree == as_received(tree)


class TestDeleting:
    @laws
    @given(trees(), st.sets(BLOCK_IDS))
    def test_burying_leaves_the_root(self, tree: Tree, block_ids: set[int]) -> None:
        """The root stays the same, and exactly the live blocks among the ids become tombstones."""
        buried = bury(tree, block_ids)

        known = set(tree.block_ids.tolist())
        assert tree.root == buried.root
        assert tombstones(tree) | (block_ids & known) == tombstones(buried)

    @laws
    @given(trees(), trees())
    def test_merging_keeps_tombstones(self, existing: Tree, fresh: Tree) -> None:
        """Blocks deleted in either tree are deleted, live ones are those of the fresh tree, and
        a second merge changes nothing.
        """
        merged = merge(existing, fresh)

        living = set(merged.block_ids[~merged.deleted].tolist())
        assert tombstones(existing) | tombstones(fresh) == tombstones(merged)
        assert set(fresh.block_ids.tolist()) - tombstones(merged) == living
        assert all(fresh.leaves(block_id) == merged.leaves(block_id) for block_id in living)
        assert merged == merge(existing, merged) == merge(merged, merged)
        assert fresh.generation == merged.generation


class TestDiff:
    @laws
    @given(trees())
    def test_a_tree_has_nothing_to_take_from_itself(self, tree: Tree) -> None:
        """
        No difference but the damage that both have.
        """
        kinds = set(diff(tree, tree).counts())

        assert kinds <= {DifferenceKind.BOTH_UNHEALTHY}
        assert bool(kinds) == bool(tree.unhealthy_count)

    @laws
    @given(trees(), trees())
    def test_columns_and_dicts_find_the_same(self, mine: Tree, theirs: Tree) -> None:
        """
        The plain diff, written for reading, is the oracle.
        """
        plain = reference_tree.diff(
            reference_tree.from_tree(mine), reference_tree.from_tree(theirs)
        )

        assert Divergence(tuple(plain)) == diff(mine, theirs)

    @laws
    @given(trees(), trees())
    def test_diff_takes_no_unhealthy_chunk(self, mine: Tree, theirs: Tree) -> None:
        """No chunk that is healthy here is overwritten."""
        for difference in diff(mine, theirs).differences:
            if difference.kind in REPAIRED_KINDS:
                assert difference.theirs is None or difference.theirs.healthy
                assert difference.mine is None or not difference.mine.healthy

    @laws
    @given(trees(), trees())
    def test_applying_loses_nothing_and_once_is_enough(self, mine: Tree, theirs: Tree) -> None:
        """
        Healthy chunks stay unless their block was deleted, tombstones stay, and a second diff
        against the same peer has nothing left to repair.
        """
        repaired = apply_divergence(mine, diff(mine, theirs))

        for block_id in set(mine.block_ids.tolist()) - tombstones(repaired):
            healthy = {leaf for leaf in mine.leaves(block_id) if leaf.healthy}
            assert healthy <= set(repaired.leaves(block_id))
        assert tombstones(mine) | tombstones(theirs) == tombstones(repaired)
        assert repaired == apply_divergence(repaired, diff(repaired, theirs))

    @laws
    @given(trees(), trees())
    def test_no_delete_is_followed_that_nobody_confirms(self, mine: Tree, theirs: Tree) -> None:
        """Live blocks stay, with all their healthy chunks, and the difference stays visible."""
        repaired = apply_divergence(mine, diff(mine, theirs), are_deletes_confirmed=False)

        living = set(mine.block_ids.tolist()) - tombstones(mine)
        assert tombstones(mine) == tombstones(repaired)
        for block_id in living:
            healthy = {leaf for leaf in mine.leaves(block_id) if leaf.healthy}
            assert healthy <= set(repaired.leaves(block_id))
        claimed = {
            difference.block_id
            for difference in diff(repaired, theirs).differences
            if difference.kind is DifferenceKind.ADOPT_TOMBSTONE
        }
        assert living & tombstones(theirs) <= claimed

    @laws
    @given(trees(), trees())
    def test_reports_agree_with_diffs(self, mine: Tree, theirs: Tree) -> None:
        """
        Among healthy replicas, equal reports and empty diffs are the same thing.
        """
        if mine.unhealthy_count or theirs.unhealthy_count:
            return
        nothing = not diff(mine, theirs).differences and not diff(theirs, mine).differences

        assert nothing == (compare(mine, theirs) is SummaryComparison.EQUAL)

    @laws
    @given(trees(), trees(), st.integers(1, 4))
    def test_descending_finds_the_same(
        self, mine: Tree, theirs: Tree, blocks_per_range: int
    ) -> None:
        """
        Ranges, then rows, then chunks of the blocks that differ: the divergence of whole trees.
        """
        assert diff(mine, theirs) == descend(mine, theirs, blocks_per_range)

    @laws
    @given(estranged(), st.integers(1, 4))
    def test_descending_finds_the_same_among_replicas(
        self, family: Estranged, blocks_per_range: int
    ) -> None:
        """
        The same for replicas that are mostly alike.
        """
        mine, theirs = family.replicas[:2]

        assert diff(mine, theirs) == descend(mine, theirs, blocks_per_range)


class TestConvergence:
    @laws
    @given(estranged(), st.data())
    def test_single_round_in_any_order_makes_all_replicas_equal(
        self, family: Estranged, data: st.DataObject
    ) -> None:
        """Every replica repairs itself from every other once, in any order, and sees the earlier
        repairs. All then have the written data, and every ordered delete is done.
        """
        replicas = list(family.replicas)
        pairs = data.draw(st.permutations(list(permutations(range(len(replicas)), 2))))

        for mine, theirs in pairs:
            divergence = diff(replicas[mine], replicas[theirs])
            replicas[mine] = apply_divergence(replicas[mine], divergence)

        assert [family.healed] * len(replicas) == replicas

    @laws
    @given(estranged(), st.data())
    def test_simultaneous_round_makes_all_replicas_equal(
        self, family: Estranged, data: st.DataObject
    ) -> None:
        """All replicas read the others as they were and then repair, each in an order of its
        own.
        """
        for index, replica in enumerate(family.replicas):
            others = family.replicas[:index] + family.replicas[index + 1 :]
            found = [diff(replica, other) for other in others]

            repaired = replica
            for divergence in data.draw(st.permutations(found)):
                repaired = apply_divergence(repaired, divergence)

            assert family.healed == repaired

    @laws
    @given(estranged())
    def test_afterwards_nothing_is_left(self, family: Estranged) -> None:
        """
        Replicas that are equal find no difference, and what was healed has no holes.
        """
        healed = family.healed

        assert Divergence() == diff(healed, healed)
        for index in range(len(healed.block_ids)):
            end = 0
            for leaf in healed.leaves_at(index):
                assert (end, True) == (leaf.offset, leaf.healthy)
                end = leaf.end

    @laws
    @given(st.lists(trees(), min_size=2, max_size=4), st.data())
    def test_no_tombstone_is_ever_lost(self, replicas: list[Tree], data: st.DataObject) -> None:
        """
        Repairs, merges and deletes in any sequence, of any trees: deleted stays deleted.
        """
        index = st.integers(0, len(replicas) - 1)
        deleted = [tombstones(replica) for replica in replicas]
        for _ in range(6):
            mine, theirs = data.draw(index), data.draw(index)
            tree = replicas[mine]
            if data.draw(st.booleans()):
                tree = apply_divergence(tree, diff(tree, replicas[theirs]))
            else:
                tree = merge(tree, replicas[theirs])
            replicas[mine] = bury(tree, data.draw(st.sets(BLOCK_IDS, max_size=2)))

            assert deleted[mine] <= tombstones(replicas[mine])
            deleted[mine] = tombstones(replicas[mine])


def descend(mine: Tree, theirs: Tree, blocks_per_range: int) -> Divergence:
    """Return the divergence as a datanode finds it: fetching only what differs."""
    starts = range_starts(mine, blocks_per_range)
    advertised = range_checksums(theirs, starts)
    scope = differing_ranges(
        range_checksums(mine, starts), advertised, starts, also=mine.unhealthy_block_ids()
    )
    rows = theirs.select(
        [
            block_id
            for block_id in theirs.block_ids.tolist()
            if any(first <= block_id <= last for first, last in scope)
        ]
    )
    wanted = differing_blocks(mine, rows.block_ids, rows.block_checksums, rows.deleted)
    partial = partial_tree(
        theirs.algorithm,
        block_ids=rows.block_ids,
        block_checksums=rows.block_checksums,
        deleted=rows.deleted,
        detailed=as_received(theirs.select(wanted)),
    )
    check_ranges(partial, starts, advertised, scope)
    return diff(mine, partial, scope=scope)


def as_received(tree: Tree) -> Tree:
    """Return the tree after a journey as columns."""
    return Tree.from_columns(
        tree.algorithm,
        block_ids=tree.block_ids.tolist(),
        block_checksums=tree.block_checksums.tolist(),
        deleted=tree.deleted.tolist(),
        chunk_counts=tree.chunk_counts.tolist(),
        chunk_offsets=tree.chunk_offsets.tolist(),
        chunk_lengths=tree.chunk_lengths.tolist(),
        chunk_checksums=tree.chunk_checksums.tolist(),
        chunk_healthy=tree.chunk_healthy.tolist(),
        generation=tree.generation,
    )
