"""Chooses nodes for a new container's replicas. No I/O: nodes in, choice out.

The criteria, in order: enough space; a node without a recent failure that a writer reported; the
rack with the fewest replicas chosen so far; the least loaded node.
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
    """A node that could take a replica: healthy and in service."""

    datanode_id: str
    rack: str
    capacity_bytes: int
    available_bytes: int
    largest_volume_bytes: int  # free on the volume with most space: a replica is on one volume
    used_bytes: int
    scheduled_bytes: int  # promised to open containers, but not used yet
    has_failed_lately: bool = False

    def has_room(self, needed_bytes: int) -> bool:
        """Return True if a container of `needed_bytes` fits, besides the space that is already
        promised."""
        return (
            self.available_bytes - self.scheduled_bytes >= needed_bytes
            and self.largest_volume_bytes >= needed_bytes
        )

    @property
    def load(self) -> int:
        """Used and promised share of the capacity, in units of 1/LOAD_STEPS."""
        return (self.used_bytes + self.scheduled_bytes) * LOAD_STEPS // max(1, self.capacity_bytes)


def choose_nodes(
    candidates: Sequence[TargetCandidate],
    *,
    count: int,
    needed_bytes: int,
    container_id: int,
) -> list[str]:
    """Choose `count` different nodes, on as many different racks as possible.

    Raise UnavailableError(NOT_ENOUGH_NODES) with the reason if there are not enough nodes.
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
    """Return a sort key that breaks ties between nodes: constant for one container, different
    between containers."""
    return zlib.crc32(f"{container_id}:{datanode_id}".encode())
