"""Pending reports and answers for the SCM. Any thread adds them, and the heartbeat sends them.

Changed replicas are stored as a set of container ids. Therefore, the memory is limited by the
number of replicas, even if the SCM is unavailable for a long time. An answer is removed when the
SCM has acknowledged it, or if more than STATUSES_KEPT_MAX answers are pending.
"""

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from merkle.replica import ContainerId
from suture.runtime.loop import WakeEvent
from suture.wire.v1 import scm_pb2

STATUSES_KEPT_MAX: Final = 10_000  # older answers are dropped if the SCM is unavailable
REGISTERED: Final = "registered"


class Outbox:
    """Pending reports and answers for one SCM. `bell` wakes the worker that sends heartbeats to
    this SCM."""

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
        """`registered`, or the text of the last error."""
        return self._state

    @property
    def clock_offset_ms(self) -> int:
        """Difference between the wall clocks of this host and the SCM, in milliseconds.

        It is positive if the clock of this host is ahead, and negative if it is behind. Only the
        part of the difference that the last call proves is included. It is 0 if the call proves no
        difference.
        """
        return self._clock_offset_ms

    def notify(self, container_id: ContainerId) -> None:
        """Queue a report of a replica that was created, changed or deleted."""
        self.put_back([container_id])
        self.bell.set()

    def report_all(self) -> None:
        """Request a full report. The SCM assumes that replicas which are not in the report are
        deleted."""
        with self._lock:
            self._is_full_wanted = True
        self.bell.set()

    def reregister(self) -> None:
        """Request a new registration of this datanode, which is followed by a full report."""
        with self._lock:
            self._must_register = True
        self.bell.set()

    def answer(self, status: scm_pb2.CommandStatus) -> None:
        """Queue an answer to a command."""
        with self._lock:
            self._statuses.append(status)
        self.bell.set()

    # Methods for the heartbeat.

    def note_state(self, state: str) -> None:
        """Record the state of the connection to the SCM: `registered`, or an error text."""
        self._state = state

    def note_clocks(self, *, sent_at_ms: int, answered_at_ms: int, received_at_ms: int) -> None:
        """Compute the clock offset from the wall clock times of one call.

        `sent_at_ms` and `received_at_ms` are times of this host, and `answered_at_ms` is the time
        of the SCM. The SCM has read its clock at some moment during the call. Therefore, a
        difference of the clocks is proved only if the time of the SCM is before the start or after
        the end of the call.
        """
        lead_ms = max(0, sent_at_ms - answered_at_ms)
        self._clock_offset_ms = lead_ms + min(0, received_at_ms - answered_at_ms)

    def pop_changed(self, count_max: int) -> list[ContainerId]:
        """Remove and return the ids of the replicas that changed first, at most `count_max`."""
        with self._lock:
            taken = list(islice(self._changed, count_max))
            for container_id in taken:
                del self._changed[container_id]
        return taken

    def put_back(self, container_ids: Iterable[ContainerId]) -> None:
        """Add replicas to the set of changed replicas. Replicas that are already in it keep their
        position."""
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
        """Return the oldest answers, at most `count_max`. `acknowledge` removes them later."""
        with self._lock:
            return list(islice(self._statuses, count_max))

    def acknowledge(self, statuses: Sequence[scm_pb2.CommandStatus]) -> bool:
        """Remove answers that the SCM has received. Return True if more reports or answers are
        pending.

        Answers that were already dropped because too many were pending are ignored.
        """
        told = {id(status) for status in statuses}
        with self._lock:
            while self._statuses and id(self._statuses[0]) in told:
                self._statuses.popleft()
            return bool(self._statuses) or bool(self._changed)


class OutboxFanout:
    """A set of outboxes, one for each SCM. All outboxes get the same content.

    Therefore, an SCM that does not answer does not delay the reports to the other SCMs.
    """

    def __init__(self, count: int) -> None:
        """Create `count` outboxes, one for each SCM."""
        self.boxes = tuple(Outbox() for _ in range(count))

    @property
    def state(self) -> str:
        """`registered` if this agent is registered with any SCM. Otherwise, the last error of the
        first SCM."""
        states = [box.state for box in self.boxes]
        return REGISTERED if REGISTERED in states else states[0]

    @property
    def clock_offset_ms(self) -> int:
        """Largest difference between the wall clocks of this host and of an SCM, in milliseconds.

        It is positive if the clock of this host is ahead, and negative if it is behind.
        """
        return max((box.clock_offset_ms for box in self.boxes), key=abs)

    def notify(self, container_id: ContainerId) -> None:
        """Queue a report to all SCMs of a replica that was created, changed or deleted."""
        for box in self.boxes:
            box.notify(container_id)

    def report_all(self) -> None:
        """Request a full report to all SCMs. They assume that replicas which are not in it are
        deleted."""
        for box in self.boxes:
            box.report_all()

    def report_soon(self) -> None:
        """Send a heartbeat to all SCMs now, with new measurements of the volumes."""
        for box in self.boxes:
            box.bell.set()

    def reregister(self) -> None:
        """Request a new registration with all SCMs, each followed by a full report."""
        for box in self.boxes:
            box.reregister()

    def answer(self, status: scm_pb2.CommandStatus) -> None:
        """Queue an answer to a command for all SCMs, because another SCM may have become the
        leader."""
        for box in self.boxes:
            box.answer(status)
