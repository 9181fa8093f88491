"""Records datanodes whose calls have invalid parts, and logs each datanode once.

The SCM ignores an invalid part of a call and applies all other parts. The value of an ignored part
stays as it was before. If a datanode belongs to another cluster, its complete call is rejected.
"""

from collections.abc import Sequence
from typing import Final

import structlog

from scm.state.clock import ScmClock

KEPT_S: Final = 2 * 3600.0  # a full report comes every hour and repeats the fault
STRANGER_KEPT_S: Final = 300.0  # an agent calls again after 30 s at most
STRANGERS_MAX: Final = 1_000  # any caller may name any number of datanodes

_log = structlog.get_logger("suture.scm")


class RejectedReportParts:
    """Datanodes whose recent calls had invalid parts, or whose registration was rejected.

    Callers must hold the control plane's lock.
    """

    def __init__(self, clock: ScmClock) -> None:
        self._clock = clock
        self._last: dict[str, tuple[float, str]] = {}
        self._strangers: dict[str, tuple[float, str]] = {}

    def record(self, datanode_id: str, refused: Sequence[str]) -> None:
        """Record that the parts in `refused` of a datanode's call were ignored.

        Log this only if no ignored part of this datanode was recorded in the last two hours.
        """
        if not refused:
            return
        self._drop_old()
        if datanode_id not in self._last:
            _log.error(
                "report_partially_rejected",
                datanode_id=datanode_id,
                count=len(refused),
                first=refused[0],
            )
        self._last[datanode_id] = (self._clock.monotonic_s(), refused[0])

    def mark_unknown(self, datanode_id: str, why: str) -> None:
        """Record that the registration of a datanode was rejected. Log only the first rejection."""
        self._drop_old()
        if datanode_id not in self._strangers:
            if len(self._strangers) >= STRANGERS_MAX:
                return
            _log.warning("registration_rejected", datanode_id=datanode_id, error=why)
        self._strangers[datanode_id] = (self._clock.monotonic_s(), why)

    def admit(self, datanode_id: str) -> None:
        """Delete the record of a rejected registration, because the datanode has now registered."""
        self._strangers.pop(datanode_id, None)

    def forget(self, datanode_id: str) -> None:
        """Delete the records about a datanode that was removed."""
        self._last.pop(datanode_id, None)

    @property
    def count(self) -> int:
        """Return the number of datanodes whose calls had invalid parts in the last two hours."""
        self._drop_old()
        return len(self._last)

    def lines(self) -> list[str]:
        """Return texts for operators about the invalid parts and the rejected registrations.

        There is at most one line about each of the two. The list is empty if there are none.
        """
        self._drop_old()
        lines = []
        if self._last:
            count = len(self._last)
            noun = "1 datanode reports" if count == 1 else f"{count:,} datanodes report"
            datanode_id, (_at_s, first) = next(iter(self._last.items()))
            lines.append(
                f"part of what {noun} breaks a rule and is left out, as {datanode_id}: {first}"
            )
        if self._strangers:
            count = len(self._strangers)
            noun = "1 datanode calls and is" if count == 1 else f"{count:,} datanodes call and are"
            _at_s, first = next(iter(self._strangers.values()))
            lines.append(f"{noun} refused: {first}")
        return lines

    def _drop_old(self) -> None:
        now_s = self._clock.monotonic_s()
        for noted, kept_s in ((self._last, KEPT_S), (self._strangers, STRANGER_KEPT_S)):
            for datanode_id in [n for n, (at_s, _) in noted.items() if at_s < now_s - kept_s]:
                del noted[datanode_id]
