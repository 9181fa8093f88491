"""Chooses datanodes for the replicas of a new container. No I/O.

A datanode must have enough space. Among these datanodes, the choice prefers in this order:
datanodes to which no writer recently failed to write, racks with the fewest chosen datanodes, and
the least loaded datanodes.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from suture.errors import Code, UnavailableError, size_text

# Fractions of a node's capacity are compared in these steps; finer differences are noise.
LOAD_STEPS: Final = 1_000


@dataclass(frozen=True, slots=True)
class TargetCandidate:
    """A healthy datanode in service, which can receive a new replica."""

    datanode_id: str
    rack: str
    capacity_bytes: int
    available_bytes: int
    largest_volume_bytes: int  # free on the volume with most space: a replica is on one volume
    used_bytes: int
    scheduled_bytes: int  # promised to open containers, but not used yet
    has_failed_lately: bool = False

    def has_room(self, needed_bytes: int) -> bool:
        """Return True if a container of `needed_bytes` fits.

        Space that is reserved for open containers and pending copies does not count as free.
        """
        return (
            self.available_bytes - self.scheduled_bytes >= needed_bytes
            and self.largest_volume_bytes >= needed_bytes
        )

    @property
    def load(self) -> int:
        """Return the used and reserved share of the capacity, in units of 1/LOAD_STEPS."""
        return (self.used_bytes + self.scheduled_bytes) * LOAD_STEPS // max(1, self.capacity_bytes)


def choose_nodes(
    candidates: Sequence[TargetCandidate],
    *,
    count: int,
    needed_bytes: int,
    container_id: int,
) -> list[str]:
    """Choose `count` different datanodes on as many racks as possible, and return their ids.

    Raise UnavailableError(NOT_ENOUGH_NODES) with the reason if there are not enough datanodes.
    """
    roomy = [candidate for candidate in candidates if candidate.has_room(needed_bytes)]
    if len(roomy) < count:
        raise UnavailableError(
            Code.NOT_ENOUGH_NODES,
            f"cannot place replicas: {count} datanodes with {size_text(needed_bytes)} free are "
            f"needed, {len(candidates)} are healthy and in service, {len(roomy)} have space",
            hint="start more datanodes, add space, or lower replication_factor",
        )
    chosen: list[TargetCandidate] = []
    while len(chosen) < count:
        racks = [candidate.rack for candidate in chosen]
        chosen.append(
            min(
                (candidate for candidate in roomy if candidate not in chosen),
                key=lambda candidate: (
                    candidate.has_failed_lately,
                    racks.count(candidate.rack),
                    candidate.load,
                    tie(container_id, candidate.datanode_id),
                ),
            )
        )
    return [candidate.datanode_id for candidate in chosen]


def tie(container_id: int, datanode_id: str) -> int:
    """Return a sort key that decides between datanodes that are otherwise equal.

    The order is always the same for one container, but differs between containers.
    """
    return zlib.crc32(f"{container_id}:{datanode_id}".encode())
