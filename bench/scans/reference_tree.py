"""Reference implementation of the tree, with an object for each node and dicts for a diff.

It is not intentionally slow: rows are unpacked directly into slotted objects. The columnar
`merkle.tree` is compared with it in speed (bench_tree.py) and in results
(tests/property/test_tree_laws.py).
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from merkle.blockrow import CHUNK, HEADER, INTACT_CRC, POSITION, WORD_BYTES
from merkle.checksum import FOLDS, Algorithm, crc32c
from merkle.damaged_data import DamagedData
from merkle.diff import Difference, DifferenceKind
from merkle.replica import BlockId
from merkle.tree import Leaf, Tree


@dataclass(slots=True)
class BlockNode:
    """A block with its chunks by ascending offset."""

    block_id: BlockId
    checksum: int
    deleted: bool
    healthy: bool
    chunks: list[Leaf]


@dataclass(slots=True)
class PlainTree:
    """A tree: its algorithm, its root, and its blocks by ascending id."""

    algorithm: Algorithm
    root: int
    blocks: dict[BlockId, BlockNode]


def build(
    rows: Iterable[tuple[BlockId, bytes]],
    tombstones: Mapping[BlockId, int],
    algorithm: Algorithm,
) -> PlainTree:
    """Build the tree row by row."""
    blocks = {}
    for block_id, row in rows:
        if crc32c(row) != INTACT_CRC:
            raise DamagedData(f"row of block {block_id}: wrong checksum")
        chunks = read_chunks(row, algorithm)
        blocks[block_id] = BlockNode(
            block_id, fold_block(algorithm, block_id, chunks), False, True, chunks
        )
    for block_id, checksum in tombstones.items():
        blocks[block_id] = BlockNode(block_id, checksum, True, True, [])
    blocks = dict(sorted(blocks.items()))
    root = FOLDS[algorithm](b"".join(struct.pack(">Q", node.checksum) for node in blocks.values()))
    return PlainTree(algorithm, root, blocks)


def read_chunks(row: bytes, algorithm: Algorithm) -> list[Leaf]:
    """Return the leaves of one row."""
    _, _, chunk_count, _, _, _, _ = HEADER.unpack_from(row)
    start = HEADER.size + CHUNK.size * chunk_count
    chunks = []
    for index in range(chunk_count):
        checksums_bytes, _ = CHUNK.unpack_from(row, HEADER.size + CHUNK.size * index)
        offset, length_bytes = POSITION.unpack_from(row, start)
        checksums = row[start + POSITION.size : start + POSITION.size + checksums_bytes]
        chunks.append(
            Leaf(offset, length_bytes, fold_leaf(algorithm, offset, length_bytes, checksums))
        )
        start += POSITION.size + checksums_bytes + -checksums_bytes % WORD_BYTES
    return chunks


def fold_leaf(algorithm: Algorithm, offset: int, length_bytes: int, checksums: bytes) -> int:
    """Return the checksum of one chunk, as in the leaf of a tree."""
    position = POSITION.pack(offset, length_bytes) if algorithm is Algorithm.XXH3_64 else b""
    return FOLDS[algorithm](position + checksums)


def fold_block(algorithm: Algorithm, block_id: BlockId, chunks: list[Leaf]) -> int:
    """Return the checksum of one block, computed from its leaves."""
    leaves = [chunk.checksum for chunk in chunks]
    return FOLDS[algorithm](struct.pack(f">Q{len(leaves)}Q", block_id, *leaves))


BLOCK = struct.Struct("<QQ??I")
CHUNK_NODE = struct.Struct("<QIQ?")
COUNT = struct.Struct("<I")


def encode(tree: PlainTree) -> bytes:
    """Return the tree in encoded form, node by node."""
    parts = [COUNT.pack(len(tree.blocks))]
    for node in tree.blocks.values():
        parts.append(
            BLOCK.pack(node.block_id, node.checksum, node.deleted, node.healthy, len(node.chunks))
        )
        for leaf in node.chunks:
            parts.append(
                CHUNK_NODE.pack(leaf.offset, leaf.length_bytes, leaf.checksum, leaf.healthy)
            )
    return b"".join(parts)


def decode(data: bytes, algorithm: Algorithm, root: int) -> PlainTree:
    """Return the tree that was encoded by `encode`."""
    (count,) = COUNT.unpack_from(data)
    start = COUNT.size
    blocks = {}
    for _ in range(count):
        block_id, checksum, deleted, healthy, chunk_count = BLOCK.unpack_from(data, start)
        start += BLOCK.size
        end = start + CHUNK_NODE.size * chunk_count
        chunks = [Leaf(*fields) for fields in CHUNK_NODE.iter_unpack(data[start:end])]
        start = end
        blocks[block_id] = BlockNode(block_id, checksum, deleted, healthy, chunks)
    return PlainTree(algorithm, root, blocks)


def from_tree(tree: Tree) -> PlainTree:
    """Return the same tree as objects."""
    blocks = {}
    for index, block_id in enumerate(map(BlockId, tree.block_ids.tolist())):
        blocks[block_id] = BlockNode(
            block_id,
            int(tree.block_checksums[index]),
            bool(tree.deleted[index]),
            all(leaf.healthy for leaf in tree.leaves_at(index)),
            tree.leaves_at(index),
        )
    return PlainTree(tree.algorithm, tree.root, blocks)


def diff(mine: PlainTree, theirs: PlainTree) -> list[Difference]:
    """Return the differences, block by block through two dicts."""
    found: list[tuple[BlockId, BlockNode | None, BlockNode | None]] = []
    for block_id, here in mine.blocks.items():
        there = theirs.blocks.get(block_id)
        if (
            there is None
            or here.checksum != there.checksum
            or here.deleted != there.deleted
            or not here.healthy
        ):
            found.append((block_id, here, there))
    for block_id, there in theirs.blocks.items():
        if block_id not in mine.blocks:
            found.append((block_id, None, there))
    found.sort(key=lambda item: item[0])
    return [difference for item in found for difference in of_block(*item)]


def of_block(
    block_id: BlockId, mine: BlockNode | None, theirs: BlockNode | None
) -> list[Difference]:
    """Return the differences in one block."""
    kinds = DifferenceKind
    if mine is not None and theirs is not None and not mine.deleted and not theirs.deleted:
        return of_chunks(block_id, mine.chunks, theirs.chunks)
    if mine is not None and mine.deleted:
        if theirs is not None and theirs.deleted and mine.checksum < theirs.checksum:
            return [Difference(kinds.ADOPT_TOMBSTONE, block_id, checksum=theirs.checksum)]
        return [Difference(kinds.PEER_ADOPTS, block_id, checksum=mine.checksum)]
    if theirs is None:
        return [Difference(kinds.ONLY_MINE, block_id)]
    if theirs.deleted:
        return [Difference(kinds.ADOPT_TOMBSTONE, block_id, checksum=theirs.checksum)]
    creates = not theirs.chunks or any(chunk.healthy for chunk in theirs.chunks)
    head = [Difference(kinds.MISSING_BLOCK, block_id)] if creates else []
    return head + of_chunks(block_id, [], theirs.chunks)


def of_chunks(block_id: BlockId, mine: list[Leaf], theirs: list[Leaf]) -> list[Difference]:
    """Return the differences in the chunks of a block that is live on both sides."""
    my_leaves = {leaf.offset: leaf for leaf in mine}
    their_leaves = {leaf.offset: leaf for leaf in theirs}
    differences = []
    for offset in sorted(my_leaves.keys() | their_leaves.keys()):
        here, there = my_leaves.get(offset), their_leaves.get(offset)
        kind, shown = of_chunk(mine, here, there)
        if kind is not None:
            differences.append(Difference(kind, block_id, shown, there))
    return differences


def of_chunk(
    mine: list[Leaf], here: Leaf | None, there: Leaf | None
) -> tuple[DifferenceKind | None, Leaf | None]:
    """Return the kind of difference of one chunk (None if there is none), and my leaf to show for
    it."""
    kinds = DifferenceKind
    if there is None:
        return kinds.ONLY_MINE, here
    if here is not None and here.healthy and here.checksum == there.checksum:
        return None, here
    if not there.healthy:
        both = here is not None and not here.healthy
        return (kinds.BOTH_UNHEALTHY if both else kinds.PEER_UNHEALTHY), here
    if here is not None and here.healthy:
        return kinds.IRRECONCILABLE, here
    overlapped = [
        other
        for other in reversed(mine)
        if other.healthy and other.offset < there.end and there.offset < other.end
    ]
    if overlapped:
        return kinds.IRRECONCILABLE, max(overlapped, key=lambda other: other.end)
    return (kinds.MISSING_CHUNK if here is None else kinds.CORRUPT_CHUNK), here
