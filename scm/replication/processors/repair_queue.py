"""The queue of containers to repair, most urgent first.

A step chooses the most urgent containers and tries to repair them. A container that could not be
repaired is put back with a slightly lower urgency. Two kinds of containers are not chosen:

- A container sleeps if all datanodes that could do the work are busy. It is queued again when one
  of them has free capacity.
- A container rests if no datanode is suitable. It is queued again when another datanode becomes
  suitable.

The cost of a step depends on the number of chosen containers and of busy datanodes, but not on the
length of the queue. After the failure of a rack, the queue may contain a million containers.
"""

from collections.abc import Callable, Collection, Iterable
from heapq import heapify, heappop, heappush
from typing import Final

SLACK: Final = 1_000  # outdated heap entries before the heap is rebuilt


class ReplicationQueue:
    """Containers with missing or surplus replicas, most urgent first.

    Callers must hold the control plane's lock.
    """

    def __init__(self, has_room: Callable[[str], bool]) -> None:
        """Create an empty queue.

        `has_room` returns True if a datanode can get more work of this kind.
        """
        self._has_room = has_room
        self.found: dict[int, tuple[int, int]] = {}
        """For each container, its weight and the number of tries.

        The container with the smallest weight is the most urgent.
        """
        self._order: list[tuple[int, int]] = []  # a heap; entries that differ from `found` are void
        self._chosen: list[int] = []  # chosen by the last step; not in `_order` until the next
        self._datanodes: dict[int, tuple[str, ...]] = {}  # datanodes, all busy at the last try
        self._asleep: set[int] = set()
        self._asleep_for: dict[str, set[int]] = {}
        self._resting: set[int] = set()  # asleep, because no present datanode is suitable

    def __len__(self) -> int:
        return len(self.found)

    def __contains__(self, container_id: int) -> bool:
        return container_id in self.found

    def put(self, container_id: int, weight: int) -> None:
        """Queue a container that was just checked.

        If the container is already queued with the same weight, it keeps its position. If it waits
        for busy datanodes, it is tried again, because other datanodes may be suitable now.
        """
        known = self.found.get(container_id)
        is_awake = container_id not in self._asleep
        self._forget_datanodes(container_id)
        if known is None or known[0] != weight:
            self.found[container_id] = (weight, 1 if known is None else known[1])
        elif is_awake:
            return
        self._enter(container_id)

    def put_back(self, container_id: int, *, weight: int, tries: int) -> None:
        """Set the weight and the number of tries of a container that was tried in this step.

        The next step queues it again.
        """
        self.found[container_id] = (weight, tries)

    def discard(self, container_ids: Iterable[int]) -> None:
        """Remove these containers from the queue.

        Containers that are not in the queue are ignored.
        """
        for container_id in container_ids:
            if self.found.pop(container_id, None) is not None:
                self._forget_datanodes(container_id)

    def choose(self, count: int) -> list[int]:
        """Return up to `count` containers to try in this step, most urgent first."""
        for container_id in self._chosen:
            self._enter(container_id)
        self._wake()
        if len(self._order) > 2 * len(self.found) + SLACK:
            self._order = [(sum(self.found[n]), n) for n in self.found if n not in self._asleep]
            heapify(self._order)
        chosen: dict[int, None] = {}
        while self._order and len(chosen) < count:
            urgency, container_id = heappop(self._order)
            known = self.found.get(container_id)
            if known is not None and sum(known) == urgency and container_id not in self._asleep:
                chosen[container_id] = None
        self._chosen = list(chosen)
        return list(chosen)

    def park_until_room(self, container_id: int, datanode_ids: Collection[str]) -> None:
        """Do not choose a container before one of these datanodes has free capacity."""
        self._forget_datanodes(container_id)
        self._datanodes[container_id] = tuple(datanode_ids)
        self._asleep.add(container_id)
        for datanode_id in datanode_ids:
            self._asleep_for.setdefault(datanode_id, set()).add(container_id)

    def park(self, container_id: int) -> None:
        """Do not choose a container before `wake_resting` is called or it is checked again."""
        self._forget_datanodes(container_id)
        self._asleep.add(container_id)
        self._resting.add(container_id)

    @property
    def has_resting(self) -> bool:
        """Return True if any container waits until another datanode becomes suitable."""
        return bool(self._resting)

    @property
    def resting_count(self) -> int:
        """Return the number of containers that wait until another datanode becomes suitable."""
        return len(self._resting)

    @property
    def sleeping_count(self) -> int:
        """Return the number of containers that wait until a busy datanode has free capacity."""
        return len(self._asleep) - len(self._resting)

    def is_resting(self, container_id: int) -> bool:
        """Return True if a container waits until another datanode becomes suitable."""
        return container_id in self._resting

    def sleeps_for(self, container_id: int) -> tuple[str, ...]:
        """Return the busy datanodes for which a container waits.

        Return an empty tuple if it does not wait for busy datanodes.
        """
        return self._datanodes.get(container_id, ()) if container_id in self._asleep else ()

    def wake_resting(self) -> None:
        """Queue the containers again that waited for another datanode to become suitable."""
        resting, self._resting = self._resting, set()
        self._asleep -= resting
        for container_id in resting:
            self._enter(container_id)

    def sleeps_again(self, container_id: int) -> bool:
        """Let a container wait again if all the busy datanodes for which it waited are still busy.

        Return True if it waits.
        """
        datanode_ids = self._datanodes.get(container_id, ())
        if not datanode_ids or any(map(self._has_room, datanode_ids)):
            return False
        self.park_until_room(container_id, datanode_ids)
        return True

    def _wake(self) -> None:
        """Queue the containers that waited for a busy datanode which now has free capacity."""
        for datanode_id in [node for node in self._asleep_for if self._has_room(node)]:
            for container_id in self._asleep_for.pop(datanode_id):
                if container_id in self._asleep:
                    self._asleep.discard(container_id)
                    self._enter(container_id)

    def _enter(self, container_id: int) -> None:
        known = self.found.get(container_id)
        if known is not None and container_id not in self._asleep:
            heappush(self._order, (sum(known), container_id))

    def _forget_datanodes(self, container_id: int) -> None:
        for datanode_id in self._datanodes.pop(container_id, ()):
            sleepers = self._asleep_for.get(datanode_id, set())
            sleepers.discard(container_id)
            if not sleepers:
                self._asleep_for.pop(datanode_id, None)
        self._asleep.discard(container_id)
        self._resting.discard(container_id)
