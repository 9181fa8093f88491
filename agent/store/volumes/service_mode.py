"""Service of a volume, stored on the volume itself, so that it survives restarts.

    IN_SERVICE ◄──► READ_ONLY            no new replicas, no new blocks; repairs and deletes go on
        ▲  └──────► RETIRING ──empty──► RETIRED      may be removed, and is no longer listed
        └───────────────┘ cancelled

The config names the volumes, never their service.

    <volume>/hdds/<cluster>/SERVICE      one line of JSON, and one with its CRC32C
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from agent.store.files.layout import VolumeLayout
from agent.store.volumes.sealed_file import read_sealed, sealed
from suture.runtime.durable import replace_file

NAME: Final = "SERVICE"
FILE_BYTES_MAX: Final = 4_096


class VolumeMode(StrEnum):
    """Service of a volume."""

    IN_SERVICE = "IN_SERVICE"
    READ_ONLY = "READ_ONLY"
    RETIRING = "RETIRING"
    RETIRED = "RETIRED"


@dataclass(frozen=True, slots=True)
class VolumeUse:
    """Service of a volume; for a retiring one its target, and its fill at the start."""

    mode: VolumeMode = VolumeMode.IN_SERVICE
    target_id: str = ""
    """The volume that takes all replicas; "" = any other volume of this host."""
    total_bytes: int = 0
    since_ms: int = 0

    @property
    def takes_replicas(self) -> bool:
        """Return whether new replicas may be created there."""
        return self.mode is VolumeMode.IN_SERVICE


def read_service(layout: VolumeLayout) -> VolumeUse:
    """Return the service of a volume. An unreadable or invalid file counts as none, so that no
    replica leaves the volume. Raise as `read_sealed` does."""
    fields = read_sealed(layout.cluster / NAME, FILE_BYTES_MAX)
    if fields is None or fields["mode"] not in set(VolumeMode):
        return VolumeUse()
    return VolumeUse(
        VolumeMode(fields["mode"]), fields["target_id"], fields["total_bytes"], fields["since_ms"]
    )


def write_service(layout: VolumeLayout, service: VolumeUse) -> None:
    """Write the service of a volume durably. Raise SutureError."""
    replace_file(layout.cluster / NAME, sealed(asdict(service)))
