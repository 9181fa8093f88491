"""What waits to be repaired: the most urgent first, and nothing is tried that must wait anyway.

    put ──► in order ──choose──► tried ──put_back, a little less urgent──► in order
               ▲                   └──all its datanodes are busy──► asleep ──┐
               ├──────────────────── one of them has room ───────────────────┘
               └── woken ◄── at rest ◄── there is no datanode for it

A turn costs what it chooses and one question for each datanode for which something sleeps, and not
what waits: after a rack died that may be a million containers.
"""

from collections.abc import Callable, Collection, Iterable
from heapq import heapify, heappop, heappush
from typing import Final

SLACK: Final = 1_000  # entries of the order that are out of date and not worth a new one


class RepairQueue:
    """Containers that lack or have too much of something. Callers hold the control plane's lock."""

    def __init__(self, has_room: Callable[[str], bool]) -> None:
        """`has_room` says whether a datanode may be given more of this to do now."""
        self._has_room = has_room
        self.found: dict[int, tuple[int, int]] = {}
        """By container: its weight, the smallest is the most urgent, and how often it was tried."""
        self._order: list[tuple[int, int]] = []  # a heap; what `found` says otherwise is void
        self._chosen: list[int] = []  # by the last turn: in no order until the next
        self._datanodes: dict[int, tuple[str, ...]] = {}  # that were all busy at the last try
        self._asleep: set[int] = set()
        self._asleep_for: dict[str, set[int]] = {}
        self._resting: set[int] = set()  # asleep, for no datanode of those that there are

    def __len__(self) -> int:
        return len(self.found)

    def __contains__(self, container_id: int) -> bool:
        return container_id in self.found

    def put(self, container_id: int, weight: int) -> None:
        """Let a container wait that was looked at just now; if it does already, as long as it did.

        Whom it waited for is forgotten: it may have other datanodes now.
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
        """Let a container wait for the next turn that was chosen in this one and tried."""
        self.found[container_id] = (weight, tries)

    def discard(self, container_ids: Iterable[int]) -> None:
        """Take containers out, if they are there."""
        for container_id in container_ids:
            if self.found.pop(container_id, None) is not None:
                self._forget_datanodes(container_id)

    def choose(self, count: int) -> list[int]:
        """Return up to `count` containers to try in this turn, the most urgent first."""
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

    def sleep(self, container_id: int, datanode_ids: Collection[str]) -> None:
        """Choose a container no more until one of these datanodes has room."""
        self._forget_datanodes(container_id)
        self._datanodes[container_id] = tuple(datanode_ids)
        self._asleep.add(container_id)
        for datanode_id in datanode_ids:
            self._asleep_for.setdefault(datanode_id, set()).add(container_id)

    def rest(self, container_id: int) -> None:
        """Choose a container no more until all that rest are woken, or it is looked at again."""
        self._forget_datanodes(container_id)
        self._asleep.add(container_id)
        self._resting.add(container_id)

    @property
    def has_resting(self) -> bool:
        """Whether any container rests."""
        return bool(self._resting)

    def wake_resting(self) -> None:
        """Put into order what rests: there may be a datanode for it now."""
        resting, self._resting = self._resting, set()
        self._asleep -= resting
        for container_id in resting:
            self._enter(container_id)

    def sleeps_again(self, container_id: int) -> bool:
        """Whether all the datanodes for which a container slept last are busy again; it sleeps."""
        datanode_ids = self._datanodes.get(container_id, ())
        if not datanode_ids or any(map(self._has_room, datanode_ids)):
            return False
        self.sleep(container_id, datanode_ids)
        return True

    def _wake(self) -> None:
        """Put into order what slept for datanodes that have room."""
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
