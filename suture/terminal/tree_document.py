"""Converts parts of a tree to JSON, with checksums as hexadecimal text."""

from merkle.tree import Leaf, Tree
from suture.terminal.output import checksum


def block_facts(tree: Tree, index: int) -> dict[str, object]:
    """Return the block or tombstone at the position `index` of a tree as JSON."""
    return {
        "block_id": int(tree.block_ids[index]),
        "checksum": checksum(int(tree.block_checksums[index])),
        "deleted": bool(tree.deleted[index]),
        "chunks": [leaf_facts(leaf) for leaf in tree.leaves_at(index)],
    }


def leaf_facts(leaf: Leaf) -> dict[str, object]:
    """Return a leaf, which has the checksum of a chunk in a tree, as JSON."""
    return {
        "offset": leaf.offset,
        "length_bytes": leaf.length_bytes,
        "checksum": checksum(leaf.checksum),
        "healthy": leaf.healthy,
    }
