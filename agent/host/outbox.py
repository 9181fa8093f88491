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

STATUSES_KEPT_MAX: Final = 10_000  # older answers are dropped if the SCM is unavailable
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
        """Proved part of the difference between this host's wall clock and the SCM's, in
        milliseconds: positive if this host's clock is ahead, negative if it is behind, 0 if the
        last call proves no difference."""
        return self._clock_offset_ms

    def notify(self, container_id: ContainerId) -> None:
        """Queue a report of this replica, because it is new, changed or deleted."""
        self.put_back([container_id])
        self.bell.set()

    def report_all(self) -> None:
        """Request a full report. The SCM considers replicas that are not in it as deleted."""
        with self._lock:
            self._is_full_wanted = True
        self.bell.set()

    def reregister(self) -> None:
        """Request a new registration, which is followed by a full report."""
        with self._lock:
            self._must_register = True
        self.bell.set()

    def answer(self, status: scm_pb2.CommandStatus) -> None:
        """Queue the status of a command."""
        with self._lock:
            self._statuses.append(status)
        self.bell.set()

    # Methods for the heartbeat.

    def note_state(self, state: str) -> None:
        """Record the result of the last contact with the SCM."""
        self._state = state

    def note_clocks(self, *, sent_at_ms: int, answered_at_ms: int, received_at_ms: int) -> None:
        """Record the wall clock times of one call: this host's before and after, and the SCM's.

        The SCM read its clock at an unknown moment of the call. Therefore, only an SCM time before
        the start or after the end of the call proves a difference of the clocks.
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
        """Add changed replicas to the changes. Replicas that are already among them keep their
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
        """Return at most `count_max` of the oldest answers. They stay in the outbox until
        `acknowledge`."""
        with self._lock:
            return list(islice(self._statuses, count_max))

    def acknowledge(self, statuses: Sequence[scm_pb2.CommandStatus]) -> bool:
        """Remove answers that the SCM has received. Return True if more reports or answers are
        pending.

        Answers that a full outbox has dropped in the meantime are ignored.
        """
        told = {id(status) for status in statuses}
        with self._lock:
            while self._statuses and id(self._statuses[0]) in told:
                self._statuses.popleft()
            return bool(self._statuses) or bool(self._changed)


class OutboxFanout:
    """The outboxes, one per SCM. All outboxes get the same content. An SCM that does not answer
    does not delay the reports to the other SCMs."""

    def __init__(self, count: int) -> None:
        """Create an outbox for each of `count` SCMs."""
        self.boxes = tuple(Outbox() for _ in range(count))

    @property
    def state(self) -> str:
        """`registered` if the agent is registered with any SCM; otherwise the last error of the
        first SCM."""
        states = [box.state for box in self.boxes]
        return REGISTERED if REGISTERED in states else states[0]

    @property
    def clock_offset_ms(self) -> int:
        """The difference with the largest absolute value between this host's wall clock and an
        SCM's, in milliseconds. It is positive if this host's clock is ahead, and negative if it is
        behind."""
        return max((box.clock_offset_ms for box in self.boxes), key=abs)

    def notify(self, container_id: ContainerId) -> None:
        """Queue a report of this replica to all SCMs, because it is new, changed or deleted."""
        for box in self.boxes:
            box.notify(container_id)

    def report_all(self) -> None:
        """Request a full report to all SCMs. An SCM considers replicas that are not in it as
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
        """Queue the status of a command for all SCMs, because another SCM may have become the
        leader."""
        for box in self.boxes:
            box.answer(status)
