"""What the services need of those who do the work: the runtime hands them in."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from agent.rpc.v1 import datanode_pb2 as pb
from agent.store.index.facts import ReplicaFacts, ScanCommit
from merkle.replica import ContainerId
from scanner.finding import Finding

UNREAD_KEPT_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class ScanStep:
    """How far a scan is; the last step has its result."""

    bytes_read: int
    bytes_total: int
    commit: ScanCommit | None = None
    is_queued: bool = False
    is_waiting: bool = False  # other requested scans have to end first


class ScanMode(Enum):
    """How a scan is asked for."""

    WAIT = "wait"  # now; clients go first
    FULL_SPEED = "full speed"  # now; clients wait
    QUEUE = "queue"  # after those that were asked for before; the only step says that it is in line


Scan = Callable[[ContainerId, Callable[[], bool], ScanMode], Iterable[ScanStep]]
"""Scan a container, yield steps, end early when the callable says so."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A sample that somebody wants: so many of the chunks that were counted, by a seed; none of
    none: they are only counted."""

    chunk_count: int
    drawn_count: int
    seed: int


@dataclass(slots=True)
class Sampled:
    """What was counted and drawn. `gone_count` of what was drawn: deleted or written anew since it
    was counted. `undecided_count`: no two reads agreed, or it could not be read here and now."""

    chunk_count: int = 0
    read_count: int = 0
    bytes_read: int = 0
    bad_count: int = 0
    undecided_count: int = 0
    gone_count: int = 0
    without_checksum_count: int = 0
    damaged_row_count: int = 0
    bad: list[Finding] = field(default_factory=list)
    unread_count: int = 0  # replicas that nothing could be drawn from
    unread: list[str] = field(default_factory=list)

    def note_unread(self, why: str) -> None:
        """Note a replica whose chunks could not be counted or read, and why."""
        self.unread_count += 1
        if len(self.unread) < UNREAD_KEPT_MAX:
            self.unread.append(why)


@dataclass(frozen=True, slots=True)
class SampleStep:
    """How far a sample is; the last step has its result."""

    read_count: int
    result: Sampled | None = None


Sample = Callable[[Draw, Callable[[], bool]], Iterable[SampleStep]]
"""Draw a sample, yield steps, end early when the callable says so. Raise SutureError."""


class Scrub(Protocol):
    """The background scans, as an operator steers them."""

    def status(self) -> pb.ScrubStatusResponse:
        """Return how far every volume is."""
        ...

    def pause(self, volume_id: str, duration_s: float) -> None:
        """Pause one volume's scan, or all with "". Raise Refused."""
        ...

    def resume(self, volume_id: str) -> None:
        """End the pause of one volume, or of all with ""."""
        ...

    def skip(self, container_id: ContainerId) -> None:
        """Cancel the scan of a container, if it is under way."""
        ...


class Volumes(Protocol):
    """The volumes of this datanode, as an operator steers them."""

    def steer(self, volume_id: str, *, service: str, target_id: str) -> None:
        """Use a volume otherwise from now on. Raise Refused."""
        ...

    def add(self, path: str) -> None:
        """Open a volume and serve it. Raise SutureError."""
        ...

    def status(self) -> Sequence[pb.VolumeStatus]:
        """Return how every volume is."""
        ...

    def disks(self) -> Sequence[pb.DiskReport]:
        """Return what the disks themselves and the kernel say."""
        ...


class Arrived(Protocol):
    """A replica that came from another datanode."""

    @property
    def facts(self) -> ReplicaFacts:
        """What it is here."""
        ...

    @property
    def data_bytes(self) -> int:
        """Bytes of chunk data that came, before compression."""
        ...

    @property
    def damaged_chunk_count(self) -> int:
        """How much damage came with it, all of it declared."""
        ...


class Importer(Protocol):
    """Receives replicas (`agent.transfer.incoming`)."""

    def read_part(self, encoded: bytes) -> Any:  # what `receive` takes
        """Decode one `ImportPart`. Raise DecodeError."""
        ...

    def receive(self, parts: Iterator[Any]) -> Arrived:
        """Receive one replica whole. Raise SutureError, with nothing of it left."""
        ...
