"""Decodes Ozone's tree file `<id>.tree`.

The file has no checksum of its own, but each checksum in it is computed from the checksums of the
level below. A tree is damaged if its root does not match the checksums of its blocks, or if the
checksum of a block does not match those of its chunks.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from merkle.checksum import Algorithm
from merkle.checksum_columns import container_checksum
from merkle.damaged_data import DamagedData
from merkle.replica import CHUNKS_PER_BLOCK_MAX, ID_MAX, BlockId, ContainerId
from merkle.tree_columns import fold_blocks
from ozone.disk.messages import BLOCK_TREE, CHECKSUM_INFO, INFO_OUTLINE, parse

TREE_BYTES_MAX: Final = 256 * 1024**2  # ten times the largest tree that Ozone can send
CHUNK_BYTES_MIN: Final = 8  # minimum bytes of a chunk in a tree, whose fields are always set
BLOCK_BYTES_MAX: Final = CHUNKS_PER_BLOCK_MAX * 40 + 64  # in a tree, with the largest numbers
CHECKSUM_MAX: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class OzoneTree:
    """Content of a tree file.

    `live` has the checksums of the blocks, and `tombstones` those of the deleted blocks, by block
    id. `unhealthy` has the ids of the blocks in which Ozone's scan found a damaged chunk. `root` is
    None if Ozone recorded deleted blocks before it built a tree.
    """

    root: int | None
    live: Mapping[BlockId, int]
    tombstones: Mapping[BlockId, int]
    unhealthy: frozenset[BlockId]


def decode_tree(data: bytes, container_id: ContainerId) -> OzoneTree:
    """Return the tree in the content of a tree file. Raise DamagedData if it is damaged."""
    what = f"tree of container {container_id}"
    info = parse(INFO_OUTLINE, data)
    if info.container_id != container_id:
        raise DamagedData(f"{what}: it names container {info.container_id}")
    live: dict[BlockId, int] = {}
    tombstones: dict[BlockId, int] = {}
    unhealthy: set[BlockId] = set()
    leaves: list[int] = []
    counts: list[int] = []
    last = -1
    for block in _blocks(what, info.tree.blocks):
        block_id, checksum = BlockId(block.block_id), block.checksum
        if not last < block_id <= ID_MAX:
            raise DamagedData(f"{what}: block {block_id} after block {last}")
        if not 0 <= checksum <= CHECKSUM_MAX:
            raise DamagedData(f"{what}: block {block_id} has checksum {checksum}")
        last = block_id
        if block.deleted:
            tombstones[block_id] = checksum
            continue
        live[block_id] = checksum
        before = len(leaves)
        for chunk in block.chunks:
            leaves.append(chunk.checksum)
            if not chunk.matches:
                unhealthy.add(block_id)
        counts.append(len(leaves) - before)
    _check_folds(what, live, counts, leaves)
    root = info.tree.checksum if info.tree.HasField("checksum") else None
    every = dict(sorted({**live, **tombstones}.items())) if tombstones else live
    folded = container_checksum(Algorithm.CRC32C, list(every.values()))
    if root is not None and root != folded:
        raise DamagedData(f"{what}: root {root:08x} is not the fold {folded:08x} of its blocks")
    return OzoneTree(root, live, tombstones, frozenset(unhealthy))


def _blocks(what: str, each: Sequence[bytes]) -> Iterator[Any]:
    """Yield the blocks of a tree, parsed one at a time.

    All parsed messages together would need many times the size of the file.
    """
    for data in each:
        if len(data) > BLOCK_BYTES_MAX:
            raise DamagedData(f"{what}: a block of {len(data)} bytes")
        block = parse(BLOCK_TREE, data)
        if len(block.chunks) * CHUNK_BYTES_MIN > len(data):
            raise DamagedData(f"{what}: block {block.block_id} has chunks of which nothing is said")
        yield block


def _check_folds(
    what: str, live: Mapping[BlockId, int], counts: Sequence[int], leaves: Sequence[int]
) -> None:
    """Raise DamagedData unless the checksum of each block matches those of its chunks.

    `counts` has the number of chunks per block, and `leaves` the checksums of all chunks.
    """
    ids = np.fromiter(live, np.uint64, len(live))
    owned = np.array(counts, np.int64)
    signed = np.array(leaves, np.int64)
    beyond = np.repeat(ids, owned)[(signed < 0) | (signed > CHECKSUM_MAX)]
    if len(beyond):
        raise DamagedData(f"{what}: block {beyond[0]} has a leaf beyond 32 bits")
    folded = fold_blocks(Algorithm.CRC32C, ids, owned, signed.astype(np.uint64))
    wrong = ids[folded != np.fromiter(live.values(), np.uint64, len(live))]
    if len(wrong):
        raise DamagedData(f"{what}: block {wrong[0]} is not the fold of its chunks")


Leaves = Mapping[BlockId, Mapping[int, tuple[int, bool]]]
"""The chunks of each block, by offset: the checksum, and True if Ozone's scan found no damage."""


def decode_leaves(data: bytes, block_ids: Collection[BlockId]) -> Leaves:
    """Return the checksums of the chunks of these blocks. Omit deleted blocks.

    `data` must be a tree file that `decode_tree` accepts.
    """
    tree = parse(CHECKSUM_INFO, data).tree
    return {
        BlockId(block.block_id): {
            chunk.offset: (chunk.checksum, chunk.matches) for chunk in block.chunks
        }
        for block in tree.blocks
        if not block.deleted and block.block_id in block_ids
    }
