"""Check of the descriptor, tree file and directories of all replicas every few hours.

A data scan reads a replica once a week. This check finds a directory that was removed by hand
within hours. If a replica has a fault, this check requests an on-demand scan. Only that scan
decides if the replica is damaged.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from agent.scan.ondemand import OnDemandScans
from agent.store.replica.quick_check import quick_check
from agent.store.replica_store import ReplicaStore
from merkle.damaged_data import DamagedData
from merkle.replica import TREE_STATES, ContainerId
from suture.errors import RefusedError, VolumeFailed
from suture.runtime.clock import Clock
from suture.runtime.durable import is_shortage
from suture.runtime.loop import Busy, RetryAfter, Step
from suture.runtime.memory import trim_heap

INTERVAL_S: Final = 3 * 3600.0
REPLICAS_PER_STEP: Final = 100  # replicas checked between two heartbeats of the worker

log = structlog.get_logger()


@dataclass(eq=False)
class MetadataScan:
    """Worker that checks the metadata files of all replicas.

    `scanned_at_ms` is the time at which it last finished all replicas, or 0 if it has not yet.
    `on_unreadable` gets the id of a volume with faulty metadata files, and the reason.
    """

    name = "metadata-scan"

    store: ReplicaStore
    scans: OnDemandScans
    clock: Clock
    on_unreadable: Callable[[str, str], None]

    def __post_init__(self) -> None:
        self._left: deque[ContainerId] | None = None
        self._begun_at_s = 0.0
        self._round_fault_count = 0
        self.scanned_at_ms = 0
        self.fault_count = 0

    def step(self) -> Step:
        """Check some replicas.

        If all are checked, wait until the next check of all replicas is due.
        """
        if self._left is None:
            self._left = deque(self.store.replica_ids())
            self._begun_at_s = self.clock.monotonic_s()
            self._round_fault_count = 0
        for _ in range(min(REPLICAS_PER_STEP, len(self._left))):
            self._look(self._left.popleft())
        if self._left:
            return Busy()
        self._left = None
        self.store.volume_set.let_go_of_pages()
        trim_heap()
        self.scanned_at_ms = self.clock.now_ms()
        self.fault_count = self._round_fault_count
        took_s = self.clock.monotonic_s() - self._begun_at_s
        return RetryAfter(max(1.0, INTERVAL_S - took_s))

    def _look(self, container_id: ContainerId) -> None:
        try:
            facts = self.store.replica(container_id)
        except (RefusedError, VolumeFailed, DamagedData):
            return  # deleted, on a failed volume, or already reported as not served
        try:
            paths = self.store.paths(container_id)
            faults = quick_check(paths, container_id, has_tree=facts.tree is not None)
            if faults and self.store.replica(container_id).state is not facts.state:
                return  # the replica was closed or deleted during the check
        except (RefusedError, VolumeFailed):
            return
        except OSError as error:
            if is_shortage(error):
                return  # the next metadata scan checks the replica again
            faults = [str(error)]
        if not faults:
            return
        self._round_fault_count += 1
        log.warning("metadata_fault_found", container_id=container_id, faults=faults)
        self.on_unreadable(facts.volume_id, f"container {container_id}: {faults[0]}")
        if facts.state in TREE_STATES:
            self.scans.request(container_id, reason=faults[0], is_hint=True)
