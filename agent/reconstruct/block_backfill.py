"""Backfill of a QUASI_CLOSED shard: adds the blocks that were committed after the shard closed.

A QUASI_CLOSED shard has intact data, but later blocks are missing. If another datanode has space,
the SCM rebuilds the shard there. Otherwise, only a backfill can complete the shard.

A block is missing if enough other shards have it, and this shard has neither the block nor a
tombstone of it. The block is computed from its stripes, verified and recorded. If all blocks are
then present, the shard takes over the commit id of a healthy source.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agent.plan.reconcile_outcome import ChunkOutcome, ChunkResult
from agent.reconcile.commit_ids import highest_claim
from agent.reconcile.exclusive_lease import ReplicaChanges
from agent.reconcile.ledger import NOBODYS
from agent.reconstruct.row_repair import RowRestorer
from merkle.replica import BlockData, ReplicaState
from suture.ec.blockgroup import OrphanGroup, resolve_group
from suture.errors import SutureError
from suture.wire.clients.peer import Peer

MISSING_BLOCK = "MISSING_BLOCK"
BCSID = "BCSID"


@dataclass(slots=True)
class BlockBackfill:
    """Adds the missing blocks to one shard during a repair."""

    changes: ReplicaChanges
    rows: RowRestorer
    is_complete: bool = True
    _lender: str = field(default="", init=False)
    _claimed: int = field(default=0, init=False)

    def make(self, peers: Mapping[str, Peer]) -> Iterator[ChunkOutcome]:
        """Rebuild each block that this shard lacks, and yield the outcomes.

        The highest commit id of the other shards is read before their lists of blocks. Therefore,
        the lists contain all blocks up to that commit id.
        """
        store, container_id = self.changes.store, self.changes.container_id
        sources, index = self.rows.sources, self.rows.index
        own = store.replica(container_id).bcsid
        self._lender, self._claimed = highest_claim(peers, container_id, peers)
        tree = store.view(container_id).tree()
        for block_id, known in sources.blocks():
            if self.changes.must_stop():
                self.is_complete = False
                return
            place = tree.index_of(block_id)
            if place >= 0 and tree.deleted[place]:
                continue
            agreed = resolve_group(sources.scheme, block_id, known)
            if isinstance(agreed, OrphanGroup):  # never committed, or too few shards have it
                self.is_complete &= _last_commit(known) <= own
                continue
            if place >= 0:  # the shard has the block, perhaps shorter, from an earlier commit
                here_bytes = sum(leaf.length_bytes for leaf in tree.leaves(block_id))
                self.is_complete &= here_bytes >= agreed.group.shard_bytes(index)
                continue
            blank = ChunkOutcome(block_id, 0, -1, MISSING_BLOCK, ChunkResult.SKIPPED)
            made = self.rows.restore_row(agreed, blank)
            self.is_complete &= made.result is ChunkResult.REPAIRED
            yield made

    def adopt_bcsid(self, replaced: Mapping[str, str]) -> Iterator[ChunkOutcome]:
        """Set the shard's commit id to the highest commit id of the other shards.

        This is done only if the shard has all blocks up to that id and no findings, and if no
        source failed. `replaced` has the sources that failed. Yield one outcome if the commit id
        was changed or could not be changed.
        """
        facts = self.changes.store.replica(self.changes.container_id)
        is_whole = facts.state is ReplicaState.QUASI_CLOSED and not facts.finding_count
        if not (self.is_complete and is_whole) or replaced or self._claimed <= facts.bcsid:
            return
        told = ChunkOutcome(NOBODYS, -1, -1, BCSID, ChunkResult.REWRITTEN, source=self._lender)
        try:
            with self.changes.hold() as repair:
                repair.advance_bcsid(self._claimed)
        except SutureError as error:
            yield ChunkOutcome(NOBODYS, -1, -1, BCSID, ChunkResult.FAILED, message=str(error))
            return
        yield told


def _last_commit(known: Mapping[int, BlockData | None]) -> int:
    return max((block.bcsid for block in known.values() if block is not None), default=0)
