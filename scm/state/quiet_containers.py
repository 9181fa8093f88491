"""Which containers need no look: nothing is to be done, and nothing about them changed since.

    look ──nothing to do──► add ──► skipped by every round
                             ▲ │
                     look ◄──┘ └── a row about it changes: the table itself takes the mark away

One byte a container, because there are millions of them and all but a few need nothing: a round
through a million of them looks for zeros in an array.
"""

from collections.abc import Set as AbstractSet

import numpy as np
from numpy.typing import NDArray


class Settled:
    """A set of container ids, made for `missing`. Callers hold the control plane's lock."""

    def __init__(self) -> None:
        self._marks = bytearray()

    def __contains__(self, container_id: int) -> bool:
        return container_id < len(self._marks) and bool(self._marks[container_id])

    def __len__(self) -> int:
        return int(np.count_nonzero(np.frombuffer(self._marks, np.uint8)))

    def add(self, container_id: int) -> None:
        """Mark a container this control plane made: the ids of those are small and dense."""
        self._extend(container_id)
        self._marks[container_id] = 1

    def add_all(self, container_ids: NDArray[np.int64]) -> None:
        """Mark containers this control plane made."""
        self._extend(int(container_ids.max(initial=0)))
        np.frombuffer(self._marks, np.uint8)[container_ids] = 1

    def discard(self, container_id: int) -> None:
        """Have a container looked at again; any id may be given."""
        if container_id < len(self._marks):
            self._marks[container_id] = 0

    def discard_all(self, container_ids: NDArray[np.int64]) -> None:
        """Have containers looked at again; any ids may be given."""
        known = container_ids[container_ids < len(self._marks)]
        np.frombuffer(self._marks, np.uint8)[known] = 0

    def copy(self) -> "Settled":
        """Return the same marks as they are now, which nothing takes away."""
        made = Settled()
        made._marks = self._marks.copy()
        return made

    def clear(self) -> None:
        """Have all containers looked at again."""
        self._marks.clear()

    def missing(self, first: int, stop: int, *, count_max: int) -> list[int]:
        """Return the ids from `first` on and before `stop` that are not marked; of many the first
        `count_max`."""
        marks = np.frombuffer(self._marks, np.uint8)[first:stop]
        found = np.flatnonzero(marks == 0)[:count_max] + first
        beyond = range(max(first, len(self._marks)), stop)[: count_max - len(found)]
        return [*found.tolist(), *beyond]

    def _extend(self, last_id: int) -> None:
        missing_count = last_id + 1 - len(self._marks)
        if missing_count > 0:
            self._marks.extend(bytes(missing_count))


class Stirred:
    """The containers about which something changed since they were taken from here. Callers hold
    the control plane's lock."""

    def __init__(self) -> None:
        self._ids: set[int] = set()

    def discard(self, container_id: int) -> None:
        """Note that something about a container changes."""
        self._ids.add(container_id)

    def discard_all(self, container_ids: NDArray[np.int64]) -> None:
        """Note the same of several."""
        self._ids.update(container_ids.tolist())

    def take(self, among: AbstractSet[int]) -> set[int]:
        """Return those that are `among` these; from now on none is noted."""
        taken, self._ids = self._ids, set()
        return taken & among
