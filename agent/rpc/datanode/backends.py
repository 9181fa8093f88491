"""What the services need of those who do the work: the runtime hands them in."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from agent.rpc.v1 import datanode_pb2 as pb
from agent.store.index.facts import ReplicaFacts, ScanCommit
from merkle.replica import ContainerId


@dataclass(frozen=True, slots=True)
class ScanStep:
    """How far a scan is; the last step has its result."""

    bytes_read: int
    bytes_total: int
    commit: ScanCommit | None = None
    is_queued: bool = False


class ScanMode(Enum):
    """How a scan is asked for."""

    WAIT = "wait"  # now; clients go first
    FULL_SPEED = "full speed"  # now; clients wait
    QUEUE = "queue"  # after those that were asked for before; the only step says that it is in line


Scan = Callable[[ContainerId, Callable[[], bool], ScanMode], Iterable[ScanStep]]
"""Scan a container, yield steps, end early when the callable says so."""


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
