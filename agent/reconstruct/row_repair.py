"""Repair of a block of a shard that has lost the block's index row.

The block's chunks are computed from the stripes of the other shards and verified
(`suture.client.stripes.cell_rebuild`). If the local file already has the bytes of a chunk, only the
row is written. Otherwise, the wrong bytes are copied to quarantine and the chunk is written with a
journal entry. The length of the block group is written last.

After an interruption, the next repair recognizes the block, because the block has no group length,
and has bytes after its last chunk. This is not possible if the local file ends early. Therefore,
all chunks of such a block and its row are written in one batch.
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
    """Restores the lost index rows of blocks in shard `index`."""

    changes: ReplicaChanges
    sources: RebuildSources
    index: int

    def lacks_row(self, finding: ScanFinding) -> bool:
        """Return whether the block of a finding has no row, or an incomplete row of an interrupted
        repair.

        An incomplete row has no group length, and the block's file has bytes after the last chunk.
        """
        if finding.fault is not DamageFault.TRAILING_BYTES:
            return finding.fault in ROW_FAULTS
        block = self.changes.store.view(self.changes.container_id).block(finding.block_id)
        return group_length_bytes(block) is None

    def restore_row(
        self, agreed: RebuildableGroup | OrphanGroup, blank: ChunkOutcome
    ) -> ChunkOutcome:
        """Restore the lost index row of a block. Return a copy of the outcome `blank` with the
        result.

        The result is SKIPPED if the block's file ends early and the block is too large for one
        batch. Raise RefusedError if the shard does not exist any more.
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
        """Return whether the local file of a block has at least `ends_at` bytes."""
        if not ends_at:
            return True
        last = ChunkInfo(ends_at - 1, 1, ChecksumType.NONE, 0, b"")
        repair = self.changes.store.repair(self.changes.container_id)
        return len(repair.read_medium(block_id, last)) == 1

    def _record(self, agreed: RebuildableGroup) -> None:
        """Write the index row of a block, chunk by chunk.

        If the local file does not have the correct bytes of a chunk, also write these bytes.
        """
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
        """Write all chunks of a block and its index row in one batch."""
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
        """Yield the block's chunks in this shard, computed from the other shards.

        If the repair must stop, raise UnavailableError(CANCELLED) after the current chunk.
        """
        maker = CellRebuilder(self.sources, {self.index})
        for stripe, cells in self.sources.stripes(agreed, stripes_of(agreed, {self.index})):
            chunk, data = maker.made(agreed, stripe, cells)[self.index]
            proof = f"computed from shards {', '.join(map(str, sorted(cells)))}"
            yield OfferedChunk(agreed.block_id, chunk, bytes(data), proof=proof)
            if self.changes.must_stop():
                raise UnavailableError(
                    Code.CANCELLED, "the repair was stopped; the next repair continues it"
                )
