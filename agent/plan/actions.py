"""Elements of a plan: the actions that repair a replica, and the reasons to skip the rest."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from merkle.diff import Divergence
from merkle.replica import BlockId
from merkle.tree import Leaf, Tree
from scanner.finding import DamageFault

PeerId = str  # a datanode id


class SkipReason(StrEnum):
    """Reason why a difference or a finding is left alone."""

    PEER_UNHEALTHY = "PEER_UNHEALTHY"  # healthy here; the peer repairs itself
    BOTH_UNHEALTHY = "BOTH_UNHEALTHY"  # no datanode that answered has a healthy one
    UNCONFIRMED = "UNCONFIRMED"  # our row is lost, and a possible contradictor is silent
    UNCONFIRMED_DELETE = "UNCONFIRMED_DELETE"  # deleted at a peer, without confirmation
    CONTRADICTORY = "CONTRADICTORY"  # intact rows that disagree about these bytes
    HOLE = "HOLE"  # the bytes before the chunk are not available anywhere
    LAYOUT_DIFFERS = "LAYOUT_DIFFERS"  # our row divides these bytes into other chunks
    NO_HEALTHY_SOURCE = "NO_HEALTHY_SOURCE"  # damaged here, and no peer has it
    NOT_EQUAL_TO_ANY_PEER = "NOT_EQUAL_TO_ANY_PEER"  # the trailing bytes may belong to the block
    UNKNOWN_BLOCK = "UNKNOWN_BLOCK"  # a block file without a row that no peer knows
    FOREIGN_FILE = "FOREIGN_FILE"  # not a block file; an operator must check it


@dataclass(frozen=True, slots=True)
class WantedChunk:
    """A chunk to repair: its correct version, the cause, and its sources, best first.

    `is_ordered` means that an operator trusts the source more than the local record.
    """

    leaf: Leaf
    cause: str  # a DifferenceKind, or the Fault that a scan found
    sources: tuple[PeerId, ...]
    is_ordered: bool = False


@dataclass(frozen=True, slots=True)
class RepairBlock:
    """Repair chunks of one block; ask `metadata_sources` in turn for the block's metadata.

    `chunks` is empty for a block without chunks, which is recorded as well.
    """

    block_id: BlockId
    chunks: tuple[WantedChunk, ...]
    metadata_sources: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class AdoptTombstone:
    """Adopt a peer's confirmed delete: delete this block here, and keep the peer's checksum. The
    local bytes go to quarantine."""

    block_id: BlockId
    checksum: int
    source: PeerId


@dataclass(frozen=True, slots=True)
class Trim:
    """Move the bytes behind the last chunk away, because the block's chunks equal a peer's."""

    block_id: BlockId
    equal_to: PeerId


@dataclass(frozen=True, slots=True)
class RewriteDescriptor:
    """Rewrite the descriptor from the index."""

    fault: DamageFault


@dataclass(frozen=True, slots=True)
class RebuildTree:
    """The tree file is missing, damaged or stale: the scan that ends a reconcile replaces it."""

    fault: DamageFault


Action = RepairBlock | AdoptTombstone | Trim | RewriteDescriptor | RebuildTree


@dataclass(frozen=True, slots=True)
class Skip:
    """A difference left alone. `offset` and `block_id` are -1 if it concerns no chunk or block.

    `is_harmless` means that nothing is missing here because of it. `versions` are the peers'
    versions if intact rows contradict each other; `mine` is our own row's version, if there is one.
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
        """Return whether replicas contradict each other here, so that an operator has to decide."""
        return self.reason in CONTRADICTIONS


CONTRADICTIONS: Final = frozenset({SkipReason.CONTRADICTORY, SkipReason.UNCONFIRMED_DELETE})
"""Reasons that neither a repair nor time can resolve; they are kept as findings."""


@dataclass(frozen=True, slots=True)
class ConfirmedDeletes:
    """The control plane's knowledge of deletes that peers claim: those it ordered, and the blocks
    that a key still names."""

    ordered: frozenset[BlockId] = frozenset()
    kept: frozenset[BlockId] = frozenset()


@dataclass(frozen=True, slots=True)
class HolderCoverage:
    """Known holders of the container that are not among the peers that answered.

    `silent` holders could contradict the peers; `empty` ones are known to have no block. `echoed`
    are peers whose root a holder reported before it fell silent, so that it has the same data.
    `dead` ones are on datanodes that the control plane considers lost: repairs do not wait for
    them, because data would stay lost if they never return; deletes wait for them as for the
    others.
    """

    silent: frozenset[PeerId] = frozenset()
    empty: frozenset[PeerId] = frozenset()
    echoed: frozenset[PeerId] = frozenset()
    dead: frozenset[PeerId] = frozenset()

    @property
    def is_everybody(self) -> bool:
        """Return whether every known holder of a block is among the peers that answered."""
        return not (self.silent or self.empty or self.dead)


@dataclass(frozen=True, slots=True)
class PeerView:
    """A peer's tree of the differing blocks, and its divergence."""

    peer_id: PeerId
    tree: Tree
    divergence: Divergence


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """All actions, in block order, and all skips.

    `covered_peers` are those with no difference left when the actions succeed. Only they may lend
    their commit id to the container.
    """

    actions: tuple[Action, ...] = ()
    skips: tuple[Skip, ...] = ()
    covered_peers: frozenset[PeerId] = field(default_factory=frozenset)

    @property
    def wanted_bytes(self) -> int:
        """Bytes of the chunks to repair, which is the most that will be fetched."""
        return sum(
            chunk.leaf.length_bytes
            for action in self.actions
            if isinstance(action, RepairBlock)
            for chunk in action.chunks
        )
