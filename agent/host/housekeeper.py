"""The worker that lets go of what was quarantined long enough."""

from typing import Final

import structlog

from agent.runtime.loop import Step, Throttled
from agent.store.replica_store import ReplicaStore

HOUSEKEEPING_INTERVAL_S: Final = 3600.0

log = structlog.get_logger()


class Housekeeper:
    """Purges the quarantine of what was kept long enough."""

    name = "housekeeper"

    def __init__(self, store: ReplicaStore, keep_s: float) -> None:
        self._store = store
        self._keep_s = keep_s

    def keep_for(self, keep_s: float) -> None:
        """Keep it for so long from now on; any thread may say so."""
        self._keep_s = keep_s

    def step(self) -> Step:
        """Purge once."""
        count = self._store.volume_set.purge_quarantine(self._keep_s)
        if count:
            log.info("quarantine_purged", count=count, older_than_s=self._keep_s)
        return Throttled(HOUSEKEEPING_INTERVAL_S)
