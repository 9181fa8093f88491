"""What became of one reconcile, as a value: a class per peer, a class per chunk.

The wire's `ReconcileOutcome` carries it to the SCM and to `suture explain`; words here are words
there.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from merkle.replica import BlockId, ContainerId, ReplicaState
from merkle.tree import Summary


class Result(StrEnum):
    """The verdict on the whole reconcile of one replica."""

    CONVERGED = "converged"  # all that differed is healed, and every peer was asked
    NOTHING_TO_DO = "nothing_to_do"  # no peer has anything that is not whole here
    PARTIAL = "partial"  # something was left alone, failed, or a peer gave no answer
    NON_CONVERGENT = "non_convergent"  # repaired before, and the tree did not change
    INTERRUPTED = "interrupted"  # stopped between chunks; the next run goes on from there
    NO_PEER = "no_peer"  # nobody to learn from: nothing is known, nothing was judged


class PeerState(StrEnum):
    """What one peer was to this reconcile."""

    USED = "used"  # differs, and its tree took part in the plan
    EQUAL = "equal"
    UNREACHABLE = "unreachable"
    NO_TREE = "no_tree"  # unknown is never equal and never a reason to repair
    NOT_COMPARABLE = "not_comparable"  # its tree folds by another algorithm
    REFUSED = "refused"  # it answered with an error
    BAD_DATA = "bad_data"  # what it served was not what its tree says


class ChunkResult(StrEnum):
    """What became of one chunk, block or file."""

    REPAIRED = "repaired"  # fetched, verified, written
    SALVAGED = "salvaged"  # its bytes were still here: nothing was fetched
    TRIMMED = "trimmed"
    ADOPTED = "adopted"  # a peer's tombstone
    REWRITTEN = "rewritten"  # descriptor or tree
    SKIPPED = "skipped"
    FAILED = "failed"


class Proof(StrEnum):
    """What of the replica was read after a repair."""

    NONE = ""  # nothing: it changed nothing, or was interrupted
    CHANGED = "changed"  # what was repaired; the rest was read lately, and is again at its slot
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class PeerOutcome:
    """One peer: what it was to us and what it cost."""

    peer_id: str
    state: PeerState
    message: str = ""
    tree_bytes: int = 0
    data_bytes: int = 0
    chunk_count: int = 0


@dataclass(frozen=True, slots=True)
class ChunkOutcome:
    """One chunk; `offset` and `length_bytes` are -1 where it is about a whole block or file."""

    block_id: BlockId
    offset: int
    length_bytes: int
    difference: str  # a DifferenceKind or a Fault
    result: ChunkResult
    source: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """All of it. `chunks` holds the first of them only, `chunk_count` says how many there were."""

    container_id: ContainerId
    result: Result
    peers: tuple[PeerOutcome, ...] = ()
    chunks: tuple[ChunkOutcome, ...] = ()
    chunk_count: int = 0
    fetched_bytes: int = 0
    tree_fetched_bytes: int = 0
    tree_before: Summary | None = None
    tree_after: Summary | None = None
    state_before: ReplicaState | None = None
    state_after: ReplicaState | None = None
    duration_ms: int = 0
    proof: Proof = Proof.NONE
    differences: dict[str, int] = field(default_factory=dict)
