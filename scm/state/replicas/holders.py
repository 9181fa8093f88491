"""Indexes of the slots in the replica arena, by container and by datanode.

- The slots of a container's replicas form a linked list. One array has the first slot of each
  container. Another array has the slot that follows each slot, or 0 at the end of a list.
- Each datanode has an array of its container ids, sorted, and an array with their slots.

Ids of containers that this control plane made are small and without large gaps, so they are indexes
of the first array. Other reported ids are in a dictionary.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from scm.state.replicas.arena import NOBODY, Slots

DENSE_MIN: Final = 1 << 20
DENSE_FACTOR: Final = 8
"""A container id below this factor times the number of replicas is an index of the array."""

Ids = NDArray[np.int64]


class ReplicaChains:
    """Index from containers to the slots of their replicas.

    A slot is the number of a row in the replica arena. The slots of a container are in no order.
    """

    def __init__(self) -> None:
        self._first = np.zeros(0, np.uint32)
        self._next = np.zeros(1024, np.uint32)
        self._odd: dict[int, int] = {}  # first slots of container ids beyond the array

    def of(self, container_id: int) -> list[int]:
        """Return the slots of a container's replicas."""
        slot = self._head(container_id)
        found = []
        following = self._next
        while slot != NOBODY:
            found.append(slot)
            slot = int(following[slot])
        return found

    def of_all(self, container_ids: Ids) -> tuple[NDArray[np.int64], Slots]:
        """Return the slots of the replicas of many containers, grouped by container.

        Two arrays have one value per replica: the position of its container in `container_ids`, and
        its slot.
        """
        slot = self._heads(container_ids)
        owner = np.flatnonzero(slot)
        slot = slot[owner]
        owners, slots = [], []
        while len(owner):
            owners.append(owner)
            slots.append(slot)
            slot = self._next[slot].astype(np.int64)
            is_more = slot != NOBODY
            owner, slot = owner[is_more], slot[is_more]
        if not owners:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        owner, slot = np.concatenate(owners), np.concatenate(slots)
        order = np.argsort(owner, kind="stable")
        return owner[order], slot[order]

    def link(self, container_ids: Ids, slots: Slots) -> None:
        """Add one slot to each of these containers. The container ids must be distinct."""
        if not len(slots):
            return
        self._reach(container_ids, int(slots.max()))
        self._next[slots] = self._heads(container_ids)
        is_dense = container_ids < len(self._first)
        self._first[container_ids[is_dense]] = slots[is_dense]
        if not is_dense.all():
            odd = zip(container_ids[~is_dense].tolist(), slots[~is_dense].tolist(), strict=True)
            self._odd.update(odd)

    def unlink(self, container_id: int, slot: int) -> None:
        """Remove a slot from its container."""
        following = int(self._next[slot])
        before = self._head(container_id)
        if before == slot:
            self._set_head(container_id, following)
        else:
            while int(self._next[before]) != slot:
                before = int(self._next[before])
            self._next[before] = following

    def container_ids(self) -> Ids:
        """Return the ids of the containers that have a replica, in no order."""
        odd = np.array(list(self._odd), np.int64)
        return np.concatenate((np.flatnonzero(self._first), odd))

    def _head(self, container_id: int) -> int:
        if container_id < len(self._first):
            return int(self._first[container_id])
        return self._odd.get(container_id, NOBODY)

    def _heads(self, container_ids: Ids) -> Slots:
        is_dense = container_ids < len(self._first)
        if is_dense.all():
            return self._first[container_ids].astype(np.int64)
        found = np.zeros(len(container_ids), np.int64)
        found[is_dense] = self._first[container_ids[is_dense]]
        found[~is_dense] = [self._odd.get(n, NOBODY) for n in container_ids[~is_dense].tolist()]
        return found

    def _set_head(self, container_id: int, slot: int) -> None:
        if container_id < len(self._first):
            self._first[container_id] = slot
        elif slot == NOBODY:
            self._odd.pop(container_id, None)
        else:
            self._odd[container_id] = slot

    def _reach(self, container_ids: Ids, slot: int) -> None:
        """Enlarge the arrays so that they include `slot` and the small container ids."""
        if slot >= len(self._next):
            self._next = _grown(self._next, slot)
        near = container_ids[container_ids < DENSE_MIN + DENSE_FACTOR * slot]
        last = int(near.max(initial=0))
        if last >= len(self._first):
            self._first = _grown(self._first, last)
            for odd in [n for n in self._odd if n < len(self._first)]:
                self._first[odd] = self._odd.pop(odd)


class NodeReplicas:
    """The replicas of one datanode: their container ids, sorted, and their slots.

    A slot is the number of a row in the replica arena.
    """

    def __init__(self) -> None:
        self.ids: Ids = np.zeros(0, np.int64)
        self.slots: Slots = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self.ids)

    def find(self, container_ids: Ids) -> Slots:
        """Return the slot of the datanode's replica of each of these containers.

        The value is NOBODY (0) if the datanode has no replica of the container.
        """
        places, is_here = self._places(container_ids)
        slots = np.zeros(len(container_ids), np.int64)
        slots[is_here] = self.slots[places[is_here]]
        return slots

    def ids_except(self, container_ids: Ids) -> Ids:
        """Return the containers of the datanode except those in `container_ids`."""
        places, is_here = self._places(container_ids)
        return np.delete(self.ids, places[is_here])

    def add(self, container_ids: Ids, slots: Slots) -> None:
        """Add containers with their slots.

        The ids must be sorted, and the datanode must not have them yet.
        """
        if not len(self.ids) or (len(container_ids) and container_ids[0] > self.ids[-1]):
            self.ids = np.concatenate((self.ids, container_ids))
            self.slots = np.concatenate((self.slots, slots))
            return
        places = np.searchsorted(self.ids, container_ids)
        self.ids = np.insert(self.ids, places, container_ids)
        self.slots = np.insert(self.slots, places, slots)

    def drop(self, container_ids: Ids) -> None:
        """Remove containers of the datanode. All of them must be present."""
        places = np.searchsorted(self.ids, container_ids)
        self.ids = np.delete(self.ids, places)
        self.slots = np.delete(self.slots, places)

    def _places(self, container_ids: Ids) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the positions of these containers in `ids`.

        The second array has one boolean per container: True if the container is present.
        """
        places = np.searchsorted(self.ids, container_ids)
        is_here = places < len(self.ids)
        is_here[is_here] = self.ids[places[is_here]] == container_ids[is_here]
        return places, is_here


def _grown(values: NDArray[np.uint32], place: int) -> NDArray[np.uint32]:
    """Return a copy of the array that is at least twice as long and includes the index `place`."""
    grown = np.zeros(max(place + 1, 2 * len(values)), np.uint32)
    grown[: len(values)] = values
    return grown
