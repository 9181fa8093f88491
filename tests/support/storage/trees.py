"""Trees and block rows for tests, from a short description of their blocks."""

from collections.abc import Mapping, Sequence

from merkle.blockrow import encode_block
from merkle.checksum import Algorithm, window_checksums
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo, ContainerId
from merkle.tree import Leaf, Tree
from merkle.tree_building import TreeBuilder

CONTAINER = ContainerId(7)
WINDOW_BYTES = 16 * 1024

# The data of Ozone's worked examples.
CHUNK_A = b"A" * 40 * 1024
CHUNK_B = b"B" * 100
CHUNK_C = b"C" * 4096
OZONE_BLOCK = BlockId(111677748019200001)


def chunk(
    offset: int,
    data: bytes,
    checksum_type: ChecksumType = ChecksumType.CRC32C,
    window_bytes: int = WINDOW_BYTES,
) -> ChunkInfo:
    """Return the chunk with the description that a writer of `data` makes."""
    checksums = window_checksums(checksum_type, window_bytes, data)
    return ChunkInfo(offset, len(data), checksum_type, window_bytes, checksums)


def block(
    block_id: int,
    *pieces: bytes,
    checksum_type: ChecksumType = ChecksumType.CRC32C,
    metadata: tuple[tuple[str, str], ...] = (),
) -> BlockData:
    """Return a block whose chunks are the pieces, without gaps."""
    chunks, offset = [], 0
    for piece in pieces:
        chunks.append(chunk(offset, piece, checksum_type))
        offset += len(piece)
    return BlockData(BlockId(block_id), Bcsid(1), tuple(chunks), metadata)


def rows_of(blocks: Sequence[BlockData]) -> list[tuple[BlockId, bytes]]:
    """Return the index rows of the blocks, as pairs of block id and encoded row."""
    return [(block.block_id, encode_block(block)) for block in blocks]


def tree_of(
    blocks: Sequence[BlockData],
    tombstones: Mapping[int, int] | None = None,
    *,
    algorithm: Algorithm = Algorithm.XXH3_64,
    generation: int = 0,
) -> Tree:
    """Return the tree that a scan of intact blocks builds."""
    builder = TreeBuilder(algorithm)
    for each in blocks:
        builder.add_block(each.block_id)
        for piece in each.chunks:
            builder.add_chunk(piece.offset, piece.length_bytes, piece.window_checksums)
    for block_id, checksum in (tombstones or {}).items():
        builder.add_tombstone(block_id, checksum)
    return builder.build(generation)


def leaf_tree(
    blocks: Mapping[int, Sequence[Leaf]],
    tombstones: Mapping[int, int] | None = None,
    *,
    algorithm: Algorithm = Algorithm.XXH3_64,
    generation: int = 0,
) -> Tree:
    """Return a tree of blocks with the given leaves; no data is needed."""
    builder = TreeBuilder(algorithm)
    for block_id, leaves in sorted(blocks.items()):
        builder.add_block(block_id)
        for leaf in leaves:
            builder.add_leaf(leaf)
    for block_id, checksum in (tombstones or {}).items():
        builder.add_tombstone(block_id, checksum)
    return builder.build(generation)


def good(offset: int, checksum: int, length_bytes: int = 10) -> Leaf:
    """Return a healthy leaf."""
    return Leaf(offset, length_bytes, checksum, healthy=True)


def bad(offset: int, checksum: int, length_bytes: int = 10) -> Leaf:
    """Return an unhealthy leaf."""
    return Leaf(offset, length_bytes, checksum, healthy=False)
