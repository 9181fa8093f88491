"""Execution of a repair plan on one replica: salvage, fetch and install chunks, complete blocks.

Every change goes through `agent.store.operations.repair` or `batch_repair`, which never overwrite
bytes that match their checksums. The container's lease is held for one change at a time, so that a
delete, a close or a stop can happen between two batches of chunks.

The first batch has one chunk. Each later batch has at most as many chunks as were installed before
it, and at most 16 MiB. Therefore, a faulty disk or repair affects only one or two chunks before the
fault is detected. Chunks that cannot be installed together are installed one by one, each with its
own outcome.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass, field, replace
from typing import Final

from agent.plan.actions import (
    AdoptTombstone,
    PeerId,
    RebuildTree,
    RepairBlock,
    RepairPlan,
    RewriteDescriptor,
    Trim,
    WantedChunk,
)
from agent.plan.reconcile_outcome import ChunkResult
from agent.reconcile.chunk_fetch import BlockRepair, ChunkFetch
from agent.reconcile.commit_ids import TRUSTED_STATES, highest_claim, highest_lent
from agent.reconcile.exclusive_lease import ReplicaChanges
from agent.reconcile.failure_policy import FailureStreak
from agent.reconcile.fetch import FetchFailure, FetchResult, PeerSources, in_order, is_leaf
from agent.reconcile.ledger import NOBODYS, ReconcileLedger
from agent.store.files.blockfile import checksum_of
from agent.store.operations.batch_repair import BATCH_BYTES_MAX, BATCH_COUNT_MAX, OfferedChunk
from agent.store.operations.block_records import has_each_chunk
from agent.store.operations.repair import ReplicaRepair, verifies
from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockData, BlockId, ChecksumType, ChunkInfo, ContainerId
from scanner.finding import ScanFinding
from suture.errors import Code, RefusedError, SutureError, VolumeFailed
from suture.runtime.ports import Executor, Leases
from suture.wire.clients.message_groups import GROUP_COUNT_MAX, REPAIR_BYTES_MAX, grouped

GONE_CODES: Final = frozenset(
    {Code.CONTAINER_NOT_FOUND, Code.UNCLOSED_CONTAINER_IO, Code.INVALID_CONTAINER_STATE}
)
"""Error codes after which the reconcile ends: the replica does not exist or is not closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairLimits:
    """Limits of the concurrent fetches in a repair, and the timeout for the lease."""

    fetch_bytes_max: int = 64 * 1024**2
    fetch_count_max: int = 64
    lease_timeout_s: float = 30.0


@dataclass(slots=True)
class RepairExecutor:
    """Executes the plan of one reconcile: fetches the data, and changes the local replica."""

    store: ReplicaStore
    leases: InitVar[Leases]
    executor: Executor
    container_id: ContainerId
    sources: PeerSources
    ledger: ReconcileLedger
    stop: Callable[[], bool]
    limits: RepairLimits
    has_given_up: bool = False  # a local problem prevents changes; a later run does the rest
    lent_bcsids: dict[PeerId, int] = field(default_factory=dict)
    uncovered: set[PeerId] = field(default_factory=set)  # peers with data that is still missing
    failed_blocks: set[BlockId] = field(default_factory=set)
    failures: FailureStreak = field(init=False)
    changes: ReplicaChanges = field(init=False)
    batch: list[tuple[ChunkFetch, FetchResult]] = field(
        default_factory=list
    )  # fetched, not yet installed
    batch_bytes: int = 0
    installed_count: int = 0

    def __post_init__(self, leases: Leases) -> None:
        self.failures = FailureStreak(self.store, self.container_id)
        self.changes = ReplicaChanges(
            self.store, leases, self.container_id, self.limits.lease_timeout_s, self.must_stop
        )

    def must_stop(self) -> bool:
        """Return whether the repair must stop. After the first True, every later call returns True.

        The repair must stop if `stop` returned True, or if a local problem prevents all changes.
        """
        self.ledger.is_interrupted = self.ledger.is_interrupted or self.stop()
        return self.ledger.is_interrupted or self.has_given_up

    def execute(self, planned: RepairPlan) -> None:
        """Execute the plan.

        Raise VolumeFailed if the volume fails, and RefusedError if the replica no longer exists.
        """
        self.ledger.note_skips(planned)
        for action in planned.actions:
            match action:
                case AdoptTombstone():
                    self._adopt(action)
                case RewriteDescriptor():
                    self._rewrite_descriptor(action)
                case RebuildTree():
                    self.ledger.record(NOBODYS, action.fault.value, ChunkResult.REWRITTEN)
                case RepairBlock() | Trim():
                    pass  # handled below: blocks in batches, then trims
        self._repair([action for action in planned.actions if isinstance(action, RepairBlock)])
        for action in planned.actions:
            if isinstance(action, Trim) and action.block_id not in self.failed_blocks:
                self._trim(action)

    def local_block(self, block_id: BlockId) -> BlockData | None:
        """Return a block from the local index, or None if its row is missing or damaged."""
        try:
            return self.store.view(self.container_id).block(block_id)
        except VolumeFailed:
            raise
        except SutureError as error:
            if error.code in GONE_CODES:
                raise
            return None

    # Single actions.

    def _adopt(self, action: AdoptTombstone) -> None:
        def adopt(repair: ReplicaRepair) -> None:
            repair.adopt_tombstone(action.block_id, action.checksum)

        self._step(action.block_id, "ADOPT_TOMBSTONE", ChunkResult.ADOPTED, adopt, action.source)

    def _rewrite_descriptor(self, action: RewriteDescriptor) -> None:
        rewrite = ReplicaRepair.rewrite_descriptor
        self._step(NOBODYS, action.fault.value, ChunkResult.REWRITTEN, rewrite)

    def _trim(self, action: Trim) -> None:
        if self.must_stop():
            return
        block_id, block = action.block_id, self.local_block(action.block_id)
        word = self.sources.proven_end(self.store, action, block)
        if not word.proof:
            self.ledger.is_transient = self.ledger.is_transient or word.is_silent
            why = f"not cut: {word.why}"
            self.ledger.record(block_id, "TRAILING_BYTES", ChunkResult.FAILED, message=why)
            return

        def trim(repair: ReplicaRepair) -> None:
            repair.trim(block_id, proof=word.proof)

        self._step(block_id, "TRAILING_BYTES", ChunkResult.TRIMMED, trim, action.equal_to)

    def _step(
        self,
        block_id: BlockId,
        difference: str,
        done: ChunkResult,
        work: Callable[[ReplicaRepair], object],
        source: PeerId = "",
    ) -> None:
        if self.must_stop():
            return
        error = self._change(work)
        if error is None:
            self.ledger.record(block_id, difference, done, source=source)
        else:
            self.ledger.record(block_id, difference, ChunkResult.FAILED, message=str(error))

    def _change(self, work: Callable[[ReplicaRepair], object]) -> SutureError | None:
        """Make one change while holding the lease.

        Return None if it succeeded, and otherwise the error. After an error that affects only one
        block (`failure_policy`), other blocks are still repaired. If a local problem prevents all
        changes, for example an unavailable lease, set `has_given_up`. Further fetches would then be
        useless work for the peers.
        """
        try:
            with self.changes.hold() as repair:
                work(repair)
        except SutureError as error:
            if error.code in GONE_CODES:
                raise
            may_go_on = self.failures.may_go_on(error)
            if not isinstance(error, RefusedError):
                self.ledger.is_short = self.ledger.is_transient = True
            self.has_given_up = self.has_given_up or not may_go_on
            return error
        return None

    def note_contradictions(self, found: Sequence[ScanFinding], *, is_complete: bool) -> bool:
        """Store contradictions with peers as findings of the replica.

        Return True if the stored contradictions have changed.
        """
        is_news = False

        def note(repair: ReplicaRepair) -> None:
            nonlocal is_news
            is_news = repair.note_contradictions(found, is_complete=is_complete)

        self._change(note)
        return is_news

    # Chunks.

    def _repair(self, actions: Sequence[RepairBlock]) -> None:
        fetched = in_order(
            self.executor,
            grouped(self._jobs(actions), ChunkFetch.size_bytes, REPAIR_BYTES_MAX),
            self._fetch,
            lambda group: sum(map(ChunkFetch.size_bytes, group)),
            bytes_max=self.limits.fetch_bytes_max,
            count_max=self.limits.fetch_count_max,
        )
        for group, answers in fetched:
            for job, answer in zip(group, answers, strict=True):
                if self.must_stop():
                    return
                self._add_to_batch(job, answer)
        if not self.must_stop():
            self._flush()

    def _add_to_batch(self, job: ChunkFetch, answer: FetchResult) -> None:
        """Add a fetched chunk to the batch, and install the batch if it is full.

        If the local bytes already match the chunk of the plan, only record the chunk in the index.
        """
        size_bytes = len(answer.data)
        if answer.is_here or self.batch_bytes + size_bytes > BATCH_BYTES_MAX:
            self._flush()
        if answer.is_here:
            self._record_chunk(job)
            return
        self.batch.append((job, answer))
        self.batch_bytes += size_bytes
        if len(self.batch) >= min(max(1, self.installed_count), BATCH_COUNT_MAX):
            self._flush()

    def _jobs(self, actions: Sequence[RepairBlock]) -> Iterator[ChunkFetch]:
        """Request the metadata of the blocks from the peers, and yield the chunks to repair."""
        described = in_order(
            self.executor,
            (actions[at : at + GROUP_COUNT_MAX] for at in range(0, len(actions), GROUP_COUNT_MAX)),
            self.sources.describe_together,
            len,
            bytes_max=self.limits.fetch_count_max * GROUP_COUNT_MAX,
            count_max=self.limits.fetch_count_max,
        )
        for action, answer in (pair for group in described for pair in zip(*group, strict=True)):
            self.ledger.account(answer)
            block = BlockRepair(action, answer)
            for wanted in action.chunks:
                if self.must_stop():
                    return
                block.waiting_count += 1
                yield ChunkFetch(block, wanted, self._described_chunk(block, wanted))
            block.is_drawn = True
            self._complete_if_done(block)

    def _fetch(self, group: Sequence[ChunkFetch]) -> list[FetchResult]:
        """Fetch chunks, except those whose local bytes already match the chunk of the plan.

        This runs in a thread of the executor, without the lease. Therefore, the local bytes are
        checked again directly before they are recorded or overwritten.
        """
        seen = self._seen(group)
        missing = [job for job in group if seen[job] is not None]
        wanted = [(job.block.action.block_id, job.wanted) for job in missing]
        fetched = dict(zip(missing, self.sources.fetch_together(wanted), strict=True))
        return [
            replace(fetched[job], seen=seen[job] or b"")
            if job in fetched
            else FetchResult(is_here=True)
            for job in group
        ]

    def _seen(self, group: Sequence[ChunkFetch]) -> dict[ChunkFetch, bytes | None]:
        """Return the checksum of the bytes on the local disk in the range of each chunk.

        The value is b"" if the bytes are unknown, and None if they already match the chunk of the
        plan.
        """
        seen: dict[ChunkFetch, bytes | None] = dict.fromkeys(group, b"")
        of_block: dict[BlockId, list[tuple[ChunkFetch, ChunkInfo]]] = defaultdict(list)
        for job in group:
            chunk = job.described
            if chunk is not None and chunk.checksum_type is not ChecksumType.NONE:
                of_block[job.block.action.block_id].append((job, chunk))
        for block_id, known in of_block.items():
            with suppress(SutureError):  # an error would occur again at the next change
                repair = self.store.repair(self.container_id)
                held = repair.read_medium_many(block_id, [chunk for _, chunk in known])
                for (job, chunk), data in zip(known, held, strict=True):
                    seen[job] = None if verifies(chunk, data) else checksum_of(data)
        return seen

    def _salvage(self, job: ChunkFetch) -> bool:
        """Record the local bytes in the index as the chunk of the plan.

        Return True if this succeeded. Return False if the bytes do not match the chunk, or if the
        change fails.
        """
        block_id, chunk = job.block.action.block_id, job.described
        assert chunk is not None, "what is not described was not looked at"
        salvaged = False

        def salvage(repair: ReplicaRepair) -> None:
            nonlocal salvaged
            salvaged = repair.salvage_chunk(block_id, chunk, is_ordered=job.wanted.is_ordered)

        if self._change(salvage) is None and salvaged:
            self.ledger.note_chunk(block_id, job.wanted, ChunkResult.SALVAGED)
            return True
        return False

    def _described_chunk(self, block: BlockRepair, wanted: WantedChunk) -> ChunkInfo | None:
        """Return the peer's record of the chunk, or None if it has another version."""
        chunk = block.lent.get(wanted.leaf.offset)
        return chunk if chunk and is_leaf(self.sources.algorithm, chunk, wanted.leaf) else None

    def _flush(self) -> None:
        """Install the fetched chunks of the batch, together if possible, and otherwise one by one.

        Complete each block whose last chunk is done.
        """
        batch, self.batch, self.batch_bytes = self.batch, [], 0
        done = self._install_together(batch) if len(batch) > 1 else frozenset()
        for job, answer in batch:
            if job in done:
                self.ledger.account(answer)
                self._installed(job, answer)
            elif self.must_stop():
                continue
            else:
                self._install(job, answer)
            job.block.waiting_count -= 1
            self._complete_if_done(job.block)

    def _install_together(
        self, batch: Sequence[tuple[ChunkFetch, FetchResult]]
    ) -> frozenset[ChunkFetch]:
        """Install the fetched chunks of a batch together. Return the installed chunks.

        The caller installs the other chunks one by one.
        """
        jobs, offers = [], []
        for job, answer in batch:
            if answer.chunk is not None:
                jobs.append(job)
                block = job.block
                offers.append(
                    OfferedChunk(
                        block.action.block_id,
                        answer.chunk,
                        answer.data,
                        job.wanted.is_ordered,
                        block.described.block,
                        answer.word.proof,
                        answer.seen,
                    )
                )
        done: frozenset[int] = frozenset()

        def install(_: ReplicaRepair) -> None:
            nonlocal done
            done = self.store.install_chunks(self.container_id, offers)

        error = self._change(install)
        if error is not None and self.must_stop():
            for job in jobs:
                self._record_failure(job, str(error))
        return frozenset(jobs[index] for index in done)

    def _record_chunk(self, job: ChunkFetch) -> None:
        """Record the local bytes in the index as the chunk of the plan.

        If that fails, fetch and install the chunk. Complete the block if this was its last chunk.
        """
        if not self._salvage(job) and not self.must_stop():
            self._install(job, self.sources.fetch(job.block.action.block_id, job.wanted))
        job.block.waiting_count -= 1
        self._complete_if_done(job.block)

    def _install(self, job: ChunkFetch, answer: FetchResult) -> None:
        self.ledger.account(answer)
        block_id, chunk = job.block.action.block_id, answer.chunk
        error: SutureError | None = None
        message = format_failures(answer.failures)
        if chunk is not None:

            def install(repair: ReplicaRepair) -> None:
                repair.install_chunk(
                    block_id,
                    chunk,
                    answer.data,
                    is_ordered=job.wanted.is_ordered,
                    proof=answer.word.proof,
                )

            error = self._change(install)
            message = f"{error}; {answer.word.why}" if answer.word.why else str(error)
            is_unproven = error is not None and answer.word.is_silent
            self.ledger.is_transient = self.ledger.is_transient or is_unproven
        if chunk is None or error is not None:
            self._record_failure(job, message)
        else:
            self._installed(job, answer)

    def _installed(self, job: ChunkFetch, answer: FetchResult) -> None:
        self.failures.clear()
        self.installed_count += 1
        self.ledger.chunk_counts[answer.peer_id] += 1
        self.ledger.note_chunk(
            job.block.action.block_id, job.wanted, ChunkResult.REPAIRED, source=answer.peer_id
        )

    def _record_failure(self, job: ChunkFetch, message: str) -> None:
        job.block.failed_count += 1
        self.ledger.note_chunk(
            job.block.action.block_id, job.wanted, ChunkResult.FAILED, message=message
        )

    # Blocks.

    def _complete_if_done(self, block: BlockRepair) -> None:
        """Take over the peer's metadata of a block if its last chunk is done."""
        if not block.is_drawn or block.waiting_count:
            return
        block_id, lent = block.action.block_id, block.described.block
        error: SutureError | None = None
        if lent is not None:
            error = self._change(lambda repair: self._complete(repair, block, lent))
        if lent is None or error is not None:
            message = format_failures(block.described.failures) if error is None else str(error)
            self.ledger.record(block_id, "METADATA", ChunkResult.FAILED, message=message)
        if lent is None or error is not None or block.failed_count:
            self.failed_blocks.add(block_id)
            self.uncovered.update(block.action.metadata_sources)

    def _complete(self, repair: ReplicaRepair, block: BlockRepair, lent: BlockData) -> None:
        """Take over the client metadata in the peer's record of the block (`lent`).

        If the block now has all chunks of the peer, take over the commit id, too.
        """
        block_id = block.action.block_id
        if not block.action.chunks and not lent.chunks:
            repair.install_empty_block(block_id)
            self.ledger.record(block_id, "MISSING_BLOCK", ChunkResult.SALVAGED)
        local = self.local_block(block_id)
        if local is None:
            return
        if lent.metadata and not local.metadata:
            repair.adopt_metadata(block_id, lent.metadata)
        if has_each_chunk(local.chunks, lent.chunks) and not block.failed_count:
            if lent.bcsid > local.bcsid:
                repair.adopt_bcsid(block_id, lent.bcsid)
            lender = block.described.peer_id
            self.lent_bcsids[lender] = max(self.lent_bcsids.get(lender, 0), lent.bcsid)
        else:
            self.uncovered.update(block.action.metadata_sources)

    def adopt_bcsid(self, equal_peers: Iterable[PeerId]) -> None:
        """Take over the highest commit id of the healthy peers in `equal_peers`.

        These peers have exactly the same blocks and tombstones as this replica. Therefore, this
        replica has all blocks up to that commit id.
        """
        facts = self.store.replica(self.container_id)
        if facts.state not in TRUSTED_STATES or facts.finding_count:
            return
        lender, bcsid = highest_claim(self.sources.peers, self.container_id, equal_peers)
        if bcsid <= facts.bcsid:
            return

        def advance(repair: ReplicaRepair) -> None:
            repair.advance_bcsid(bcsid)

        self._step(NOBODYS, "BCSID", ChunkResult.REWRITTEN, advance, lender)

    def advance_container(self) -> None:
        """Take over the highest commit id of the peers whose data this replica now has.

        This replica must have all data of such a peer.
        """
        own = self.store.replica(self.container_id).bcsid
        lent = {
            peer: bcsid for peer, bcsid in self.lent_bcsids.items() if peer not in self.uncovered
        }
        bcsid = highest_lent(self.sources.peers, self.container_id, lent, own=own)
        if bcsid > own:
            self._change(lambda repair: repair.advance_bcsid(bcsid))


def format_failures(failures: Sequence[FetchFailure]) -> str:
    """Return the errors of all peers from which a fetch failed, as one line of text."""
    return "; ".join(f"{failure.peer_id}: {failure.error}" for failure in failures)
