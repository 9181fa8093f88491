"""Plan to make a replica equal to its peers: trees and findings in, a plan out. No I/O.

The plan has actions (RepairBlock, AdoptTombstone, Trim, RewriteDescriptor, RebuildTree), and a skip
with a reason for every other difference. No action can make the replica worse. `block_plan` decides
about a block's chunks; this module decides about the replica and about deletes.

A peer's tombstone claims that a block was deleted. The delete is adopted if the control plane
ordered it. It is also adopted if every other holder has deleted the block, too, and no key has the
block. Until then the block is kept.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from agent.plan.actions import (
    AdoptTombstone,
    ConfirmedDeletes,
    HolderCoverage,
    PeerId,
    PeerView,
    RebuildTree,
    RepairPlan,
    RewriteDescriptor,
    Skip,
    SkipReason,
)
from agent.plan.block_plan import PlanContext, plan_block, silence
from merkle.diff import DifferenceKind
from merkle.replica import BlockId, ChunkInfo
from merkle.tree import Tree
from scanner.finding import DamageFault, ScanFinding

_NO_BLOCK: Final = BlockId(-1)
_DESCRIPTOR_FAULTS: Final = frozenset(
    {DamageFault.DESCRIPTOR_DAMAGED, DamageFault.DESCRIPTOR_MISSING}
)
_TREE_FAULTS: Final = frozenset(
    {DamageFault.TREE_DAMAGED, DamageFault.TREE_MISSING, DamageFault.TREE_STALE}
)


def plan(
    mine: Tree,
    peers: Sequence[PeerView],
    findings: Sequence[ScanFinding] = (),
    rows: Mapping[BlockId, Sequence[ChunkInfo]] | None = None,
    *,
    heard: HolderCoverage | None = None,
    deletes: ConfirmedDeletes | None = None,
    trusted: PeerId = "",
) -> RepairPlan:
    """Return the plan that gives the local replica (tree `mine`) every healthy chunk that it may
    take from a peer.

    `rows` has the chunks of the local row for each differing block; they decide which version of a
    chunk is correct. Blocks whose row is lost or damaged are absent from `rows`. `heard` has the
    known holders that are not among the peers. `trusted` is the peer whose versions an operator
    ordered to use, even instead of chunks that verify.
    """
    planning = PlanContext(
        mine, peers, findings, rows=rows or {}, heard=heard or HolderCoverage(), trusted=trusted
    )
    _about_replica(planning, planning.findings.pop(_NO_BLOCK, []))
    for block_id in sorted(planning.differing.keys() | planning.findings.keys()):
        if not _adopt_tombstone(planning, block_id, deletes or ConfirmedDeletes()):
            plan_block(planning, block_id)
    return planning.plan()


def _about_replica(planning: PlanContext, findings: Sequence[ScanFinding]) -> None:
    faults = [finding.fault for finding in findings]
    descriptor = [fault for fault in faults if fault in _DESCRIPTOR_FAULTS]
    trees = [fault for fault in faults if fault in _TREE_FAULTS]
    planning.actions.extend(RewriteDescriptor(fault) for fault in descriptor[:1])
    planning.actions.extend(RebuildTree(fault) for fault in trees[:1])
    planning.skips.extend(
        Skip(_NO_BLOCK, -1, SkipReason.FOREIGN_FILE, detail=finding.evidence)
        for finding in findings
        if finding.fault is DamageFault.FOREIGN_FILE
    )


def _adopt_tombstone(planning: PlanContext, block_id: BlockId, deletes: ConfirmedDeletes) -> bool:
    """Adopt a peer's tombstone and return True if the delete is confirmed. If it is not confirmed,
    add a skip with the reason and return False."""
    found = [
        (difference.checksum, peer_id)
        for peer_id, difference in planning.differing[block_id]
        if difference.kind is DifferenceKind.ADOPT_TOMBSTONE
    ]
    if not found:
        return False
    peers = frozenset(peer_id for _, peer_id in found)
    if not _is_confirmed(planning, block_id, peers, deletes):
        planning.uncovered |= peers
        named = "a key names the block" if block_id in deletes.kept else ""
        planning.skips.append(
            Skip(
                block_id,
                -1,
                SkipReason.UNCONFIRMED_DELETE,
                tuple(sorted(peers)),
                named or silence(planning.heard.silent | planning.heard.dead),
            )
        )
        return False
    checksum = max(value for value, _ in found)
    source = min(peer_id for value, peer_id in found if value == checksum)
    planning.actions.append(AdoptTombstone(block_id, checksum, source))
    return True


def _is_confirmed(
    planning: PlanContext, block_id: BlockId, peers: frozenset[PeerId], deletes: ConfirmedDeletes
) -> bool:
    """Return True if this replica may delete a block that `peers` report as deleted.

    If the block is already deleted locally, only the checksum in the tombstone changes.
    """
    index = planning.mine.index_of(block_id)
    if index >= 0 and planning.mine.deleted[index]:
        return True
    if planning.trusted:
        return planning.trusted in peers
    if block_id in deletes.ordered:
        return True
    is_everywhere = (
        len(peers) > 1 and peers == planning.peers.keys() and planning.heard.is_everybody
    )
    return is_everywhere and block_id not in deletes.kept
