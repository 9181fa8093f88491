"""Planning for one block: selects the chunks to repair, their sources, and the skips. No I/O.

A healthy local chunk is never replaced, except by an operator's order. A chunk is never fetched
from a peer that reports this chunk as damaged. A repair never leaves a hole between two chunks.

The correct version of a damaged chunk is not determined by a majority of the peers:

- If the local row is intact, the version that matches the row is correct. It may be fetched from
  any peer. If no peer has this version, the damage remains. If a peer has another version, the
  replicas contradict each other.
- If the local row is lost, a version is correct under two conditions: all peers that have the chunk
  agree, and every datanode with a replica has answered, except for dead ones. If the peers have two
  versions, they contradict each other.
- If an operator trusts a peer, the version of that peer is correct.
"""

from bisect import bisect, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from agent.plan.actions import (
    Action,
    HolderCoverage,
    PeerId,
    PeerView,
    RepairBlock,
    RepairPlan,
    Skip,
    SkipReason,
    Trim,
    WantedChunk,
)
from agent.plan.chunk_versions import contested_offsets, format_versions, leaf_of
from merkle.diff import Difference, DifferenceKind
from merkle.replica import BlockId, ChunkInfo
from merkle.tree import Leaf, Tree
from scanner.finding import DamageFault, ScanFinding

_OFFERS: Final = frozenset({DifferenceKind.MISSING_CHUNK, DifferenceKind.CORRUPT_CHUNK})
_LEFT_ALONE: Final = {
    DifferenceKind.PEER_UNHEALTHY: SkipReason.PEER_UNHEALTHY,
    DifferenceKind.BOTH_UNHEALTHY: SkipReason.BOTH_UNHEALTHY,
}
# Skip reasons, the gravest last. If peers are skipped for several reasons, the gravest one is
# reported.
_SKIP_RANK: Final = tuple(SkipReason)


class PlanContext:
    """The input of the planning, grouped by block, and the actions and skips that were planned so
    far."""

    def __init__(
        self,
        mine: Tree,
        peers: Sequence[PeerView],
        findings: Sequence[ScanFinding],
        *,
        rows: Mapping[BlockId, Sequence[ChunkInfo]],
        heard: HolderCoverage,
        trusted: PeerId,
    ) -> None:
        self.mine = mine
        self.heard = heard
        self.trusted = trusted
        self.peers = {view.peer_id: view for view in sorted(peers, key=lambda view: view.peer_id)}
        self.rows = rows
        self.findings: dict[BlockId, list[ScanFinding]] = defaultdict(list)
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

    def plan(self) -> RepairPlan:
        """Return a plan with all actions and skips that were added so far."""
        return RepairPlan(
            actions=tuple(self.actions),
            skips=tuple(self.skips),
            covered_peers=frozenset(self.peers) - self.uncovered,
        )


def silence(silent: frozenset[PeerId]) -> str:
    """Return a text with the names of the datanodes that did not answer; "" if all answered."""
    return f"not heard: {', '.join(sorted(silent))}" if silent else ""


def plan_block(planning: PlanContext, block_id: BlockId) -> None:
    """Plan the repair of one block.

    `agent.plan.reconcile_plan` calls this function after it has handled the tombstones of the
    block.
    """
    block = _Block(planning, block_id)
    chunks = block.repairable_chunks()
    if chunks or block.is_missing_without_chunks:
        sources = block.metadata_sources(chunks)
        planning.actions.append(RepairBlock(block_id, tuple(chunks), sources))
    block.explain_the_rest(chunks)
    block.settle_findings(chunks)


class _Block:
    """Plans the repair of one block. The actions and skips are added to `planning`."""

    def __init__(self, planning: PlanContext, block_id: BlockId) -> None:
        self.planning = planning
        self.block_id = block_id
        self.findings = planning.findings[block_id]
        self.versions: dict[int, list[tuple[PeerId, Leaf]]] = defaultdict(list)
        self.causes: dict[int, str] = {}
        self.left_alone: dict[int, list[tuple[SkipReason, PeerId]]] = defaultdict(list)
        self.contradicted: dict[int, list[tuple[PeerId, Leaf]]] = defaultdict(list)
        self.denied_by: dict[int, Leaf] = {}  # local healthy chunks that contradict a peer's
        self.mine = {leaf.offset: leaf for leaf in planning.mine.leaves(block_id)}
        self.recorded = {chunk.offset: chunk for chunk in planning.rows.get(block_id, ())}
        self.recorded_offsets = sorted(self.recorded)
        self.lent_leaves: dict[PeerId, list[Leaf]] = {}
        self.lenders: list[PeerId] = []  # peers that have the block and its metadata
        self.is_missing_without_chunks = False
        for peer_id, difference in planning.differing[block_id]:
            self._record_difference(peer_id, difference)
        self.contested = contested_offsets(
            {leaf for peer in self.lenders for leaf in self._leaves_of(peer) if leaf.healthy}
        )
        if self.is_missing_without_chunks:
            self._settle_emptiness()

    def _record_difference(self, peer_id: PeerId, difference: Difference) -> None:
        """Record one difference from a peer: as a version that the peer offers, a contradiction, or
        a skip."""
        kind, mine, theirs = difference.kind, difference.mine, difference.theirs
        if kind is DifferenceKind.MISSING_BLOCK:  # its chunks follow as separate differences
            self.is_missing_without_chunks |= not self._leaves_of(peer_id)
            self._add_peer(peer_id)
        elif kind in _OFFERS or self._is_ordered(peer_id, difference):
            assert theirs is not None
            assert theirs.healthy, "a diff offers healthy chunks only"
            self._add_peer(peer_id)
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
        """Return whether an operator has ordered to replace this local chunk by the chunk of this
        peer.

        The local chunk may be healthy in this case.
        """
        mine, theirs = difference.mine, difference.theirs
        if peer_id != self.planning.trusted or difference.kind is not DifferenceKind.IRRECONCILABLE:
            return False
        assert mine is not None
        assert theirs is not None, "two healthy chunks contradict"
        return (mine.offset, mine.length_bytes) == (theirs.offset, theirs.length_bytes)

    def _add_peer(self, peer_id: PeerId) -> None:
        if peer_id not in self.lenders:
            self.lenders.append(peer_id)

    def _settle_emptiness(self) -> None:
        """Determine whether to create a block that has no chunks.

        The block is created only if no other datanode can have chunks of the block, or if an
        operator trusts a peer that has the block.
        """
        could_be_more = self._could_be_contradicted()
        if self.planning.trusted in self.lenders or not (could_be_more or self.versions):
            return
        self.is_missing_without_chunks = False
        if could_be_more:
            empty = [peer for peer in self.lenders if not self._leaves_of(peer)]
            self.left_alone[-1] += [(SkipReason.UNCONFIRMED, peer) for peer in empty]

    def repairable_chunks(self) -> list[WantedChunk]:
        """Return the chunks to repair, by offset.

        A chunk is omitted if, after its repair, the bytes before it would still be missing.
        """
        chosen = (self._choose(offset) for offset in sorted(self.versions))
        return self._contiguous([wanted for wanted in chosen if wanted is not None])

    def _choose(self, offset: int) -> WantedChunk | None:
        """Return the version of a chunk to write, with its sources. The source with the least load
        is first.

        Return None if the correct version is unknown, or if no peer has the correct version. If a
        peer has another version, the contradiction is recorded. The replica may not adopt the
        commit id of this peer, because the data of both differs even after the repair.
        """
        right = self._right_version(offset)
        if right is None:
            return None
        offers = self.versions[offset]
        sources = [peer_id for peer_id, leaf in offers if leaf == right]
        self.contradicted[offset] += [(peer, leaf) for peer, leaf in offers if leaf != right]
        if not sources:
            return None
        is_ordered = self.planning.trusted in sources
        return WantedChunk(right, self.causes[offset], self._by_load(sources), is_ordered)

    def _right_version(self, offset: int) -> Leaf | None:
        """Return the correct version of a chunk, or None if it cannot be determined.

        The version of the peer that an operator trusts comes first, then the version in the local
        row, then the version on which all peers agree.
        """
        offers = self.versions[offset]
        for peer_id, leaf in offers:
            if peer_id == self.planning.trusted:
                return leaf
        if (recorded := self._recorded(offset)) is not None:
            return recorded
        if (overlapped := self._overlapped(offers)) is not None:  # the row has other chunks there
            self.denied_by[offset] = overlapped
            self.contradicted[offset] += offers
            return None
        if self.contested:  # peers contradict each other, so use none of them
            self.contradicted[offset] += offers
            return None
        if self._could_be_contradicted():
            self.left_alone[offset] += [(SkipReason.UNCONFIRMED, peer) for peer, _ in offers]
            return None
        return offers[0][1]

    def _recorded(self, offset: int) -> Leaf | None:
        """Return the leaf of the chunk at `offset` in the local row. Return None if the row has no
        such chunk."""
        chunk = self.recorded.get(offset)
        return None if chunk is None else leaf_of(self.planning.mine, chunk)

    def _overlapped(self, offers: Sequence[tuple[PeerId, Leaf]]) -> Leaf | None:
        """Return the leaf of a chunk in the local row that overlaps one of the offered chunks, or
        None."""
        for _, leaf in offers:
            index = bisect(self.recorded_offsets, leaf.end - 1)
            own = self._recorded(self.recorded_offsets[index - 1]) if index else None
            if own is not None and own.end > leaf.offset:
                return own
        return None

    def _could_be_contradicted(self) -> bool:
        """Return whether a datanode that did not answer may have another version of a chunk of this
        block.

        A datanode that reported the same root as a peer has the same data as this peer. However, if
        a chunk of this peer is damaged, the datanode may have the undamaged chunk.
        """
        return bool(self.planning.heard.silent) or any(
            not leaf.healthy
            for peer_id in self.planning.heard.echoed & self.planning.peers.keys()
            for leaf in self._leaves_of(peer_id)
        )

    def _by_load(self, sources: Iterable[PeerId]) -> tuple[PeerId, ...]:
        load = self.planning.assigned_bytes
        return tuple(sorted(sources, key=lambda peer_id: (load[peer_id], peer_id)))

    def _equal_peers(self) -> list[PeerId]:
        """Return the peers whose version of this block equals the local block."""
        if self.planning.mine.index_of(self.block_id) < 0:
            return []
        differing = {peer_id for peer_id, _ in self.planning.differing[self.block_id]}
        return [peer_id for peer_id in self.planning.peers if peer_id not in differing]

    def _contiguous(self, chunks: Sequence[WantedChunk]) -> list[WantedChunk]:
        layout = _Layout(self._known_spans())
        allowed: list[WantedChunk] = []
        for chunk in chunks:
            reason = layout.obstacle(chunk.leaf)
            if reason is not None:
                self.left_alone[chunk.leaf.offset] += [(reason, peer) for peer in chunk.sources]
                continue
            layout.add(chunk.leaf)
            self.planning.assigned_bytes[chunk.sources[0]] += chunk.leaf.length_bytes
            allowed.append(chunk)
        return allowed

    def _known_spans(self) -> dict[int, int]:
        """Return the start and end offsets of the local chunks.

        They are taken from the local row. If there is no row, they are taken from the healthy
        leaves in the tree.
        """
        if self.block_id in self.planning.rows:
            return {chunk.offset: chunk.end for chunk in self.planning.rows[self.block_id]}
        return {leaf.offset: leaf.end for leaf in self.mine.values() if leaf.healthy}

    def metadata_sources(self, chunks: Sequence[WantedChunk]) -> tuple[PeerId, ...]:
        """Return the peers from which the block's metadata can be requested, best first.

        The first ones are the peers whose chunks equal the chunks that the local block has after
        the repair.
        """
        final = self._final(chunks)
        load = self.planning.assigned_bytes

        def rank(peer_id: PeerId) -> tuple[bool, int, PeerId]:
            return (self._spans_at(peer_id) != final, load[peer_id], peer_id)

        return tuple(sorted(self.lenders, key=rank))

    def _final(self, chunks: Sequence[WantedChunk]) -> dict[int, tuple[int, int]]:
        """Return the healthy chunks that the local block has after the repair.

        The key is the offset of the chunk. The value is the length in bytes and the checksum.
        """
        leaves = [leaf for leaf in self.mine.values() if leaf.healthy]
        leaves += [chunk.leaf for chunk in chunks]
        return {leaf.offset: (leaf.length_bytes, leaf.checksum) for leaf in leaves}

    def _leaves_of(self, peer_id: PeerId) -> list[Leaf]:
        if peer_id not in self.lent_leaves:
            self.lent_leaves[peer_id] = self.planning.peers[peer_id].tree.leaves(self.block_id)
        return self.lent_leaves[peer_id]

    def _spans_at(self, peer_id: PeerId) -> dict[int, tuple[int, int]]:
        """Return the healthy chunks of a peer's block: the length in bytes and the checksum, by
        offset."""
        leaves = self._leaves_of(peer_id)
        return {leaf.offset: (leaf.length_bytes, leaf.checksum) for leaf in leaves if leaf.healthy}

    def explain_the_rest(self, chunks: Sequence[WantedChunk]) -> None:
        """Add a skip, with the reason, for every difference that no action repairs.

        The replica may not adopt the commit ids of peers with such a difference, unless the skip is
        harmless.
        """
        planned = {chunk.leaf.offset for chunk in chunks}
        self._tell_contradictions()
        for offset in sorted(self.left_alone.keys() - planned - self.contradicted.keys()):
            entries = self.left_alone[offset]
            reason = max((reason for reason, _ in entries), key=_SKIP_RANK.index)
            peers = tuple(sorted({peer_id for _, peer_id in entries}))
            # Harmless, because the reason would be another one if the local chunk were damaged,
            # too.
            is_harmless = reason is SkipReason.PEER_UNHEALTHY and offset in self.mine
            detail = silence(self.planning.heard.silent) if reason is SkipReason.UNCONFIRMED else ""
            self.planning.skips.append(
                Skip(self.block_id, offset, reason, peers, detail, is_harmless=is_harmless)
            )
            if not is_harmless:
                self.planning.uncovered.update(peers)

    def _tell_contradictions(self) -> None:
        """Add a skip for each offset at which rows of several replicas contradict each other.

        This includes offsets at which the local chunk is healthy and is kept.
        """
        self.contradicted = {offset: found for offset, found in self.contradicted.items() if found}
        for offset, found in sorted(self.contradicted.items()):
            own = self._recorded(offset) or self.denied_by.get(offset)
            versions = tuple(sorted(found, key=lambda version: version[0]))
            peers = tuple(peer_id for peer_id, _ in versions)
            self.planning.skips.append(
                Skip(
                    self.block_id,
                    offset,
                    SkipReason.CONTRADICTORY,
                    peers,
                    format_versions(own, versions),
                    mine=own,
                    versions=versions,
                )
            )
            self.planning.uncovered.update(peers)

    def settle_findings(self, chunks: Sequence[WantedChunk]) -> None:
        """Add an action or a skip for each finding of the scan for which neither exists yet."""
        planned = {chunk.leaf.offset for chunk in chunks}
        explained = self.left_alone.keys() | planned | self.contradicted.keys()
        is_repaired = bool(chunks) or self.is_missing_without_chunks
        for finding in self.findings:
            if finding.fault is DamageFault.TRAILING_BYTES:
                self._trim_or_skip(chunks, finding)
            elif finding.fault is DamageFault.BLOCK_ROW_MISSING and not is_repaired:
                self._skip_finding(finding, SkipReason.UNKNOWN_BLOCK)
            elif finding.is_damage and not (
                finding.offset in explained or (finding.offset < 0 and is_repaired)
            ):
                self._skip_finding(finding, SkipReason.NO_HEALTHY_SOURCE)

    def _trim_or_skip(self, chunks: Sequence[WantedChunk], finding: ScanFinding) -> None:
        equal_to = [] if chunks else self._equal_peers()
        final = self._final(chunks)
        differing = {peer_id for peer_id, _ in self.planning.differing[self.block_id]}
        equal_to += [peer for peer in differing if final and self._spans_at(peer) == final]
        whole = {offset for offset, leaf in self.mine.items() if leaf.healthy}
        is_open = self.contradicted or self.left_alone.keys() - whole
        if equal_to and not is_open:
            self.planning.actions.append(Trim(self.block_id, min(equal_to)))
        else:
            self._skip_finding(finding, SkipReason.NOT_EQUAL_TO_ANY_PEER)

    def _skip_finding(self, finding: ScanFinding, reason: SkipReason) -> None:
        self.planning.skips.append(
            Skip(self.block_id, finding.offset, reason, detail=finding.fault.value)
        )


class _Layout:
    """The ranges of a block that contain chunks."""

    def __init__(self, spans: Mapping[int, int]) -> None:
        self.spans = dict(spans)  # offset -> end
        self.offsets = sorted(self.spans)
        self.ends = {0, *self.spans.values()}

    def obstacle(self, leaf: Leaf) -> SkipReason | None:
        """Return the reason why the chunk must not be added to the block, or None if it may be
        added."""
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
