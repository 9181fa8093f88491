"""What datanodes say that breaks a rule, and is left out: told while it is news.

The rest of what they say counts. What is left out is as it was known before, or not known.
"""

from collections.abc import Sequence
from typing import Final

import structlog

from scm.state.clock import Clock

KEPT_S: Final = 2 * 3600.0  # a full report comes every hour, and says it again

_log = structlog.get_logger("suture.scm")


class RefusedParts:
    """Which datanodes said such a thing lately. Callers hold the control plane's lock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[str, tuple[float, str]] = {}

    def note(self, datanode_id: str, refused: Sequence[str]) -> None:
        """Remember what was left out of a call; it is logged once while it goes on."""
        if not refused:
            return
        self._drop_old()
        if datanode_id not in self._last:
            _log.error(
                "report_refused_in_part",
                datanode_id=datanode_id,
                count=len(refused),
                first=refused[0],
            )
        self._last[datanode_id] = (self._clock.monotonic_s(), refused[0])

    def forget(self, datanode_id: str) -> None:
        """Say nothing more of a datanode: it was removed."""
        self._last.pop(datanode_id, None)

    @property
    def count(self) -> int:
        """Of how many datanodes something was left out lately."""
        self._drop_old()
        return len(self._last)

    def lines(self) -> list[str]:
        """Return what is to be said of it: a line, or none."""
        if not self.count:
            return []
        noun = "1 datanode reports" if self.count == 1 else f"{self.count:,} datanodes report"
        datanode_id, (_at_s, first) = next(iter(self._last.items()))
        return [f"part of what {noun} breaks a rule and is left out, as {datanode_id}: {first}"]

    def _drop_old(self) -> None:
        since_s = self._clock.monotonic_s() - KEPT_S
        for datanode_id in [n for n, (at_s, _) in self._last.items() if at_s < since_s]:
            del self._last[datanode_id]
