"""Plans the writes of a repair and their sources, with `agent.reconcile.survey` and `agent.plan`.

For each damaged chunk, the plan lists the peers whose tree matches the local row. If there is no
such peer, the plan has a reason. A chunk with checksums may then still be assembled window by
window. The plan never writes rows, because Ozone itself copies a block that only a peer has.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agent.plan.actions import PeerId, RepairBlock, Skip, WantedChunk
from agent.plan.block_plan import silence
from agent.plan.reconcile_outcome import PeerState
from agent.plan.reconcile_plan import plan
from agent.reconcile.survey import ALL_BLOCKS, PeerTree, failed_peer, query_peers
from merkle.damaged_data import DamagedData
from merkle.replica import BlockId, ChecksumType, ChunkInfo, ContainerId
from ozone.repair.peer import DamagedBlocksPeer
from ozone.repair.replica_damage import InspectedReplica
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.ports import Executor

NOBODY: Final = "no peer has it"
NOT_ASKED: Final = "no peer could be asked"


@dataclass(frozen=True, slots=True)
class RepairTarget:
    """A damaged chunk, as described by the local row.

    `wanted` has the peers from which the chunk is fetched. If no peer is known to have the complete
    chunk, `wanted` is None and `why` has the reason.
    """

    block_id: BlockId
    chunk: ChunkInfo
    wanted: WantedChunk | None
    why: str = ""

    @property
    def has_checksums(self) -> bool:
        """True if the row has checksums for the chunk."""
        return self.chunk.checksum_type is not ChecksumType.NONE


@dataclass(frozen=True, slots=True)
class Proposal:
    """The plan of a repair: all damaged chunks, and the answers of the peers.

    The chunks are in the order of the writes.
    """

    targets: tuple[RepairTarget, ...]
    peers: tuple[PeerTree, ...]
    remarks: Mapping[PeerId, str]

    @property
    def silent_peers(self) -> tuple[PeerId, ...]:
        """The peers that did not answer. Their data is unknown."""
        return tuple(tree.peer_id for tree in self.peers if not tree.is_known)

    @property
    def is_unknown(self) -> bool:
        """True if no peer answered. It is then unknown if a peer has the data."""
        return len(self.silent_peers) == len(self.peers)


def propose(
    container_id: ContainerId,
    replica: InspectedReplica,
    peers: Mapping[PeerId, DamagedBlocksPeer],
    executor: Executor,
) -> Proposal:
    """Request the trees of the peers, and return the plan of the repair.

    The plan also has the errors of the peers that failed.
    """
    mine = replica.tree.select(replica.blocks)
    asked = query_peers(peers, container_id, mine, executor)
    seen, views = [], []
    for tree in asked:
        if not tree.is_known:
            seen.append(tree)
            continue
        try:
            views.append(tree.view(container_id, mine, ALL_BLOCKS))
            seen.append(tree)
        except DamagedData as damage:
            error = RefusedError(Code.MALFORMED_REQUEST, f"response: {damage}")
            seen.append(failed_peer(tree.peer_id, tree.peer, error, tree.meter))
        except SutureError as error:
            seen.append(failed_peer(tree.peer_id, tree.peer, error, tree.meter))
    rows = {block_id: stored.block.chunks for block_id, stored in replica.blocks.items()}
    planned = plan(mine, views, replica.findings, rows)
    wanted = {
        (action.block_id, chunk.leaf.offset): chunk
        for action in planned.actions
        if isinstance(action, RepairBlock)
        for chunk in action.chunks
    }
    skips = {(skip.block_id, skip.offset): skip for skip in planned.skips}
    silent = frozenset(tree.peer_id for tree in seen if not tree.is_known)
    targets = [
        RepairTarget(
            block_id,
            chunk,
            wanted.get((block_id, chunk.offset)),
            NOT_ASKED
            if not views
            else _why(skips.get((block_id, chunk.offset)) or skips.get((block_id, -1)), silent),
        )
        for block_id, chunks in sorted(replica.chunks.items())
        for chunk in chunks
    ]
    remarks = {tree.peer_id: _remark(tree, peers[tree.peer_id]) for tree in seen}
    return Proposal(tuple(targets), tuple(seen), remarks)


def _why(skip: Skip | None, silent: frozenset[PeerId]) -> str:
    """Return the reason why no peer can provide a chunk.

    `silent` are the peers that did not answer.
    """
    said = NOBODY if skip is None else " ".join(filter(None, (skip.reason.value, skip.detail)))
    return "; ".join(filter(None, (said, silence(silent))))


def _remark(tree: PeerTree, peer: DamagedBlocksPeer) -> str:
    if tree.state in {PeerState.USED, PeerState.EQUAL}:
        return peer.remark
    return tree.message
