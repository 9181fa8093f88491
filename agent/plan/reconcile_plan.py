"""Decide how a replica becomes equal to its peers: trees and findings in, a plan out.

    mine ─┐                        ┌─ RepairBlock   chunks to salvage or fetch, and from whom
    peers ┼─► plan ─► Plan.actions ┼─ AdoptTombstone, Trim, RewriteDescriptor, RebuildTree
    finds ┘           Plan.skips   └─ and for everything left alone: why

Pure. It refuses to plan what could make the replica worse: a chunk that is healthy here is never
a target, a chunk that its owner calls damaged is never a source, and a hole is never made.

Which version of a chunk that is bad here is the right one? Nobody votes.

    our own row is intact    the one that fits it, from whoever has it; if nobody has, the damage
                             stays, and the replicas contradict each other
    it is lost               the one that everybody has who has any, if every holder was heard
                             that is not given up; two versions contradict each other
    an operator trusts one   that one

A delete that a peer claims is carried out when the control plane ordered it, or when each other
holder has carried it out too and no key names the block. Until then the block stays as it is.
"""

from bisect import bisect, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent.plan.actions import (
    Action,
    AdoptTombstone,
    Deletes,
    Heard,
    PeerId,
    PeerView,
    Plan,
    RebuildTree,
    RepairBlock,
    RewriteDescriptor,
    Skip,
    SkipReason,
    Trim,
    WantedChunk,
)
from agent.plan.chunk_versions import contested_offsets, leaf_of, told_versions
from merkle.diff import Difference, DifferenceKind
from merkle.replica import BlockId, ChunkInfo
from merkle.tree import Leaf, Tree
from scanner.finding import Fault, Finding

_NO_BLOCK: Final = BlockId(-1)
_DESCRIPTOR_FAULTS: Final = frozenset({Fault.DESCRIPTOR_DAMAGED, Fault.DESCRIPTOR_MISSING})
_TREE_FAULTS: Final = frozenset({Fault.TREE_DAMAGED, Fault.TREE_MISSING, Fault.TREE_STALE})
_OFFERS: Final = frozenset({DifferenceKind.MISSING_CHUNK, DifferenceKind.CORRUPT_CHUNK})
_LEFT_ALONE: Final = {
    DifferenceKind.PEER_UNHEALTHY: SkipReason.PEER_UNHEALTHY,
    DifferenceKind.BOTH_UNHEALTHY: SkipReason.BOTH_UNHEALTHY,
}
# When peers are left alone for different reasons, the gravest speaks for the chunk.
_SKIP_RANK: Final = tuple(SkipReason)


def plan(
    mine: Tree,
    peers: Sequence[PeerView],
    findings: Sequence[Finding] = (),
    rows: Mapping[BlockId, Sequence[ChunkInfo]] | None = None,
    *,
    heard: Heard | None = None,
    deletes: Deletes | None = None,
    trusted: PeerId = "",
) -> Plan:
    """Return what to do so that `mine` holds every healthy chunk that it may take from a peer.

    `rows` are the chunks that our index knows of the blocks in question: they decide what a chunk
    must be. A block whose row is lost or damaged is absent. `heard` says which known holders are
    not among the peers. `trusted` is the peer whose versions an operator wants here, also in the
    place of what verifies.
    """
    known = _Known(rows or {}, heard or Heard(), deletes or Deletes(), trusted)
    return _Planner(mine, peers, findings, known).run()


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known beside the trees."""

    rows: Mapping[BlockId, Sequence[ChunkInfo]]
    heard: Heard
    deletes: Deletes
    trusted: PeerId


class _Planner:
    """One planning: sorts what is known by block, then decides block by block."""

    def __init__(
        self,
        mine: Tree,
        peers: Sequence[PeerView],
        findings: Sequence[Finding],
        known: _Known,
    ) -> None:
        self.mine = mine
        self.heard = known.heard
        self.deletes = known.deletes
        self.trusted = known.trusted
        self.peers = {view.peer_id: view for view in sorted(peers, key=lambda view: view.peer_id)}
        self.rows = known.rows
        self.findings: dict[BlockId, list[Finding]] = defaultdict(list)
        for finding in findings:
            self.findings[finding.block_id].append(finding)
        self.differing: dict[BlockId, list[tuple[PeerId, Difference]]] = defaultdict(list)
        for view in self.peers.values():
            for difference in view.divergence.differences:
                self.differing[difference.block_id].append((view.peer_id, difference))
        self.actions: list[Action] = []
        self.skips: list[Skip] = []
        self.uncovered: set[PeerId] = set()
        self.assigned_bytes: Counter[PeerId] = Counter()

    def run(self) -> Plan:
        self._about_replica(self.findings.pop(_NO_BLOCK, []))
        for block_id in sorted(self.differing.keys() | self.findings.keys()):
            if not self._adopt_tombstone(block_id):
                self._about_block(block_id)
        return Plan(
            actions=tuple(self.actions),
            skips=tuple(self.skips),
            covered_peers=frozenset(self.peers) - self.uncovered,
        )

    def _about_replica(self, findings: Sequence[Finding]) -> None:
        faults = [finding.fault for finding in findings]
        descriptor = [fault for fault in faults if fault in _DESCRIPTOR_FAULTS]
        trees = [fault for fault in faults if fault in _TREE_FAULTS]
        self.actions.extend(RewriteDescriptor(fault) for fault in descriptor[:1])
        self.actions.extend(RebuildTree(fault) for fault in trees[:1])
        self.skips.extend(
            Skip(_NO_BLOCK, -1, SkipReason.FOREIGN_FILE, detail=finding.evidence)
            for finding in findings
            if finding.fault is Fault.FOREIGN_FILE
        )

    def _adopt_tombstone(self, block_id: BlockId) -> bool:
        """Adopt a tombstone that is confirmed; say of one that is not that it is left alone."""
        found = [
            (difference.checksum, peer_id)
            for peer_id, difference in self.differing[block_id]
            if difference.kind is DifferenceKind.ADOPT_TOMBSTONE
        ]
        if not found:
            return False
        peers = frozenset(peer_id for _, peer_id in found)
        if not self._is_confirmed(block_id, peers):
            self.uncovered |= peers
            named = "a key names the block" if block_id in self.deletes.kept else ""
            self.skips.append(
                Skip(
                    block_id,
                    -1,
                    SkipReason.UNCONFIRMED_DELETE,
                    tuple(sorted(peers)),
                    named or self.silence(self.heard.silent | self.heard.dead),
                )
            )
            return False
        checksum = max(value for value, _ in found)
        source = min(peer_id for value, peer_id in found if value == checksum)
        self.actions.append(AdoptTombstone(block_id, checksum, source))
        return True

    def _is_confirmed(self, block_id: BlockId, peers: frozenset[PeerId]) -> bool:
        """Whether a delete may be carried out here that `peers` claim.

        Where it was carried out before, only the checksum that the tombstone keeps changes.
        """
        index = self.mine.index_of(block_id)
        if index >= 0 and self.mine.deleted[index]:
            return True
        if self.trusted:
            return self.trusted in peers
        if block_id in self.deletes.ordered:
            return True
        is_everywhere = len(peers) > 1 and peers == self.peers.keys() and self.heard.is_everybody
        return is_everywhere and block_id not in self.deletes.kept

    @staticmethod
    def silence(silent: frozenset[PeerId]) -> str:
        """Return who was not heard, for a person."""
        return f"not heard: {', '.join(sorted(silent))}" if silent else ""

    def _about_block(self, block_id: BlockId) -> None:
        block = _Block(self, block_id)
        chunks = block.wanted_chunks()
        if chunks or block.is_missing_without_chunks:
            self.actions.append(
                RepairBlock(block_id, tuple(chunks), block.metadata_sources(chunks))
            )
        block.explain_the_rest(chunks)
        block.settle_findings(chunks)


class _Block:
    """The decisions about one block; appends to the planner's actions and skips."""

    def __init__(self, planner: _Planner, block_id: BlockId) -> None:
        self.planner = planner
        self.block_id = block_id
        self.findings = planner.findings[block_id]
        self.versions: dict[int, list[tuple[PeerId, Leaf]]] = defaultdict(list)
        self.causes: dict[int, str] = {}
        self.left_alone: dict[int, list[tuple[SkipReason, PeerId]]] = defaultdict(list)
        self.contradicted: dict[int, list[tuple[PeerId, Leaf]]] = defaultdict(list)
        self.denied_by: dict[int, Leaf] = {}  # what is healthy here where a peer has another chunk
        self.mine = {leaf.offset: leaf for leaf in planner.mine.leaves(block_id)}
        self.recorded = {
            chunk.offset: leaf_of(planner.mine, chunk) for chunk in planner.rows.get(block_id, ())
        }
        self.recorded_offsets = sorted(self.recorded)
        self.lenders: list[PeerId] = []  # peers that have the block and can say what it is
        self.is_missing_without_chunks = False
        for peer_id, difference in planner.differing[block_id]:
            self._take(peer_id, difference)
        self.contested = contested_offsets(
            {leaf for peer in self.lenders for leaf in self._leaves_of(peer) if leaf.healthy}
        )
        if self.is_missing_without_chunks:
            self._settle_emptiness()

    def _take(self, peer_id: PeerId, difference: Difference) -> None:
        """Sort one difference into chunks that are offered and chunks that are left alone."""
        kind, mine, theirs = difference.kind, difference.mine, difference.theirs
        if kind is DifferenceKind.MISSING_BLOCK:  # its chunks follow, each as its own
            self.is_missing_without_chunks |= not self._leaves_of(peer_id)
            self._lend(peer_id)
        elif kind in _OFFERS or self._is_ordered(peer_id, difference):
            assert theirs is not None
            assert theirs.healthy, "a diff offers healthy chunks only"
            self._lend(peer_id)
            self.versions[theirs.offset].append((peer_id, theirs))
            self.causes.setdefault(theirs.offset, kind.value)
        elif kind is DifferenceKind.IRRECONCILABLE:
            assert mine is not None
            assert theirs is not None, "two healthy chunks contradict"
            self.contradicted[theirs.offset].append((peer_id, theirs))
            self.denied_by[theirs.offset] = mine
        elif kind in _LEFT_ALONE:
            assert theirs is not None, "a diff says which chunk of the peer is unhealthy"
            self.left_alone[theirs.offset].append((_LEFT_ALONE[kind], peer_id))

    def _is_ordered(self, peer_id: PeerId, difference: Difference) -> bool:
        """Whether an operator wants this peer's chunk in the place of ours, which verifies."""
        mine, theirs = difference.mine, difference.theirs
        if peer_id != self.planner.trusted or difference.kind is not DifferenceKind.IRRECONCILABLE:
            return False
        assert mine is not None
        assert theirs is not None, "two healthy chunks contradict"
        return (mine.offset, mine.length_bytes) == (theirs.offset, theirs.length_bytes)

    def _lend(self, peer_id: PeerId) -> None:
        if peer_id not in self.lenders:
            self.lenders.append(peer_id)

    def _settle_emptiness(self) -> None:
        """A block without chunks is made to exist here only if nobody could say otherwise."""
        could_be_more = self._could_be_contradicted()
        if self.planner.trusted in self.lenders or not (could_be_more or self.versions):
            return
        self.is_missing_without_chunks = False
        if could_be_more:
            empty = [peer for peer in self.lenders if not self._leaves_of(peer)]
            self.left_alone[-1] += [(SkipReason.UNCONFIRMED, peer) for peer in empty]

    def wanted_chunks(self) -> list[WantedChunk]:
        """Return what to get right, by offset, without a hole in front of any of it."""
        chosen = (self._choose(offset) for offset in sorted(self.versions))
        return self._contiguous([wanted for wanted in chosen if wanted is not None])

    def _choose(self, offset: int) -> WantedChunk | None:
        """Return the one version that may be installed, the least loaded source first; None where
        there is none.

        A peer that has another version is not covered: what it has is not what we will have.
        """
        right = self._right_version(offset)
        if right is None:
            return None
        offers = self.versions[offset]
        sources = [peer_id for peer_id, leaf in offers if leaf == right]
        self.contradicted[offset] += [(peer, leaf) for peer, leaf in offers if leaf != right]
        if not sources:
            return None
        is_ordered = self.planner.trusted in sources
        return WantedChunk(right, self.causes[offset], self._by_load(sources), is_ordered)

    def _right_version(self, offset: int) -> Leaf | None:
        """Return what the chunk must be: what is trusted, what our row says, what all agree on."""
        offers = self.versions[offset]
        for peer_id, leaf in offers:
            if peer_id == self.planner.trusted:
                return leaf
        if offset in self.recorded:
            return self.recorded[offset]
        if (overlapped := self._overlapped(offers)) is not None:  # our row cuts them otherwise
            self.denied_by[offset] = overlapped
            self.contradicted[offset] += offers
            return None
        if self.contested:  # who contradicts another in a block is no witness for the rest of it
            self.contradicted[offset] += offers
            return None
        if self._could_be_contradicted():
            self.left_alone[offset] += [(SkipReason.UNCONFIRMED, peer) for peer, _ in offers]
            return None
        return offers[0][1]

    def _overlapped(self, offers: Sequence[tuple[PeerId, Leaf]]) -> Leaf | None:
        """Return a chunk of our row that an offer would lie across."""
        for _, leaf in offers:
            index = bisect(self.recorded_offsets, leaf.end - 1)
            own = self.recorded[self.recorded_offsets[index - 1]] if index else None
            if own is not None and own.end > leaf.offset:
                return own
        return None

    def _could_be_contradicted(self) -> bool:
        """Whether a holder that was not heard may have another version of a chunk of this block.

        One that reported the root of a peer has what that peer has; where that peer's own chunk is
        damaged, the silent one may take the same bytes for right.
        """
        return bool(self.planner.heard.silent) or any(
            not leaf.healthy
            for peer_id in self.planner.heard.echoed & self.planner.peers.keys()
            for leaf in self._leaves_of(peer_id)
        )

    def _by_load(self, sources: Iterable[PeerId]) -> tuple[PeerId, ...]:
        load = self.planner.assigned_bytes
        return tuple(sorted(sources, key=lambda peer_id: (load[peer_id], peer_id)))

    def _equal_peers(self) -> list[PeerId]:
        """Peers whose block is ours: nothing about it is in their divergence."""
        if self.planner.mine.index_of(self.block_id) < 0:
            return []
        differing = {peer_id for peer_id, _ in self.planner.differing[self.block_id]}
        return [peer_id for peer_id in self.planner.peers if peer_id not in differing]

    def _contiguous(self, chunks: Sequence[WantedChunk]) -> list[WantedChunk]:
        layout = _Layout(self._known_spans())
        allowed: list[WantedChunk] = []
        for chunk in chunks:
            reason = layout.obstacle(chunk.leaf)
            if reason is not None:
                self.left_alone[chunk.leaf.offset] += [(reason, peer) for peer in chunk.sources]
                continue
            layout.add(chunk.leaf)
            self.planner.assigned_bytes[chunk.sources[0]] += chunk.leaf.length_bytes
            allowed.append(chunk)
        return allowed

    def _known_spans(self) -> dict[int, int]:
        """Where our chunks begin and end, healthy or not: by our row, else by our tree."""
        if self.block_id in self.planner.rows:
            return {chunk.offset: chunk.end for chunk in self.planner.rows[self.block_id]}
        return {leaf.offset: leaf.end for leaf in self.mine.values() if leaf.healthy}

    def metadata_sources(self, chunks: Sequence[WantedChunk]) -> tuple[PeerId, ...]:
        """Who is asked what the block is: first whoever has just what we will have."""
        final = self._final(chunks)
        load = self.planner.assigned_bytes

        def rank(peer_id: PeerId) -> tuple[bool, int, PeerId]:
            return (self._spans_at(peer_id) != final, load[peer_id], peer_id)

        return tuple(sorted(self.lenders, key=rank))

    def _final(self, chunks: Sequence[WantedChunk]) -> dict[int, tuple[int, int]]:
        """The healthy chunks that this block has when the plan succeeds."""
        leaves = [leaf for leaf in self.mine.values() if leaf.healthy]
        leaves += [chunk.leaf for chunk in chunks]
        return {leaf.offset: (leaf.length_bytes, leaf.checksum) for leaf in leaves}

    def _leaves_of(self, peer_id: PeerId) -> list[Leaf]:
        return self.planner.peers[peer_id].tree.leaves(self.block_id)

    def _spans_at(self, peer_id: PeerId) -> dict[int, tuple[int, int]]:
        """What `_final` is compared with: the healthy chunks that a peer has."""
        leaves = self._leaves_of(peer_id)
        return {leaf.offset: (leaf.length_bytes, leaf.checksum) for leaf in leaves if leaf.healthy}

    def explain_the_rest(self, chunks: Sequence[WantedChunk]) -> None:
        """Say of every difference that no action heals why, and who lends no commit id for it."""
        planned = {chunk.leaf.offset for chunk in chunks}
        self._tell_contradictions()
        for offset in sorted(self.left_alone.keys() - planned - self.contradicted.keys()):
            entries = self.left_alone[offset]
            reason = max((reason for reason, _ in entries), key=_SKIP_RANK.index)
            peers = tuple(sorted({peer_id for _, peer_id in entries}))
            # Where ours is damaged, too, the reason would be a graver one.
            is_harmless = reason is SkipReason.PEER_UNHEALTHY and offset in self.mine
            detail = (
                self.planner.silence(self.planner.heard.silent)
                if reason is SkipReason.UNCONFIRMED
                else ""
            )
            self.planner.skips.append(
                Skip(self.block_id, offset, reason, peers, detail, is_harmless=is_harmless)
            )
            if not is_harmless:
                self.planner.uncovered.update(peers)

    def _tell_contradictions(self) -> None:
        """Say where rows that are each intact contradict each other, also if ours could be kept."""
        self.contradicted = {offset: found for offset, found in self.contradicted.items() if found}
        for offset, found in sorted(self.contradicted.items()):
            own = self.recorded.get(offset) or self.denied_by.get(offset)
            versions = tuple(sorted(found, key=lambda version: version[0]))
            peers = tuple(peer_id for peer_id, _ in versions)
            self.planner.skips.append(
                Skip(
                    self.block_id,
                    offset,
                    SkipReason.CONTRADICTORY,
                    peers,
                    told_versions(own, versions),
                    mine=own,
                    versions=versions,
                )
            )
            self.planner.uncovered.update(peers)

    def settle_findings(self, chunks: Sequence[WantedChunk]) -> None:
        """Answer what a scan found about this block's file and row, and is not planned yet."""
        planned = {chunk.leaf.offset for chunk in chunks}
        explained = self.left_alone.keys() | planned | self.contradicted.keys()
        is_repaired = bool(chunks) or self.is_missing_without_chunks
        for finding in self.findings:
            if finding.fault is Fault.TRAILING_BYTES:
                self._trim_or_skip(chunks, finding)
            elif finding.fault is Fault.BLOCK_ROW_MISSING and not is_repaired:
                self._skip_finding(finding, SkipReason.UNKNOWN_BLOCK)
            elif finding.is_damage and not (
                finding.offset in explained or (finding.offset < 0 and is_repaired)
            ):
                self._skip_finding(finding, SkipReason.NO_HEALTHY_SOURCE)

    def _trim_or_skip(self, chunks: Sequence[WantedChunk], finding: Finding) -> None:
        equal_to = [] if chunks else self._equal_peers()
        final = self._final(chunks)
        differing = {peer_id for peer_id, _ in self.planner.differing[self.block_id]}
        equal_to += [peer for peer in differing if final and self._spans_at(peer) == final]
        whole = {offset for offset, leaf in self.mine.items() if leaf.healthy}
        is_open = self.contradicted or self.left_alone.keys() - whole
        if equal_to and not is_open:
            self.planner.actions.append(Trim(self.block_id, min(equal_to)))
        else:
            self._skip_finding(finding, SkipReason.NOT_EQUAL_TO_ANY_PEER)

    def _skip_finding(self, finding: Finding, reason: SkipReason) -> None:
        self.planner.skips.append(
            Skip(self.block_id, finding.offset, reason, detail=finding.fault.value)
        )


class _Layout:
    """Which bytes of a block belong to chunks that are known here."""

    def __init__(self, spans: Mapping[int, int]) -> None:
        self.spans = dict(spans)  # offset to end
        self.offsets = sorted(self.spans)
        self.ends = {0, *self.spans.values()}

    def obstacle(self, leaf: Leaf) -> SkipReason | None:
        """Return why the chunk cannot be put here without breaking a rule."""
        if leaf.offset in self.spans:
            return None if self.spans[leaf.offset] == leaf.end else SkipReason.LAYOUT_DIFFERS
        index = bisect(self.offsets, leaf.offset)
        if index > 0 and self.spans[self.offsets[index - 1]] > leaf.offset:
            return SkipReason.LAYOUT_DIFFERS
        if index < len(self.offsets) and self.offsets[index] < leaf.end:
            return SkipReason.LAYOUT_DIFFERS
        return None if leaf.offset in self.ends else SkipReason.HOLE

    def add(self, leaf: Leaf) -> None:
        insort(self.offsets, leaf.offset)
        self.spans[leaf.offset] = leaf.end
        self.ends.add(leaf.end)
