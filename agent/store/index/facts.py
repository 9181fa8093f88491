"""Facts about replicas, volumes and the start; immutable values for any thread."""

from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Final

from agent.store.index.rows import ReplicaInfo, ReplicaRow
from merkle.replica import TREE_STATES, ContainerId, ReplicaState
from scanner.unreadable_verdict import UnreadableRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts(ReplicaInfo):
    """A replica for reports and commands: its facts, and its volume.

    `tree` is None while there is no tree, which never counts as 0 or as equal to another.
    """

    container_id: ContainerId
    volume_id: str

    @property
    def is_empty(self) -> bool:
        """Return whether the replica certainly holds nothing; False if its index is damaged."""
        closed = self.state in TREE_STATES and self.state is not ReplicaState.UNHEALTHY
        return closed and self.block_count == 0 and self.bytes_used == 0


def facts_of(container_id: ContainerId, volume_id: str, row: ReplicaRow) -> ReplicaFacts:
    """Return the facts in a replica's row."""
    known = dict(zip(_KNOWN, _KNOWN_OF(row), strict=True))
    return ReplicaFacts(container_id=container_id, volume_id=volume_id, **known)


_KNOWN: Final = tuple(field.name for field in fields(ReplicaInfo))
_KNOWN_OF: Final = attrgetter(*_KNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeFacts:
    """A volume. `used_bytes` counts the replicas; `error` is the reason of a failed volume."""

    volume_id: str
    path: Path
    capacity_bytes: int
    available_bytes: int
    used_bytes: int
    container_count: int
    failed: bool = False
    error: str = ""
    log_count: int = 0  # entries of its verification log
    log_checksum: str = ""  # of the last entry, in hexadecimal


@dataclass(frozen=True, slots=True)
class Unloadable:
    """A replica whose files exist and cannot be served; they stay as they are."""

    container_id: ContainerId
    volume_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class RecoveryStep:
    """A step of the start's recovery: something finished, rolled back or recorded."""

    volume_id: str
    container_id: ContainerId
    what: str


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """Result of the start's recovery."""

    steps: tuple[RecoveryStep, ...] = ()


@dataclass(frozen=True, slots=True)
class ScanBase:
    """Starting state of a scan; `generation` is passed to `commit_scan`, and `doubts` records
    failed reads."""

    generation: int
    facts: ReplicaFacts
    doubts: UnreadableRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanCommit:
    """Result of committing a scan. If not committed, something changed meanwhile, and it must run
    again."""

    committed: bool
    state_before: ReplicaState
    state_after: ReplicaState
    root_changed: bool
