"""Mends one shard in place: a damaged chunk is computed from its stripe, and nothing else is read.

    findings ─► for each damaged chunk: its stripe from the other shards ─► computed, proven
             ─► what its own row says? ─► installed, by the journal ─► at last a full scan judges

The row that the writer left here is the witness: what the others make of the chunk must have its
checksums, or it is not written. No byte that verifies is overwritten: `agent.store.repair` asks the
medium right before. The lease is held for one chunk at a time, and not while the shard is copied.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from agent.ec.blockgroup import Agreed, Orphan, agree
from agent.ec.codec import rebuild_checked
from agent.ec.scheme import Scheme
from agent.errors import Code, Refused, SutureError
from agent.pauses import held_between_copies
from agent.plan.outcome import (
    ChunkOutcome,
    ChunkResult,
    PeerOutcome,
    PeerState,
    ReconcileResult,
    Result,
)
from agent.ports import Leases
from agent.reconcile.failures import Failures
from agent.reconcile.mend import GONE_CODES
from agent.reconstruct.order import Account, Shard
from agent.reconstruct.sources import Sources
from agent.rpc.peer import Peer
from merkle.checksum import windows_verify
from merkle.replica import BlockId, ChunkInfo, ContainerId
from scanner.finding import Fault, Finding

if TYPE_CHECKING:
    from agent.ports import Executor
    from agent.store.store import ReplicaStore

CHUNK_FAULTS: Final = frozenset(
    {
        Fault.CHUNK_CHECKSUM,
        Fault.CHUNK_SHORT,
        Fault.CHUNK_MISSING,
        Fault.CHUNK_UNREADABLE,
        Fault.BLOCK_FILE_MISSING,
    }
)
OUTCOMES_MAX: Final = 1_000  # told one by one
LEASE_TIMEOUT_S: Final = 30.0


class ShardMender:
    """Mends shards of one store. `scan` reads a replica whole and commits what it found."""

    def __init__(
        self,
        store: "ReplicaStore",
        leases: Leases,
        executor: "Executor",
        *,
        scan: Callable[[ContainerId], object],
        now_ms: Callable[[], int],
        lease_timeout_s: float = LEASE_TIMEOUT_S,
    ) -> None:
        self._store = store
        self._leases = leases
        self._executor = executor
        self._scan = scan
        self._now_ms = now_ms
        self._lease_timeout_s = lease_timeout_s

    def mend(
        self,
        container_id: ContainerId,
        scheme: Scheme,
        peers: Mapping[str, Peer],
        *,
        stop: Callable[[], bool] = lambda: False,
    ) -> ReconcileResult:
        """Mend what the last scan found damaged, from the shards of `peers`.

        Raises Refused when there is no such shard here, Unavailable when fewer peers than data
        shards can be read. Without damage nothing is read.
        """
        started_ms = self._now_ms()
        before = self._store.replica(container_id)
        [index] = scheme.checked([before.replica_index])
        damaged = [f for f in self._store.findings(container_id) if f.is_damage]
        account = Account()
        outcomes: list[ChunkOutcome] = []
        if damaged:
            sources = Sources(container_id, scheme, self._executor, account)
            shards = [Shard(name, peer.address, 0) for name, peer in peers.items()]
            dials = {peer.address: peer for peer in peers.values()}
            sources.open(shards, dials.__getitem__)
            for outcome in self._mend_all(sources, index, damaged, stop):
                outcomes.append(outcome)
                if stop():
                    break
            if any(outcome.result is ChunkResult.REPAIRED for outcome in outcomes):
                self._scan(container_id)
                self._store.on_change(container_id)
        after = self._store.replica(container_id)
        return ReconcileResult(
            container_id=container_id,
            result=_verdict(outcomes, is_stopped=stop(), left_count=after.finding_count),
            peers=tuple(
                PeerOutcome(name, PeerState.BAD_DATA, message=account.replaced[name])
                if name in account.replaced
                else PeerOutcome(name, PeerState.USED)
                for name in (peers if damaged else ())
            ),
            chunks=tuple(outcomes[:OUTCOMES_MAX]),
            chunk_count=len(outcomes),
            fetched_bytes=account.read_bytes,
            tree_before=before.tree,
            tree_after=after.tree,
            state_before=before.state,
            state_after=after.state,
            duration_ms=self._now_ms() - started_ms,
        )

    def _mend_all(
        self, sources: Sources, index: int, damaged: list[Finding], stop: Callable[[], bool]
    ) -> Iterator[ChunkOutcome]:
        """Mend chunk by chunk. When our own side is not able to (a lease that stays taken, failure
        after failure), the rest is given up: reading on would only burden the peers."""
        failures = Failures(self._store, sources.container_id)
        groups: dict[BlockId, Agreed | Orphan] = {}
        for finding in damaged:
            blank = ChunkOutcome(
                finding.block_id, finding.offset, -1, finding.fault.value, ChunkResult.SKIPPED
            )
            if finding.fault not in CHUNK_FAULTS:
                message = "only a whole shard can be rebuilt without its rows and files"
                yield replace(blank, message=message)
                continue
            block_id = finding.block_id
            if block_id not in groups:
                groups[block_id] = agree(sources.scheme, block_id, sources.block(block_id))
            for chunk in self._chunks_of(sources.container_id, finding):
                told = replace(blank, offset=chunk.offset, length_bytes=chunk.length_bytes)
                try:
                    data = self._computed(sources, groups[block_id], index, chunk)
                except SutureError as error:
                    yield replace(told, result=ChunkResult.FAILED, message=str(error))
                    continue
                error_here = self._install(sources.container_id, block_id, chunk, data, stop)
                if error_here is None:
                    failures.clear()
                    yield replace(told, result=ChunkResult.REPAIRED, source="its stripe")
                    continue
                yield replace(told, result=ChunkResult.FAILED, message=str(error_here))
                if not failures.may_go_on(error_here):
                    return

    def _chunks_of(self, container_id: ContainerId, finding: Finding) -> tuple[ChunkInfo, ...]:
        """Return the chunks that a finding is about: one, or all of a block that has no file."""
        chunks = self._store.block(container_id, finding.block_id).chunks
        if finding.fault is Fault.BLOCK_FILE_MISSING:
            return chunks
        return tuple(chunk for chunk in chunks if chunk.offset == finding.offset)

    def _install(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        chunk: ChunkInfo,
        data: bytes,
        stop: Callable[[], bool],
    ) -> SutureError | None:
        """Write a chunk between two copies; return why it could not be written.

        Raises Refused when the shard is gone.
        """
        try:
            with held_between_copies(self._leases, container_id, self._lease_timeout_s, stop):
                self._store.repair(container_id).install_chunk(block_id, chunk, data)
        except SutureError as error:
            if error.code in GONE_CODES:
                raise
            return error
        return None

    def _computed(
        self, sources: Sources, agreed: Agreed | Orphan, index: int, chunk: ChunkInfo
    ) -> bytes:
        """Return the chunk as the other shards make it; raise Refused if it is not the one that was
        written here."""
        if isinstance(agreed, Orphan):
            raise Refused(Code.INELIGIBLE, f"block {agreed.block_id}: {agreed.reason}")
        stripe, rest_bytes = divmod(chunk.offset, sources.scheme.cell_bytes)
        length_bytes = agreed.group.cell_bytes(stripe, index)
        if rest_bytes or chunk.length_bytes != length_bytes:
            raise Refused(
                Code.INELIGIBLE,
                f"block {agreed.block_id}: the chunk at {chunk.offset} is no cell of its group",
            )
        cells = sources.finish(agreed, sources.begin(agreed, stripe))
        cell_bytes_max = agreed.group.cell_bytes_max(stripe)
        octets = rebuild_checked(sources.scheme, cells, [index], cell_bytes_max)[index]
        data = octets[:length_bytes].tobytes()
        if not windows_verify(
            chunk.checksum_type, chunk.bytes_per_checksum, chunk.window_checksums, data
        ):
            raise Refused(
                Code.CHECKSUM_MISMATCH,
                f"block {agreed.block_id}, chunk at {chunk.offset}: what the other shards make of "
                "it is not what was written here",
                hint="`suture verify-parity` names the shard that is wrong",
            )
        return data


def _verdict(outcomes: list[ChunkOutcome], *, is_stopped: bool, left_count: int) -> Result:
    if not outcomes:
        return Result.NOTHING_TO_DO
    if is_stopped:
        return Result.INTERRUPTED
    is_done = all(outcome.result is ChunkResult.REPAIRED for outcome in outcomes)
    return Result.CONVERGED if is_done and not left_count else Result.PARTIAL
