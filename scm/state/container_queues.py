"""Sets and queues of container ids, for containers that wait for a check and those that need none.

If the check of a container finds nothing to do, the container is added to a set, and later rounds
skip it. When a row about the container changes, the table removes the container from the set, so
that it is checked again.

There are millions of containers, and almost all of them need no check. Therefore, a set takes one
byte per container, and a round searches an array for zeros. When a datanode appears or dies, all
its containers are due at once, so queues are arrays, too.
"""

from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final

import numpy as np
from numpy.typing import NDArray

MARKED_MAX: Final = 2**26
"""Ids of this value or higher are not added to sets.

Datanodes may report such ids for containers that this control plane did not create, and a set takes
one byte for every id up to the highest.
"""


class ContainerBitmap:
    """A set of container ids that can also list the ids that are not in it (`missing`).

    Callers must hold the control plane's lock.
    """

    def __init__(self) -> None:
        self._marks = bytearray()

    def __contains__(self, container_id: int) -> bool:
        return container_id < len(self._marks) and bool(self._marks[container_id])

    def __len__(self) -> int:
        return int(np.count_nonzero(np.frombuffer(self._marks, np.uint8)))

    def which(self, container_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return one boolean per id: True if the id is in the set. All ids are allowed."""
        found = container_ids < len(self._marks)
        found[found] = np.frombuffer(self._marks, np.bool_)[container_ids[found]]
        return found

    def add(self, container_id: int) -> None:
        """Add a container id to the set.

        This control plane must have assigned the id, because the set takes one byte for every id up
        to the highest.
        """
        self._extend(container_id)
        self._marks[container_id] = 1

    def add_all(self, container_ids: NDArray[np.int64]) -> None:
        """Add container ids to the set. This control plane must have assigned them."""
        self._extend(int(container_ids.max(initial=0)))
        np.frombuffer(self._marks, np.uint8)[container_ids] = 1

    def discard(self, container_id: int) -> None:
        """Remove a container id from the set. All ids are allowed."""
        if container_id < len(self._marks):
            self._marks[container_id] = 0

    def discard_all(self, container_ids: NDArray[np.int64]) -> None:
        """Remove container ids from the set. All ids are allowed."""
        known = container_ids[container_ids < len(self._marks)]
        np.frombuffer(self._marks, np.uint8)[known] = 0

    def copy(self) -> "ContainerBitmap":
        """Return an independent copy of this set."""
        made = ContainerBitmap()
        made._marks = self._marks.copy()
        return made

    def clear(self) -> None:
        """Remove all ids from the set."""
        self._marks.clear()

    def missing(self, first: int, stop: int, *, count_max: int) -> list[int]:
        """Return the ids that are not in the set, at least `first` and below `stop`.

        At most the first `count_max` such ids are returned.
        """
        marks = np.frombuffer(self._marks, np.uint8)[first:stop]
        found = np.flatnonzero(marks == 0)[:count_max] + first
        beyond = range(max(first, len(self._marks)), stop)[: count_max - len(found)]
        return [*found.tolist(), *beyond]

    def _extend(self, last_id: int) -> None:
        missing_count = last_id + 1 - len(self._marks)
        if missing_count > 0:
            self._marks.extend(bytes(missing_count))


class DirtyContainers:
    """Collects the containers that have changed since the last call of `pop` or `pop_all`.

    Callers must hold the control plane's lock.
    """

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self._many: list[NDArray[np.int64]] = []

    def discard(self, container_id: int) -> None:
        """Record that a container changed.

        The method has the name of `ContainerBitmap.discard`, because tables call both in the same
        way.
        """
        self._ids.add(container_id)

    def discard_all(self, container_ids: NDArray[np.int64]) -> None:
        """Record that these containers changed."""
        self._many.append(container_ids)

    def pop(self, among: AbstractSet[int]) -> set[int]:
        """Return those of the recorded ids that are in `among`. Delete all recorded ids."""
        taken, many = self._ids & among, self._many
        self._ids, self._many = set(), []
        if many and among:
            asked = np.fromiter(among, np.int64, len(among))
            taken.update(asked[np.isin(asked, np.concatenate(many))].tolist())
        return taken

    def pop_all(self) -> NDArray[np.int64]:
        """Return and delete all recorded ids. An id may occur twice."""
        taken = np.concatenate((np.fromiter(self._ids, np.int64, len(self._ids)), *self._many))
        self._ids, self._many = set(), []
        return taken

    def __bool__(self) -> bool:
        return bool(self._ids or self._many)


class PriorityContainerQueue:
    """A queue of containers in which urgent containers precede all others.

    A container is in the queue at most once; only ids of MARKED_MAX or more may occur twice.
    Callers must hold the control plane's lock.
    """

    def __init__(self) -> None:
        self._urgent = ContainerQueue()
        self._others = ContainerQueue()

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    def add(self, container_ids: Iterable[int]) -> None:
        """Add these containers, except those that are already in the queue."""
        self.add_all(np.fromiter(container_ids, np.int64))

    def add_all(self, container_ids: NDArray[np.int64], *, is_urgent: bool = False) -> None:
        """Add an array of container ids, except ids that are already in the queue.

        With `is_urgent`, ids that are already in the queue become urgent. All ids are allowed.
        """
        if is_urgent:
            self._others.leave(container_ids)
            self._urgent.join(container_ids)
        else:
            self._others.join(container_ids[~self._urgent.which(container_ids)])

    def pop(self, count_max: int) -> list[int]:
        """Remove and return the first containers of the queue, at most `count_max`."""
        taken = self._urgent.pop(count_max)
        return taken + self._others.pop(count_max - len(taken))


class ContainerQueue:
    """A queue of containers in the order of their arrival.

    If a container leaves the queue and joins it again, it may get its earlier position. Callers
    must hold the control plane's lock.
    """

    def __init__(self) -> None:
        self._parts: deque[NDArray[np.int64]] = deque()  # some ids in them may have left
        self._marked = ContainerBitmap()  # waiting ids, except those too large for a mark
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def which(self, container_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return one boolean per id: True if the container is in the queue.

        It is always False for ids of MARKED_MAX or more.
        """
        return self._marked.which(container_ids)

    def join(self, container_ids: NDArray[np.int64]) -> None:
        """Add these containers, except those that are already in the queue."""
        found = distinct(container_ids)
        found = found[~self.which(found)]
        if len(found):
            self._marked.add_all(found[found < MARKED_MAX])
            self._parts.append(found)
            self._count += len(found)

    def leave(self, container_ids: NDArray[np.int64]) -> None:
        """Remove these containers from the queue, except ids of MARKED_MAX or more."""
        found = distinct(container_ids)
        found = found[self.which(found)]
        self._marked.discard_all(found)
        self._count -= len(found)

    def pop(self, count_max: int) -> list[int]:
        """Remove and return the first containers of the queue, at most `count_max`."""
        taken: list[int] = []
        while self._parts and len(taken) < count_max:
            part = self._parts.popleft()
            room = count_max - len(taken)
            if len(part) > room:
                self._parts.appendleft(part[room:])
            first = part[:room]  # a part of millions is examined only this far
            found = first[self.which(first) | (first >= MARKED_MAX)]
            self._marked.discard_all(found)
            taken += found.tolist()
        self._count -= len(taken)
        return taken


def distinct(*ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct ids, sorted.

    `np.unique` would take many times as long, because it hashes.
    """
    ascending = np.sort(np.concatenate(ids), kind="stable")
    once: NDArray[np.int64] = ascending[np.diff(ascending, prepend=0) != 0]
    return once
