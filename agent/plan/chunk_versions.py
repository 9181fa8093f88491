"""Functions that compare and describe several versions of a chunk."""

from collections.abc import Iterable, Sequence

from agent.plan.actions import PeerId
from merkle.checksum import leaf_checksum
from merkle.replica import ChunkInfo
from merkle.tree import Leaf, Tree


def leaf_of(tree: Tree, chunk: ChunkInfo) -> Leaf:
    """Return the tree leaf of a healthy chunk, computed from the chunk's record.

    The leaf has the checksum algorithm of `tree`.
    """
    checksum = leaf_checksum(
        tree.algorithm, chunk.offset, chunk.length_bytes, chunk.window_checksums
    )
    return Leaf(chunk.offset, chunk.length_bytes, checksum, True)


def contested_offsets(leaves: Iterable[Leaf]) -> frozenset[int]:
    """Return the offsets of all chunks that overlap another chunk in `leaves`.

    Of two overlapping chunks, at most one is correct.
    """
    contested: set[int] = set()
    farthest: Leaf | None = None
    for leaf in sorted(leaves):
        if farthest is not None and leaf.offset < farthest.end:
            contested |= {leaf.offset, farthest.offset}
        if farthest is None or leaf.end > farthest.end:
            farthest = leaf
    return frozenset(contested)


def format_versions(own: Leaf | None, versions: Sequence[tuple[PeerId, Leaf]]) -> str:
    """Return a text that describes the local version of a chunk and the versions of the peers."""
    here = "our row is lost" if own is None else f"here {own.length_bytes} bytes {own.checksum:#x}"
    theirs = (f"{peer} {leaf.length_bytes} bytes {leaf.checksum:#x}" for peer, leaf in versions)
    return "; ".join([here, *theirs])
