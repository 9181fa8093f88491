"""Decide how a replica becomes equal to its peers: trees and findings in, a plan out.

    mine ─┐                        ┌─ RepairBlock   chunks to salvage or fetch, and from whom
    peers ┼─► plan ─► Plan.actions ┼─ AdoptTombstone, Trim, RewriteDescriptor, RebuildTree
    finds ┘           Plan.skips   └─ and for everything left alone: why

Pure. It refuses to plan what could make the replica worse: a chunk that is healthy here is never
a target, a chunk that its owner calls damaged is never a source, and a hole is never made.

Which version wins, when several peers have a healthy one of a chunk that is bad here: the one most
peers have; among equals the larger (checksum, then length). Every replica asks the same question
of the same votes, so all of them choose alike and one round makes them equal.
"""

from bisect import bisect, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from merkle.diff import Difference, DifferenceKind, Divergence
from merkle.replica import BlockId, ChunkInfo
from merkle.tree import Leaf, Tree
from scanner.finding import Fault, Finding

PeerId = str  # a datanode id


class SkipReason(StrEnum):
    """Why something that differs, or was found, is left as it is."""

    PEER_UNHEALTHY = "PEER_UNHEALTHY"  # healthy here; the peer repairs itself
    BOTH_UNHEALTHY = "BOTH_UNHEALTHY"  # nobody who answered has a healthy one
    IRRECONCILABLE = "IRRECONCILABLE"  # healthy here and there, and yet different
    HOLE = "HOLE"  # what lies in front of the chunk is nowhere to be had
    LAYOUT_DIFFERS = "LAYOUT_DIFFERS"  # our row cuts these bytes into other chunks
    NO_HEALTHY_SOURCE = "NO_HEALTHY_SOURCE"  # found damaged here, and no peer has it
    NOT_EQUAL_TO_ANY_PEER = "NOT_EQUAL_TO_ANY_PEER"  # the trailing bytes may be the block's own
    UNKNOWN_BLOCK = "UNKNOWN_BLOCK"  # a block file without a row that no peer knows
    FOREIGN_FILE = "FOREIGN_FILE"  # not a block file; a person must look


@dataclass(frozen=True, slots=True)
class WantedChunk:
    """One chunk to get right: what it must be, why, and who has it, best source first."""

    leaf: Leaf
    cause: str  # a DifferenceKind, or the Fault that a scan found
    sources: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class RepairBlock:
    """Make chunks of one block right; ask `metadata_sources` in turn what the block is.

    `chunks` is empty for a block that has none: it is recorded all the same.
    """

    block_id: BlockId
    chunks: tuple[WantedChunk, ...]
    metadata_sources: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class AdoptTombstone:
    """A peer deleted this block: delete it here the ordinary way and keep the peer's checksum."""

    block_id: BlockId
    checksum: int
    source: PeerId


@dataclass(frozen=True, slots=True)
class Trim:
    """Move the bytes behind the last chunk away: the block's chunks are those of a peer."""

    block_id: BlockId
    equal_to: PeerId


@dataclass(frozen=True, slots=True)
class RewriteDescriptor:
    """Write the descriptor again from what the index knows."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class RebuildTree:
    """The tree file is missing, damaged or stale: the scan that ends a reconcile replaces it."""

    fault: Fault


Action = RepairBlock | AdoptTombstone | Trim | RewriteDescriptor | RebuildTree


@dataclass(frozen=True, slots=True)
class Skip:
    """Something left alone. `offset` is -1 where it is about no chunk, `block_id` likewise.

    `is_harmless`: nothing is missing here for it.
    """

    block_id: BlockId
    offset: int
    reason: SkipReason
    peers: tuple[PeerId, ...] = ()
    detail: str = ""
    is_harmless: bool = False


@dataclass(frozen=True, slots=True)
class PeerView:
    """What one peer was found to have: its tree of the blocks that differ, and the divergence."""

    peer_id: PeerId
    tree: Tree
    divergence: Divergence


@dataclass(frozen=True, slots=True)
class Plan:
    """All that will be done, in block order, and all that will not.

    `covered_peers`: every difference from these peers is healed when the actions succeed. Only
    they may lend their commit id to the container.
    """

    actions: tuple[Action, ...] = ()
    skips: tuple[Skip, ...] = ()
    covered_peers: frozenset[PeerId] = field(default_factory=frozenset)

    @property
    def wanted_bytes(self) -> int:
        """Bytes of the chunks to get right: the most that will be fetched."""
        return sum(
            chunk.leaf.length_bytes
            for action in self.actions
            if isinstance(action, RepairBlock)
            for chunk in action.chunks
        )


_NO_BLOCK: Final = BlockId(-1)
_DESCRIPTOR_FAULTS: Final = frozenset({Fault.DESCRIPTOR_DAMAGED, Fault.DESCRIPTOR_MISSING})
_TREE_FAULTS: Final = frozenset({Fault.TREE_DAMAGED, Fault.TREE_MISSING, Fault.TREE_STALE})
_OFFERS: Final = frozenset({DifferenceKind.MISSING_CHUNK, DifferenceKind.CORRUPT_CHUNK})
_LEFT_ALONE: Final = {
    DifferenceKind.PEER_UNHEALTHY: SkipReason.PEER_UNHEALTHY,
    DifferenceKind.BOTH_UNHEALTHY: SkipReason.BOTH_UNHEALTHY,
    DifferenceKind.IRRECONCILABLE: SkipReason.IRRECONCILABLE,
}
# When peers are left alone for different reasons, the gravest speaks for the chunk.
_SKIP_RANK: Final = tuple(SkipReason)


def plan(
    mine: Tree,
    peers: Sequence[PeerView],
    findings: Sequence[Finding] = (),
    rows: Mapping[BlockId, Sequence[ChunkInfo]] | None = None,
) -> Plan:
    """Return what to do so that `mine` holds every healthy chunk that any peer has.

    `rows` are the chunks that our index knows of the blocks in question: a truncated file has
    fewer chunks in the tree than its row remembers. A block without a row is absent.
    """
    return _Planner(mine, peers, findings, rows or {}).run()


class _Planner:
    """One planning: sorts what is known by block, then decides block by block."""

    def __init__(
        self,
        mine: Tree,
        peers: Sequence[PeerView],
        findings: Sequence[Finding],
        rows: Mapping[BlockId, Sequence[ChunkInfo]],
    ) -> None:
        self.mine = mine
        self.peers = {view.peer_id: view for view in sorted(peers, key=lambda view: view.peer_id)}
        self.rows = rows
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
        """A tombstone anywhere wins over live copies: a delete was acknowledged once."""
        found = [
            (difference.checksum, peer_id)
            for peer_id, difference in self.differing[block_id]
            if difference.kind is DifferenceKind.ADOPT_TOMBSTONE
        ]
        if not found:
            return False
        checksum = max(value for value, _ in found)
        source = min(peer_id for value, peer_id in found if value == checksum)
        self.actions.append(AdoptTombstone(block_id, checksum, source))
        return True

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
        self.versions: dict[int, list[tuple[Leaf, PeerId]]] = defaultdict(list)
        self.causes: dict[int, str] = {}
        self.left_alone: dict[int, list[tuple[SkipReason, PeerId]]] = defaultdict(list)
        self.mine = {leaf.offset: leaf for leaf in planner.mine.leaves(block_id)}
        self.lenders: list[PeerId] = []  # peers that have the block and can say what it is
        self.is_missing_without_chunks = False
        for peer_id, difference in planner.differing[block_id]:
            self._take(peer_id, difference)

    def _take(self, peer_id: PeerId, difference: Difference) -> None:
        """Sort one difference into chunks that are offered and chunks that are left alone."""
        kind, theirs = difference.kind, difference.theirs
        if kind is DifferenceKind.MISSING_BLOCK:  # its chunks follow, each as its own
            self.is_missing_without_chunks |= not self._leaves_of(peer_id)
            self._lend(peer_id)
        elif kind in _OFFERS and theirs is not None:
            assert theirs.healthy, "a diff offers healthy chunks only"
            self._lend(peer_id)
            self.versions[theirs.offset].append((theirs, peer_id))
            self.causes.setdefault(theirs.offset, kind.value)
        elif kind in _LEFT_ALONE:
            leaf = theirs or difference.mine
            offset = leaf.offset if leaf is not None else -1
            self.left_alone[offset].append((_LEFT_ALONE[kind], peer_id))

    def _lend(self, peer_id: PeerId) -> None:
        if peer_id not in self.lenders:
            self.lenders.append(peer_id)

    def wanted_chunks(self) -> list[WantedChunk]:
        """Return what to get right, by offset, without a hole in front of any of it."""
        return self._contiguous([self._elect(offset) for offset in sorted(self.versions)])

    def _elect(self, offset: int) -> WantedChunk:
        """Most votes win, then the larger checksum; the least loaded source comes first.

        A peer whose version loses is not covered: what it has is not what we will have.
        """
        votes = Counter((leaf.checksum, leaf.length_bytes) for leaf, _ in self.versions[offset])
        winner = max(votes, key=lambda version: (votes[version], version))
        sources = []
        for leaf, peer_id in self.versions[offset]:
            if (leaf.checksum, leaf.length_bytes) == winner:
                sources.append(peer_id)
            else:
                self.planner.uncovered.add(peer_id)
        chosen = Leaf(offset, winner[1], winner[0], True)
        return WantedChunk(chosen, self.causes[offset], self._by_load(sources))

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
        lenders = self.lenders or sorted({peer for chunk in chunks for peer in chunk.sources})
        load = self.planner.assigned_bytes

        def rank(peer_id: PeerId) -> tuple[bool, int, PeerId]:
            return (self._spans_at(peer_id) != final, load[peer_id], peer_id)

        return tuple(sorted(lenders, key=rank))

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
        for offset in sorted(self.left_alone.keys() - planned):
            entries = self.left_alone[offset]
            reason = max((reason for reason, _ in entries), key=_SKIP_RANK.index)
            peers = tuple(sorted({peer_id for _, peer_id in entries}))
            own = self.mine.get(offset)
            is_whole_here = own is not None and own.healthy
            is_harmless = is_whole_here and reason is SkipReason.PEER_UNHEALTHY
            self.planner.skips.append(
                Skip(self.block_id, offset, reason, peers, is_harmless=is_harmless)
            )
            if not is_harmless:
                self.planner.uncovered.update(peers)

    def settle_findings(self, chunks: Sequence[WantedChunk]) -> None:
        """Answer what a scan found about this block's file and row, and is not planned yet."""
        planned = {chunk.leaf.offset for chunk in chunks}
        explained = self.left_alone.keys() | planned
        is_repaired = bool(chunks) or self.is_missing_without_chunks
        for finding in self.findings:
            if finding.fault is Fault.TRAILING_BYTES:
                self._trim_or_skip(chunks, finding)
            elif finding.fault is Fault.BLOCK_ROW_MISSING and not is_repaired:
                self._skip_finding(finding, SkipReason.UNKNOWN_BLOCK)
            elif finding.offset in explained or (finding.offset < 0 and is_repaired):
                continue
            elif finding.is_damage:
                self._skip_finding(finding, SkipReason.NO_HEALTHY_SOURCE)

    def _trim_or_skip(self, chunks: Sequence[WantedChunk], finding: Finding) -> None:
        equal_to = [] if chunks else self._equal_peers()
        final = self._final(chunks)
        differing = {peer_id for peer_id, _ in self.planner.differing[self.block_id]}
        equal_to += [peer for peer in differing if final and self._spans_at(peer) == final]
        if equal_to:
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
        if leaf.offset not in self.spans:
            insort(self.offsets, leaf.offset)
        self.spans[leaf.offset] = leaf.end
        self.ends.add(leaf.end)
