"""Hypothesis strategies: trees, block rows, and replicas of one container that differ."""

from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import strategies as st

from merkle.checksum import Algorithm, window_checksums
from merkle.replica import ID_MAX, Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo
from merkle.tree import Leaf, Tree
from merkle.tree_building import TreeBuilder

ALGORITHMS = st.sampled_from(list(Algorithm))
CHECKSUMS = st.integers(0, 3) | st.integers(0, 2**64 - 1)  # small numbers, so that they collide
BLOCK_IDS = st.integers(0, 12) | st.integers(0, ID_MAX)
WINDOW_BYTES = st.integers(1, 40)


@st.composite
def leaves(draw: st.DrawFn) -> list[Leaf]:
    """Draw the leaves of one block. They may have holes, overlaps and damage."""
    offsets = draw(st.lists(st.integers(0, 6), unique=True, max_size=4))
    return [
        Leaf(offset * 10, draw(st.integers(1, 30)), draw(CHECKSUMS), draw(st.booleans()))
        for offset in sorted(offsets)
    ]


@st.composite
def trees(draw: st.DrawFn, algorithm: Algorithm = Algorithm.XXH3_64) -> Tree:
    """Draw any tree, including trees that no real replica has. Code must not fail on them."""
    blocks = draw(st.dictionaries(BLOCK_IDS, leaves(), max_size=8))
    builder = TreeBuilder(algorithm)
    for block_id in sorted(blocks):
        builder.add_block(block_id)
        for leaf in blocks[block_id]:
            builder.add_leaf(leaf)
    for block_id, checksum in draw(st.dictionaries(BLOCK_IDS, CHECKSUMS, max_size=4)).items():
        builder.add_tombstone(block_id, checksum)
    return builder.build(draw(st.integers(0, 2**63)))


@st.composite
def chunks(draw: st.DrawFn, offset: int) -> ChunkInfo:
    """Draw a chunk with the checksums of its data."""
    data = draw(st.binary(min_size=1, max_size=60))
    checksum_type = draw(st.sampled_from(list(ChecksumType)))
    window_bytes = draw(WINDOW_BYTES)
    checksums = window_checksums(checksum_type, window_bytes, data)
    return ChunkInfo(offset, len(data), checksum_type, window_bytes, checksums)


@st.composite
def blocks(draw: st.DrawFn) -> list[BlockData]:
    """Draw the committed blocks of a container, by ascending id."""
    drawn = []
    for block_id in sorted(draw(st.sets(BLOCK_IDS, max_size=6))):
        pieces: list[ChunkInfo] = []
        for _ in range(draw(st.integers(0, 3))):
            pieces.append(draw(chunks(pieces[-1].end if pieces else 0)))
        metadata = tuple(
            draw(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=9)), max_size=2))
        )
        bcsid = Bcsid(draw(st.integers(0, ID_MAX)))
        drawn.append(BlockData(BlockId(block_id), bcsid, tuple(pieces), metadata))
    return drawn


@dataclass(frozen=True, slots=True)
class Estranged:
    """Replicas of one container with different damage, and their expected state after a repair.

    Every chunk is healthy in at least one replica, and all healthy copies of a chunk agree.
    """

    replicas: tuple[Tree, ...]
    healed: Tree


@st.composite
def estranged(draw: st.DrawFn) -> Estranged:
    """Draw two to four replicas that lost blocks, lost or damaged chunks, or missed deletes."""
    algorithm = draw(ALGORITHMS)
    count = draw(st.integers(2, 4))
    builders = [TreeBuilder(algorithm) for _ in range(count)]
    healed = TreeBuilder(algorithm)
    for block_id in sorted(draw(st.sets(st.integers(0, 50), max_size=6))):
        truth = draw(true_leaves())
        holders = draw(st.sets(st.integers(0, count - 1), max_size=count))
        if holders and draw(st.booleans()):
            tombstones = {index: draw(CHECKSUMS) for index in holders}
            healed.add_tombstone(block_id, max(tombstones.values()))
        else:
            tombstones = {}
            healed.add_block(block_id)
            for leaf in truth:
                healed.add_leaf(leaf)
        spread(draw, builders, block_id, truth, tombstones)
    return Estranged(tuple(builder.build() for builder in builders), healed.build())


@st.composite
def true_leaves(draw: st.DrawFn) -> list[Leaf]:
    """Draw the leaves of a block as it was written: healthy, without holes.

    Its chunks have different checksums. With xxh3_64 this is always so, because a checksum includes
    the offset. Ozone's crc32c does not; tests/unit/merkle/test_diff.py shows the differences that
    crc32c does not detect for this reason.
    """
    drawn: list[Leaf] = []
    for _ in range(draw(st.integers(0, 3))):
        offset = drawn[-1].end if drawn else 0
        checksum = draw(CHECKSUMS) // 64 * 64 + offset
        drawn.append(Leaf(offset, draw(st.integers(1, 9)), checksum))
    return drawn


def spread(
    draw: st.DrawFn,
    builders: list[TreeBuilder],
    block_id: int,
    truth: list[Leaf],
    tombstones: Mapping[int, int],
) -> None:
    """Give each replica its own version of one block."""
    living = [index for index in range(len(builders)) if index not in tombstones]
    for index, checksum in tombstones.items():
        builders[index].add_tombstone(block_id, checksum)
    # The replica that certainly has the whole block; a deleted block needs none.
    keepers = {leaf.offset: draw(st.sampled_from(living)) for leaf in truth if living}
    keeper = draw(st.sampled_from(living)) if living else None
    for index in living:
        keeps = index == keeper or index in keepers.values()
        if not keeps and draw(st.booleans()):
            continue
        builders[index].add_block(block_id)
        for leaf in truth:
            version = leaf if keepers[leaf.offset] == index else draw(versions(leaf))
            if version is not None:
                builders[index].add_leaf(version)


def versions(leaf: Leaf) -> st.SearchStrategy[Leaf | None]:
    """Return the possible states of a chunk: intact, lost, or unhealthy and perhaps cut short."""
    damaged = st.builds(
        leaf._replace,
        checksum=CHECKSUMS,
        length_bytes=st.integers(1, leaf.length_bytes),
        healthy=st.just(False),
    )
    return st.just(leaf) | st.none() | damaged
