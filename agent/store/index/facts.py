"""What the store tells about replicas, volumes and its start: values that any thread may keep."""

from dataclasses import dataclass
from pathlib import Path

from agent.store.index.doubts import KeptDoubts
from agent.store.index.rows import ReplicaRow
from merkle.replica import TREE_STATES, Bcsid, ContainerId, ReplicaState
from merkle.tree import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """One replica, as reports and commands speak of it.

    `tree` is absent while there is none: that is never 0 and never equal to anything.
    """

    container_id: ContainerId
    state: ReplicaState
    former_state: ReplicaState | None
    replica_index: int
    bcsid: Bcsid
    bytes_used: int
    block_count: int
    origin_datanode_id: str
    volume_id: str
    tree: Summary | None
    data_scan_at_ms: int
    finding_count: int
    contradiction_count: int = 0  # beside it: what a peer's intact row, or tombstone, contradicts

    @property
    def is_empty(self) -> bool:
        """Whether the replica certainly holds nothing. A damaged index is no such certainty."""
        closed = self.state in TREE_STATES and self.state is not ReplicaState.UNHEALTHY
        return closed and self.block_count == 0 and self.bytes_used == 0


def facts_of(container_id: ContainerId, volume_id: str, row: ReplicaRow) -> ReplicaFacts:
    """Return the facts in a replica's row."""
    return ReplicaFacts(
        container_id=container_id,
        state=row.state,
        former_state=row.former_state,
        replica_index=row.replica_index,
        bcsid=row.bcsid,
        bytes_used=row.bytes_used,
        block_count=row.block_count,
        origin_datanode_id=row.origin_datanode_id,
        volume_id=volume_id,
        tree=row.tree,
        data_scan_at_ms=row.data_scan_at_ms,
        finding_count=row.finding_count,
        contradiction_count=row.contradiction_count,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeFacts:
    """One volume. `used_bytes` is what replicas hold; a failed volume says why in `error`."""

    volume_id: str
    path: Path
    capacity_bytes: int
    available_bytes: int
    used_bytes: int
    container_count: int
    failed: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class Unloadable:
    """A replica whose files are there and cannot be served; they stay as they are."""

    container_id: ContainerId
    volume_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class RecoveryStep:
    """One thing that the start had to finish, take back or note."""

    volume_id: str
    container_id: ContainerId
    what: str


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What the start found and did."""

    steps: tuple[RecoveryStep, ...] = ()
    unloadable: tuple[Unloadable, ...] = ()


@dataclass(frozen=True, slots=True)
class ScanBase:
    """What a scan starts from; `generation` goes back into `commit_scan`, and `doubts` keeps what
    could not be read."""

    generation: int
    facts: ReplicaFacts
    doubts: KeptDoubts


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanCommit:
    """What became of a scan. Not committed: something changed meanwhile, and it must run again."""

    committed: bool
    state_before: ReplicaState
    state_after: ReplicaState
    root_changed: bool
