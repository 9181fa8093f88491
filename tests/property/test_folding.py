"""The tree of rows that arrive, folded as they come, is the one that a rebuild would give."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.transfer.import_tree import ImportTreeBuilder, rebuild_tree
from merkle.blockrow import decode_block
from merkle.checksum import Algorithm
from merkle.replica import BlockData
from merkle.tree import Tree
from scanner.rows.small_blocks import SimpleRun, runs
from tests.support.storage.tree_strategies import ALGORITHMS, blocks, trees
from tests.support.storage.trees import rows_of


@settings(max_examples=90, deadline=None)
@given(blocks(), st.data(), ALGORITHMS, st.lists(st.integers(0, 6), max_size=3))
def test_rows_that_come_in_parts_fold_to_one_tree(
    content: list[BlockData], data: st.DataObject, algorithm: Algorithm, cuts: list[int]
) -> None:
    """The blocks are simple or not, cut anywhere, with the tombstones of any source."""
    source: Tree = data.draw(trees(algorithm))
    folding = ImportTreeBuilder(source)
    rows = rows_of(content)
    for start, end in pairwise([0, *sorted(cuts), len(rows)]):
        for item in runs(iter(rows[start:end]), algorithm, 1_000):
            if isinstance(item, SimpleRun):
                folding.add_run(item)
            else:
                folding.add_block(decode_block(*item))

    assert rebuild_tree(iter(rows), source, algorithm) == folding.tree()
