"""Repair, in place, of a block of a shard whose row is lost.

The block's chunks are computed from the stripes of the other shards and verified. If a chunk is on
the local disk, it is recorded; otherwise it is installed with the journal. The length of the block
group is recorded last. If the local file ends early, all chunks and the row are installed in one
batch.

Without a row, stripes are verified as for a lost shard (`suture.client.stripes.cell_rebuild`).
Correct local bytes are kept, and wrong bytes go to quarantine. An interrupted repair is recognized:
the block then has no group length, and has bytes after its last chunk. A block whose file ends
early is recorded in one batch, because its interrupted repair could not be recognized.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from agent.plan.reconcile_outcome import ChunkOutcome, ChunkResult
from agent.reconcile.exclusive_lease import ReplicaChanges
from agent.reconcile.repair_executor import GONE_CODES
from agent.store.operations.batch_repair import BATCH_BYTES_MAX, OfferedChunk
from merkle.replica import BlockId, ChecksumType, ChunkInfo
from scanner.finding import DamageFault, ScanFinding
from suture.client.stripes.cell_rebuild import BlockBuilder, CellRebuilder, stripes_of
from suture.client.stripes.stripe_sources import RebuildSources
from suture.ec.blockgroup import OrphanGroup, RebuildableGroup, group_length_bytes
from suture.errors import Code, SutureError, UnavailableError

ROW_FAULTS: Final = frozenset({DamageFault.BLOCK_ROW_MISSING, DamageFault.BLOCK_ROW_DAMAGED})


@dataclass(frozen=True, slots=True)
class RowRestorer:
    """Restores lost rows of blocks of shard `index`."""

    changes: ReplicaChanges
    sources: RebuildSources
    index: int

    def lacks_row(self, finding: ScanFinding) -> bool:
        """Return whether the block of a finding has no row, or an incomplete row of an interrupted
        repair: without a group length, and with bytes after the last chunk."""
        if finding.fault is not DamageFault.TRAILING_BYTES:
            return finding.fault in ROW_FAULTS
        block = self.changes.store.view(self.changes.container_id).block(finding.block_id)
        return group_length_bytes(block) is None

    def restore_row(
        self, agreed: RebuildableGroup | OrphanGroup, blank: ChunkOutcome
    ) -> ChunkOutcome:
        """Restore the row of a block. Return a copy of the outcome `blank` with the result.

        If the block's file ends early and the block does not fit into a batch, the result is
        SKIPPED. Raise RefusedError if the shard does not exist any more.
        """
        if isinstance(agreed, OrphanGroup):
            return replace(blank, result=ChunkResult.FAILED, message=agreed.reason)
        ends_at = agreed.group.shard_bytes(self.index)
        try:
            if self._reaches(agreed.block_id, ends_at):
                self._record(agreed)
            elif ends_at <= BATCH_BYTES_MAX:
                self._install(agreed)
            else:
                return replace(blank, message=f"its file ends before byte {ends_at}")
        except SutureError as error:
            if error.code in GONE_CODES:
                raise
            return replace(blank, result=ChunkResult.FAILED, message=f"not recorded: {error}")
        return replace(blank, result=ChunkResult.REPAIRED, source="its stripes")

    def _reaches(self, block_id: BlockId, ends_at: int) -> bool:
        """Return whether the file of a block has at least `ends_at` bytes."""
        if not ends_at:
            return True
        last = ChunkInfo(ends_at - 1, 1, ChecksumType.NONE, 0, b"")
        repair = self.changes.store.repair(self.changes.container_id)
        return len(repair.read_medium(block_id, last)) == 1

    def _record(self, agreed: RebuildableGroup) -> None:
        """Record the row chunk by chunk, and install the chunks that are missing."""
        block_id = agreed.block_id
        draft = BlockBuilder(agreed, self.index)
        for offer in self._made(agreed):
            with self.changes.hold() as repair:
                if not repair.salvage_chunk(block_id, offer.chunk):
                    repair.install_chunk(block_id, offer.chunk, offer.data, proof=offer.proof)
            draft.chunks.append(offer.chunk)
        block = draft.block()
        with self.changes.hold() as repair:
            repair.install_empty_block(block_id)
            repair.adopt_bcsid(block_id, block.bcsid)
            repair.adopt_metadata(block_id, block.metadata)

    def _install(self, agreed: RebuildableGroup) -> None:
        """Install all chunks and their row in one batch."""
        draft = BlockBuilder(agreed, self.index)
        offers = list(self._made(agreed))
        draft.chunks += [offer.chunk for offer in offers]
        whole = [replace(offer, lent=draft.block()) for offer in offers]
        with self.changes.hold():
            done = self.changes.store.install_chunks(self.changes.container_id, whole)
        if len(done) < len(whole):
            raise UnavailableError(
                Code.UNAVAILABLE, f"only {len(done)} of {len(whole)} chunks could be installed"
            )

    def _made(self, agreed: RebuildableGroup) -> Iterator[OfferedChunk]:
        """Yield the block's chunks in this shard, computed from the other shards. If the repair
        must stop, raise UnavailableError(CANCELLED) after the current chunk."""
        maker = CellRebuilder(self.sources, {self.index})
        for stripe, cells in self.sources.stripes(agreed, stripes_of(agreed, {self.index})):
            chunk, data = maker.made(agreed, stripe, cells)[self.index]
            proof = f"computed from shards {', '.join(map(str, sorted(cells)))}"
            yield OfferedChunk(agreed.block_id, chunk, bytes(data), proof=proof)
            if self.changes.must_stop():
                raise UnavailableError(
                    Code.CANCELLED, "the repair was stopped; the next repair continues it"
                )
