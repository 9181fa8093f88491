"""Facts about replicas, volumes and recovery, as immutable values that threads can share."""

from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Final

from agent.store.index.rows import ReplicaInfo, ReplicaRow
from merkle.replica import TREE_STATES, ContainerId, ReplicaState
from scanner.unreadable_verdict import UnreadableRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts(ReplicaInfo):
    """The properties of a replica that reports and commands use, and the id of its volume.

    `tree` is None if the replica has no tree. The comparison of trees treats a missing tree as
    different from every other tree, and from another missing tree.
    """

    container_id: ContainerId
    volume_id: str

    @property
    def is_empty(self) -> bool:
        """Return whether the replica certainly has no data.

        Return False for an UNHEALTHY replica.
        """
        closed = self.state in TREE_STATES and self.state is not ReplicaState.UNHEALTHY
        return closed and self.block_count == 0 and self.used_bytes == 0


def facts_of(container_id: ContainerId, volume_id: str, row: ReplicaRow) -> ReplicaFacts:
    """Return the facts about a replica that its row contains."""
    known = dict(zip(_KNOWN, _KNOWN_OF(row), strict=True))
    return ReplicaFacts(container_id=container_id, volume_id=volume_id, **known)


_KNOWN: Final = tuple(field.name for field in fields(ReplicaInfo))
_KNOWN_OF: Final = attrgetter(*_KNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeFacts:
    """Facts about a volume.

    `used_bytes` is the size of the data of its replicas. `error` is the reason if the volume has
    failed, and "" otherwise.
    """

    volume_id: str
    path: Path
    capacity_bytes: int
    available_bytes: int
    used_bytes: int
    container_count: int
    failed: bool = False
    error: str = ""
    log_count: int = 0  # number of entries in its verification log
    log_checksum: str = ""  # checksum of the last entry, in hexadecimal
    rebuild_count: int = 0  # replicas of a lost index that is being rebuilt
    rebuild_left_count: int = 0  # number of these that are not loaded yet


@dataclass(frozen=True, slots=True)
class Unloadable:
    """A replica that has files on a volume, but is not served from there.

    The files are not changed.
    """

    container_id: ContainerId
    volume_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class RecoveryStep:
    """A step of the recovery at a start: work that was finished, rolled back or recorded."""

    volume_id: str
    container_id: ContainerId
    what: str


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """Result of the recovery at a start: the steps that were done."""

    steps: tuple[RecoveryStep, ...] = ()


@dataclass(frozen=True, slots=True)
class ScanBase:
    """State of a replica when its scan began.

    `commit_scan` rejects the result of the scan if the generation of the replica is no longer
    `generation`. `doubts` counts the scans of the replica in which a read failed.
    """

    generation: int
    facts: ReplicaFacts
    doubts: UnreadableRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanCommit:
    """Result of committing a scan.

    If `committed` is False, the replica changed during the scan, and the scan must run again.
    """

    committed: bool
    state_before: ReplicaState
    state_after: ReplicaState
    root_changed: bool
