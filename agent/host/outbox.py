"""Pending reports and answers for the SCM. Any thread adds them; the heartbeat sends them.

Changes are stored as a set of container ids. Their memory is therefore bounded by the number of
replicas, however long the SCM is unavailable. An answer is removed after the SCM has acknowledged
it, or if more than STATUSES_KEPT_MAX answers are pending.
"""

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from merkle.replica import ContainerId
from suture.runtime.loop import WakeEvent
from suture.wire.v1 import scm_pb2

STATUSES_KEPT_MAX: Final = 10_000  # if the SCM is unavailable, older answers are dropped
REGISTERED: Final = "registered"


class Outbox:
    """Pending reports and answers for one SCM. `bell` wakes the heartbeat worker of this SCM."""

    def __init__(self) -> None:
        self.bell = WakeEvent()
        self._lock = threading.Lock()
        self._changed: dict[ContainerId, None] = {}
        self._statuses: deque[scm_pb2.CommandStatus] = deque(maxlen=STATUSES_KEPT_MAX)
        self._is_full_wanted = False
        self._must_register = False
        self._state = "not registered yet"
        self._clock_offset_ms = 0

    # Methods for any thread.

    @property
    def state(self) -> str:
        """`registered`, or the last error."""
        return self._state

    @property
    def clock_offset_ms(self) -> int:
        """Milliseconds by which this host's wall clock is certainly ahead of the SCM's; negative =
        behind the SCM's."""
        return self._clock_offset_ms

    def notify(self, container_id: ContainerId) -> None:
        """Report this replica soon, because it is new, changed or deleted."""
        self.put_back([container_id])
        self.bell.set()

    def report_all(self) -> None:
        """Send a full report soon. The SCM considers replicas that are not in it as deleted."""
        with self._lock:
            self._is_full_wanted = True
        self.bell.set()

    def reregister(self) -> None:
        """Register again, then send a full report."""
        with self._lock:
            self._must_register = True
        self.bell.set()

    def answer(self, status: scm_pb2.CommandStatus) -> None:
        """Report the status of a command soon."""
        with self._lock:
            self._statuses.append(status)
        self.bell.set()

    # Methods for the heartbeat.

    def note_state(self, state: str) -> None:
        """Record the result of the last contact with the SCM."""
        self._state = state

    def note_clocks(self, *, sent_at_ms: int, answered_at_ms: int, received_at_ms: int) -> None:
        """Record the wall clock times of one call: of this host before and after, and of the SCM.

        The SCM read its clock at an unknown moment of the call. Only an SCM time outside the call's
        period therefore counts as a clock difference.
        """
        lead_ms = max(0, sent_at_ms - answered_at_ms)
        self._clock_offset_ms = lead_ms + min(0, received_at_ms - answered_at_ms)

    def pop_changed(self, count_max: int) -> list[ContainerId]:
        """Remove and return the oldest changes, at most `count_max`."""
        with self._lock:
            taken = list(islice(self._changed, count_max))
            for container_id in taken:
                del self._changed[container_id]
        return taken

    def put_back(self, container_ids: Iterable[ContainerId]) -> None:
        """Add changed replicas, for the first time or again."""
        with self._lock:
            for container_id in container_ids:
                self._changed.setdefault(container_id)

    def pop_reregister_request(self) -> bool:
        """Return whether a new registration was requested, and clear the request."""
        with self._lock:
            wished, self._must_register = self._must_register, False
        return wished

    def pop_full_report_request(self) -> bool:
        """Return whether a full report was requested, and clear the request."""
        with self._lock:
            wished, self._is_full_wanted = self._is_full_wanted, False
        return wished

    def oldest_answers(self, count_max: int) -> list[scm_pb2.CommandStatus]:
        """Return at most `count_max` of the oldest answers. They remain until `acknowledge`."""
        with self._lock:
            return list(islice(self._statuses, count_max))

    def acknowledge(self, statuses: Sequence[scm_pb2.CommandStatus]) -> bool:
        """Remove answers that the SCM has received. Return True if more reports or answers are
        pending.

        Ignore answers that a full outbox has dropped in the meantime.
        """
        told = {id(status) for status in statuses}
        with self._lock:
            while self._statuses and id(self._statuses[0]) in told:
                self._statuses.popleft()
            return bool(self._statuses) or bool(self._changed)


class OutboxFanout:
    """The outboxes, one per SCM. All get the same content, and a silent SCM delays no
    other SCM."""

    def __init__(self, count: int) -> None:
        """`count` is the number of SCMs."""
        self.boxes = tuple(Outbox() for _ in range(count))

    @property
    def state(self) -> str:
        """`registered` if the agent is registered with any SCM; otherwise the last error of the
        first SCM."""
        states = [box.state for box in self.boxes]
        return REGISTERED if REGISTERED in states else states[0]

    @property
    def clock_offset_ms(self) -> int:
        """The largest difference, by absolute value, between this host's wall clock and an SCM's,
        in milliseconds; negative = behind the SCM's."""
        return max((box.clock_offset_ms for box in self.boxes), key=abs)

    def notify(self, container_id: ContainerId) -> None:
        """Report this replica soon, because it is new, changed or deleted."""
        for box in self.boxes:
            box.notify(container_id)

    def report_all(self) -> None:
        """Send a full report soon. The SCM considers replicas that are not in it as deleted."""
        for box in self.boxes:
            box.report_all()

    def report_soon(self) -> None:
        """Send a heartbeat now, with new measurements of the volumes."""
        for box in self.boxes:
            box.bell.set()

    def reregister(self) -> None:
        """Register again, then send a full report."""
        for box in self.boxes:
            box.reregister()

    def answer(self, status: scm_pb2.CommandStatus) -> None:
        """Report the status of a command to all SCMs soon, because another SCM may have become the
        leader."""
        for box in self.boxes:
            box.answer(status)
