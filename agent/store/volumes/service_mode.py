"""Service mode of a volume, stored on the volume itself, so that it survives restarts.

- IN_SERVICE: the volume accepts new replicas.
- READ_ONLY: no new replicas and no new blocks. Repairs and deletes continue.
- RETIRING: replicas are moved to other volumes. An operator can cancel this.
- RETIRED: the volume is empty and can be removed. It is not opened at the next start.

The file is `<volume>/hdds/<cluster>/SERVICE`. The config lists the volumes, never their mode.
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
    """Service mode of a volume."""

    IN_SERVICE = "IN_SERVICE"
    READ_ONLY = "READ_ONLY"
    RETIRING = "RETIRING"
    RETIRED = "RETIRED"


@dataclass(frozen=True, slots=True)
class VolumeUse:
    """Service mode of a volume since `since_ms`.

    For a retiring volume, `target_id` is the volume to which its replicas are moved, and
    `total_bytes` the number of bytes in use when the retirement began.
    """

    mode: VolumeMode = VolumeMode.IN_SERVICE
    target_id: str = ""
    """Volume to which all replicas are moved, or "" for any other volume of this host."""
    total_bytes: int = 0
    since_ms: int = 0

    @property
    def takes_replicas(self) -> bool:
        """Return whether the volume accepts new replicas."""
        return self.mode is VolumeMode.IN_SERVICE


def read_service(layout: VolumeLayout) -> VolumeUse:
    """Return the service mode of a volume.

    A mode file that is invalid or cannot be read counts as IN_SERVICE, so that a damaged file
    causes no moves of replicas. Raise the same errors as `read_sealed`.
    """
    fields = read_sealed(layout.cluster / NAME, FILE_BYTES_MAX)
    if fields is None or fields["mode"] not in set(VolumeMode):
        return VolumeUse()
    return VolumeUse(
        VolumeMode(fields["mode"]), fields["target_id"], fields["total_bytes"], fields["since_ms"]
    )


def write_service(layout: VolumeLayout, service: VolumeUse) -> None:
    """Write the service mode of a volume durably. Raise SutureError if the write fails."""
    replace_file(layout.cluster / NAME, sealed(asdict(service)))
