"""The leading SCM: the one with the highest term, or the first one seen of equal terms.

An SCM that lost its leadership may not know it yet. Its commands carry its term and are refused as
stale; what it says about this datanode's replicas is ignored.

Each start of an SCM has a random id, and shows the number of its state. The starts seen are kept on
the volumes and sent to every SCM. From them an SCM detects that its state is older than one that
this datanode has seen, because an old copy was restored, or two SCMs run on copies of one state.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from agent.store.volumes.op_state_file import SeenStart
from suture.errors import SutureError
from suture.runtime.clock import Clock, SystemClock

STARTS_KEPT_MAX: Final = 8  # those of the highest terms; two SCMs on one state have one each
KEEP_SPACING_S: Final = 10.0  # between writes of new numbers only, each of which is synced

log = structlog.get_logger()


class TermTracker:
    """The highest term of any SCM, and the starts with the highest terms.

    `keep` makes starts durable: on every volume, or on one if only a number has changed.
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

    def leads(self, term: int, start_id: str = "", state_number: int = 0) -> bool:
        """Record the term and state of an SCM; return True if it is the leader as far as known
        here."""
        with self._lock:
            if term > self._highest:
                self._highest, self._leader_id = term, start_id
            if start_id:
                self._note(SeenStart(start_id, term, state_number))
            is_rival = "" not in (start_id, self._leader_id) and start_id != self._leader_id
            return term == self._highest and not is_rival

    @property
    def highest(self) -> int:
        """The highest term of any SCM."""
        return self._highest

    def seen(self) -> tuple[SeenStart, ...]:
        """Return the starts with the highest terms; of one term the leader first."""
        with self._lock:
            return tuple(self._starts.values())

    def _note(self, shown: SeenStart) -> None:
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
            except SutureError as error:  # kept in memory; the volume check handles the volume
                log.warning("seen_start_write_failed", error=str(error))
