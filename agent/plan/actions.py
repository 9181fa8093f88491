"""What a plan is made of: the actions that mend a replica, and why the rest is left alone."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from merkle.diff import Divergence
from merkle.replica import BlockId
from merkle.tree import Leaf, Tree
from scanner.finding import Fault

PeerId = str  # a datanode id


class SkipReason(StrEnum):
    """Why something that differs, or was found, is left as it is."""

    PEER_UNHEALTHY = "PEER_UNHEALTHY"  # healthy here; the peer repairs itself
    BOTH_UNHEALTHY = "BOTH_UNHEALTHY"  # nobody who answered has a healthy one
    UNCONFIRMED = "UNCONFIRMED"  # our row is lost, and a holder that could contradict is silent
    UNCONFIRMED_DELETE = "UNCONFIRMED_DELETE"  # deleted at a peer, and nobody vouches for it
    CONTRADICTORY = "CONTRADICTORY"  # intact rows that say different things of these bytes
    HOLE = "HOLE"  # what lies in front of the chunk is nowhere to be had
    LAYOUT_DIFFERS = "LAYOUT_DIFFERS"  # our row cuts these bytes into other chunks
    NO_HEALTHY_SOURCE = "NO_HEALTHY_SOURCE"  # found damaged here, and no peer has it
    NOT_EQUAL_TO_ANY_PEER = "NOT_EQUAL_TO_ANY_PEER"  # the trailing bytes may be the block's own
    UNKNOWN_BLOCK = "UNKNOWN_BLOCK"  # a block file without a row that no peer knows
    FOREIGN_FILE = "FOREIGN_FILE"  # not a block file; a person must look


@dataclass(frozen=True, slots=True)
class WantedChunk:
    """One chunk to get right: what it must be, why, and who has it, best source first.

    `is_ordered`: an operator trusts the source more than what is recorded here.
    """

    leaf: Leaf
    cause: str  # a DifferenceKind, or the Fault that a scan found
    sources: tuple[PeerId, ...]
    is_ordered: bool = False


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
    """A peer deleted this block, and that was confirmed: delete it here and keep the peer's
    checksum. What is here goes to quarantine."""

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

    `is_harmless`: nothing is missing here for it. `versions`: what peers say, where rows that are
    each intact contradict each other; `mine` is what our own row says, if we have one.
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
        """Whether replicas contradict each other here, so that a person has to decide."""
        return self.reason in CONTRADICTIONS


CONTRADICTIONS: Final = frozenset({SkipReason.CONTRADICTORY, SkipReason.UNCONFIRMED_DELETE})
"""Reasons that no repair and no waiting ends: they are kept as findings."""


@dataclass(frozen=True, slots=True)
class Deletes:
    """What the control plane knows of deletes that peers claim: those it ordered, and the blocks
    that a key still names."""

    ordered: frozenset[BlockId] = frozenset()
    kept: frozenset[BlockId] = frozenset()


@dataclass(frozen=True, slots=True)
class Heard:
    """Which known holders of the container are not among the peers that were heard.

    `silent` could contradict those that were; `empty` are known to have no block at all. `echoed`
    are peers whose root a holder reported before it fell silent: it has what they have. `dead` are
    on datanodes that the control plane has given up: nobody waits for them with what was lost, for
    who never returns would keep it lost; a delete waits for them as for the others.
    """

    silent: frozenset[PeerId] = frozenset()
    empty: frozenset[PeerId] = frozenset()
    echoed: frozenset[PeerId] = frozenset()
    dead: frozenset[PeerId] = frozenset()

    @property
    def is_everybody(self) -> bool:
        """Whether every known holder of a block is among the peers that were heard."""
        return not (self.silent or self.empty or self.dead)


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
