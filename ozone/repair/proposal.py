"""What would be written, and from whom: by the survey and the plan of Suture's own reconcile.

Peers take part with what they have of the damaged blocks. The plan chooses for each damaged chunk
the peers whose tree has just what our row says; what it leaves alone has a reason. Of that, the
chunks that have checksums may still be put together window by window. Rows are never planned: a
block that only a peer has is Ozone's own to copy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from agent.errors import Code, Refused, SutureError
from agent.plan.actions import PeerId, RepairBlock, Skip, WantedChunk
from agent.plan.reconcile_outcome import PeerState
from agent.plan.reconcile_plan import plan
from agent.ports import Executor
from agent.reconcile.survey import ALL_BLOCKS, PeerTree, failed, survey
from merkle.damaged import Damaged
from merkle.diff import indexes_of
from merkle.replica import BlockId, ChecksumType, ChunkInfo, ContainerId
from merkle.tree import Tree, take
from ozone.repair.damage import Replica
from ozone.repair.peer import OzonePeer

NOBODY: Final = "no peer has it"


@dataclass(frozen=True, slots=True)
class Target:
    """One damaged chunk, as our row has it. `wanted`: as the plan has it, with its sources; None
    where no peer has it whole, for the reason `why`."""

    block_id: BlockId
    chunk: ChunkInfo
    wanted: WantedChunk | None
    why: str = ""

    @property
    def has_checksums(self) -> bool:
        """Whether bytes can be compared with the row at all."""
        return self.chunk.checksum_type is not ChecksumType.NONE


@dataclass(frozen=True, slots=True)
class Proposal:
    """All damaged chunks, in the order in which they would be written, and what each peer said."""

    targets: tuple[Target, ...]
    peers: tuple[PeerTree, ...]
    remarks: Mapping[PeerId, str]

    @property
    def wanted_bytes(self) -> int:
        """How many bytes would be fetched of what a peer has whole."""
        return sum(one.chunk.length_bytes for one in self.targets if one.wanted is not None)


def propose(
    container_id: ContainerId,
    replica: Replica,
    peers: Mapping[PeerId, OzonePeer],
    executor: Executor,
) -> Proposal:
    """Ask the peers and plan. What goes wrong at a peer is in the result."""
    mine = _of_blocks(replica.tree, replica)
    asked = survey(peers, container_id, mine, executor)
    seen, views = [], []
    for tree in asked:
        if not tree.is_known:
            seen.append(tree)
            continue
        try:
            views.append(tree.view(container_id, mine, ALL_BLOCKS))
            seen.append(tree)
        except Damaged as damage:
            error = Refused(Code.MALFORMED_REQUEST, f"answer: {damage}")
            seen.append(failed(tree.peer_id, tree.peer, error, tree.meter))
        except SutureError as error:
            seen.append(failed(tree.peer_id, tree.peer, error, tree.meter))
    rows = {block_id: stored.block.chunks for block_id, stored in replica.blocks.items()}
    planned = plan(mine, views, replica.findings, rows)
    wanted = {
        (action.block_id, chunk.leaf.offset): chunk
        for action in planned.actions
        if isinstance(action, RepairBlock)
        for chunk in action.chunks
    }
    skips = {(skip.block_id, skip.offset): skip for skip in planned.skips}
    targets = [
        _target(block_id, chunk, wanted.get((block_id, chunk.offset)), skips)
        for block_id, chunks in sorted(replica.chunks.items())
        for chunk in chunks
    ]
    remarks = {tree.peer_id: _remark(tree, peers[tree.peer_id]) for tree in seen}
    return Proposal(tuple(targets), tuple(seen), remarks)


def _of_blocks(tree: Tree, replica: Replica) -> Tree:
    """Return the part of a tree that is about the damaged blocks."""
    ids = np.array(sorted(replica.blocks), dtype=np.uint64)
    indexes = indexes_of(tree.block_ids, ids)
    return take(tree, indexes[indexes >= 0])


def _target(
    block_id: BlockId,
    chunk: ChunkInfo,
    wanted: WantedChunk | None,
    skips: Mapping[tuple[BlockId, int], Skip],
) -> Target:
    if wanted is not None:
        return Target(block_id, chunk, wanted)
    skip = skips.get((block_id, chunk.offset)) or skips.get((block_id, -1))
    why = NOBODY if skip is None else " ".join(filter(None, (skip.reason.value, skip.detail)))
    return Target(block_id, chunk, None, why)


def _remark(tree: PeerTree, peer: OzonePeer) -> str:
    if tree.state in {PeerState.USED, PeerState.EQUAL}:
        return peer.remark
    return tree.message
