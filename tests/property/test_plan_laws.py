"""Laws of the reconcile planner: whatever the damage, the plan is safe, and one round converges.

A world is three replicas of the same blocks. Each replica has lost, damaged or deleted some of
them; its index still has the rows of all blocks that it did not lose.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.plan.actions import (
    AdoptTombstone,
    ConfirmedDeletes,
    PeerView,
    RepairBlock,
    RepairPlan,
    SkipReason,
)
from agent.plan.reconcile_plan import plan
from merkle.checksum import Algorithm, leaf_checksum
from merkle.diff import diff
from merkle.replica import BlockId, ChecksumType, ChunkInfo
from merkle.tree import Leaf, Tree
from merkle.tree_building import TreeBuilder

ALGORITHM = Algorithm.XXH3_64
CHUNK_BYTES = 1_000
OK, BAD, LOST = "ok", "bad", "lost"


@dataclass
class Replica:
    """One replica as its scan saw it: leaves by block and offset, tombstones, rows."""

    leaves: dict[int, dict[int, Leaf]] = field(default_factory=dict)
    tombstones: dict[int, int] = field(default_factory=dict)
    rows: dict[BlockId, list[ChunkInfo]] = field(default_factory=dict)

    def tree(self) -> Tree:
        """Return its tree."""
        builder = TreeBuilder(ALGORITHM)
        for block, leaves in sorted(self.leaves.items()):
            builder.add_block(block)
            for _, leaf in sorted(leaves.items()):
                builder.add_leaf(leaf)
        for block, checksum in self.tombstones.items():
            builder.add_tombstone(block, checksum)
        return builder.build()

    def apply(self, planned: RepairPlan) -> None:
        """Do what the plan says, as if every fetch succeeded."""
        for action in planned.actions:
            if isinstance(action, AdoptTombstone):
                self.leaves.pop(action.block_id, None)
                self.rows.pop(action.block_id, None)
                self.tombstones[action.block_id] = action.checksum
            elif isinstance(action, RepairBlock):
                leaves = self.leaves.setdefault(action.block_id, {})
                row = self.rows.setdefault(action.block_id, [])
                for chunk in action.chunks:
                    leaves[chunk.leaf.offset] = chunk.leaf
                    if chunk.leaf.offset not in {known.offset for known in row}:
                        row.append(CHUNKS[chunk.leaf])


CHUNKS: dict[Leaf, ChunkInfo] = {}
"""What a row says of the chunk of each leaf."""


def true_chunk(block: int, number: int, lie: int = 0) -> ChunkInfo:
    """Return a chunk as its client wrote it, or as the row of a liar has it."""
    offset, sums = number * CHUNK_BYTES, bytes([block, number, lie, 0])
    chunk = ChunkInfo(offset, CHUNK_BYTES, ChecksumType.CRC32C, CHUNK_BYTES, sums)
    checksum = leaf_checksum(ALGORITHM, offset, CHUNK_BYTES, sums)
    CHUNKS[Leaf(offset, CHUNK_BYTES, checksum)] = chunk
    return chunk


def true_leaf(block: int, number: int, lie: int = 0) -> Leaf:
    """Return the leaf of a chunk as its row says."""
    chunk = true_chunk(block, number, lie)
    checksum = leaf_checksum(ALGORITHM, chunk.offset, CHUNK_BYTES, chunk.window_checksums)
    return Leaf(chunk.offset, CHUNK_BYTES, checksum)


@st.composite
def worlds(draw: st.DrawFn, *, with_tombstones: bool = True) -> list[Replica]:
    """Draw three replicas."""
    replicas = [Replica() for _ in range(3)]
    for block in range(1, draw(st.integers(1, 4)) + 1):
        count = draw(st.integers(0, 4))
        for index, replica in enumerate(replicas):
            fate = draw(st.sampled_from(["kept"] * 6 + ["lost"] + ["deleted"] * with_tombstones))
            if fate == "deleted":
                replica.tombstones[block] = draw(st.integers(1, 3))
            elif fate == "kept":
                replica.leaves[block] = draw(damaged(block, count, index))
                replica.rows[BlockId(block)] = [true_chunk(block, n) for n in range(count)]
    return replicas


@st.composite
def damaged(draw: st.DrawFn, block: int, count: int, index: int) -> dict[int, Leaf]:
    """Draw what one replica's medium holds of a block: chunks bad, and a tail lost."""
    kept = count - draw(st.sampled_from([0, 0, 0, 1, 2]))
    leaves = {}
    for number in range(max(kept, 0)):
        leaf = true_leaf(block, number)
        if draw(st.sampled_from([OK, OK, OK, BAD])) == BAD:
            leaf = Leaf(leaf.offset, leaf.length_bytes, leaf.checksum + 100 * (index + 1), False)
        leaves[leaf.offset] = leaf
    return leaves


ALL = ConfirmedDeletes(frozenset(map(BlockId, range(1, 5))))
"""Every delete was ordered."""


def planned_for(
    replicas: Sequence[Replica], index: int, deletes: ConfirmedDeletes = ALL
) -> tuple[RepairPlan, list[PeerView]]:
    """Return the plan of one replica against all others."""
    mine = replicas[index].tree()
    views = [
        PeerView(f"dn{number}", other.tree(), diff(mine, other.tree()))
        for number, other in enumerate(replicas)
        if number != index
    ]
    return plan(mine, views, (), replicas[index].rows, deletes=deletes), views


def one_round(
    replicas: list[Replica], order: Sequence[int], deletes: ConfirmedDeletes = ALL
) -> None:
    """Every replica reconciles once, in this order."""
    for index in order:
        replicas[index].apply(planned_for(replicas, index, deletes)[0])


class TestSafety:
    @given(worlds(), st.integers(0, 2))
    def test_plan_targets_no_healthy_chunk_and_sources_have_it_whole(
        self, replicas: list[Replica], index: int
    ) -> None:
        """No chunk that is whole here is a target, and every source has exactly that chunk,
        whole.
        """
        planned, views = planned_for(replicas, index)

        trees = {view.peer_id: view.tree for view in views}
        for action in planned.actions:
            if not isinstance(action, RepairBlock):
                continue
            own = replicas[index].leaves.get(action.block_id, {})
            for chunk in action.chunks:
                here = own.get(chunk.leaf.offset)
                assert here is None or not here.healthy
                assert chunk.sources
                for source in chunk.sources:
                    assert chunk.leaf in trees[source].leaves(action.block_id)

    @given(worlds(), st.integers(0, 2))
    def test_no_hole_is_made(self, replicas: list[Replica], index: int) -> None:
        """Each chunk begins a block, replaces one that our row knows, or follows another."""
        planned, _ = planned_for(replicas, index)

        for action in planned.actions:
            if not isinstance(action, RepairBlock):
                continue
            row = replicas[index].rows.get(action.block_id, [])
            known = {chunk.offset for chunk in row}
            ends = {0, *(chunk.end for chunk in row)}
            for chunk in action.chunks:
                assert chunk.leaf.offset in known | ends
                ends.add(chunk.leaf.end)

    @given(worlds(), st.integers(0, 2))
    def test_every_difference_is_answered(self, replicas: list[Replica], index: int) -> None:
        """A chunk that differs and is not whole here is repaired, or skipped with a reason."""
        planned, views = planned_for(replicas, index)

        answered = {
            (action.block_id, chunk.leaf.offset)
            for action in planned.actions
            if isinstance(action, RepairBlock)
            for chunk in action.chunks
        }
        answered |= {(skip.block_id, skip.offset) for skip in planned.skips}
        buried = {a.block_id for a in planned.actions if isinstance(a, AdoptTombstone)}
        for view in views:
            for difference in view.divergence.differences:
                if difference.theirs is not None and difference.block_id not in buried:
                    assert (difference.block_id, difference.theirs.offset) in answered


class TestConvergence:
    @settings(max_examples=300)
    @given(worlds(with_tombstones=False), st.permutations([0, 1, 2]))
    def test_single_round_makes_blocks_equal_where_possible(
        self, replicas: list[Replica], order: list[int]
    ) -> None:
        """A block whose every chunk is whole somewhere becomes whole everywhere, in any order."""
        whole = [
            block
            for block in {block for replica in replicas for block in replica.leaves}
            if all_chunks_are_somewhere(replicas, block)
        ]

        one_round(replicas, order)

        for block in whole:
            assert 1 == len({str(sorted(one.leaves.get(block, {}).items())) for one in replicas})
            assert all(leaf.healthy for leaf in replicas[0].leaves.get(block, {}).values())

    @given(worlds(), st.permutations([0, 1, 2]))
    def test_tombstones_are_equal_after_one_round(
        self, replicas: list[Replica], order: list[int]
    ) -> None:
        """A delete that was ordered is carried out everywhere, with the largest checksum."""
        largest: dict[int, int] = {}
        for replica in replicas:
            for block, checksum in replica.tombstones.items():
                largest[block] = max(largest.get(block, 0), checksum)

        one_round(replicas, order)

        assert [largest] * 3 == [replica.tombstones for replica in replicas]

    @given(worlds(), st.permutations([0, 1, 2]))
    def test_unconfirmed_delete_is_skipped_and_reported(
        self, replicas: list[Replica], order: list[int]
    ) -> None:
        """A tombstone of one replica deletes nothing elsewhere, and each replica that sees it
        reports it.
        """
        counts = Counter(block for one in replicas for block in one.tombstones)
        alone = {block for block, count in counts.items() if count == 1}
        before = [dict(one.leaves) for one in replicas]

        one_round(replicas, order, ConfirmedDeletes())

        for index, had in enumerate(before):
            kept = alone & had.keys()
            assert kept <= replicas[index].leaves.keys()
            planned, _ = planned_for(replicas, index, ConfirmedDeletes())
            told = {s.block_id for s in planned.skips if s.reason is SkipReason.UNCONFIRMED_DELETE}
            assert kept <= told

    @given(worlds(), st.permutations([0, 1, 2]), st.sampled_from([ALL, ConfirmedDeletes()]))
    def test_a_second_round_finds_nothing_to_do(
        self, replicas: list[Replica], order: list[int], deletes: ConfirmedDeletes
    ) -> None:
        """Reconcile is idempotent."""
        one_round(replicas, order, deletes)

        again = [planned_for(replicas, index, deletes)[0].actions for index in range(3)]

        assert [()] * 3 == again


class TestLiars:
    @given(worlds(with_tombstones=False), st.integers(0, 2), st.integers(0, 2), st.data())
    def test_only_what_our_own_row_says_is_taken(
        self, replicas: list[Replica], index: int, liar: int, data: st.DataObject
    ) -> None:
        """Chunks of one replica, or of two that agree, are not taken under rows of their own."""
        for other in {liar, data.draw(st.integers(0, 2))} - {index}:
            for block, leaves in replicas[other].leaves.items():
                for offset in leaves:
                    if data.draw(st.booleans()):
                        leaves[offset] = true_leaf(block, offset // CHUNK_BYTES, lie=1)

        planned, views = planned_for(replicas, index)

        rows = replicas[index].rows
        for action in planned.actions:
            assert isinstance(action, RepairBlock)
            recorded = {chunk.offset: chunk for chunk in rows.get(action.block_id, [])}
            for chunk in action.chunks:
                said = recorded.get(chunk.leaf.offset)
                assert said in {None, CHUNKS[chunk.leaf]}
                if said is None:
                    others = [view.tree.leaves(action.block_id) for view in views]
                    rivals = [x for one in others for x in one if x.offset == chunk.leaf.offset]
                    assert {chunk.leaf} == {leaf for leaf in rivals if leaf.healthy}


def all_chunks_are_somewhere(replicas: Sequence[Replica], block: int) -> bool:
    """Whether every chunk that any row knows of is whole on some replica."""
    offsets = {chunk.offset for one in replicas for chunk in one.rows.get(BlockId(block), [])}
    return all(
        any(
            offset in one.leaves.get(block, {}) and one.leaves[block][offset].healthy
            for one in replicas
        )
        for offset in offsets
    )
