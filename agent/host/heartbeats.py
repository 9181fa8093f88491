"""One heartbeat for each SCM: all of them hear the same, and the one with the highest term leads.

An SCM that leads no more may not know it yet. Its commands carry its term and are refused as stale;
what it says about our replicas is passed over.
"""

import threading
from collections.abc import Sequence

from agent.host.heartbeat import REGISTERED, Heartbeat
from agent.rpc.v1 import scm_pb2
from merkle.replica import ContainerId


class Terms:
    """The highest term that any SCM has shown."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._highest = 0

    def leads(self, term: int) -> bool:
        """Note a term; return whether who has it leads, as far as we know."""
        with self._lock:
            self._highest = max(self._highest, term)
            return term >= self._highest


class Heartbeats:
    """The heartbeats of this datanode. Each has a loop of its own: one SCM that does not answer
    keeps nobody from the others."""

    def __init__(self, beats: Sequence[Heartbeat]) -> None:
        self.beats = tuple(beats)

    @property
    def state(self) -> str:
        """`registered`, or why not with any SCM."""
        states = [beat.state for beat in self.beats]
        return REGISTERED if REGISTERED in states else states[0]

    def notify(self, container_id: ContainerId) -> None:
        """Report this replica soon: it is new, changed, or gone."""
        for beat in self.beats:
            beat.notify(container_id)

    def report_all(self) -> None:
        """Make a full report soon: what it does not name is no longer here."""
        for beat in self.beats:
            beat.report_all()

    def report_soon(self) -> None:
        """Send a heartbeat now, with what the volumes measure."""
        for beat in self.beats:
            beat.wake()

    def reregister(self) -> None:
        """Register again, and report all."""
        for beat in self.beats:
            beat.reregister()

    def answer(self, status: scm_pb2.CommandStatus) -> None:
        """Report what became of a command, soon: whoever leads by then needs to know."""
        for beat in self.beats:
            beat.answer(status)
