"""Worker that rebuilds lost indexes in the background, while the agent serves all other replicas.

A volume whose index is lost still has the directory of each replica. The worker loads the replicas
from there, in large commits. A loaded replica is served and reported at once. The agent sends no
full report before the end, because the SCM considers replicas that are not in it as deleted. If the
agent is killed, its next start continues with the replicas that have no row yet.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

import structlog

from agent.store.replica_store import ReplicaStore
from agent.store.volumes.volume import Volume
from suture.errors import Code, SutureError
from suture.runtime.clock import Clock
from suture.runtime.loop import Busy, NoMoreWork, Step

TOLD_S: Final = 10.0  # interval between two log events about the progress

log = structlog.get_logger()


@dataclass(eq=False)
class IndexRebuild:
    """Loads the backlogs of the volumes, one commit per step.

    `fence` is called with the id of a volume that does not work, and the reason. `on_rebuilt` is
    called after the last volume.
    """

    name = "index-rebuild"

    store: ReplicaStore
    clock: Clock
    _: KW_ONLY
    fence: Callable[[str, str], object]
    on_rebuilt: Callable[[], object]

    def __post_init__(self) -> None:
        self._told_at_s: dict[str, float] = {}

    def step(self) -> Step:
        """Load the next replicas of one volume."""
        volume = next(iter(self.store.volume_set.backlogs), None)
        if volume is None:
            return NoMoreWork()
        self._log(volume)
        try:
            loaded = self.store.volume_set.load_next(volume)
        except SutureError as error:
            if error.code is Code.BUSY:
                raise  # the loop retries later
            self.fence(volume.volume_id, str(error))
            loaded = ()
        for container_id in loaded:
            self.store.on_change(container_id)
        self._log(volume)
        if not self.store.volume_set.backlogs:
            self.on_rebuilt()
        return Busy()

    def _log(self, volume: Volume) -> None:
        """Log the start, the end, and every TOLD_S seconds the progress of a volume's rebuild."""
        now_s, told_at_s = self.clock.monotonic_s(), self._told_at_s.get(volume.volume_id)
        backlog = self.store.volume_set.backlogs.get(volume)
        if backlog is not None and told_at_s is not None and now_s - told_at_s < TOLD_S:
            return
        self._told_at_s[volume.volume_id] = now_s
        if backlog is not None:
            log.warning(
                "index_rebuild_progressed",
                volume_id=volume.volume_id,
                count=backlog.count - len(backlog.left),
                total=backlog.count,
            )
        elif volume in self.store.volume_set.working:
            log.info("index_rebuilt", volume_id=volume.volume_id)
