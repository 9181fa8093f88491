"""Computes the plan that makes a replica equal to its peers, from trees and findings. No I/O.

The plan has actions (RepairBlock, AdoptTombstone, Trim, RewriteDescriptor, RebuildTree). It also
has a skip with a reason for every difference without an action. No action can damage the replica.
`block_plan` plans the repair of the chunks of a block. This module plans everything else.

A tombstone in a peer's tree means that the peer has deleted the block. The local block is deleted
if the control plane ordered the delete. It is also deleted if every other datanode with a replica
has deleted the block, and no key has the block. Otherwise, the local block is kept.
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
    """Return the plan that makes the local replica equal to its peers as far as possible.

    `mine` is the tree of the local replica. `rows` has the chunks in the local row of each
    differing block. These chunks determine the correct version. Blocks whose row is lost or damaged
    are absent from `rows`. `heard` has the datanodes that have a replica but are not among `peers`.
    `trusted` is the peer whose versions are used by order of an operator, even instead of healthy
    local chunks.
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
    """Plan the delete of a block that peers have deleted. Return True if the delete is planned.

    The delete is planned only if it is confirmed. If it is not confirmed, add a skip with the
    reason and return False. If no peer has deleted the block, return False.
    """
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

    If the block is already deleted in this replica, the result is True, because only the checksum
    in the tombstone changes.
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
