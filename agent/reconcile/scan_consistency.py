"""Check that a replica's tree and its findings come from the same scan.

A repair depends on both. If they come from different scans, a chunk may be damaged according to a
finding, but healthy according to the tree. The comparison of the trees then finds no replacement
for that chunk.
"""

from collections.abc import Collection
from typing import Final

from agent.store.index.facts import ReplicaFacts
from merkle.tree import Tree
from scanner.finding import DamageFault, ScanFinding

BEYOND_CHUNKS: Final = frozenset({DamageFault.TRAILING_BYTES, DamageFault.BLOCK_ROW_MISSING})
"""Faults that concern a block but none of its chunks, so that all its chunks may be healthy."""


def are_of_one_moment(facts: ReplicaFacts, tree: Tree, findings: Collection[ScanFinding]) -> bool:
    """Return whether the tree comes from the scan that made the findings.

    Return False in three cases:

    - The tree file was missing or stale. The tree was then rebuilt from metadata, and does not show
      the data on the disk.
    - The agent took the tree from a file at its start after a crash. The tree is then newer than
      the findings.
    - A chunk is healthy in the tree but damaged in a finding. The scan that found the damage was
      then stopped and stored only its findings, so the tree is older.
    """
    is_rebuilt = facts.tree is not None and tree.root != facts.tree.root
    return not (is_rebuilt or facts.data_scan_at_ms == 0 or is_denied(tree, findings))


def is_denied(tree: Tree, findings: Collection[ScanFinding]) -> bool:
    """Return whether a chunk is healthy in the tree but damaged according to a finding."""
    damaged = [one for one in findings if one.is_damage and one.fault not in BEYOND_CHUNKS]
    whole = {
        block_id: {leaf.offset for leaf in tree.leaves(block_id) if leaf.healthy}
        for block_id in {one.block_id for one in damaged if one.block_id > 0}
    }
    return any(
        one.offset in places or (one.offset < 0 and places)
        for one in damaged
        if (places := whole.get(one.block_id)) is not None
    )
