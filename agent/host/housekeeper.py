"""Worker that removes expired quarantine files, and files that earlier deletes could not remove."""

from collections import deque
from pathlib import Path
from typing import Final

import structlog

from agent.store.replica_store import ReplicaStore
from suture.runtime.clock import Clock
from suture.runtime.loop import RetryAfter, Step

HOUSEKEEPING_INTERVAL_S: Final = 3600.0
SETTLED_S: Final = 6 * 3600.0  # time within which a wrong clock is corrected after a start

log = structlog.get_logger()


class Housekeeper:
    """Removes expired quarantine files, and retries to remove the files of deleted replicas.

    The earliest wall clock time of the last SETTLED_S seconds is used as the current time.
    Therefore, no file expires early if the clock is wrong for some hours, for example after a
    start.
    """

    name = "housekeeper"

    def __init__(self, store: ReplicaStore, keep_s: float, *, clock: Clock) -> None:
        self._store = store
        self._keep_s = keep_s
        self._clock = clock
        self._told: deque[tuple[float, int]] = deque()  # (monotonic seconds, wall clock ms)
        self._graves: dict[str, tuple[Path, ...]] = {}  # paths that the last check found, by volume

    def keep_for(self, keep_s: float) -> None:
        """Set the number of seconds for which quarantine files are kept. Thread-safe."""
        self._keep_s = keep_s

    def step(self) -> Step:
        """Retry failed removals, and remove expired quarantine files.

        No quarantine file is removed in the first SETTLED_S seconds after the start.
        """
        self._purge_deleted()
        age_s = self._clock_age_s()
        if age_s is not None:
            count = self._store.volume_set.purge_quarantine(self._keep_s + age_s)
            if count:
                log.info("quarantine_purged", count=count, older_than_s=self._keep_s)
        return RetryAfter(HOUSEKEEPING_INTERVAL_S)

    def _purge_deleted(self) -> None:
        found = self._store.volume_set.purge_deleted(self._graves)
        self._graves = {volume_id: graves.left for volume_id, graves in found.items()}
        for volume_id, graves in found.items():
            if graves.removed_count:
                log.info("deleted_files_removed", volume_id=volume_id, count=graves.removed_count)
            if graves.why:
                log.warning("deleted_files_removal_failed", volume_id=volume_id, error=graves.why)

    def _clock_age_s(self) -> float | None:
        """Return how many seconds the wall clock is ahead of its earliest value in the last
        SETTLED_S seconds.

        Return None in the first SETTLED_S seconds after the start.
        """
        now_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        self._told.append((now_s, now_ms))
        if now_s - self._told[0][0] < SETTLED_S:
            return None
        while now_s - self._told[1][0] >= SETTLED_S:
            self._told.popleft()
        return (now_ms - min(told_ms for _, told_ms in self._told)) / 1000
