"""Repair of one shard of an erasure-coded container, without a copy of the complete shard.

Damaged chunks are computed from the other shards of their stripes. No other data is read.

- If the computed chunk matches the local row, it is written with a journal entry. If no combination
  of shards gives a match, the contradiction is stored as a finding. After a repair, the complete
  shard is scanned.
- Bytes after the last chunk of a block are moved to quarantine if the block group ends there and
  the last chunk matches the other shards.
- If a block has no row, all of its chunks are computed and recorded
  (`agent.reconstruct.row_repair`).
- If a QUASI_CLOSED shard has no damage, its missing blocks are added
  (`agent.reconstruct.block_backfill`).

Local bytes that match their checksums are never overwritten: `agent.store.operations.repair` reads
them from the disk immediately before each write. The lease of the container is held for one chunk
at a time. While the shard is being copied, changes wait.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final

from agent.plan.actions import SkipReason
from agent.plan.reconcile_outcome import (
    ChunkOutcome,
    ChunkResult,
    PeerOutcome,
    PeerState,
    ReconcileResult,
    ReconcileVerdict,
)
from agent.reconcile.contradictions import EVIDENCE_BYTES_MAX, EVIDENCE_COUNT_MAX, TOLD_MAX
from agent.reconcile.exclusive_lease import ReplicaChanges
from agent.reconcile.failure_policy import FailureStreak
from agent.reconcile.ledger import NOBODYS
from agent.reconcile.repair_executor import GONE_CODES
from agent.reconstruct.block_backfill import BlockBackfill
from agent.reconstruct.rebuilt_chunk import RebuiltChunk, rebuilt_chunk
from agent.reconstruct.row_repair import ROW_FAULTS, RowRestorer
from agent.store.index.facts import ReplicaFacts
from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId, ReplicaState
from scanner.finding import DamageFault, ScanFinding, Verdict
from suture.client.stripes.stripe_sources import RebuildSources
from suture.ec.blockgroup import OrphanGroup, RebuildableGroup, resolve_group
from suture.ec.rebuild_task import RebuildStats, ShardLocation
from suture.ec.scheme import Scheme
from suture.errors import Code, RefusedError, SutureError, UnavailableError, VolumeFailed
from suture.runtime.ports import Executor, Leases, Pace, at_once
from suture.wire.clients.peer import Peer

CHUNK_FAULTS: Final = frozenset(
    {
        DamageFault.CHUNK_CHECKSUM,
        DamageFault.CHUNK_SHORT,
        DamageFault.CHUNK_MISSING,
        DamageFault.CHUNK_UNREADABLE,
        DamageFault.BLOCK_FILE_MISSING,
    }
)
DONE: Final = frozenset({ChunkResult.REPAIRED, ChunkResult.SALVAGED, ChunkResult.TRIMMED})
GOOD: Final = DONE | {ChunkResult.REWRITTEN}
SCAN_FAILED: Final = ChunkOutcome(NOBODYS, -1, -1, "SCAN", ChunkResult.FAILED)
OUTCOMES_MAX: Final = 1_000  # outcomes that are listed; further ones are only counted
LEASE_TIMEOUT_S: Final = 30.0


@dataclass(slots=True)
class _Contradictions:
    """The contradictions between the other shards and the local rows that one repair has found.

    A contradiction means that a chunk computed from the other shards does not match its local row.
    `known` has the contradictions that were stored before. `is_complete` is True if every damaged
    chunk was computed. Known contradictions that are not in `found` are then obsolete.
    """

    known: frozenset[tuple[BlockId, int]]
    found: list[ScanFinding] = field(default_factory=list)
    is_complete: bool = True
    left_count: int = EVIDENCE_COUNT_MAX
    left_bytes: int = EVIDENCE_BYTES_MAX

    def must_keep(self, block_id: BlockId, offset: int, data: bytes) -> bool:
        """Return True if `data`, a chunk computed from the other shards, must be stored as
        evidence.

        This is the case if `data` contradicts the local row, this was not known before, and the
        limits for the evidence of one repair are not exceeded. `data` is then counted towards these
        limits.
        """
        is_news = (block_id, offset) not in self.known
        if not is_news or not self.left_count or len(data) > self.left_bytes:
            return False
        self.left_count, self.left_bytes = self.left_count - 1, self.left_bytes - len(data)
        return True


@dataclass(eq=False)
class ShardRepairer:
    """Repairs shards in the store of this datanode.

    `scan` is a function that scans a complete replica and commits the result.
    """

    store: ReplicaStore
    leases: Leases
    executor: Executor
    _: KW_ONLY
    scan: Callable[[ContainerId], object]
    now_ms: Callable[[], int]
    lease_timeout_s: float = LEASE_TIMEOUT_S
    pace: Pace = at_once
    """Function that is called with the number of bytes read from peers, and waits until more may be
    read."""

    def repair(
        self,
        container_id: ContainerId,
        scheme: Scheme,
        peers: Mapping[str, Peer],
        *,
        stop: Callable[[], bool] = lambda: False,
    ) -> ReconcileResult:
        """Repair the damage that the last scan of a shard found, with data from the shards of
        `peers`.

        If a QUASI_CLOSED shard has no damage, add its missing blocks. A healthy CLOSED shard is not
        read. If the computed bytes contradict the local row, store a finding, and the bytes as
        evidence. The finding is removed when a later complete repair no longer finds the
        contradiction.

        Raise RefusedError if this datanode has no such shard. Raise UnavailableError if fewer peers
        are readable than the erasure code has data shards.
        """
        started_ms = self.now_ms()
        before = self.store.replica(container_id)
        [index] = scheme.checked([before.replica_index])
        findings = self._known_findings(before)
        damaged = [f for f in findings if f.is_damage]
        known = frozenset((f.block_id, f.offset) for f in findings if f.is_contradiction)
        contradictions = _Contradictions(known)
        account = RebuildStats()
        outcomes: list[ChunkOutcome] = []
        is_behind = before.state is ReplicaState.QUASI_CLOSED
        changes = ReplicaChanges(self.store, self.leases, container_id, self.lease_timeout_s, stop)
        sources = RebuildSources(container_id, scheme, self.executor, account)
        rows = RowRestorer(changes, sources, index)
        missed = BlockBackfill(changes, rows)
        if damaged or is_behind:
            shards = [ShardLocation(name, peer.address, 0) for name, peer in peers.items()]
            sources.open(shards, lambda shard: peers[shard.datanode_id])
            paced_bytes = 0
            repair = _ShardRepair(changes, rows, contradictions, self.now_ms)
            for outcome in repair.repair_chunks(damaged) if damaged else missed.make(peers):
                outcomes.append(outcome)
                self.pace(account.read_bytes - paced_bytes, stop)
                paced_bytes = account.read_bytes
                if stop():
                    contradictions.is_complete = missed.is_complete = False
                    break
        has_news = self._update_contradictions(container_id, contradictions)
        has_repaired = any(outcome.result in DONE for outcome in outcomes)
        if has_repaired:
            outcomes += self._judged(container_id)
        if is_behind:
            told = list(missed.adopt_bcsid(account.replaced))
            has_news |= bool(told)
            outcomes += told
        if has_repaired or has_news:
            self.store.on_change(container_id)
        after = self.store.replica(container_id)
        return ReconcileResult(
            container_id=container_id,
            result=_verdict(outcomes, is_stopped=stop(), left_count=after.finding_count),
            peers=_outcomes_of(peers if damaged or is_behind else (), account),
            chunks=tuple(outcomes[:OUTCOMES_MAX]),
            chunk_count=len(outcomes),
            fetched_bytes=account.read_bytes,
            tree_before=before.tree,
            tree_after=after.tree,
            state_before=before.state,
            state_after=after.state,
            duration_ms=self.now_ms() - started_ms,
        )

    def _known_findings(self, facts: ReplicaFacts) -> list[ScanFinding]:
        """Return the findings about the current data of the shard. Scan the shard first if
        necessary.

        Only an UNHEALTHY shard is scanned. The scan is necessary if the shard was never scanned, or
        if data was written after the last scan. For example, a repair may have been killed before
        it verified its result. The scan is also necessary if the shard has no findings, because all
        its damaged blocks may have been deleted.
        """
        container_id, tree = facts.container_id, facts.tree
        if facts.state is ReplicaState.UNHEALTHY:
            generation = self.store.generation(container_id)
            is_read = tree is not None and tree.generation == generation and facts.data_scan_at_ms
            if not (is_read and facts.finding_count):
                self.scan(container_id)
        return self.store.findings(container_id)

    def _judged(self, container_id: ContainerId) -> list[ChunkOutcome]:
        """Scan the shard. The scan sets the state of the shard.

        Return an empty list, or a list with one outcome if the scan failed.
        """
        try:
            self.scan(container_id)
        except VolumeFailed:
            raise
        except SutureError as error:
            return [replace(SCAN_FAILED, message=str(error))]
        return []

    def _update_contradictions(
        self, container_id: ContainerId, contradictions: _Contradictions
    ) -> bool:
        """Store new contradictions between shards, and remove obsolete ones. Return True if
        anything changed.

        If another thread holds the container's lease for too long, store nothing and return False.
        The next repair then finds the contradictions again. Raise RefusedError if the shard does
        not exist any more.
        """
        if not (contradictions.found or contradictions.known):
            return False
        try:
            with self.leases.hold(container_id, self.lease_timeout_s):
                return self.store.repair(container_id).note_contradictions(
                    contradictions.found, is_complete=contradictions.is_complete
                )
        except UnavailableError:
            return False


@dataclass(frozen=True, slots=True)
class _ShardRepair:
    """Repair of the damaged blocks of one shard."""

    changes: ReplicaChanges
    rows: RowRestorer
    contradictions: _Contradictions
    now_ms: Callable[[], int]

    def repair_chunks(self, damaged: Sequence[ScanFinding]) -> Iterator[ChunkOutcome]:
        """Repair the damaged chunks one after the other, and yield the outcome of each.

        Stop early if a local problem prevents all writes, for example an unavailable lease. Further
        reads from the peers would then be useless.
        """
        store, sources = self.changes.store, self.rows.sources
        contradictions = self.contradictions
        failures = FailureStreak(store, sources.container_id)
        groups: dict[BlockId, RebuildableGroup | OrphanGroup] = {}
        for finding in damaged:
            blank = ChunkOutcome(
                finding.block_id, finding.offset, -1, finding.fault.value, ChunkResult.SKIPPED
            )
            is_tail = finding.fault is DamageFault.TRAILING_BYTES
            is_of_block = finding.block_id > 0 and finding.fault in CHUNK_FAULTS | ROW_FAULTS
            if not is_tail and not is_of_block:
                contradictions.is_complete = False
                message = "only a whole shard can be rebuilt without its files"
                yield replace(blank, message=message)
                continue
            block_id = finding.block_id
            if block_id not in groups:
                groups[block_id] = resolve_group(sources.scheme, block_id, sources.block(block_id))
            if self.rows.lacks_row(finding):
                remade = self.rows.restore_row(groups[block_id], blank)
                contradictions.is_complete &= remade.result is ChunkResult.REPAIRED
                yield remade
                continue
            if is_tail:
                cut = self._cut(groups[block_id], blank)
                contradictions.is_complete &= cut.result is ChunkResult.TRIMMED
                yield cut
                continue
            for chunk in self._chunks_of(finding):
                told = replace(blank, offset=chunk.offset, length_bytes=chunk.length_bytes)
                if store.repair(sources.container_id).medium_has(block_id, chunk):
                    contradictions.is_complete = False
                    yield replace(told, result=ChunkResult.SALVAGED)
                    continue
                try:
                    rebuilt = self._rebuilt(groups[block_id], chunk)
                except SutureError as error:
                    contradictions.is_complete = False
                    yield replace(told, result=ChunkResult.FAILED, message=str(error))
                    continue
                if not rebuilt.fits:
                    yield self._contradict(block_id, chunk, rebuilt)
                    continue
                error_here = self._install(block_id, chunk, rebuilt.data)
                if error_here is None:
                    failures.clear()
                    yield replace(told, result=ChunkResult.REPAIRED, source="its stripe")
                    continue
                yield replace(told, result=ChunkResult.FAILED, message=str(error_here))
                if not failures.may_go_on(error_here):
                    contradictions.is_complete = False
                    return

    def _chunks_of(self, finding: ScanFinding) -> tuple[ChunkInfo, ...]:
        """Return the damaged chunks that a finding names.

        This is one chunk, or all chunks of a block whose file is missing. Return an empty tuple if
        the block was deleted meanwhile.
        """
        try:
            chunks = self._block(finding.block_id).chunks
        except RefusedError as error:
            if error.code is not Code.NO_SUCH_BLOCK:
                raise
            return ()
        if finding.fault is DamageFault.BLOCK_FILE_MISSING:
            return chunks
        return tuple(chunk for chunk in chunks if chunk.offset == finding.offset)

    def _block(self, block_id: BlockId) -> BlockData:
        return self.changes.store.view(self.changes.container_id).block(block_id)

    def _rebuilt(self, agreed: RebuildableGroup | OrphanGroup, chunk: ChunkInfo) -> RebuiltChunk:
        return rebuilt_chunk(self.rows.sources, _rebuildable(agreed), self.rows.index, chunk)

    def _install(self, block_id: BlockId, chunk: ChunkInfo, data: bytes) -> SutureError | None:
        """Write a chunk to the shard. Return None, or the error if the write failed.

        While the shard is being copied, the write waits. Raise RefusedError if the shard does not
        exist any more.
        """
        try:
            with self.changes.hold() as repair:
                repair.install_chunk(block_id, chunk, data)
        except SutureError as error:
            if error.code in GONE_CODES:
                raise
            return error
        return None

    def _cut(self, agreed: RebuildableGroup | OrphanGroup, blank: ChunkOutcome) -> ChunkOutcome:
        """Move the bytes after a block's last chunk to quarantine, and return the outcome.

        Nothing is moved, and the outcome is FAILED, unless two conditions hold: the length of the
        block group matches the row, and the last chunk matches the chunk that is computed from the
        other shards. Raise RefusedError if the shard does not exist any more.
        """
        try:
            block = self._block(blank.block_id)
            proof = self._proven_end(_rebuildable(agreed), block)
            with self.changes.hold() as repair:
                repair.trim(block.block_id, proof=proof)
        except SutureError as error:
            if error.code in GONE_CODES:
                raise
            return replace(blank, result=ChunkResult.FAILED, message=f"not cut: {error}")
        return replace(blank, result=ChunkResult.TRIMMED, source="its stripe")

    def _proven_end(self, agreed: RebuildableGroup, block: BlockData) -> str:
        """Check that the length of a block in this shard is correct, and return the proof as text.

        The length in the local row must match the length of the block group, and the last chunk
        must match the chunk that is computed from the other shards. Otherwise, raise RefusedError.
        """
        ends_at = agreed.group.shard_bytes(self.rows.index)
        if block.length_bytes != ends_at:
            raise RefusedError(
                Code.INELIGIBLE,
                f"block {block.block_id} has {block.length_bytes} bytes by its row, {ends_at} by "
                "the length of its group",
            )
        if not block.chunks:
            return f"none: of a group of {agreed.group.length_bytes} bytes nothing is in this shard"
        rebuilt = self._rebuilt(agreed, block.chunks[-1])
        if not rebuilt.fits:
            raise RefusedError(
                Code.CHECKSUM_MISMATCH,
                f"block {block.block_id}: the last chunk rebuilt from "
                f"{', '.join(rebuilt.makers)} does not match its row",
            )
        return f"its last chunk, computed from {', '.join(rebuilt.makers)}"

    def _contradict(
        self, block_id: BlockId, chunk: ChunkInfo, rebuilt: RebuiltChunk
    ) -> ChunkOutcome:
        """Record that the other shards contradict the local row, and store the computed bytes as
        evidence.

        Return the outcome for this chunk.
        """
        container_id, contradictions = self.changes.container_id, self.contradictions
        evidence = (
            f"what {', '.join(rebuilt.makers)} make of it is not what was written here, "
            "and each shard is right by its own checksums"
        )
        if len(contradictions.found) < TOLD_MAX:
            contradictions.found.append(
                ScanFinding(
                    container_id=container_id,
                    verdict=Verdict.CONTRADICTORY,
                    fault=DamageFault.PEER_CONTRADICTS,
                    block_id=block_id,
                    offset=chunk.offset,
                    length_bytes=chunk.length_bytes,
                    found_at_ms=self.now_ms(),
                    evidence=evidence,
                )
            )
        if contradictions.must_keep(block_id, chunk.offset, rebuilt.data):
            why = f"what {', '.join(rebuilt.makers)} make of it, contradicts the row here"
            with suppress(SutureError):  # the contradiction is recorded even without evidence
                repair = self.changes.store.repair(container_id)
                repair.keep_version(block_id, chunk.offset, rebuilt.data, why)
        return ChunkOutcome(
            block_id,
            chunk.offset,
            chunk.length_bytes,
            SkipReason.CONTRADICTORY.value,
            ChunkResult.SKIPPED,
            message=f"{evidence}; `suture scrub parity` names the shard that is wrong",
        )


def _outcomes_of(names: Iterable[str], account: RebuildStats) -> tuple[PeerOutcome, ...]:
    """Return for each of the named peers whether it was used as a source or has failed."""
    return tuple(
        PeerOutcome(name, PeerState.BAD_DATA, message=account.replaced[name])
        if name in account.replaced
        else PeerOutcome(name, PeerState.USED)
        for name in names
    )


def _rebuildable(agreed: RebuildableGroup | OrphanGroup) -> RebuildableGroup:
    """Return `agreed` if the block can be rebuilt. Raise RefusedError if too few shards have the
    block."""
    if isinstance(agreed, OrphanGroup):
        raise RefusedError(Code.INELIGIBLE, f"block {agreed.block_id}: {agreed.reason}")
    return agreed


def _verdict(
    outcomes: list[ChunkOutcome], *, is_stopped: bool, left_count: int
) -> ReconcileVerdict:
    if not outcomes:
        return ReconcileVerdict.NOTHING_TO_DO
    if is_stopped:
        return ReconcileVerdict.INTERRUPTED
    is_done = all(outcome.result in GOOD for outcome in outcomes)
    return ReconcileVerdict.CONVERGED if is_done and not left_count else ReconcileVerdict.PARTIAL
