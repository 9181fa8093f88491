"""Result of one reconcile: an overall result, a state for each peer, and a result for each chunk.

The message `ReconcileOutcome` sends this result to the SCM and to `suture explain`, with the same
words.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from merkle.replica import BlockId, ContainerId, ReplicaState
from merkle.tree_summary import TreeSummary


class ReconcileVerdict(StrEnum):
    """Overall result of the reconcile of one replica."""

    CONVERGED = "converged"  # all differences are repaired, and every peer was asked
    NOTHING_TO_DO = "nothing_to_do"  # this replica lacks nothing that a peer has
    PARTIAL = "partial"  # a difference was skipped, a repair failed, or a peer did not answer
    NON_CONVERGENT = "non_convergent"  # earlier repairs had no effect on the tree
    INTERRUPTED = "interrupted"  # stopped between two chunks; the next run continues there
    NO_PEER = "no_peer"  # there was no peer to compare with


class PeerState(StrEnum):
    """The role of one peer in a reconcile, or the reason why it had no role."""

    USED = "used"  # the peer's tree differs, and took part in the plan
    EQUAL = "equal"
    UNREACHABLE = "unreachable"
    NO_TREE = "no_tree"  # a peer without a known tree is not equal, but no reason to repair
    NOT_COMPARABLE = "not_comparable"  # the peer's tree uses another checksum algorithm
    REFUSED = "refused"  # the peer answered with an error
    BAD_DATA = "bad_data"  # the peer's data did not match its tree


class ChunkResult(StrEnum):
    """Result of the repair of one chunk, block or file."""

    REPAIRED = "repaired"  # fetched from a peer, verified and written
    SALVAGED = "salvaged"  # the block's bytes were still on the disk; nothing was fetched
    TRIMMED = "trimmed"
    ADOPTED = "adopted"  # a peer's tombstone was adopted
    REWRITTEN = "rewritten"  # the descriptor or the tree was rewritten
    SKIPPED = "skipped"
    FAILED = "failed"


class ReadBack(StrEnum):
    """The amount of data that was read after a repair to verify it."""

    NONE = ""  # no read: nothing was changed, or the reconcile was interrupted
    CHANGED = "changed"  # only the repaired chunks; the others were scanned recently
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class PeerOutcome:
    """The state of one peer in a reconcile, and the number of bytes and chunks fetched from it."""

    peer_id: str
    state: PeerState
    message: str = ""
    tree_bytes: int = 0
    data_bytes: int = 0
    chunk_count: int = 0


@dataclass(frozen=True, slots=True)
class ChunkOutcome:
    """Result of the repair of one chunk. `offset` and `length_bytes` are -1 for a complete block or
    file."""

    block_id: BlockId
    offset: int
    length_bytes: int
    difference: str  # a DifferenceKind or a DamageFault
    result: ChunkResult
    source: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The complete result of a reconcile.

    `chunks` has only the first outcomes. `chunk_count` is the number of all outcomes.
    """

    container_id: ContainerId
    result: ReconcileVerdict
    peers: tuple[PeerOutcome, ...] = ()
    chunks: tuple[ChunkOutcome, ...] = ()
    chunk_count: int = 0
    fetched_bytes: int = 0
    tree_fetched_bytes: int = 0
    tree_before: TreeSummary | None = None
    tree_after: TreeSummary | None = None
    state_before: ReplicaState | None = None
    state_after: ReplicaState | None = None
    duration_ms: int = 0
    proof: ReadBack = ReadBack.NONE
    differences: dict[str, int] = field(default_factory=dict)
