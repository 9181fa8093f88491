"""Repair of a block of a shard whose row is lost, in place.

    its stripes from the other shards ─► its chunks, proven ─► is the chunk here? ─► recorded
                                                               └─ no ─► installed, by the journal
                                     ─► finally the length of its group
    if the file ends early, too      ─► all chunks and the row at once, in one batch

No row shows what was written here, so stripes are proven as for a lost shard
(`agent.reconstruct.made_cells`). Correct local bytes stay; others go to quarantine. A half recorded
block lacks the length of its group and has bytes behind its last chunk. A block whose file ends
early would look complete, so it is recorded all at once or not at all.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from agent.ec.blockgroup import OrphanGroup, RebuildableGroup, group_length_bytes
from agent.errors import Code, SutureError, UnavailableError
from agent.plan.reconcile_outcome import ChunkOutcome, ChunkResult
from agent.ports import Leases
from agent.reconcile.mend import GONE_CODES
from agent.reconcile.pauses import exclusive_lease
from agent.reconstruct.made_cells import BlockBuilder, CellRebuilder, stripes_of
from agent.reconstruct.sources import RebuildSources
from agent.store.operations.batch_repair import BATCH_BYTES_MAX, OfferedChunk
from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockId, ChecksumType, ChunkInfo, ContainerId
from scanner.finding import DamageFault, ScanFinding

ROW_FAULTS: Final = frozenset({DamageFault.BLOCK_ROW_MISSING, DamageFault.BLOCK_ROW_DAMAGED})


class RowRestorer:
    """Restores lost rows of blocks in one store."""

    def __init__(self, store: ReplicaStore, leases: Leases, lease_timeout_s: float) -> None:
        self._store = store
        self._leases = leases
        self._lease_timeout_s = lease_timeout_s

    def lacks_row(self, container_id: ContainerId, finding: ScanFinding) -> bool:
        """Return whether a block has no row, or one that a repair left unfinished: without the
        length of its group, and with bytes behind its last chunk."""
        if finding.fault is not DamageFault.TRAILING_BYTES:
            return finding.fault in ROW_FAULTS
        return group_length_bytes(self._store.block(container_id, finding.block_id)) is None

    def remake(
        self,
        sources: RebuildSources,
        agreed: RebuildableGroup | OrphanGroup,
        index: int,
        blank: ChunkOutcome,
        stop: Callable[[], bool],
    ) -> ChunkOutcome:
        """Restore the row of an outcome's block, as shard `index` of its group.

        A block whose file ends early and that is larger than a batch is skipped. Raise RefusedError
        if the shard is gone.
        """
        if isinstance(agreed, OrphanGroup):
            return replace(blank, result=ChunkResult.FAILED, message=agreed.reason)
        ends_at = agreed.group.shard_bytes(index)
        try:
            if self._reaches(sources.container_id, agreed.block_id, ends_at):
                self._record(sources, agreed, index, stop)
            elif ends_at <= BATCH_BYTES_MAX:
                self._install(sources, agreed, index, stop)
            else:
                return replace(blank, message=f"its file ends before byte {ends_at}")
        except SutureError as error:
            if error.code in GONE_CODES:
                raise
            return replace(blank, result=ChunkResult.FAILED, message=f"not recorded: {error}")
        return replace(blank, result=ChunkResult.REPAIRED, source="its stripes")

    def _reaches(self, container_id: ContainerId, block_id: BlockId, ends_at: int) -> bool:
        """Return whether the file of a block has its last byte."""
        if not ends_at:
            return True
        last = ChunkInfo(ends_at - 1, 1, ChecksumType.NONE, 0, b"")
        return len(self._store.repair(container_id).held(block_id, last)) == 1

    def _record(
        self,
        sources: RebuildSources,
        agreed: RebuildableGroup,
        index: int,
        stop: Callable[[], bool],
    ) -> None:
        """Record the row chunk by chunk, and write the chunks that are missing."""
        container_id, block_id = sources.container_id, agreed.block_id
        draft = BlockBuilder(agreed, index)
        for offer in _made(sources, agreed, index, stop):
            with exclusive_lease(self._leases, container_id, self._lease_timeout_s, stop):
                repair = self._store.repair(container_id)
                if not repair.salvage_chunk(block_id, offer.chunk):
                    repair.install_chunk(block_id, offer.chunk, offer.data, proof=offer.proof)
            draft.chunks.append(offer.chunk)
        block = draft.block()
        with exclusive_lease(self._leases, container_id, self._lease_timeout_s, stop):
            repair = self._store.repair(container_id)
            repair.install_empty_block(block_id)
            repair.adopt_bcsid(block_id, block.bcsid)
            repair.adopt_metadata(block_id, block.metadata)

    def _install(
        self,
        sources: RebuildSources,
        agreed: RebuildableGroup,
        index: int,
        stop: Callable[[], bool],
    ) -> None:
        """Write all chunks and their row together."""
        container_id, draft = sources.container_id, BlockBuilder(agreed, index)
        offers = list(_made(sources, agreed, index, stop))
        draft.chunks += [offer.chunk for offer in offers]
        whole = [replace(offer, lent=draft.block()) for offer in offers]
        with exclusive_lease(self._leases, container_id, self._lease_timeout_s, stop):
            done = self._store.install_chunks(container_id, whole)
        if len(done) < len(whole):
            raise UnavailableError(
                Code.UNAVAILABLE, f"{len(done)} of {len(whole)} chunks could be installed"
            )


def _made(
    sources: RebuildSources, agreed: RebuildableGroup, index: int, stop: Callable[[], bool]
) -> Iterator[OfferedChunk]:
    """Yield the chunks of a shard, computed from the others. Raise UnavailableError(CANCELLED) if
    `stop` returns True after one."""
    maker = CellRebuilder(sources, {index})
    for stripe, cells in sources.stripes(agreed, stripes_of(agreed, {index})):
        chunk, data = maker.made(agreed, stripe, cells)[index]
        proof = f"computed from shards {', '.join(map(str, sorted(cells)))}"
        yield OfferedChunk(agreed.block_id, chunk, bytes(data), proof=proof)
        if stop():
            raise UnavailableError(Code.CANCELLED, "it was stopped; the next repair goes on")
