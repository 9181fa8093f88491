"""Tracks the invalid parts of datanodes' calls, which are left out, and logs each part once.

The other parts of a call are applied. For a part that is left out, the earlier value remains, or
the value remains unknown. If a datanode belongs to another cluster, its whole call is rejected.
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
    """Datanodes with recent invalid parts. Callers hold the control plane's lock."""

    def __init__(self, clock: ScmClock) -> None:
        self._clock = clock
        self._last: dict[str, tuple[float, str]] = {}
        self._strangers: dict[str, tuple[float, str]] = {}

    def record(self, datanode_id: str, refused: Sequence[str]) -> None:
        """Record that parts of a call were left out. Log this only if none were recorded
        recently."""
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
        """Record that a datanode's registration was rejected. Log only its first attempt."""
        self._drop_old()
        if datanode_id not in self._strangers:
            if len(self._strangers) >= STRANGERS_MAX:
                return
            _log.warning("registration_rejected", datanode_id=datanode_id, error=why)
        self._strangers[datanode_id] = (self._clock.monotonic_s(), why)

    def admit(self, datanode_id: str) -> None:
        """Record that a datanode was admitted: remove its record of a rejected registration."""
        self._strangers.pop(datanode_id, None)

    def forget(self, datanode_id: str) -> None:
        """Forget a datanode, because it was removed."""
        self._last.pop(datanode_id, None)

    @property
    def count(self) -> int:
        """Number of datanodes with a part that was left out in the last two hours."""
        self._drop_old()
        return len(self._last)

    def lines(self) -> list[str]:
        """Return one line for each kind of invalid part; an empty list if there is none."""
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
