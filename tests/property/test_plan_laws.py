"""Laws of the reconcile planner: whatever the damage, the plan is safe, and one round converges.

A world is three replicas of the same blocks. Each replica has lost, damaged or deleted some of
them; its index still has the rows of all blocks that it did not lose.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.plan.reconcile import AdoptTombstone, PeerView, Plan, RepairBlock, plan
from merkle.checksum import Algorithm
from merkle.diff import diff
from merkle.replica import BlockId, ChecksumType, ChunkInfo
from merkle.tree import Leaf, Tree, TreeBuilder

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
        builder = TreeBuilder(Algorithm.XXH3_64)
        for block, leaves in sorted(self.leaves.items()):
            builder.add_block(block)
            for _, leaf in sorted(leaves.items()):
                builder.add_leaf(leaf)
        for block, checksum in self.tombstones.items():
            builder.add_tombstone(block, checksum)
        return builder.build()

    def apply(self, planned: Plan) -> None:
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
                        row.append(info(chunk.leaf))


def info(leaf: Leaf) -> ChunkInfo:
    """Return the row's chunk of a leaf."""
    return ChunkInfo(leaf.offset, leaf.length_bytes, ChecksumType.NONE, 512, b"")


def true_leaf(block: int, number: int) -> Leaf:
    """Return the chunk as its client wrote it."""
    return Leaf(number * CHUNK_BYTES, CHUNK_BYTES, block * 1_000 + number)


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
                replica.rows[BlockId(block)] = [info(true_leaf(block, n)) for n in range(count)]
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


def planned_for(replicas: Sequence[Replica], index: int) -> tuple[Plan, list[PeerView]]:
    """Return the plan of one replica against all others."""
    mine = replicas[index].tree()
    views = [
        PeerView(f"dn{number}", other.tree(), diff(mine, other.tree()))
        for number, other in enumerate(replicas)
        if number != index
    ]
    return plan(mine, views, (), replicas[index].rows), views


def one_round(replicas: list[Replica], order: Sequence[int]) -> None:
    """Every replica reconciles once, in this order."""
    for index in order:
        replicas[index].apply(planned_for(replicas, index)[0])


class TestSafety:
    @given(worlds(), st.integers(0, 2))
    def test_nothing_healthy_is_touched_and_every_source_is(
        self, replicas: list[Replica], index: int
    ) -> None:
        """No chunk that is whole here is a target; who is asked has exactly that chunk, whole."""
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
    def test_one_round_makes_equal_what_can_be_equal(
        self, replicas: list[Replica], order: list[int]
    ) -> None:
        """A block of which every chunk is whole somewhere is whole everywhere, in any order."""
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
        """What one replica deleted is deleted everywhere, with the largest checksum."""
        largest: dict[int, int] = {}
        for replica in replicas:
            for block, checksum in replica.tombstones.items():
                largest[block] = max(largest.get(block, 0), checksum)

        one_round(replicas, order)

        assert [largest] * 3 == [replica.tombstones for replica in replicas]

    @given(worlds(), st.permutations([0, 1, 2]))
    def test_a_second_round_finds_nothing_to_do(
        self, replicas: list[Replica], order: list[int]
    ) -> None:
        """Reconcile is idempotent."""
        one_round(replicas, order)

        again = [planned_for(replicas, index)[0].actions for index in range(3)]

        assert [()] * 3 == again


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
