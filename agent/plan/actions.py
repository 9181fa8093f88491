"""Parts of a repair plan: actions that repair a replica, and reasons to skip a difference."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from merkle.diff import Divergence
from merkle.replica import BlockId
from merkle.tree import Leaf, Tree
from scanner.finding import DamageFault

PeerId = str  # a datanode id


class SkipReason(StrEnum):
    """Reason why the plan skips a difference or a finding."""

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
    """A chunk to repair: the correct version, the cause, and the sources, best first.

    `is_ordered` is True if an operator decided to trust the source more than the local row.
    """

    leaf: Leaf
    cause: str  # a DifferenceKind, or the DamageFault of a finding
    sources: tuple[PeerId, ...]
    is_ordered: bool = False


@dataclass(frozen=True, slots=True)
class RepairBlock:
    """Repair chunks of one block. `metadata_sources` are the peers to ask for the block's metadata,
    in this order.

    If `chunks` is empty, the block has no chunks; only its row is then created.
    """

    block_id: BlockId
    chunks: tuple[WantedChunk, ...]
    metadata_sources: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class AdoptTombstone:
    """Adopt a peer's confirmed delete: delete the local block, and use the checksum of the peer's
    tombstone. The local bytes go to quarantine."""

    block_id: BlockId
    checksum: int
    source: PeerId


@dataclass(frozen=True, slots=True)
class Trim:
    """Move the bytes after the block's last chunk to quarantine. This is safe because the block's
    chunks equal those of the peer `equal_to`."""

    block_id: BlockId
    equal_to: PeerId


@dataclass(frozen=True, slots=True)
class RewriteDescriptor:
    """Write a new descriptor with the facts in the index."""

    fault: DamageFault


@dataclass(frozen=True, slots=True)
class RebuildTree:
    """Replace the tree file, which is missing, damaged or stale. The scan at the end of the
    reconcile does this."""

    fault: DamageFault


Action = RepairBlock | AdoptTombstone | Trim | RewriteDescriptor | RebuildTree


@dataclass(frozen=True, slots=True)
class Skip:
    """A difference that the plan skips. If it does not concern a single chunk, `offset` is -1. If
    it does not concern a single block, `block_id` is -1.

    `is_harmless` is True if the local replica lacks no data because of the difference. If intact
    rows contradict each other, `versions` has the peers' versions of the chunk. `mine` is then the
    version of the local row, or None if there is no row.
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
        """Return whether replicas contradict each other, so that an operator has to decide."""
        return self.reason in CONTRADICTIONS


CONTRADICTIONS: Final = frozenset({SkipReason.CONTRADICTORY, SkipReason.UNCONFIRMED_DELETE})
"""Reasons for skips that only an operator can resolve. Such skips are stored as findings."""


@dataclass(frozen=True, slots=True)
class ConfirmedDeletes:
    """The control plane's answer about deletes that peers claim. `ordered` are the blocks that it
    ordered to delete, and `kept` are the blocks that a key still has."""

    ordered: frozenset[BlockId] = frozenset()
    kept: frozenset[BlockId] = frozenset()


@dataclass(frozen=True, slots=True)
class HolderCoverage:
    """Known holders of the container that are not among the peers that answered, by their state.

    - `silent` holders did not answer. They may contradict the peers.
    - `empty` holders are known to have no block.
    - `echoed` are peers: a silent holder has reported the same root as this peer before, so that
      the holder has the same data.
    - `dead` holders are on datanodes that the control plane considers lost. Repairs do not wait for
      them, because they may never return. Deletes wait for them.
    """

    silent: frozenset[PeerId] = frozenset()
    empty: frozenset[PeerId] = frozenset()
    echoed: frozenset[PeerId] = frozenset()
    dead: frozenset[PeerId] = frozenset()

    @property
    def is_everybody(self) -> bool:
        """Return whether all known holders are peers that answered."""
        return not (self.silent or self.empty or self.dead)


@dataclass(frozen=True, slots=True)
class PeerView:
    """A peer's tree, limited to the differing blocks, and its differences from the local tree."""

    peer_id: PeerId
    tree: Tree
    divergence: Divergence


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """All actions in block order, and all skips.

    `covered_peers` are the peers whose data the local replica has completely if all actions
    succeed. Only their commit ids may be adopted for the container.
    """

    actions: tuple[Action, ...] = ()
    skips: tuple[Skip, ...] = ()
    covered_peers: frozenset[PeerId] = field(default_factory=frozenset)

    @property
    def fetch_bytes_max(self) -> int:
        """Total size in bytes of the chunks to repair, which is the maximum that will be
        fetched."""
        return sum(
            chunk.leaf.length_bytes
            for action in self.actions
            if isinstance(action, RepairBlock)
            for chunk in action.chunks
        )
