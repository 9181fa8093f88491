"""The required numbers of replicas of all containers, one byte each because there are millions."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from scm.state.container_queues import MARKED_MAX
from scm.state.entities import Container, ContainerState
from scm.state.records import NO_COUNT

_COUNT_MAX: Final = 254
_KEPT: Final = frozenset({ContainerState.QUASI_CLOSED, ContainerState.CLOSED})


class WantedCounts:
    """The required number of replicas of each container.

    The value is NO_COUNT for a container that is erasure-coded, or is being written or deleted,
    because one number is not sufficient for it.
    """

    def __init__(self) -> None:
        self._bytes = bytearray()  # each count minus NO_COUNT

    def of(self, container_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the required number of replicas of each container. All ids are allowed.

        0 means that the number is unknown. NO_COUNT means that the caller must read the container.
        """
        found = np.full(len(container_ids), NO_COUNT)
        is_near = container_ids < len(self._bytes)
        known = np.frombuffer(self._bytes, np.uint8)[container_ids[is_near]]
        found[is_near] = known.astype(np.int64) + NO_COUNT
        return found

    def update(self, container_id: int, container: Container | None) -> None:
        """Update the number of a container. `container` is None if it no longer exists."""
        self.set_all(np.array([container_id]), np.array([_count_of(container)]))

    def set_all(self, container_ids: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Set the numbers of several containers, with the values that `of` returns."""
        is_near = container_ids < MARKED_MAX
        ids, near = container_ids[is_near], counts[is_near]
        missing = int(ids.max(initial=0)) + 1 - len(self._bytes)
        self._bytes.extend(bytes(max(0, missing)))
        known = np.where(near > _COUNT_MAX, NO_COUNT, near) - NO_COUNT
        np.frombuffer(self._bytes, np.uint8)[ids] = known


def _count_of(container: Container | None) -> int:
    if container is None or container.scheme or container.state not in _KEPT:
        return NO_COUNT
    return container.replication_factor
