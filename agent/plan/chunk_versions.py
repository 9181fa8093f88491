"""Versions of a chunk: the leaf for a row, overlaps, and a description for operators."""

from collections.abc import Iterable, Sequence

from agent.plan.actions import PeerId
from merkle.checksum import leaf_checksum
from merkle.replica import ChunkInfo
from merkle.tree import Leaf, Tree


def leaf_of(tree: Tree, chunk: ChunkInfo) -> Leaf:
    """Return the leaf that a tree with the algorithm of `tree` has for a healthy chunk with this
    record."""
    checksum = leaf_checksum(
        tree.algorithm, chunk.offset, chunk.length_bytes, chunk.window_checksums
    )
    return Leaf(chunk.offset, chunk.length_bytes, checksum, True)


def contested_offsets(leaves: Iterable[Leaf]) -> frozenset[int]:
    """Return the offsets of all chunks that overlap another one. Of two overlapping chunks, at most
    one can be correct."""
    contested: set[int] = set()
    farthest: Leaf | None = None
    for leaf in sorted(leaves):
        if farthest is not None and leaf.offset < farthest.end:
            contested |= {leaf.offset, farthest.offset}
        if farthest is None or leaf.end > farthest.end:
            farthest = leaf
    return frozenset(contested)


def format_versions(own: Leaf | None, versions: Sequence[tuple[PeerId, Leaf]]) -> str:
    """Return a text with the local version of a chunk and the versions of the peers."""
    here = "our row is lost" if own is None else f"here {own.length_bytes} bytes {own.checksum:#x}"
    theirs = (f"{peer} {leaf.length_bytes} bytes {leaf.checksum:#x}" for peer, leaf in versions)
    return "; ".join([here, *theirs])
