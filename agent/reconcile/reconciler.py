"""Reconcile: make a replica equal to its peers, chunk by chunk, without making it worse.

The reconciler requests the trees of all peers (`survey`). Then it plans and repairs a limited
number of blocks at a time. At the end it reads the changed chunks, or the complete replica.
Completed changes are kept. Therefore, an interrupted reconcile continues where it stopped: local
bytes that are already correct are not fetched. Peers without a tree, and unreachable peers, are
listed in the result and cause no action.

If FRUITLESS_MAX repairs of replicas with the same roots had no effect, the next reconcile makes no
repair. It stores the trees as evidence, and its result is NON_CONVERGENT.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final

from agent.plan.actions import ConfirmedDeletes, PeerId, PeerView, RepairPlan, Skip
from agent.plan.reconcile_outcome import (
    ChunkResult,
    PeerState,
    ReadBack,
    ReconcileResult,
    ReconcileVerdict,
)
from agent.plan.reconcile_plan import plan
from agent.reconcile.contradictions import TOLD_MAX, findings_of, keep_versions
from agent.reconcile.fetch import PeerSources
from agent.reconcile.ledger import NOBODYS, ReconcileLedger
from agent.reconcile.repair_executor import RepairExecutor, RepairLimits
from agent.reconcile.scan_consistency import are_of_one_moment
from agent.reconcile.survey import (
    ASKED_MAX,
    PeerTree,
    SilentHolder,
    failed_peer,
    query_peer,
    query_peers,
    silent_holders,
    split_block_ids,
)
from agent.reconcile.trust_preview import TrustedChange, changes_of
from agent.store.index.facts import ReplicaFacts
from agent.store.replica_store import ReplicaStore
from merkle.damaged_data import DamagedData
from merkle.diff import REPAIRED_KINDS, DifferenceKind
from merkle.replica import BlockId, ChunkInfo, ContainerId, ReplicaState
from merkle.tree import Tree
from merkle.tree_codec import encode_tree
from merkle.tree_descent import BlockRange
from scanner.finding import ScanFinding
from scanner.resume import Doubt
from suture.errors import Code, RefusedError, SutureError, UnavailableError, VolumeFailed
from suture.runtime.ports import Executor, Leases, Pace, at_once
from suture.wire.clients.replica_peer import ChunkProver, ReplicaPeer

FRUITLESS_MAX: Final = 2  # repairs of one divergence without effect
FRUITLESS_MS_MAX: Final = 24 * 3600 * 1000  # a repair is tried again after this time
REMEMBERED_MAX: Final = 10_000  # repairs without effect to remember; at most twice as many

Prove = Callable[[ContainerId, Collection[Doubt]], ReadBack]
"""Function that reads a replica after a repair of these ranges, and returns the extent of the read:
only the ranges, or the complete replica."""

Confirm = Callable[[ContainerId, Sequence[BlockId]], ConfirmedDeletes]
"""Function that returns which of the given blocks the control plane ordered to delete, and which
belong to a key."""

Roots = tuple[tuple[PeerId, int, int], ...]
"""(Peer id, root, tombstone checksum) of every replica. The tuple identifies a divergence of the
replicas. The local replica has the peer id ""."""


@dataclass(frozen=True, slots=True)
class _RepeatedDivergence:
    """A difference between replicas that repairs did not remove.

    It is identified by the roots of all replicas. `count` is the number of these repairs.
    """

    roots: Roots
    count: int
    at_ms: int
    is_kept: bool = False  # the trees are stored in quarantine as evidence


@dataclass(eq=False)
class Reconciler:
    """Reconciles replicas of one store. Thread-safe for different containers.

    `scan` scans a complete replica and commits the result. `confirm` returns which deletes the
    control plane confirms. Without it, no delete is confirmed. `prove` verifies a repair by a read
    of the changed chunks or of the complete replica. Without it, `scan` is used. `pace` gets the
    number of bytes that were read from peers, and waits.
    """

    store: ReplicaStore
    leases: Leases
    executor: Executor
    _: KW_ONLY
    scan: Callable[[ContainerId], object]
    now_ms: Callable[[], int]
    limits: RepairLimits = field(default_factory=RepairLimits)
    confirm: Confirm = lambda _id, _blocks: ConfirmedDeletes()
    prove: Prove | None = None
    pace: Pace = at_once

    def __post_init__(self) -> None:
        self._fruitless: dict[ContainerId, _RepeatedDivergence] = {}
        self._fruitless_older: dict[ContainerId, _RepeatedDivergence] = {}

    def reconcile(
        self,
        container_id: ContainerId,
        peers: Mapping[PeerId, ReplicaPeer],
        *,
        holders: Sequence[SilentHolder] = (),
        trusted: PeerId = "",
        stop: Callable[[], bool] = lambda: False,
        is_asked_for: bool = False,
    ) -> ReconcileResult:
        """Reconcile one replica with `peers`. If `stop` returns True, end between two chunks.

        `holders` are the other datanodes with a replica, which cannot be called. `trusted` is a
        peer that an operator has named, or "". Its versions then replace even local chunks that
        match their checksums. `is_asked_for` is True if an operator requested this reconcile.
        Earlier repairs without effect then do not prevent it.

        Raise RefusedError if there is no such replica or it is not closed, and VolumeFailed if its
        volume fails. Failures of peers are not raised, but listed in the result.
        """
        started_ms = self.now_ms()
        before = self.store.replica(container_id)
        mine = self._known_tree(container_id, before)
        trees = query_peers(peers, container_id, mine, self.executor)
        roots = _roots(mine, trees)
        run = _ReconcileRun(self, container_id, mine, trees, stop, holders, trusted)
        ledger = run.ledger
        stuck = None if trusted or is_asked_for else self._stuck(container_id, roots)
        if stuck is None:
            self._repair(run)
            self._judge(run, before)
        else:
            self._keep_evidence(container_id, stuck, mine, trees)
            message = f"repaired {stuck.count} times in vain; roots: {_result_text(roots)}"
            ledger.record(NOBODYS, "NON_CONVERGENT", ChunkResult.SKIPPED, message=message)
        after = self.store.replica(container_id)
        if stuck is None:
            self._remember(container_id, ledger, roots, before, after)
        verdict = ledger.verdict(run.trees(), finding_count=after.finding_count)
        return ledger.outcome(
            container_id,
            verdict if stuck is None else ReconcileVerdict.NON_CONVERGENT,
            run.trees(),
            tree_before=mine.summary(),
            tree_after=after.tree,
            state_before=before.state,
            state_after=after.state,
            duration_ms=self.now_ms() - started_ms,
        )

    def preview(
        self, container_id: ContainerId, peers: Mapping[PeerId, ReplicaPeer], trusted: PeerId
    ) -> list[TrustedChange]:
        """Return the changes that a reconcile with a trusted peer would make, without making them.

        Raise RefusedError if the replica cannot be reconciled, and UnavailableError if the tree of
        the trusted peer is unknown.
        """
        mine = self._known_tree(container_id, self.store.replica(container_id))
        trees = query_peers(peers, container_id, mine, self.executor)
        for tree in trees:
            if tree.peer_id == trusted and not tree.is_known:
                raise UnavailableError(Code.UNAVAILABLE, f"{trusted}: {tree.message}")
        run = _ReconcileRun(self, container_id, mine, trees, lambda: False, (), trusted)
        return list(run.preview())

    def _known_tree(self, container_id: ContainerId, facts: ReplicaFacts) -> Tree:
        """Return the local tree.

        If the tree and the findings come from different scans, first scan the replica.
        """
        tree = self.store.view(container_id).tree()
        if not facts.finding_count:
            return tree
        if are_of_one_moment(facts, tree, self.store.findings(container_id)):
            return tree
        self.scan(container_id)
        return self.store.view(container_id).tree()

    def _repair(self, run: "_ReconcileRun") -> None:
        """Plan and execute the repair.

        If the replica was changed, report it to the SCM, even if the repair fails.
        """
        has_news = False
        try:
            run.repair()
            has_news = run.report_contradictions(self.now_ms())
        finally:
            if run.ledger.has_changed or has_news:
                self.store.on_change(run.container_id)

    def _judge(self, run: "_ReconcileRun", before: ReplicaFacts) -> None:
        """Verify the replica if it was changed, or if it may be healthy again."""
        if run.ledger.is_interrupted or not (run.ledger.has_changed or self._may_heal(run, before)):
            return
        try:
            prove = self.prove or self._prove_whole
            run.ledger.proof = prove(run.container_id, run.ledger.changed)
        except VolumeFailed:
            raise
        except SutureError as error:
            run.ledger.record(NOBODYS, "SCAN", ChunkResult.FAILED, message=str(error))
            run.ledger.is_transient = True

    def _may_heal(self, run: "_ReconcileRun", before: ReplicaFacts) -> bool:
        """Return whether an UNHEALTHY replica may be healthy although it was not changed.

        Return True if the replica has all data of its peers, or if its data changed after the last
        scan. Such a change may be a repair whose process was killed before it verified the result.
        """
        if before.state is not ReplicaState.UNHEALTHY:
            return False
        if run.knows_peers and not run.ledger.is_short:
            return True
        generation = self.store.generation(run.container_id)
        return before.tree is not None and before.tree.generation != generation

    def _prove_whole(self, container_id: ContainerId, _changed: Collection[Doubt]) -> ReadBack:
        self.scan(container_id)
        return ReadBack.WHOLE

    def _stuck(self, container_id: ContainerId, roots: Roots) -> _RepeatedDivergence | None:
        known = self._remembered(container_id, roots)
        return known if known is not None and known.count >= FRUITLESS_MAX else None

    def _keep_evidence(
        self,
        container_id: ContainerId,
        stuck: _RepeatedDivergence,
        mine: Tree,
        trees: Sequence[PeerTree],
    ) -> None:
        """Store the local tree and the trees of the peers in quarantine, for an investigation.

        Do nothing if they are stored already.
        """
        if stuck.is_kept:
            return
        kept = {"my tree": mine}
        for tree in trees:
            if tree.is_known:
                with suppress(SutureError):  # the peer may not answer any more
                    kept[f"tree of {tree.peer_id}"] = tree.peer.tree(container_id)
        self.store.keep_evidence(
            container_id,
            {f"{what}, NON_CONVERGENT": encode_tree(t, container_id) for what, t in kept.items()},
        )
        for remembered in (self._fruitless, self._fruitless_older):
            if remembered.get(container_id) is stuck:
                remembered[container_id] = replace(stuck, is_kept=True)

    def _remembered(self, container_id: ContainerId, roots: Roots) -> _RepeatedDivergence | None:
        known = self._fruitless.get(container_id) or self._fruitless_older.get(container_id)
        if known is None or known.roots != roots:
            return None
        age_ms = self.now_ms() - known.at_ms  # negative if the clock was ahead
        return known if 0 <= age_ms < FRUITLESS_MS_MAX else None

    def _remember(
        self,
        container_id: ContainerId,
        ledger: ReconcileLedger,
        roots: Roots,
        before: ReplicaFacts,
        after: ReplicaFacts,
    ) -> None:
        """Count a repair that had no effect.

        A repair has no effect if it wrote data, but the state, the roots, the size and the number
        of findings of the replica (`_condition`) are the same as before. A repair that was
        interrupted or had temporary failures is not counted.
        """
        if not ledger.has_replaced_data or ledger.is_interrupted or ledger.is_transient:
            return
        known = self._remembered(container_id, roots)
        self._fruitless.pop(container_id, None)
        self._fruitless_older.pop(container_id, None)
        if _condition(before) != _condition(after):
            return
        if len(self._fruitless) >= REMEMBERED_MAX:  # keep only this dictionary and the previous one
            self._fruitless_older, self._fruitless = self._fruitless, {}
        count = 1 if known is None else known.count + 1
        self._fruitless[container_id] = _RepeatedDivergence(roots, count, self.now_ms())


def _roots(mine: Tree, trees: Sequence[PeerTree]) -> Roots:
    known = [(tree.peer_id, tree.summary) for tree in trees if tree.summary is not None]
    return (
        ("", mine.root, mine.tombstones_checksum),
        *((peer_id, summary.root, summary.tombstones_checksum) for peer_id, summary in known),
    )


def _result_text(roots: Roots) -> str:
    return ", ".join(f"{peer_id or 'here'} {root:#x}" for peer_id, root, _ in roots)


def _condition(facts: ReplicaFacts) -> tuple[object, ...]:
    """Return the facts of a replica that are compared before and after a repair.

    If all of them are equal, the repair had no effect.
    """
    tree = facts.tree
    roots = (tree.root, tree.tombstones_checksum) if tree is not None else ()
    return (facts.state, facts.finding_count, facts.used_bytes, *roots)


class _ReconcileRun:
    """A running reconcile of one replica.

    It repairs a limited range of blocks (a window) at a time.
    """

    def __init__(
        self,
        reconciler: Reconciler,
        container_id: ContainerId,
        mine: Tree,
        trees: Sequence[PeerTree],
        stop: Callable[[], bool],
        holders: Sequence[SilentHolder],
        trusted: PeerId,
    ) -> None:
        self.container_id = container_id
        self._holders = holders
        self._trusted = trusted
        self._confirm = reconciler.confirm
        self._contradictions: list[Skip] = []
        self._is_heard = True
        self.ledger = ReconcileLedger()
        self._store = reconciler.store
        self._executor = reconciler.executor
        self._mine = mine
        self._peers = {tree.peer_id: tree for tree in trees}
        self._sources = PeerSources(
            {tree.peer_id: tree.peer for tree in trees},
            container_id,
            mine.algorithm,
            provers={t.peer_id: t.peer for t in trees if isinstance(t.peer, ChunkProver)},
            pace=lambda length_bytes: reconciler.pace(length_bytes, stop),
        )
        self._mender = RepairExecutor(
            store=reconciler.store,
            leases=reconciler.leases,
            executor=reconciler.executor,
            container_id=container_id,
            sources=self._sources,
            ledger=self.ledger,
            stop=stop,
            limits=reconciler.limits,
        )

    def trees(self) -> list[PeerTree]:
        """Return the last answer of every peer."""
        return list(self._peers.values())

    @property
    def knows_peers(self) -> bool:
        """Return whether the tree of at least one peer is known."""
        return any(tree.is_known for tree in self._peers.values())

    def repair(self) -> None:
        """Plan and repair all blocks, a limited number at a time."""
        findings = self._store.findings(self.container_id)
        for window in split_block_ids(self._mine, self._usable()):
            if self._mender.must_stop():
                return
            low = -1 if window[0] == 0 else window[0]  # findings without a block come first
            here = [finding for finding in findings if low <= finding.block_id <= window[1]]
            views = self._views(window)
            for view in views:
                self.ledger.note_divergence(view.divergence)
            planned = self._plan(views, here)
            self._mender.uncovered |= {view.peer_id for view in views} - planned.covered_peers
            self._mender.execute(planned)
        if not self._mender.must_stop():
            self._mender.advance_container()
        if self._mine.unhealthy_count == 0 and not self._mender.must_stop():
            same = [one.peer_id for one in self.trees() if one.state is PeerState.EQUAL]
            self._mender.adopt_bcsid(same)

    def preview(self) -> Iterator[TrustedChange]:
        """Plan all blocks, and yield the changes that the plans would make."""
        findings = self._store.findings(self.container_id)
        for window in split_block_ids(self._mine, self._usable()):
            here = [one for one in findings if window[0] <= one.block_id <= window[1]]
            views = self._views(window)
            yield from changes_of(self._plan(views, here), self._mine, self._rows(views, here))

    def _plan(self, views: Sequence[PeerView], findings: Sequence[ScanFinding]) -> RepairPlan:
        """Return the plan for one range of blocks, and collect the contradictions in it."""
        answered = {view.peer_id for view in views}
        heard = silent_holders(self.trees(), answered, self._holders)
        planned = plan(
            self._mine,
            views,
            findings,
            self._rows(views, findings),
            heard=heard,
            deletes=self._deletes(views),
            trusted=self._trusted,
        )
        self._is_heard = self._is_heard and heard.is_everybody
        found = [skip for skip in planned.skips if skip.is_contradiction]
        self._contradictions += found[: TOLD_MAX - len(self._contradictions)]
        return planned

    def _deletes(self, views: Sequence[PeerView]) -> ConfirmedDeletes:
        """Return the deletes that the control plane confirms.

        Request this only for blocks that a peer has deleted and the local replica still has.
        """
        claimed = {
            difference.block_id
            for view in views
            for difference in view.divergence.differences
            if difference.kind is DifferenceKind.ADOPT_TOMBSTONE
        }
        return self._confirm(self.container_id, sorted(claimed)) if claimed else ConfirmedDeletes()

    def report_contradictions(self, now_ms: int) -> bool:
        """Store contradictions between replicas as findings, and the versions in quarantine.

        Return True if the stored contradictions have changed.
        """
        if self._mender.must_stop():
            return False
        known = {
            (finding.block_id, finding.offset): finding.evidence
            for finding in self._store.findings(self.container_id)
            if finding.is_contradiction
        }
        found = list(findings_of(self.container_id, self._contradictions, now_ms))
        if not (found or known):
            return False
        fresh = [
            skip
            for skip, finding in found
            if known.get((finding.block_id, finding.offset)) != finding.evidence
        ]
        keep_versions(self._store, self.container_id, fresh, self._sources)
        return self._mender.note_contradictions(
            [finding for _, finding in found],
            is_complete=self._is_heard and not self._trusted,
        )

    def _usable(self) -> list[PeerTree]:
        return [
            tree
            for tree in self._peers.values()
            if tree.is_known and tree.peer_id not in self._sources.dropped
        ]

    def _views(self, window: BlockRange) -> list[PeerView]:
        """Return the differences between the local tree and the tree of each peer that answers.

        The chunks of the differing blocks in the range are requested from all peers concurrently.
        """
        futures = [self._executor.submit(self._view, tree, window) for tree in self._usable()]
        views: list[PeerView] = []
        for future in futures:
            tree, view = future.result()
            self._peers[tree.peer_id] = tree
            if view is None:
                self._mender.uncovered.add(tree.peer_id)
            else:
                views.append(view)
        return views

    def _view(self, tree: PeerTree, window: BlockRange) -> tuple[PeerTree, PeerView | None]:
        """Return the tree of a peer, and its differences from the local tree in a range of blocks.

        The differences are None if the peer fails. If the tree of the peer has changed since the
        first request, request the current tree, at most ASKED_MAX times.
        """
        error: SutureError = RefusedError(Code.MALFORMED_REQUEST, "response: contradicts itself")
        for _ in range(ASKED_MAX):
            try:
                return tree, tree.view(self.container_id, self._mine, window)
            except DamagedData:
                spent = tree.meter
                tree = query_peer(tree.peer_id, tree.peer, self.container_id, self._mine)
                tree.meter.tree_bytes += spent.tree_bytes
                if not tree.is_known:
                    return tree, None
            except SutureError as failure:
                error = failure
                break
        return failed_peer(tree.peer_id, tree.peer, error, tree.meter), None

    def _rows(
        self, views: Sequence[PeerView], findings: Sequence[ScanFinding]
    ) -> dict[BlockId, Sequence[ChunkInfo]]:
        """Return the chunks in the local rows of all blocks in the plan, by block id."""
        wanted = {
            difference.block_id
            for view in views
            for difference in view.divergence.differences
            if difference.kind in REPAIRED_KINDS
        }
        wanted |= {finding.block_id for finding in findings if finding.block_id >= 0}
        blocks = {block_id: self._mender.local_block(block_id) for block_id in wanted}
        return {
            block_id: block.chunks if block is not None else ()
            for block_id, block in blocks.items()
        }
