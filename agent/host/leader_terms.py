"""The SCM that leads: the one with the highest term, and of one term the one that was heard first.

An SCM that leads no more may not know it yet. Its commands carry its term and are refused as stale;
what it says about our replicas is passed over.

Each start of an SCM on a state has a random id, and shows how far its state is. What was shown is
kept on the volumes and sent to every SCM. By that an SCM recognises that its state is older than
one that this datanode saw: because an older copy was put in place, or because two SCMs run on
copies of one state.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from agent.errors import SutureError
from agent.runtime.clock import Clock, SystemClock
from agent.store.volumes.nodestate import SeenStart

STARTS_KEPT_MAX: Final = 8  # those of the highest terms; two SCMs on one state show one each
KEEP_SPACING_S: Final = 10.0  # between writes of a number alone: each is synced

log = structlog.get_logger()


class Terms:
    """The highest term that any SCM has shown, and the starts with the highest terms.

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
        """Record what an SCM shows; return True if it leads, as far as we know."""
        with self._lock:
            if term > self._highest:
                self._highest, self._leader_id = term, start_id
            if start_id:
                self._note(SeenStart(start_id, term, state_number))
            is_rival = "" not in (start_id, self._leader_id) and start_id != self._leader_id
            return term == self._highest and not is_rival

    @property
    def highest(self) -> int:
        """The highest term that any SCM has shown."""
        return self._highest

    def seen(self) -> tuple[SeenStart, ...]:
        """Return the starts with the highest terms, the leader of a term before others of it."""
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
            except SutureError as error:  # it is in memory, and the volume check deals with it
                log.warning("seen_start_not_kept", error=str(error))
