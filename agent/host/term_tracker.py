"""Determines which SCM is the leader: the SCM with the highest election term.

If two SCMs have the same term, the one that this datanode saw first is the leader. An SCM that is
no longer the leader may not know this. Its commands contain its term, and are refused because the
term is not the highest. Its information about this datanode's replicas is ignored.

Each start of an SCM process has a random id. The SCM also sends the sequence number of its state.
The agent stores both on its volumes, and sends them to every SCM. An SCM compares them with its own
state, and detects if its state is older than a state that this datanode has seen. This happens if a
backup was restored, or if two SCMs run on copies of one state.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from agent.store.volumes.op_state_file import SeenStart
from suture.errors import SutureError
from suture.runtime.clock import Clock, SystemClock

STARTS_KEPT_MAX: Final = 8  # starts with the highest terms
KEEP_SPACING_S: Final = 10.0  # minimum time between writes if only state numbers have changed

log = structlog.get_logger()


class TermTracker:
    """Records the highest election term of all SCMs, and the SCM processes with the highest terms.

    `keep` stores the starts of these processes on the volumes. Its second argument is True if they
    must be written to all volumes, and False if only a state number has changed, which is written
    to one volume.
    """

    def __init__(
        self,
        starts: Sequence[SeenStart] = (),
        keep: Callable[[Sequence[SeenStart], bool], None] = lambda _starts, _is_everywhere: None,
        clock: Clock | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._keep = keep
        self._clock = clock or SystemClock()
        self._kept_at_s = self._clock.monotonic_s()
        self._starts = {start.start_id: start for start in starts}
        self._highest = max((start.term for start in starts), default=0)
        leaders = (start.start_id for start in starts if start.term == self._highest)
        self._leader_id = next(leaders, "")

    def observe_term(self, term: int, start_id: str = "", state_number: int = 0) -> bool:
        """Record the election term and the state number of an SCM. Return True if this SCM is the
        leader.

        It is the leader if no higher term is known, and if no other SCM was seen with this term
        before.
        """
        with self._lock:
            if term > self._highest:
                self._highest, self._leader_id = term, start_id
            if start_id:
                self._record_start(SeenStart(start_id, term, state_number))
            is_rival = "" not in (start_id, self._leader_id) and start_id != self._leader_id
            return term == self._highest and not is_rival

    @property
    def highest(self) -> int:
        """Highest election term of all SCMs."""
        return self._highest

    def seen(self) -> tuple[SeenStart, ...]:
        """Return the starts of SCM processes with the highest terms.

        Among starts with equal terms, the start of the leader is first.
        """
        with self._lock:
            return tuple(self._starts.values())

    def _record_start(self, shown: SeenStart) -> None:
        known = self._starts.get(shown.start_id)
        if known is not None and known.term >= shown.term:
            if known.state_number >= shown.state_number:
                return
            shown = SeenStart(shown.start_id, known.term, shown.state_number)
        self._starts[shown.start_id] = shown
        if len(self._starts) > STARTS_KEPT_MAX:
            oldest = min(self._starts.values(), key=lambda start: start.term)
            del self._starts[oldest.start_id]
        is_new = known is None or known.term != shown.term
        now_s = self._clock.monotonic_s()
        if is_new or now_s - self._kept_at_s >= KEEP_SPACING_S:
            self._kept_at_s = now_s
            try:
                self._keep(tuple(self._starts.values()), is_new)
            except SutureError as error:  # still in memory; the volume check reports the volume
                log.warning("seen_start_write_failed", error=str(error))
