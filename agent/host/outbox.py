"""What is to be told to the SCM: filled by any thread, emptied by the heartbeat.

What changed is remembered as a set of container ids, so that memory stays bounded by the number of
replicas however long the SCM is away. Nothing is forgotten before the SCM has answered.
"""

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from agent.rpc.v1 import scm_pb2
from agent.runtime.loop import Bell
from merkle.replica import ContainerId

STATUSES_KEPT_MAX: Final = 10_000  # while the SCM is away; older ones are dropped
REGISTERED: Final = "registered"


class Outbox:
    """News for one SCM. `bell` wakes its heartbeat."""

    def __init__(self) -> None:
        self.bell = Bell()
        self._lock = threading.Lock()
        self._changed: dict[ContainerId, None] = {}
        self._statuses: deque[scm_pb2.CommandStatus] = deque(maxlen=STATUSES_KEPT_MAX)
        self._is_full_wanted = False
        self._must_register = False
        self._state = "not registered yet"

    # For any thread.

    @property
    def state(self) -> str:
        """`registered`, or why not."""
        return self._state

    def notify(self, container_id: ContainerId) -> None:
        """Report this replica soon: it is new, changed, or gone."""
        self.put_back([container_id])
        self.bell.ring()

    def report_all(self) -> None:
        """Make a full report soon: what it does not name is no longer here."""
        with self._lock:
            self._is_full_wanted = True
        self.bell.ring()

    def reregister(self) -> None:
        """Register again, and then report all."""
        with self._lock:
            self._must_register = True
        self.bell.ring()

    def answer(self, status: scm_pb2.CommandStatus) -> None:
        """Report what became of a command, soon."""
        with self._lock:
            self._statuses.append(status)
        self.bell.ring()

    # For the heartbeat.

    def note_state(self, state: str) -> None:
        """Note how the SCM was reached last."""
        self._state = state

    def take_changed(self, count_max: int) -> list[ContainerId]:
        """Take out the oldest changes, at most `count_max`."""
        with self._lock:
            taken = list(islice(self._changed, count_max))
            for container_id in taken:
                del self._changed[container_id]
        return taken

    def put_back(self, container_ids: Iterable[ContainerId]) -> None:
        """Note changes, again or for the first time."""
        with self._lock:
            for container_id in container_ids:
                self._changed.setdefault(container_id)

    def take_wish_to_register(self) -> bool:
        """Return whether somebody wants to register again, and forget it."""
        with self._lock:
            wished, self._must_register = self._must_register, False
        return wished

    def take_wish_for_all(self) -> bool:
        """Return whether somebody wants a full report, and forget it."""
        with self._lock:
            wished, self._is_full_wanted = self._is_full_wanted, False
        return wished

    def oldest_answers(self, count_max: int) -> list[scm_pb2.CommandStatus]:
        """Return the oldest answers; they stay until `told`."""
        with self._lock:
            return list(islice(self._statuses, count_max))

    def told(self, statuses: Sequence[scm_pb2.CommandStatus]) -> bool:
        """Forget answers that the SCM has; return whether there is more to say.

        While they were on their way a full memory may have dropped some of them already.
        """
        told = {id(status) for status in statuses}
        with self._lock:
            while self._statuses and id(self._statuses[0]) in told:
                self._statuses.popleft()
            return bool(self._statuses) or bool(self._changed)


class Outboxes:
    """The same news for every SCM: one that does not answer keeps nobody from the others."""

    def __init__(self, count: int) -> None:
        """`count`: how many SCMs there are."""
        self.boxes = tuple(Outbox() for _ in range(count))

    @property
    def state(self) -> str:
        """`registered`, or why not with any SCM."""
        states = [box.state for box in self.boxes]
        return REGISTERED if REGISTERED in states else states[0]

    def notify(self, container_id: ContainerId) -> None:
        """Report this replica soon: it is new, changed, or gone."""
        for box in self.boxes:
            box.notify(container_id)

    def report_all(self) -> None:
        """Make a full report soon: what it does not name is no longer here."""
        for box in self.boxes:
            box.report_all()

    def report_soon(self) -> None:
        """Send a heartbeat now, with what the volumes measure."""
        for box in self.boxes:
            box.bell.ring()

    def reregister(self) -> None:
        """Register again, and report all."""
        for box in self.boxes:
            box.reregister()

    def answer(self, status: scm_pb2.CommandStatus) -> None:
        """Report what became of a command, soon: whoever leads by then needs to know."""
        for box in self.boxes:
            box.answer(status)
