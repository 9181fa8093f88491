"""Queries the peers of a replica for their trees, all at the same time.

Details are queried only where a peer's tree differs from the local one:

    ROOT    every peer's summary         equal on both sides, and all healthy? done
    RANGES  for a large tree only        which ranges of block ids differ
    BLOCKS  a row per block of those     kept as columns
    CHUNKS  later, window by window      `PeerTree.view`

A peer that is unreachable, has no tree, or contradicts itself is listed with the reason. Its data
is not used. An unknown tree is never equal to another, and never a reason to repair.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from agent.plan.actions import HolderCoverage, PeerId, PeerView
from agent.plan.reconcile_outcome import PeerState
from merkle.checksum import Algorithm
from merkle.checksum_columns import U64s
from merkle.damaged_data import DamagedData
from merkle.diff import Divergence, SummaryComparison, compare, diff
from merkle.replica import ID_MAX, ContainerId
from merkle.tree import Tree
from merkle.tree_building import TreeBuilder
from merkle.tree_descent import (
    BlockRange,
    check_ranges,
    differing_blocks,
    differing_ranges,
    partial_tree,
    range_checksums,
    range_starts,
)
from merkle.tree_summary import TreeSummary
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.runtime.ports import Executor
from suture.wire.clients.block_peer import TransferCost
from suture.wire.clients.replica_peer import ReplicaPeer
from suture.wire.mapping.tree_pages import SELECTION_MAX, BlockRows

RANGES_FROM_BLOCKS: Final = 2_048  # with fewer blocks, all rows cost less than a round trip
ASKED_MAX: Final = 3  # attempts to read a tree that changes meanwhile
BLOCKS_PER_WINDOW: Final = 16_384  # blocks planned and repaired at a time; bounds the memory
ALL_BLOCKS: Final[BlockRange] = (0, ID_MAX)
assert BLOCKS_PER_WINDOW <= SELECTION_MAX, "the ids of a window fit one request"


@dataclass(frozen=True, slots=True)
class SilentHolder:
    """A datanode with a replica of the container that cannot be called, with its last report.

    `is_dead` is True if the control plane considers the datanode lost.
    """

    peer_id: PeerId
    summary: TreeSummary | None = None
    is_empty: bool = False
    is_dead: bool = False


@dataclass(frozen=True, slots=True)
class PeerTree:
    """The answer of one peer, and the comparison of its tree with the local tree.

    `scope` has the ranges of block ids in which the trees may differ. `rows` has the rows of the
    peer's blocks in these ranges.
    """

    peer_id: PeerId
    peer: ReplicaPeer
    state: PeerState
    message: str = ""
    summary: TreeSummary | None = None
    scope: tuple[BlockRange, ...] = ()
    rows: BlockRows | None = None
    meter: TransferCost = field(default_factory=TransferCost)

    @property
    def is_known(self) -> bool:
        """Return whether the tree of the peer is known.

        Other peers are not used for the reconcile.
        """
        return self.state in {PeerState.USED, PeerState.EQUAL}

    def view(self, container_id: ContainerId, mine: Tree, window: BlockRange) -> PeerView:
        """Request the chunks of the differing blocks in the range `window`. Return the differences.

        Raise DamagedData if the chunks do not match the peer's block rows. The tree of the peer has
        then changed, or is inconsistent.
        """
        scope = [
            (max(first, window[0]), min(last, window[1]))
            for first, last in self.scope
            if first <= window[1] and window[0] <= last
        ]
        if self.rows is None or not scope:
            return PeerView(self.peer_id, TreeBuilder(mine.algorithm).build(), Divergence())
        theirs = self._detailed(container_id, mine, window)
        return PeerView(self.peer_id, theirs, diff(mine, theirs, scope=scope))

    def _detailed(self, container_id: ContainerId, mine: Tree, window: BlockRange) -> Tree:
        assert self.rows is not None
        assert self.summary is not None
        rows = rows_within(self.rows, window)
        wanted = differing_blocks(mine, rows.block_ids, rows.block_checksums, rows.deleted)
        detailed = TreeBuilder(mine.algorithm).build()
        if len(wanted):
            _, detailed = self.peer.chunks(container_id, wanted, self.meter)
        return _partial(self.summary, rows, detailed)


def query_peers(
    peers: Mapping[PeerId, ReplicaPeer], container_id: ContainerId, mine: Tree, executor: Executor
) -> list[PeerTree]:
    """Request the trees of all peers concurrently.

    Return the answers in the order of the peer ids.
    """
    futures = [
        executor.submit(query_peer, peer_id, peer, container_id, mine)
        for peer_id, peer in sorted(peers.items())
    ]
    return [future.result() for future in futures]


def query_peer(
    peer_id: PeerId, peer: ReplicaPeer, container_id: ContainerId, mine: Tree
) -> PeerTree:
    """Request the tree of one peer. Return its answer.

    If the request fails, the answer has the state and the message of the failure.
    """
    meter = TransferCost()
    attempt = 1
    while True:
        try:
            return _descend(peer_id, peer, container_id, mine, meter)
        except DamagedData as damage:  # the tree is inconsistent, or has changed meanwhile
            error: SutureError = RefusedError(Code.MALFORMED_REQUEST, f"response: {damage}")
        except SutureError as failure:
            error = failure
        if attempt == ASKED_MAX or error.code not in {Code.MALFORMED_REQUEST, Code.BUSY}:
            return failed_peer(peer_id, peer, error, meter)
        attempt += 1


def failed_peer(
    peer_id: PeerId, peer: ReplicaPeer, error: SutureError, meter: TransferCost
) -> PeerTree:
    """Return an answer for a peer that failed, with the reason."""
    message = f"{error.code}: {error}"
    return PeerTree(peer_id, peer, peer_state_of(error), message, meter=meter)


def peer_state_of(error: SutureError) -> PeerState:
    """Return the state of a peer after this error."""
    if isinstance(error, UnavailableError):
        return PeerState.UNREACHABLE
    if error.code is Code.UNCLOSED_CONTAINER_IO:
        return PeerState.NO_TREE
    if error.code is Code.CHECKSUM_MISMATCH:
        return PeerState.BAD_DATA
    return PeerState.REFUSED


def _descend(
    peer_id: PeerId, peer: ReplicaPeer, container_id: ContainerId, mine: Tree, meter: TransferCost
) -> PeerTree:
    summary = peer.summary(container_id, meter)
    comparison = compare(mine, summary)
    if comparison is SummaryComparison.NOT_COMPARABLE:
        message = f"folds by {summary.algorithm}, this replica by {mine.algorithm}"
        return PeerTree(peer_id, peer, PeerState.NOT_COMPARABLE, message, meter=meter)
    if comparison is SummaryComparison.EQUAL and mine.unhealthy_count == 0:
        return PeerTree(peer_id, peer, PeerState.EQUAL, summary=summary, meter=meter)
    state = PeerState.EQUAL if comparison is SummaryComparison.EQUAL else PeerState.USED
    size = max(len(mine.block_ids), summary.block_count + summary.tombstone_count)
    if size <= RANGES_FROM_BLOCKS:
        scope, rows = _all_rows(peer, container_id, summary, meter)
    else:
        scope, rows = _differing_rows(peer, container_id, mine, summary, meter)
    return PeerTree(
        peer_id, peer, state, summary=summary, scope=tuple(scope), rows=rows, meter=meter
    )


def _all_rows(
    peer: ReplicaPeer, container_id: ContainerId, summary: TreeSummary, meter: TransferCost
) -> tuple[list[BlockRange], BlockRows | None]:
    rows = peer.blocks(container_id, meter=meter)
    _same(summary, rows.summary)
    if _without_chunks(summary, rows).root != summary.root:
        raise DamagedData(f"blocks do not fold to the root {summary.root:#x}")
    return [ALL_BLOCKS], rows


def _differing_rows(
    peer: ReplicaPeer,
    container_id: ContainerId,
    mine: Tree,
    summary: TreeSummary,
    meter: TransferCost,
) -> tuple[list[BlockRange], BlockRows | None]:
    starts = range_starts(mine)
    found, checksums = peer.ranges(container_id, starts, meter)
    _same(summary, found)
    scope = differing_ranges(
        range_checksums(mine, starts), checksums, starts, also=mine.unhealthy_block_ids()
    )
    if not scope:
        return [], None
    rows = peer.blocks(container_id, scope, meter)
    _same(summary, rows.summary)
    check_ranges(_without_chunks(summary, rows), starts, checksums, scope)
    return scope, rows


def _same(first: TreeSummary, later: TreeSummary) -> None:
    """Raise UnavailableError(BUSY) if a peer's tree has changed between two of its answers."""
    if (first.generation, first.root) != (later.generation, later.root):
        raise _changed()


def _changed() -> UnavailableError:
    return UnavailableError(Code.BUSY, "its tree changed while it was read", hint="try again later")


def _without_chunks(summary: TreeSummary, rows: BlockRows) -> Tree:
    return _partial(summary, rows, TreeBuilder(summary.algorithm).build())


def _partial(summary: TreeSummary, rows: BlockRows, detailed: Tree) -> Tree:
    return partial_tree(
        summary.algorithm,
        block_ids=rows.block_ids,
        block_checksums=rows.block_checksums,
        deleted=rows.deleted,
        detailed=detailed,
        generation=summary.generation,
    )


def rows_within(rows: BlockRows, window: BlockRange) -> BlockRows:
    """Return the rows of the blocks in `window`."""
    first = int(np.searchsorted(rows.block_ids, np.uint64(window[0]), side="left"))
    end = int(np.searchsorted(rows.block_ids, np.uint64(window[1]), side="right"))
    return BlockRows(
        rows.summary,
        rows.block_ids[first:end],
        rows.block_checksums[first:end],
        rows.deleted[first:end],
    )


def silent_holders(
    trees: Sequence[PeerTree], answered: Collection[PeerId], holders: Sequence[SilentHolder]
) -> HolderCoverage:
    """Return the datanodes with a replica that did not answer, classified by their last report.

    These are the datanodes that cannot be called, and the peers that failed. The set `dead` has the
    datanodes that the control plane considers lost. They are in no other set, because repairs do
    not wait for them. The set `empty` has the datanodes that reported no data. If a datanode
    reported the root of a peer that answered, it has the data of that peer, and the id of the peer
    is in `echoed`. All others, and the failed peers, are in `silent`.
    """
    roots = {
        _shape(tree.summary): tree.peer_id
        for tree in trees
        if tree.summary is not None and tree.peer_id in answered
    }
    unasked = [holder for holder in holders if holder.peer_id not in answered]
    unasked += [SilentHolder(t.peer_id) for t in trees if t.peer_id not in answered]
    dead = frozenset(one.peer_id for one in unasked if one.is_dead)
    unasked = [one for one in unasked if not one.is_dead]
    echoing = [one for one in unasked if one.summary and _shape(one.summary) in roots]
    empty = {one.peer_id for one in unasked if one.is_empty}
    return HolderCoverage(
        silent=frozenset({one.peer_id for one in unasked if one not in echoing} - empty),
        empty=frozenset(empty),
        echoed=frozenset(roots[_shape(one.summary)] for one in echoing if one.summary),
        dead=dead,
    )


def _shape(summary: TreeSummary) -> tuple[Algorithm, int, int]:
    return (summary.algorithm, summary.root, summary.tombstones_checksum)


def split_block_ids(mine: Tree, peers: Sequence[PeerTree]) -> list[BlockRange]:
    """Divide all block ids into ranges.

    Each range has at most BLOCKS_PER_WINDOW blocks of the local tree and of the peers' rows.
    """
    ids: U64s = mine.block_ids
    for tree in peers:
        if tree.rows is not None:
            ids = np.union1d(ids, tree.rows.block_ids)
    starts = [0, *ids[BLOCKS_PER_WINDOW::BLOCKS_PER_WINDOW].tolist()]
    lasts = [*(start - 1 for start in starts[1:]), ID_MAX]
    return list(zip(starts, lasts, strict=True))
