"""Ozone's tree file `<id>.tree`: what Ozone believes a replica holds.

It has no checksum of its own, but every level folds the one below: a tree whose root is not the
fold of its blocks, or a block that is not the fold of its chunks, was not written by Ozone so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from merkle.checksum import Algorithm, block_checksum, container_checksum
from merkle.damaged import Damaged
from merkle.replica import ID_MAX, BlockId, ContainerId
from ozone.disk.messages import CHECKSUM_INFO, parse

TREE_BYTES_MAX: Final = 256 * 1024**2  # ten times the largest tree that Ozone can send
CHECKSUM_MAX: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class OzoneTree:
    """One tree file. `root` is None where Ozone has noted deleted blocks before it made a tree.

    `unhealthy` are the live blocks of which Ozone's scan found a chunk damaged.
    """

    root: int | None
    live: Mapping[BlockId, int]
    tombstones: Mapping[BlockId, int]
    unhealthy: frozenset[BlockId]


def decode_tree(data: bytes, container_id: ContainerId) -> OzoneTree:
    """Return the tree in a file's bytes. Raises Damaged."""
    what = f"tree of container {container_id}"
    info = parse(CHECKSUM_INFO, data)
    if info.container_id != container_id:
        raise Damaged(f"{what}: it names container {info.container_id}")
    live: dict[BlockId, int] = {}
    tombstones: dict[BlockId, int] = {}
    unhealthy: set[BlockId] = set()
    last = -1
    for block in info.tree.blocks:
        block_id = BlockId(block.block_id)
        if not last < block_id <= ID_MAX:
            raise Damaged(f"{what}: block {block_id} after block {last}")
        if not 0 <= block.checksum <= CHECKSUM_MAX:
            raise Damaged(f"{what}: block {block_id} has checksum {block.checksum}")
        last = block_id
        if block.deleted:
            tombstones[block_id] = block.checksum
            continue
        leaves = [chunk.checksum for chunk in block.chunks]
        if any(not 0 <= leaf <= CHECKSUM_MAX for leaf in leaves):
            raise Damaged(f"{what}: block {block_id} has a leaf beyond 32 bits")
        if block_checksum(Algorithm.CRC32C, block_id, leaves) != block.checksum:
            raise Damaged(f"{what}: block {block_id} is not the fold of its chunks")
        live[block_id] = block.checksum
        if not all(chunk.matches for chunk in block.chunks):
            unhealthy.add(block_id)
    root = info.tree.checksum if info.tree.HasField("checksum") else None
    folded = container_checksum(Algorithm.CRC32C, [block.checksum for block in info.tree.blocks])
    if root is not None and root != folded:
        raise Damaged(f"{what}: root {root:08x} is not the fold {folded:08x} of its blocks")
    return OzoneTree(root, live, tombstones, frozenset(unhealthy))
