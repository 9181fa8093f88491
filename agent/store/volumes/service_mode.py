"""What a volume is used for, kept on the volume itself: a restart changes nothing about it.

    IN_SERVICE ◄──► READ_ONLY            no new replicas, no new blocks; repairs and deletes go on
        ▲  └──────► RETIRING ──empty──► RETIRED      it may be pulled, and is remembered no more
        └───────────────┘ cancelled

The config says which directories are volumes, never what they are used for.

    <volume>/hdds/<cluster>/SERVICE      one line of JSON, and one with its CRC32C
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from agent.store.files.durable import replace_file
from agent.store.files.layout import Layout
from agent.store.volumes.sealed_file import read_sealed, sealed

NAME: Final = "SERVICE"
FILE_BYTES_MAX: Final = 4_096


class Mode(StrEnum):
    """What a volume is used for."""

    IN_SERVICE = "IN_SERVICE"
    READ_ONLY = "READ_ONLY"
    RETIRING = "RETIRING"
    RETIRED = "RETIRED"


@dataclass(frozen=True, slots=True)
class Service:
    """What a volume is used for; of one that retires, where to, and how full it was at first."""

    mode: Mode = Mode.IN_SERVICE
    target_id: str = ""
    """The volume that takes all; "": any other of this host."""
    total_bytes: int = 0
    since_ms: int = 0

    @property
    def takes_replicas(self) -> bool:
        """Whether new replicas may be made there."""
        return self.mode is Mode.IN_SERVICE


def read_service(layout: Layout) -> Service:
    """Return what a volume is used for. A file that cannot be read or believed says nothing: then
    nothing leaves the volume. Raises what `read_sealed` does."""
    fields = read_sealed(layout.cluster / NAME, FILE_BYTES_MAX)
    if fields is None or fields["mode"] not in set(Mode):
        return Service()
    return Service(
        Mode(fields["mode"]), fields["target_id"], fields["total_bytes"], fields["since_ms"]
    )


def write_service(layout: Layout, service: Service) -> None:
    """Write durably what a volume is used for. Raises SutureError."""
    replace_file(layout.cluster / NAME, sealed(asdict(service)))
