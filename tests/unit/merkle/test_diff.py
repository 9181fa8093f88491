"""Every difference has a kind, and the kind says who does what."""

from collections.abc import Mapping, Sequence

import pytest

from merkle.checksum import Algorithm
from merkle.diff import (
    ALIKE_MIN,
    REPAIRED_KINDS,
    Difference,
    DifferenceKind,
    Divergence,
    SummaryComparison,
    are_cut_alike,
    compare,
    diff,
)
from merkle.replica import BlockId
from merkle.tree import Leaf, Tree
from merkle.tree_building import TreeBuilder
from tests.support.storage.tree_model import apply_divergence, bury
from tests.support.storage.trees import bad, chunk, good, leaf_tree

KINDS = DifferenceKind
ONE = BlockId(1)
Side = Sequence[Leaf] | int | None


def side(what: Side) -> Tree:
    """Return a tree where block 1 is absent (None), a tombstone (its checksum), or live."""
    neighbours: Mapping[int, Sequence[Leaf]] = {0: [good(0, 5)], 2: [bad(0, 6)]}
    if what is None:
        return leaf_tree(neighbours)
    if isinstance(what, int):
        return leaf_tree(neighbours, {1: what})
    return leaf_tree({**neighbours, 1: what})


def about_block_one(divergence: Divergence) -> list[Difference]:
    """Leave out block 2, which is unhealthy on both sides."""
    return [each for each in divergence.differences if each.block_id == 1]


LIVE = [good(0, 1), good(10, 2)]
LIVE_CHECKSUM = int(side(LIVE).block_checksums[1])


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        (None, None, []),
        (LIVE, LIVE, []),
        (LIVE, None, [Difference(KINDS.ONLY_MINE, ONE)]),
        (
            None,
            LIVE,
            [
                Difference(KINDS.MISSING_BLOCK, ONE),
                Difference(KINDS.MISSING_CHUNK, ONE, None, good(0, 1)),
                Difference(KINDS.MISSING_CHUNK, ONE, None, good(10, 2)),
            ],
        ),
        (None, [], [Difference(KINDS.MISSING_BLOCK, ONE)]),
        (
            None,
            [good(0, 1), bad(10, 2)],
            [
                Difference(KINDS.MISSING_BLOCK, ONE),
                Difference(KINDS.MISSING_CHUNK, ONE, None, good(0, 1)),
                Difference(KINDS.PEER_UNHEALTHY, ONE, None, bad(10, 2)),
            ],
        ),
        (None, [bad(0, 1)], [Difference(KINDS.PEER_UNHEALTHY, ONE, None, bad(0, 1))]),
        (LIVE, 9, [Difference(KINDS.ADOPT_TOMBSTONE, ONE, checksum=9)]),
        (LIVE, LIVE_CHECKSUM, [Difference(KINDS.ADOPT_TOMBSTONE, ONE, checksum=LIVE_CHECKSUM)]),
        (None, 9, [Difference(KINDS.ADOPT_TOMBSTONE, ONE, checksum=9)]),
        (9, LIVE, [Difference(KINDS.PEER_ADOPTS, ONE, checksum=9)]),
        (LIVE_CHECKSUM, LIVE, [Difference(KINDS.PEER_ADOPTS, ONE, checksum=LIVE_CHECKSUM)]),
        (9, None, [Difference(KINDS.PEER_ADOPTS, ONE, checksum=9)]),
        (9, 9, []),
        (8, 9, [Difference(KINDS.ADOPT_TOMBSTONE, ONE, checksum=9)]),
        (9, 8, [Difference(KINDS.PEER_ADOPTS, ONE, checksum=9)]),
        (2**63 - 1, 2**64 - 1, [Difference(KINDS.ADOPT_TOMBSTONE, ONE, checksum=2**64 - 1)]),
    ],
)
def test_blocks(mine: Side, theirs: Side, expected: list[Difference]) -> None:
    """
    Absent, live and deleted on either side, checksums equal or not.
    """
    assert expected == about_block_one(diff(side(mine), side(theirs)))


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        (good(0, 1), good(0, 2), KINDS.IRRECONCILABLE),
        (good(0, 1), bad(0, 2), KINDS.PEER_UNHEALTHY),
        (bad(0, 1), good(0, 2), KINDS.CORRUPT_CHUNK),
        (bad(0, 1), bad(0, 2), KINDS.BOTH_UNHEALTHY),
        (bad(0, 1), good(0, 1), KINDS.CORRUPT_CHUNK),
        (bad(0, 1), bad(0, 1), KINDS.BOTH_UNHEALTHY),
        (good(0, 1), None, KINDS.ONLY_MINE),
        (bad(0, 1), None, KINDS.ONLY_MINE),
        (None, good(0, 1), KINDS.MISSING_CHUNK),
        (None, bad(0, 1), KINDS.PEER_UNHEALTHY),
        (good(0, 1), bad(0, 1), None),
    ],
)
def test_chunks(mine: Leaf | None, theirs: Leaf | None, expected: DifferenceKind | None) -> None:
    """One chunk of a block is live on both sides, and the others, one or many, are the same on
    both.
    """
    differences = [Difference(expected, ONE, mine, theirs)] if expected else []
    for count in (1, 2 * ALIKE_MIN):
        same = [good(50 + 10 * number, number) for number in range(count)]
        my_tree = side([leaf for leaf in (mine, *same) if leaf])
        their_tree = side([leaf for leaf in (theirs, *same) if leaf])

        assert differences == about_block_one(diff(my_tree, their_tree))


@pytest.mark.parametrize("mine", [good(50, 9, 20), bad(50, 9, 20), good(50, 9, 10)])
def test_many_chunks_of_which_one_is_longer(mine: Leaf) -> None:
    """
    Cut otherwise, or alike with one across another: what is healthy here is not written over.
    """
    same = [good(70 + 10 * number, number) for number in range(ALIKE_MIN)]
    theirs = [good(50, 1, 10), good(60, 2, 10), *same]
    ours = [mine, bad(60, 2, 10), *same]
    is_across = mine.healthy and mine.end > 60
    first = KINDS.IRRECONCILABLE if mine.healthy else KINDS.CORRUPT_CHUNK
    second = (
        Difference(KINDS.IRRECONCILABLE, ONE, mine, theirs[1])
        if is_across
        else Difference(KINDS.CORRUPT_CHUNK, ONE, ours[1], theirs[1])
    )
    expected = [Difference(first, ONE, mine, theirs[0]), second]

    assert expected == about_block_one(diff(side(ours), side(theirs)))


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        ([good(0, 1), good(10, 2), bad(20, 3)], [bad(0, 4), good(10, 5), good(20, 6)], True),
        ([good(5, 1), good(40, 2, 3)], [good(5, 1), good(40, 2, 3)], True),
        ([good(0, 1, 11), good(10, 2)], [good(0, 1, 11), good(10, 2)], False),
        ([good(0, 1), good(10, 2, 4)], [good(0, 1), good(10, 2, 5)], False),
        ([good(0, 1), good(10, 2)], [good(0, 1), good(11, 2)], False),
        ([good(0, 1), good(10, 2)], [good(0, 1)], False),
    ],
    ids=["alike", "a gap", "one across another", "a length", "an offset", "one more"],
)
def test_blocks_are_cut_alike_by_offsets_and_lengths_only(
    mine: Sequence[Leaf], theirs: Sequence[Leaf], expected: bool
) -> None:
    """The content and the health of the chunks do not matter."""
    spans = [leaf_tree({1: leaves}).chunk_spans for leaves in (mine, theirs)]

    assert expected is are_cut_alike(*spans)


def test_chunks_that_lie_across_each_other_alike_on_both_sides() -> None:
    """
    A tree may say so of a block that was written over in other pieces.
    """
    ours = [good(0, 1, 60), bad(10, 2), *(good(60 + 10 * at, at) for at in range(ALIKE_MIN))]
    theirs = [good(0, 1, 60), good(10, 2), *ours[2:]]
    expected = [Difference(KINDS.IRRECONCILABLE, ONE, ours[0], theirs[1])]

    assert expected == about_block_one(diff(side(ours), side(theirs)))


@pytest.mark.parametrize(
    ("mine", "theirs", "shown"),
    [
        ([good(0, 1, 100)], good(50, 2, 50), good(0, 1, 100)),
        ([good(60, 1, 10)], good(0, 2, 100), good(60, 1, 10)),
        ([bad(0, 3, 10), good(60, 1, 10)], good(0, 2, 61), good(60, 1, 10)),
        ([good(20, 1, 21), good(30, 1, 1), bad(40, 1, 1)], good(40, 2, 1), good(20, 1, 21)),
        ([good(0, 1, 10), good(60, 1, 10)], good(50, 2, 20), good(60, 1, 10)),
        ([good(0, 1, 60), good(10, 1, 1), good(20, 1, 1)], good(50, 2, 5), good(0, 1, 60)),
    ],
)
def test_no_healthy_byte_is_offered_for_overwriting(
    mine: list[Leaf], theirs: Leaf, shown: Leaf
) -> None:
    """
    A peer that cut the block into other chunks has nothing that may be written over mine.
    """
    differences = about_block_one(diff(side(mine), side([theirs])))

    assert Difference(KINDS.IRRECONCILABLE, ONE, shown, theirs) in differences
    assert not [each for each in differences if each.kind in REPAIRED_KINDS]


def test_neighbours_do_not_overlap() -> None:
    """
    A chunk that ends where mine begins is simply missing.
    """
    differences = about_block_one(diff(side([good(10, 1)]), side([good(0, 2), good(10, 1)])))

    assert [Difference(KINDS.MISSING_CHUNK, ONE, None, good(0, 2))] == differences


def test_differences_come_in_order() -> None:
    """
    By block id, then by offset, whatever their kinds.
    """
    mine = leaf_tree({1: [good(0, 1)], 5: [bad(0, 1), good(10, 2)], 9: []}, {3: 3})
    theirs = leaf_tree({2: [good(0, 2)], 5: [good(0, 9), good(20, 3)]}, {9: 9})

    found = [(each.block_id, each.kind) for each in diff(mine, theirs).differences]

    assert found == [
        (1, KINDS.ONLY_MINE),
        (2, KINDS.MISSING_BLOCK),
        (2, KINDS.MISSING_CHUNK),
        (3, KINDS.PEER_ADOPTS),
        (5, KINDS.CORRUPT_CHUNK),
        (5, KINDS.ONLY_MINE),
        (5, KINDS.MISSING_CHUNK),
        (9, KINDS.ADOPT_TOMBSTONE),
    ]


def test_counts() -> None:
    """The divergence counts each kind of difference."""
    repairable = diff(side([bad(0, 1)]), side([good(0, 1)]))

    assert {KINDS.CORRUPT_CHUNK: 1, KINDS.BOTH_UNHEALTHY: 1} == repairable.counts()


def test_only_the_scope_is_compared() -> None:
    """
    Blocks outside the ranges are unknown, hence no difference; bounds are inclusive.
    """
    mine = leaf_tree({number: [good(0, 1)] for number in range(0, 100, 2)})
    theirs = leaf_tree({number: [good(0, 1)] for number in range(1, 100, 2)})

    divergence = diff(mine, theirs, scope=[(10, 12), (20, 20), (97, 2**63 - 1)])

    assert [10, 11, 11, 12, 20, 97, 97, 98, 99, 99] == [
        each.block_id for each in divergence.differences
    ]
    assert Divergence() == diff(mine, theirs, scope=[])


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        (LIVE, LIVE, SummaryComparison.EQUAL),
        (LIVE, None, SummaryComparison.DIFFERENT),
        (LIVE, LIVE_CHECKSUM, SummaryComparison.TOMBSTONES_DIFFER),
        (LIVE_CHECKSUM, LIVE_CHECKSUM, SummaryComparison.EQUAL),
        (LIVE_CHECKSUM, 9, SummaryComparison.DIFFERENT),
    ],
)
def test_summaries_are_compared(mine: Side, theirs: Side, expected: SummaryComparison) -> None:
    """
    Roots first, then which blocks are deleted; a tree and its summary say the same.
    """
    my_tree, their_tree = side(mine), side(theirs)

    assert expected == compare(my_tree, their_tree)
    assert expected == compare(my_tree.summary(), their_tree.with_generation(99).summary())


def test_other_algorithms_are_never_unequal() -> None:
    """
    Nothing is known about two roots that were folded differently, and nothing is planned.
    """
    ours, ozones = leaf_tree({}), leaf_tree({}, algorithm=Algorithm.CRC32C)

    assert SummaryComparison.NOT_COMPARABLE == compare(ours.summary(), ozones.summary())
    with pytest.raises(ValueError, match="cannot be compared"):
        diff(ours, ozones)


def test_orphan_data_is_found_under_equal_roots() -> None:
    """
    A replica that missed a delete has the same root, and learns of the delete all the same.
    """
    stale = leaf_tree({1: [good(0, 1)], 2: [good(0, 2)]})
    deleted = bury(stale, [2])

    assert stale.root == deleted.root
    assert [KINDS.ADOPT_TOMBSTONE] == list(diff(stale, deleted).counts())
    assert deleted == apply_divergence(stale, diff(stale, deleted))
    assert deleted == apply_divergence(deleted, diff(deleted, stale))


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [({}, {}), ({1: LIVE}, {}), ({}, {1: LIVE}), ({1: LIVE}, {1: LIVE}), ({9: LIVE}, {1: LIVE})],
)
def test_trees_of_one_block_or_none(
    mine: Mapping[int, Sequence[Leaf]], theirs: Mapping[int, Sequence[Leaf]]
) -> None:
    """
    A block is found, or not, in a tree that has no other.
    """
    found = diff(leaf_tree(mine), leaf_tree(theirs)).differences

    assert {KINDS.ONLY_MINE: mine.keys() - theirs.keys()} == {
        KINDS.ONLY_MINE: {each.block_id for each in found if each.kind is KINDS.ONLY_MINE}
    }
    assert theirs.keys() - mine.keys() == {
        each.block_id for each in found if each.kind is KINDS.MISSING_BLOCK
    }


@pytest.mark.parametrize(
    ("mine", "theirs", "repaired"),
    [
        ([bad(0, 1), good(10, 2)], [good(0, 1), good(10, 2)], LIVE),
        ([good(10, 2)], LIVE, LIVE),
        (None, LIVE, LIVE),
        (None, [], []),
        (LIVE, 9, 9),
        (None, 0, 0),
        (8, 9, 9),
        ([good(10, 2)], [bad(0, 1), good(10, 2)], [good(10, 2)]),
        ([bad(0, 1)], [bad(0, 2)], [bad(0, 1)]),
        (LIVE, [good(0, 7), good(10, 2)], LIVE),
        (LIVE, None, LIVE),
        (9, LIVE, 9),
        (9, 8, 9),
    ],
)
def test_a_repair_takes_what_is_healthy_and_nothing_else(
    mine: Side, theirs: Side, repaired: Side
) -> None:
    """
    Damaged and missing chunks, missing blocks and deletes; nothing damaged, nothing instead of
    what verifies here, nothing that was deleted.
    """
    my_tree, their_tree = side(mine), side(theirs)

    assert side(repaired) == apply_divergence(my_tree, diff(my_tree, their_tree))


def test_larger_checksum_of_two_deletes_stays() -> None:
    """The order does not matter: an outdated divergence does not undo a delete."""
    outdated = diff(side(8), side(9))

    assert side(12) == apply_divergence(side(12), outdated)


@pytest.mark.parametrize(
    ("mine", "theirs", "repaired"), [(LIVE, 9, LIVE), (None, 9, None), (8, 9, 9), (9, 8, 9)]
)
def test_a_delete_that_nobody_confirms_buries_nothing(
    mine: Side, theirs: Side, repaired: Side
) -> None:
    """A block that is deleted on both sides takes the larger checksum, because nothing is left
    to delete.
    """
    my_tree, their_tree = side(mine), side(theirs)

    assert side(repaired) == apply_divergence(
        my_tree, diff(my_tree, their_tree), are_deletes_confirmed=False
    )


def test_a_repair_never_touches_what_is_healthy() -> None:
    """
    Applying an outdated divergence again, after the chunk healed otherwise, changes nothing.
    """
    outdated = diff(side([bad(0, 1)]), side([good(0, 2)]))
    healed = side([good(0, 3)])

    assert healed == apply_divergence(healed, outdated)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [(Algorithm.CRC32C, SummaryComparison.EQUAL), (Algorithm.XXH3_64, SummaryComparison.DIFFERENT)],
)
def test_only_our_algorithm_sees_which_of_two_equal_chunks_is_lost(
    algorithm: Algorithm, expected: SummaryComparison
) -> None:
    """One replica lost the first of two chunks of zeros and the other the second. Ozone's fold
    has no offsets and gives equal roots, so only the findings of the scan differ.
    """
    trees = []
    for offset in (0, 4096):
        builder = TreeBuilder(algorithm)
        builder.add_block(1)
        zeros = chunk(offset, bytes(4096))
        builder.add_chunk(offset, zeros.length_bytes, zeros.window_checksums)
        trees.append(builder.build())

    assert expected == compare(*trees)
