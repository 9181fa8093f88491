"""Consistency check: whether a replica's tree and its findings are of the same scan.

Together they determine a repair. A tree and findings of different scans do not: peers offer no
chunk that the tree calls healthy, although a finding calls it damaged.
"""

from collections.abc import Collection
from typing import Final

from agent.store.index.facts import ReplicaFacts
from merkle.tree import Tree
from scanner.finding import DamageFault, ScanFinding

BEYOND_CHUNKS: Final = frozenset({DamageFault.TRAILING_BYTES, DamageFault.BLOCK_ROW_MISSING})
"""Faults of a block whose chunks may all be healthy."""


def are_of_one_moment(facts: ReplicaFacts, tree: Tree, findings: Collection[ScanFinding]) -> bool:
    """Return whether the tree is of the scan that made the findings.

    A tree whose file is lost or older than the index is rebuilt from metadata: it shows what was
    written. A tree adopted after a crash (no scan has been kept since) is newer than the findings.
    A tree that calls a damaged chunk healthy is older, because that scan did not finish and left
    findings only.
    """
    is_rebuilt = facts.tree is not None and tree.root != facts.tree.root
    return not (is_rebuilt or facts.data_scan_at_ms == 0 or is_denied(tree, findings))


def is_denied(tree: Tree, findings: Collection[ScanFinding]) -> bool:
    """Return whether any finding is about a chunk that the tree calls healthy."""
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
