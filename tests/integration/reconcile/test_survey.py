"""The descent to what differs, over a real wire and large trees."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from agent.plan.reconcile_outcome import PeerState
from agent.reconcile.survey import query_peers, split_block_ids
from agent.services.limits import DatanodeServerLimits
from agent.services.read_handlers import ReadHandlers
from agent.services.server import build_server
from merkle.checksum import Algorithm
from merkle.diff import Difference, diff
from merkle.replica import ID_MAX, ContainerId
from merkle.tree import Leaf, Tree
from merkle.tree_building import TreeBuilder
from suture.wire.clients.peer import Peer

CONTAINER = ContainerId(1)
BLOCKS = 100_000


@dataclass
class TreeStore:
    """A store of which only the tree is asked."""

    held: Tree

    def view(self, container_id: ContainerId) -> "TreeStore":
        """Return the only replica."""
        assert CONTAINER == container_id
        return self

    def tree(self) -> Tree:
        """Return the tree."""
        return self.held


def tree_of(
    block_count: int,
    *,
    algorithm: Algorithm = Algorithm.XXH3_64,
    bad: frozenset[int] = frozenset(),
    other: frozenset[int] = frozenset(),
    missing: frozenset[int] = frozenset(),
    deleted: frozenset[int] = frozenset(),
) -> Tree:
    """Return a tree of one-chunk blocks 3, 6, 9, ...; the sets name those that are special."""
    builder = TreeBuilder(algorithm)
    for block in range(3, 3 * block_count + 1, 3):
        if block in missing or block in deleted:
            continue
        builder.add_block(block)
        builder.add_leaf(
            Leaf(0, 10_000, block + (block in bad or block in other), block not in bad)
        )
    for block in deleted:
        builder.add_tombstone(block, block)
    return builder.build(generation=1)


class Wire:
    """A peer with a tree."""

    def __init__(self, held: Tree) -> None:
        self.store = TreeStore(held)
        self._executor = ThreadPoolExecutor(4)
        store: Any = self.store
        limits = DatanodeServerLimits()
        groups = [ReadHandlers(store, limits=limits)]
        built = build_server(
            groups, "127.0.0.1:0", self._executor, datanode_id="peer", limits=limits
        )
        built.server.start()
        self._server = built.server
        self.peer = Peer(f"127.0.0.1:{built.port}")

    def close(self) -> None:
        """Stop."""
        self.peer.close()
        self._server.stop(0).wait()
        self._executor.shutdown()


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    """Threads for the questions."""
    with ThreadPoolExecutor(4) as made:
        yield made


def surveyed(
    mine: Tree, theirs: Tree, executor: ThreadPoolExecutor
) -> tuple[tuple[Difference, ...], PeerState, int, int]:
    """Return differences, state, bytes and windows of asking one peer over the wire."""
    wire = Wire(theirs)
    [tree] = query_peers({"dn2": wire.peer}, CONTAINER, mine, executor)
    parts = split_block_ids(mine, [tree])
    found: list[Difference] = []
    for window in parts:
        if tree.is_known:
            found += tree.view(CONTAINER, mine, window).divergence.differences
    wire.close()
    return tuple(found), tree.state, tree.meter.tree_bytes, len(parts)


class TestDescent:
    def test_tree_descent_finds_the_same_differences_as_a_full_diff(
        self, executor: ThreadPoolExecutor
    ) -> None:
        """The trees have a hundred thousand blocks and every kind of difference."""
        dice = random.Random(4)
        ids = [block * 3 for block in dice.sample(range(1, BLOCKS + 1), 12)]
        mine = tree_of(
            BLOCKS,
            bad=frozenset(ids[:3]),
            missing=frozenset(ids[3:5]),
            deleted=frozenset(ids[5:7]),
        )
        theirs = tree_of(
            BLOCKS,
            bad=frozenset(ids[2:4]),
            other=frozenset(ids[7:8]),
            missing=frozenset(ids[8:10]),
            deleted=frozenset(ids[10:12]),
        )

        found, state, _, window_count = surveyed(mine, theirs, executor)

        assert diff(mine, theirs).differences == found
        assert (PeerState.USED, True) == (state, window_count > 1)

    def test_windows_cover_every_id_once(self) -> None:
        """No block falls between two windows, and none is repaired in both."""
        parts = split_block_ids(tree_of(BLOCKS), [])

        assert (0, ID_MAX) == (parts[0][0], parts[-1][1])
        assert [last + 1 for _, last in parts[:-1]] == [first for first, _ in parts[1:]]

    def test_bytes_follow_the_damage(self, executor: ThreadPoolExecutor) -> None:
        """Ten damaged blocks of a hundred thousand cost a small part of the tree."""
        ids = frozenset(block * 9_000 for block in range(1, 11))
        mine, theirs = tree_of(BLOCKS, bad=ids), tree_of(BLOCKS)

        found, _, tree_bytes, _ = surveyed(mine, theirs, executor)

        assert 10 == len(found)
        assert tree_bytes < 120_000, "the whole tree has four million"

    def test_unhealthy_chunks_are_looked_at_though_roots_agree(
        self, executor: ThreadPoolExecutor
    ) -> None:
        """Health is in no checksum."""
        builder = TreeBuilder(Algorithm.XXH3_64)
        for block in range(1, 5_001):
            builder.add_block(block)
            builder.add_leaf(Leaf(0, 10_000, block, block != 4_000))
        mine = builder.build()
        builder = TreeBuilder(Algorithm.XXH3_64)
        for block in range(1, 5_001):
            builder.add_block(block)
            builder.add_leaf(Leaf(0, 10_000, block))
        theirs = builder.build()
        assert mine.root == theirs.root

        found, state, _, _ = surveyed(mine, theirs, executor)

        assert ([4_000], PeerState.EQUAL) == ([one.block_id for one in found], state)

    @pytest.mark.parametrize(("mine", "theirs"), [(0, 5), (5, 0), (0, 5_000), (5_000, 0), (0, 0)])
    def test_empty_trees_are_trees(
        self, mine: int, theirs: int, executor: ThreadPoolExecutor
    ) -> None:
        """A replica that lost everything, or never had anything, is compared like any other."""
        found, _, _, _ = surveyed(tree_of(mine), tree_of(theirs), executor)

        assert diff(tree_of(mine), tree_of(theirs)).differences == found

    def test_another_algorithm_is_not_comparable(self, executor: ThreadPoolExecutor) -> None:
        """The state is neither equal nor different."""
        theirs = tree_of(5, algorithm=Algorithm.CRC32C)

        found, state, _, _ = surveyed(tree_of(5), theirs, executor)

        assert ((), PeerState.NOT_COMPARABLE) == (found, state)

    @pytest.mark.parametrize("block_count", [10, 5_000])
    def test_rows_that_do_not_make_the_root_are_refused(
        self, block_count: int, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A peer that contradicts itself takes no part."""
        honest = Peer.blocks

        def lying(peer: Peer, *arguments: Any, **options: Any) -> Any:
            rows = honest(peer, *arguments, **options)
            rows.block_checksums[0] ^= 1
            return rows

        monkeypatch.setattr(Peer, "blocks", lying)

        found, state, _, _ = surveyed(
            tree_of(block_count), tree_of(block_count, missing=frozenset([3])), executor
        )

        assert ((), PeerState.REFUSED) == (found, state)
