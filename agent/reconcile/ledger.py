"""Record of one reconcile: the outcome of each chunk, and the costs of each peer.

Only the thread that reconciles writes to the record.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from agent.plan.actions import PeerId, RepairPlan, WantedChunk
from agent.plan.reconcile_outcome import (
    ChunkOutcome,
    ChunkResult,
    PeerOutcome,
    ReadBack,
    ReconcileResult,
    ReconcileVerdict,
)
from agent.reconcile.fetch import FetchFailure, FetchResult
from agent.reconcile.survey import PeerTree, peer_state_of
from merkle.diff import Divergence
from merkle.replica import BlockId, ContainerId, ReplicaState
from merkle.tree_summary import TreeSummary
from scanner.resume import Doubt
from suture.errors import RefusedError

CHUNK_OUTCOMES_MAX: Final = 1_000  # outcomes that are listed; further ones are only counted
NOBODYS: Final = BlockId(-1)  # block id of an outcome that concerns no block
MADE: Final = (
    ChunkResult.REPAIRED,
    ChunkResult.SALVAGED,
    ChunkResult.TRIMMED,
    ChunkResult.ADOPTED,
    ChunkResult.REWRITTEN,
)
REPLACED: Final = (ChunkResult.REPAIRED, ChunkResult.SALVAGED, ChunkResult.ADOPTED)


@dataclass(slots=True)
class ReconcileLedger:
    """Record of the work that one reconcile has done so far."""

    chunks: list[ChunkOutcome] = field(default_factory=list)
    counts: Counter[ChunkResult] = field(default_factory=Counter)
    differences: Counter[str] = field(default_factory=Counter)
    is_short: bool = False  # the replica still lacks healthy data that other replicas have or had
    is_transient: bool = False  # a failure occurred that may not happen again
    is_interrupted: bool = False
    faults: dict[PeerId, FetchFailure] = field(
        default_factory=dict
    )  # the last failure of each peer
    tree_bytes: Counter[PeerId] = field(default_factory=Counter)
    data_bytes: Counter[PeerId] = field(default_factory=Counter)
    chunk_counts: Counter[PeerId] = field(default_factory=Counter)
    changed: set[Doubt] = field(default_factory=set)  # ranges that were written or recorded
    proof: ReadBack = ReadBack.NONE

    @property
    def has_changed(self) -> bool:
        """Return whether the reconcile has changed anything."""
        return any(self.counts[result] for result in MADE)

    @property
    def has_replaced_data(self) -> bool:
        """Return whether the reconcile has replaced data of the replica.

        The tree of the replica must then differ from the tree before the reconcile.
        """
        return any(self.counts[result] for result in REPLACED)

    def record(
        self,
        block_id: BlockId,
        difference: str,
        result: ChunkResult,
        *,
        offset: int = -1,
        length_bytes: int = -1,
        source: PeerId = "",
        message: str = "",
    ) -> None:
        """Record the outcome of the reconcile for one chunk, block or file.

        `difference` names the difference from the peers, or the reason why it is not repaired.
        """
        self.counts[result] += 1
        if result in MADE and block_id >= 0:
            self.changed.add((block_id, offset, length_bytes))
        if len(self.chunks) < CHUNK_OUTCOMES_MAX:
            self.chunks.append(
                ChunkOutcome(block_id, offset, length_bytes, difference, result, source, message)
            )

    def note_chunk(
        self,
        block_id: BlockId,
        wanted: WantedChunk,
        result: ChunkResult,
        *,
        source: PeerId = "",
        message: str = "",
    ) -> None:
        """Record the outcome of a chunk that the plan wants to repair."""
        leaf = wanted.leaf
        self.record(
            block_id,
            wanted.cause,
            result,
            offset=leaf.offset,
            length_bytes=leaf.length_bytes,
            source=source,
            message=message,
        )

    def note_divergence(self, divergence: Divergence) -> None:
        """Count the differences between the local tree and the tree of one peer."""
        for kind, count in divergence.counts().items():
            self.differences[kind.value] += count

    def note_skips(self, planned: RepairPlan) -> None:
        """Record the differences that the plan does not repair, with the reasons."""
        for skip in planned.skips:
            self.is_short = self.is_short or not skip.is_harmless
            self.record(
                skip.block_id,
                skip.reason.value,
                ChunkResult.SKIPPED,
                offset=skip.offset,
                message=" ".join([*skip.peers, skip.detail]).strip(),
            )

    def account(self, answer: FetchResult) -> None:
        """Add the received bytes and the failures of a fetch, by peer."""
        for peer_id, meter in answer.costs:
            self.tree_bytes[peer_id] += meter.tree_bytes
            self.data_bytes[peer_id] += meter.data_bytes
        for failure in answer.failures:
            self.faults[failure.peer_id] = failure
            self.is_transient = self.is_transient or not isinstance(failure.error, RefusedError)

    def verdict(self, trees: list[PeerTree], *, finding_count: int) -> ReconcileVerdict:
        """Return the result of the reconcile.

        The result is PARTIAL if the replica has findings or lacks data, if a change failed, or if a
        peer did not answer.
        """
        if self.is_interrupted:
            return ReconcileVerdict.INTERRUPTED
        if not any(tree.is_known for tree in trees):
            return ReconcileVerdict.NO_PEER
        unanswered = self.faults or not all(tree.is_known for tree in trees)
        failed = self.counts[ChunkResult.FAILED] > 0
        if self.is_short or failed or unanswered or finding_count:
            return ReconcileVerdict.PARTIAL
        return ReconcileVerdict.CONVERGED if self.has_changed else ReconcileVerdict.NOTHING_TO_DO

    def outcome(
        self,
        container_id: ContainerId,
        result: ReconcileVerdict,
        trees: list[PeerTree],
        *,
        tree_before: TreeSummary,
        tree_after: TreeSummary | None,
        state_before: ReplicaState,
        state_after: ReplicaState,
        duration_ms: int,
    ) -> ReconcileResult:
        """Return the complete result, with the record of each chunk and each peer."""
        peers = tuple(self._peer_outcome(tree) for tree in trees)
        return ReconcileResult(
            container_id=container_id,
            result=result,
            peers=peers,
            chunks=tuple(self.chunks),
            chunk_count=self.counts.total(),
            fetched_bytes=sum(peer.data_bytes for peer in peers),
            tree_fetched_bytes=sum(peer.tree_bytes for peer in peers),
            tree_before=tree_before,
            tree_after=tree_after,
            state_before=state_before,
            state_after=state_after,
            duration_ms=duration_ms,
            proof=self.proof,
            differences=dict(self.differences),
        )

    def _peer_outcome(self, tree: PeerTree) -> PeerOutcome:
        state, message = tree.state, tree.message
        fault = self.faults.get(tree.peer_id)
        if fault is not None:
            state, message = peer_state_of(fault.error), f"{fault.error.code}: {fault.error}"
        return PeerOutcome(
            peer_id=tree.peer_id,
            state=state,
            message=message,
            tree_bytes=tree.meter.tree_bytes + self.tree_bytes[tree.peer_id],
            data_bytes=self.data_bytes[tree.peer_id],
            chunk_count=self.chunk_counts[tree.peer_id],
        )


assert set(MADE) | {ChunkResult.SKIPPED, ChunkResult.FAILED} == set(ChunkResult)
