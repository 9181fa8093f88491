"""Converts the tree of a replica to the tree that Ozone would compute, with CRC-32C (ADR 0032).

If the tree in the store uses CRC-32C, it is used unchanged. If it uses XXH3, the leaves are
computed from the rows, and those of damaged chunks from the bytes on disk.

An XXH3 tree does not have the CRC-32C of deleted blocks. If it has tombstones, the converted tree
has no tombstones and no root. Ozone treats a tree without a root as missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from agent.store.replica_store import ReplicaStore
from merkle.blockrow import decode_block, is_intact
from merkle.checksum import Algorithm, leaf_checksum, window_checksums
from merkle.replica import BlockId, ChunkInfo, ContainerId
from merkle.tree import Leaf, Tree
from merkle.tree_building import TreeBuilder, build_from_rows
from ozone.disk.treefile import CHECKSUM_MAX
from suture.errors import Code, RefusedError, SutureError, UnavailableError

ATTEMPTS_MAX: Final = 4  # a scan may commit between two reads, but not four times in a row
REREAD_BYTES_MAX: Final = 64 * 1024**2  # data of damaged chunks to read per tree; takes a moment


@dataclass(frozen=True, slots=True)
class OzoneView:
    """The tree of a replica in CRC-32C.

    `root` is None if the root that Ozone would compute is unknown.
    """

    tree: Tree
    root: int | None


def ozone_view(store: ReplicaStore, container_id: ContainerId) -> OzoneView:
    """Return the tree of a replica with Ozone's checksums.

    Raise RefusedError(UNCLOSED_CONTAINER_IO) if the replica is not closed, and UnavailableError if
    it changes too often during the call.
    """
    for _ in range(ATTEMPTS_MAX):
        before = store.generation(container_id)
        tree = store.view(container_id).tree()
        if tree.algorithm is Algorithm.CRC32C:
            return _viewed(tree)
        folded = _folded(store, container_id, tree)
        if store.generation(container_id) == before:
            return OzoneView(folded, None if tree.tombstone_count else folded.root)
    raise UnavailableError(Code.BUSY, f"tree of container {container_id} keeps changing")


def _viewed(tree: Tree) -> OzoneView:
    """Return a CRC-32C tree as an OzoneView.

    Tombstones that were created with another checksum algorithm are omitted. The root is then
    unknown.
    """
    beyond = tree.deleted & (tree.block_checksums > np.uint64(CHECKSUM_MAX))
    if not beyond.any():
        return OzoneView(tree, tree.root)
    return OzoneView(tree.select(tree.block_ids[~beyond]), None)


def _folded(store: ReplicaStore, container_id: ContainerId, tree: Tree) -> Tree:
    """Return the blocks of an XXH3 tree that are not deleted, as a CRC-32C tree."""
    rows = [row for row in store.view(container_id).block_rows() if is_intact(*row)]
    live = tree.select(tree.block_ids[~tree.deleted])
    written = build_from_rows(rows, {}, algorithm=tree.algorithm)
    if _is_same(live, written):
        return build_from_rows(rows, {}, algorithm=Algorithm.CRC32C)
    return _folded_around_damage(store, container_id, live, dict(rows))


def _is_same(live: Tree, written: Tree) -> bool:
    return live.root == written.root and not live.unhealthy_count


def _folded_around_damage(
    store: ReplicaStore, container_id: ContainerId, live: Tree, rows: Mapping[BlockId, bytes]
) -> Tree:
    """Return the blocks of a tree with damaged chunks, as a CRC-32C tree.

    The leaves of healthy chunks are computed from the rows, and those of damaged chunks from the
    bytes on disk.
    """
    builder = TreeBuilder(Algorithm.CRC32C)
    left_bytes = REREAD_BYTES_MAX
    for block_id in map(BlockId, live.block_ids.tolist()):
        if block_id not in rows:
            continue
        builder.add_block(block_id)
        chunks = {chunk.offset: chunk for chunk in decode_block(block_id, rows[block_id]).chunks}
        for leaf in live.leaves(block_id):
            chunk = chunks.get(leaf.offset)
            if chunk is None:
                continue
            if leaf.healthy and leaf.checksum == _leaf(live.algorithm, chunk):
                builder.add_leaf(
                    Leaf(chunk.offset, chunk.length_bytes, _leaf(Algorithm.CRC32C, chunk))
                )
                continue
            left_bytes -= leaf.length_bytes
            found = _reread(store, container_id, block_id, chunk, leaf)
            if left_bytes >= 0 and found is not None:
                builder.add_leaf(found)
    return builder.build()


def _leaf(algorithm: Algorithm, chunk: ChunkInfo) -> int:
    return leaf_checksum(algorithm, chunk.offset, chunk.length_bytes, chunk.window_checksums)


def _reread(
    store: ReplicaStore, container_id: ContainerId, block_id: BlockId, chunk: ChunkInfo, leaf: Leaf
) -> Leaf | None:
    """Return the leaf of a damaged chunk, computed from the bytes that are on disk now.

    Return None if the chunk cannot be read.
    """
    try:
        data = store.view(container_id).read(block_id, chunk.offset, leaf.length_bytes)
    except SutureError:
        return None
    sums = window_checksums(chunk.checksum_type, chunk.bytes_per_checksum, data)
    checksum = leaf_checksum(Algorithm.CRC32C, chunk.offset, len(data), sums)
    return Leaf(chunk.offset, len(data), checksum, healthy=False)


def checked_size(what: str, data: bytes, bytes_max: int) -> bytes:
    """Return `data`.

    Raise RefusedError if it is too large for a message. `what` names it in the error.
    """
    if len(data) > bytes_max:
        raise RefusedError(
            Code.INELIGIBLE, f"{what} has {len(data)} bytes, a message of Ozone has {bytes_max}"
        )
    return data
