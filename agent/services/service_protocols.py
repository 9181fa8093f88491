"""Interfaces of the objects that execute the RPCs of the agent."""

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
    """Progress of a scan, in bytes. The last step has the result in `commit`."""

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
"""Function that scans a container and yields its progress.

The scan ends early if the callable argument returns True.
"""


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """Parameters of a random sample of chunks.

    `chunk_count` is the total number of chunks, which an earlier call has counted. `drawn_count` is
    the number of chunks to draw, and `seed` the seed of the random numbers. If both counts are 0,
    the chunks are only counted.
    """

    chunk_count: int
    drawn_count: int
    seed: int


@dataclass(slots=True)
class SampleResult:
    """Result of a random sample of chunks.

    `gone_count` is the number of drawn chunks that were deleted or rewritten after the count.
    `undecided_count` is the number of drawn chunks that could not be checked, because no two reads
    returned the same bytes, or because the chunk is temporarily unreadable.
    """

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
    """Progress of a sample. The last step has the result."""

    read_count: int
    result: SampleResult | None = None


Sample = Callable[[SampleSpec, Callable[[], bool]], Iterable[SampleStep]]
"""Function that draws a random sample of chunks and yields its progress.

The sample ends early if the callable argument returns True. The function raises SutureError if it
cannot draw the sample.
"""


class ScrubControl(Protocol):
    """Interface for operators to control the background scans."""

    def status(self, *, with_last_pass: bool = False) -> pb.ScrubStatusResponse:
        """Return the progress of the scan of each volume.

        If `with_last_pass` is True, also return the last complete pass over each volume.
        """
        ...

    def pause(self, volume_id: str, duration_s: float) -> None:
        """Pause the scan of one volume for `duration_s` seconds, or of all volumes if `volume_id`
        is "".

        Raise RefusedError if there is no such scan, or if the duration is invalid.
        """
        ...

    def resume(self, volume_id: str) -> None:
        """End the pause of the scan of one volume, or of all volumes if `volume_id` is ""."""
        ...

    def skip(self, container_id: ContainerId) -> None:
        """Cancel the background scan of a container if it is running."""
        ...


class VolumeControl(Protocol):
    """Interface for operators to change the volumes of this datanode."""

    def set_mode(self, volume_id: str, *, service: str, target_id: str) -> None:
        """Change the service mode of a volume: in service, read-only or retiring.

        Raise RefusedError if the volume or the mode is unknown.
        """
        ...

    def add(self, path: str) -> None:
        """Open a volume and serve its replicas. Raise SutureError if the volume cannot be used."""
        ...

    def status(self) -> Sequence[pb.VolumeStatus]:
        """Return the state of every volume."""
        ...

    def disks(self) -> Sequence[pb.DiskReport]:
        """Return the health reports of the disks of all volumes."""
        ...


class ImportedReplica(Protocol):
    """A replica that another datanode has sent."""

    @property
    def facts(self) -> ReplicaFacts:
        """Facts of the received replica, such as its state and its tree."""
        ...

    @property
    def damaged_chunk_count(self) -> int:
        """Number of damaged chunks. The sender has declared all of them as damaged before sending
        them."""
        ...


class Importer(Protocol):
    """Receives complete replicas from other datanodes (`agent.transfer.incoming`)."""

    def read_part(self, encoded: bytes) -> Any:  # the argument of `receive`
        """Decode one `ImportPart` message. Raise DecodeError if the message is invalid."""
        ...

    def receive(self, parts: Iterator[Any]) -> ImportedReplica:
        """Receive one complete replica. Raise SutureError if this fails; all its data is then
        removed."""
        ...
