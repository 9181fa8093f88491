"""Check that a replica's tree and its findings come from the same scan.

A repair depends on both. If they come from different scans, a chunk may be damaged according to a
finding, but healthy according to the tree. Peers then offer no replacement for that chunk.
"""

from collections.abc import Collection
from typing import Final

from agent.store.index.facts import ReplicaFacts
from merkle.tree import Tree
from scanner.finding import DamageFault, ScanFinding

BEYOND_CHUNKS: Final = frozenset({DamageFault.TRAILING_BYTES, DamageFault.BLOCK_ROW_MISSING})
"""Faults of a block whose chunks may all be healthy."""


def are_of_one_moment(facts: ReplicaFacts, tree: Tree, findings: Collection[ScanFinding]) -> bool:
    """Return whether the tree comes from the scan that made the findings.

    Three kinds of trees do not. If the tree's file was missing or stale, the tree was rebuilt from
    metadata, and does not show the data on the disk. If the agent adopted a tree at its start after
    a crash, the tree is newer than the findings. If a damaged chunk is healthy in the tree, the
    tree is older: a scan found the damage, was stopped, and stored only findings.
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
