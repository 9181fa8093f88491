"""Parts of a repair plan: the actions that repair a replica, and the reasons to skip a
difference."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from merkle.diff import Divergence
from merkle.replica import BlockId
from merkle.tree import Leaf, Tree
from scanner.finding import DamageFault

PeerId = str  # a datanode id


class SkipReason(StrEnum):
    """Reason why the plan contains no action for a difference or a finding."""

    PEER_UNHEALTHY = "PEER_UNHEALTHY"  # the local chunk is healthy; the peer repairs its own
    BOTH_UNHEALTHY = "BOTH_UNHEALTHY"  # no datanode that answered has a healthy chunk
    UNCONFIRMED = "UNCONFIRMED"  # the local row is lost, and not every holder answered
    UNCONFIRMED_DELETE = "UNCONFIRMED_DELETE"  # a peer deleted the block without confirmation
    CONTRADICTORY = "CONTRADICTORY"  # intact rows disagree about these bytes
    HOLE = "HOLE"  # no source has the bytes before the chunk
    LAYOUT_DIFFERS = "LAYOUT_DIFFERS"  # the local row divides these bytes into other chunks
    NO_HEALTHY_SOURCE = "NO_HEALTHY_SOURCE"  # the local chunk is damaged, and no peer has it
    NOT_EQUAL_TO_ANY_PEER = "NOT_EQUAL_TO_ANY_PEER"  # the trailing bytes may belong to the block
    UNKNOWN_BLOCK = "UNKNOWN_BLOCK"  # the block file has no row, and no peer has the block
    FOREIGN_FILE = "FOREIGN_FILE"  # not a block file; an operator must check it


@dataclass(frozen=True, slots=True)
class WantedChunk:
    """A chunk to repair: its correct version, the cause of the repair, and the sources, best first.

    `is_ordered` is True if an operator decided to trust the source more than the local row.
    """

    leaf: Leaf
    cause: str  # a DifferenceKind, or the DamageFault of a finding
    sources: tuple[PeerId, ...]
    is_ordered: bool = False


@dataclass(frozen=True, slots=True)
class RepairBlock:
    """Action: repair the chunks of one block.

    `metadata_sources` are the peers from which the block's metadata is requested, in this order. If
    `chunks` is empty, the block has no chunks, and only its row is created.
    """

    block_id: BlockId
    chunks: tuple[WantedChunk, ...]
    metadata_sources: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class AdoptTombstone:
    """Action: delete the local block, because the delete that a peer reports is confirmed.

    The new tombstone has the checksum of the peer's tombstone. The local bytes are moved to
    quarantine.
    """

    block_id: BlockId
    checksum: int
    source: PeerId


@dataclass(frozen=True, slots=True)
class Trim:
    """Action: move the bytes after the block's last chunk to quarantine.

    This is safe, because the chunks of the block equal the chunks of the peer `equal_to`.
    """

    block_id: BlockId
    equal_to: PeerId


@dataclass(frozen=True, slots=True)
class RewriteDescriptor:
    """Action: write the descriptor file of the replica again, with the facts in the index."""

    fault: DamageFault


@dataclass(frozen=True, slots=True)
class RebuildTree:
    """Action: replace the tree file, which is missing, damaged or outdated.

    The scan at the end of the reconcile writes the new tree file.
    """

    fault: DamageFault


Action = RepairBlock | AdoptTombstone | Trim | RewriteDescriptor | RebuildTree


@dataclass(frozen=True, slots=True)
class Skip:
    """A difference for which the plan has no action, and the reason.

    `offset` is -1 if the difference does not concern a single chunk. `block_id` is -1 if it does
    not concern a single block. `is_harmless` is True if the local replica lacks no data because of
    the difference. If index rows of several replicas contradict each other, `versions` has the
    peers' versions of the chunk, and `mine` has the version in the local row. `mine` is None if
    there is no local row.
    """

    block_id: BlockId
    offset: int
    reason: SkipReason
    peers: tuple[PeerId, ...] = ()
    detail: str = ""
    is_harmless: bool = False
    mine: Leaf | None = None
    versions: tuple[tuple[PeerId, Leaf], ...] = ()

    @property
    def is_contradiction(self) -> bool:
        """Return whether index rows of several replicas contradict each other, so that an operator
        must decide."""
        return self.reason in CONTRADICTIONS


CONTRADICTIONS: Final = frozenset({SkipReason.CONTRADICTORY, SkipReason.UNCONFIRMED_DELETE})
"""Reasons for which an operator must decide. Skips with these reasons are stored as findings."""


@dataclass(frozen=True, slots=True)
class ConfirmedDeletes:
    """Information from the control plane about the blocks that peers report as deleted.

    `ordered` are the blocks that the control plane ordered to delete. `kept` are the blocks that
    still belong to a key.
    """

    ordered: frozenset[BlockId] = frozenset()
    kept: frozenset[BlockId] = frozenset()


@dataclass(frozen=True, slots=True)
class HolderCoverage:
    """Groups of datanodes that have a replica of the container but have sent no tree for the
    reconcile.

    - `silent` datanodes did not answer. Their replicas may contradict the peers.
    - `empty` datanodes are known to have no block of the container.
    - `dead` datanodes count as lost for the control plane. Repairs do not wait for them, because
      they may never return. Deletes wait for them.

    In addition, `echoed` has peers that did answer: a datanode that did not answer has reported the
    same root before, and therefore has the same data as this peer.
    """

    silent: frozenset[PeerId] = frozenset()
    empty: frozenset[PeerId] = frozenset()
    echoed: frozenset[PeerId] = frozenset()
    dead: frozenset[PeerId] = frozenset()

    @property
    def is_everybody(self) -> bool:
        """Return whether every datanode with a replica of the container has answered."""
        return not (self.silent or self.empty or self.dead)


@dataclass(frozen=True, slots=True)
class PeerView:
    """The tree of a peer, reduced to the differing blocks, and its differences from the local
    tree."""

    peer_id: PeerId
    tree: Tree
    divergence: Divergence


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """All actions in the order of block ids, and all skips.

    `covered_peers` are the peers that have no data which the local replica lacks after all actions.
    The container may adopt the commit ids of these peers, but of no others.
    """

    actions: tuple[Action, ...] = ()
    skips: tuple[Skip, ...] = ()
    covered_peers: frozenset[PeerId] = field(default_factory=frozenset)

    @property
    def fetch_bytes_max(self) -> int:
        """Total size in bytes of all chunks to repair. The repair fetches at most this number of
        bytes."""
        return sum(
            chunk.leaf.length_bytes
            for action in self.actions
            if isinstance(action, RepairBlock)
            for chunk in action.chunks
        )
