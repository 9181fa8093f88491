"""A circuit breaker for damage reports: if many replicas look damaged at once, the host is suspect.

Disks usually fail one at a time. If half of the replicas of several volumes look damaged within
minutes, the cause is probably a controller, a cable, memory, a faulty library or a bug in the
agent. If the agent marked all of them UNHEALTHY, a repair storm would follow. The breaker trips if
one of these events occurs within `window_s` seconds:

    - the two checksum libraries disagreed once;
    - the first read of `suspects_max` chunks returned wrong data, and a repeated read correct data;
    - `damaged_max` replicas on two or more volumes look damaged, and they are at least half of the
      scanned replicas.

While the breaker is tripped, the agent marks no replica UNHEALTHY. It continues to scan, to log,
and to commit the results of undamaged replicas. The breaker resets when no such event is in the
window any more.

No I/O: the caller passes the time. Not thread-safe.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from merkle.replica import ContainerId
from scanner.finding import Verdict
from scanner.scan_outcome import ScanOutcome

OBSERVATIONS_MAX: Final = 10_000  # bound on memory; the oldest are dropped first


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """The thresholds of the breaker. The counts apply to the last `window_s` seconds."""

    window_s: float = 600.0
    damaged_max: int = 20
    suspects_max: int = 3

    def __post_init__(self) -> None:
        if self.window_s <= 0 or self.damaged_max < 2 or self.suspects_max < 1:
            raise ValueError(f"breaker limits out of range: {self}")


@dataclass(frozen=True, slots=True)
class Observation:
    """The facts about a finished scan that the breaker uses."""

    at_s: float
    volume_id: str
    container_id: ContainerId
    is_damaged: bool
    suspect_count: int
    disagreement_count: int


class Breaker:
    """Keeps the results of recent scans, and decides whether replicas may be marked UNHEALTHY."""

    def __init__(self, limits: BreakerLimits | None = None) -> None:
        self._limits = limits or BreakerLimits()
        self._seen: deque[Observation] = deque(maxlen=OBSERVATIONS_MAX)

    @property
    def window_s(self) -> float:
        """Time in seconds for which the result of a scan is kept."""
        return self._limits.window_s

    def record_scan(
        self, now_s: float, volume_id: str, container_id: ContainerId, outcome: ScanOutcome
    ) -> str:
        """Record the result of a finished scan.

        Return the reason why the replica must not be marked UNHEALTHY, or "" if it may be marked.
        """
        suspects = sum(item.verdict is Verdict.SUSPECT_HOST for item in outcome.findings)
        self._seen.append(
            Observation(
                now_s,
                volume_id,
                container_id,
                outcome.is_damaged,
                suspects,
                outcome.disagreement_count,
            )
        )
        return self.tripped_reason(now_s)

    def tripped_reason(self, now_s: float) -> str:
        """Return the reason why the breaker is tripped, or "" if it is not tripped."""
        while self._seen and self._seen[0].at_s <= now_s - self._limits.window_s:
            self._seen.popleft()
        window = f"in {self._limits.window_s:.0f} s"
        disagreements = sum(item.disagreement_count for item in self._seen)
        if disagreements:
            return f"checksum libraries disagreed on {disagreements} chunks {window}"
        suspects = sum(item.suspect_count for item in self._seen)
        if suspects >= self._limits.suspects_max:
            return f"{suspects} reads were wrong here and right on the medium {window}"
        scanned = {item.container_id for item in self._seen}
        damaged = {item.container_id for item in self._seen if item.is_damaged}
        volumes = {item.volume_id for item in self._seen if item.is_damaged}
        is_much = len(damaged) >= self._limits.damaged_max
        if is_much and 2 * len(damaged) >= len(scanned) and len(volumes) >= 2:
            return (
                f"{len(damaged)} of {len(scanned)} replicas on {len(volumes)} volumes "
                f"look damaged {window}"
            )
        return ""
