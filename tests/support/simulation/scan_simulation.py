"""Simulates months of scans of a volume in one second: the real schedule on a simulated disk."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from merkle.replica import ContainerId
from scanner.schedule import ScanCandidate, Schedule

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@dataclass
class SimulatedVolume:
    """The replicas of a volume, with the times at which each was read.

    `rate_of(needed, now_ms)` returns the rate at which the disk is read, in bytes/s; 0.0 = the host
    is down.
    """

    schedule: Schedule
    replicas: dict[ContainerId, ScanCandidate]
    rate_of: Callable[[float, int], float]
    now_ms: int
    refresh_ms: int = HOUR_MS
    worst_age_ms: int = 0
    read_bytes: int = 0
    read_at_ms: dict[ContainerId, list[int]] = field(default_factory=dict)

    def run(self, until_ms: int) -> None:
        """Simulate scans until `until_ms`."""
        while self.now_ms < until_ms:
            agenda = self.schedule.agenda(self.replicas.values(), self.now_ms)
            rate = self.rate_of(agenda.needed_bytes_per_s, self.now_ms)
            refresh_at_ms = self.now_ms + self.refresh_ms
            for item in agenda.due if rate else ():
                if self.now_ms >= refresh_at_ms:
                    break
                self._read(item.candidate, rate)
            self.now_ms = max(self.now_ms, refresh_at_ms if not agenda.due or not rate else 0)
            if agenda.due and self.now_ms < refresh_at_ms:
                self.now_ms = refresh_at_ms

    def oldest_age_ms(self) -> int:
        """Return the time since the last read of the replica that was read least recently, in
        ms."""
        return self.now_ms - min(item.read_at_ms for item in self.replicas.values())

    def _read(self, candidate: ScanCandidate, rate_bytes_per_s: float) -> None:
        begun_at_ms = self.now_ms
        self.now_ms += int(candidate.used_bytes / rate_bytes_per_s * 1000) + 1
        self.read_bytes += candidate.used_bytes
        times = self.read_at_ms.setdefault(candidate.container_id, [])
        if candidate.read_at_ms:
            # its first byte has waited since the start of the last read, its last byte until now
            last_begun_at_ms = times[-1] if times else candidate.read_at_ms
            self.worst_age_ms = max(self.worst_age_ms, self.now_ms - last_begun_at_ms)
        times.append(begun_at_ms)
        self.replicas[candidate.container_id] = replace(candidate, read_at_ms=self.now_ms)
