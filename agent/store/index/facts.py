"""What the store tells about replicas, volumes and its start: values that any thread may keep."""

from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Final

from agent.store.index.rows import ReplicaInfo, ReplicaRow
from merkle.replica import TREE_STATES, ContainerId, ReplicaState
from scanner.unreadable_verdict import KeptDoubts


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts(ReplicaInfo):
    """One replica, as reports and commands speak of it: what is known of it, and where it is.

    `tree` is absent while there is none: that is never 0 and never equal to anything.
    """

    container_id: ContainerId
    volume_id: str

    @property
    def is_empty(self) -> bool:
        """Whether the replica certainly holds nothing. A damaged index is no such certainty."""
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
    """One volume. `used_bytes` is what replicas hold; a failed volume says why in `error`."""

    volume_id: str
    path: Path
    capacity_bytes: int
    available_bytes: int
    used_bytes: int
    container_count: int
    failed: bool = False
    error: str = ""
    log_count: int = 0  # entries of its verification log
    log_checksum: str = ""  # of the last, in hexadecimal


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
