"""Interfaces of the backends that execute the RPCs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from agent.store.index.facts import ReplicaFacts, ScanCommit
from merkle.replica import ContainerId
from scanner.finding import ScanFinding
from suture.wire.v1 import datanode_pb2 as pb

UNREAD_KEPT_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class ScanStep:
    """Progress of a scan. The last step has its result."""

    bytes_read: int
    bytes_total: int
    commit: ScanCommit | None = None
    is_queued: bool = False
    is_waiting: bool = False  # the scan waits for other requested scans


class ScanMode(Enum):
    """Time and speed of a requested scan."""

    WAIT = "wait"  # scan now, and yield to client reads
    FULL_SPEED = "full speed"  # scan now, and do not yield to client reads
    QUEUE = "queue"  # scan after earlier requests; the only step confirms the request


Scan = Callable[[ContainerId, Callable[[], bool], ScanMode], Iterable[ScanStep]]
"""Function that scans a container and yields steps. The scan ends early if the callable argument
returns True."""


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """Parameters of a sample: the number of chunks to draw, the total number of chunks at an
    earlier count, and the seed. If both numbers are 0, the chunks are only counted."""

    chunk_count: int
    drawn_count: int
    seed: int


@dataclass(slots=True)
class SampleResult:
    """Result of a sample. `gone_count` is the number of drawn chunks that were deleted or rewritten
    after the count. `undecided_count` is the number of drawn chunks without a verdict, because no
    two reads were equal or the chunk is temporarily unreadable."""

    chunk_count: int = 0
    read_count: int = 0
    bytes_read: int = 0
    bad_count: int = 0
    undecided_count: int = 0
    gone_count: int = 0
    without_checksum_count: int = 0
    damaged_row_count: int = 0
    bad: list[ScanFinding] = field(default_factory=list)
    unread_count: int = 0  # replicas whose chunks could not be counted or read
    unread: list[str] = field(default_factory=list)

    def note_unread(self, why: str) -> None:
        """Record a replica whose chunks could not be counted or read, with the reason."""
        self.unread_count += 1
        if len(self.unread) < UNREAD_KEPT_MAX:
            self.unread.append(why)


@dataclass(frozen=True, slots=True)
class SampleStep:
    """Progress of a sample. The last step has its result."""

    read_count: int
    result: SampleResult | None = None


Sample = Callable[[SampleSpec, Callable[[], bool]], Iterable[SampleStep]]
"""Function that draws a sample and yields steps. The sample ends early if the callable argument
returns True. The function raises SutureError if it cannot draw the sample."""


class ScrubControl(Protocol):
    """Operator control of the background scans."""

    def status(self, *, with_last_pass: bool = False) -> pb.ScrubStatusResponse:
        """Return the progress of every volume's scan, and its last full pass if requested."""
        ...

    def pause(self, volume_id: str, duration_s: float) -> None:
        """Pause the scan of one volume, or of all if `volume_id` is "". Raise RefusedError if there
        is no such scan, or the duration is invalid."""
        ...

    def resume(self, volume_id: str) -> None:
        """End the pause of one volume, or of all if `volume_id` is ""."""
        ...

    def skip(self, container_id: ContainerId) -> None:
        """Cancel the running background scan of a container, if there is one."""
        ...


class VolumeControl(Protocol):
    """Operator control of this datanode's volumes."""

    def set_mode(self, volume_id: str, *, service: str, target_id: str) -> None:
        """Change the service mode of a volume. Raise RefusedError if the volume or the mode is
        invalid."""
        ...

    def add(self, path: str) -> None:
        """Open a volume and serve its replicas. Raise SutureError if it cannot be used."""
        ...

    def status(self) -> Sequence[pb.VolumeStatus]:
        """Return the state of every volume."""
        ...

    def disks(self) -> Sequence[pb.DiskReport]:
        """Return the health reports of the disks of all volumes."""
        ...


class ImportedReplica(Protocol):
    """A replica imported from another datanode."""

    @property
    def facts(self) -> ReplicaFacts:
        """Facts of the imported replica."""
        ...

    @property
    def damaged_chunk_count(self) -> int:
        """Number of damaged chunks. The sender of the replica has reported all of them as
        damaged."""
        ...


class Importer(Protocol):
    """Receives replicas (`agent.transfer.incoming`)."""

    def read_part(self, encoded: bytes) -> Any:  # the argument of `receive`
        """Decode one `ImportPart`. Raise DecodeError if it is invalid."""
        ...

    def receive(self, parts: Iterator[Any]) -> ImportedReplica:
        """Receive one complete replica. Raise SutureError if this fails; nothing of the replica
        then remains."""
        ...
