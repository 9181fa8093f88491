"""Builds messages about the status of a datanode: its replicas, volumes, workers and tasks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Final, Protocol

from agent.observe.replica_totals import HostSummary, ReplicaTotals, VolumeSummary
from agent.services.report_messages import replica_report, unloadable_report
from agent.store.index.facts import Unloadable, VolumeFacts
from agent.store.index.replica_history import Changes
from agent.store.replica_store import ReplicaStore
from agent.store.volumes.op_state_file import NodeState
from merkle.damaged_data import DamagedData
from merkle.replica import ContainerId
from scanner.finding import ScanFinding
from suture.errors import RefusedError, SutureError, VolumeFailed
from suture.runtime.loop import QUIET_MAX_S, WorkerStatus
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2

DAMAGED_SHOWN_MAX: Final = 100  # replicas whose findings are read for one response
FINDINGS_SHOWN_MAX: Final = 100  # findings per replica


class Pools(Protocol):
    """The thread pools that execute commands of the SCM."""

    def queue_counts(self) -> Iterable[scm_pb2.QueueCount]:
        """Return the number of queued and running tasks of each type."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """Facts about the process that do not change while it runs."""

    datanode_id: str
    cluster_id: str
    version: str
    started_at_ms: int


@dataclass(eq=False)
class DatanodeStatus:
    """Builds reports and status messages from the current state of the store.

    `interval_s` is the scan interval. Every byte should be verified once per interval. `describe`
    is a function that adds facts to the status of a volume that the store does not have.
    """

    about: ProcessInfo
    store: ReplicaStore
    _: KW_ONLY
    pools: Pools
    workers: Callable[[], Sequence[WorkerStatus]]
    scm_state: Callable[[], str]
    clock_offset_ms: Callable[[], int]
    interval_s: float
    now_ms: Callable[[], int]
    describe: Callable[[datanode_pb2.VolumeStatus], object] = lambda _: None

    def __post_init__(self) -> None:
        self._census = ReplicaTotals(interval_s=self.interval_s)
        for volume_id, replicas in self.store.columns():
            self._census.fill(volume_id, replicas)

    def note_volume(self, volume_id: str) -> None:
        """Add all replicas of a new volume to the totals, such as the number of damaged
        replicas."""
        for added_id, replicas in self.store.columns(volume_id):
            self._census.fill(added_id, replicas)

    def update_replica(self, container_id: ContainerId) -> None:
        """Update the totals over all replicas after a replica was created, changed or deleted.
        Thread-safe."""
        try:
            self._census.put(self.store.replica(container_id))
        except (SutureError, DamagedData):  # deleted, fenced or unreadable; its report shows which
            self._census.drop(container_id)

    def summary(self) -> HostSummary:
        """Return totals over all replicas, such as the number of findings and the bytes verified in
        time."""
        return self._census.summary(self.now_ms())

    def store_volumes(self) -> Sequence[VolumeFacts]:
        """Return the facts of all volumes in the store."""
        return self.store.volumes()

    def findings(self) -> Iterator[ScanFinding]:
        """Yield the findings of damaged replicas, then of replicas that contradict a peer.

        At most DAMAGED_SHOWN_MAX replicas of each of these two kinds are included.
        """
        summary = self.summary()
        shown = dict.fromkeys(summary.damaged[:DAMAGED_SHOWN_MAX])
        shown |= dict.fromkeys(summary.contradictory[:DAMAGED_SHOWN_MAX])
        for container_id in shown:
            with suppress(SutureError, DamagedData):
                yield from self.store.findings(container_id, count=FINDINGS_SHOWN_MAX)

    def changes(self, since_ms: int, *, count: int) -> Changes:
        """Return the newest changes of all replicas since `since_ms`, at most `count`."""
        return self.store.changes(since_ms, count=count)

    @property
    def is_rebuilding(self) -> bool:
        """True while a lost index is being rebuilt: `replica_ids` then lacks replicas."""
        return bool(self.store.volume_set.backlogs)

    def is_waiting(self, container_id: ContainerId) -> bool:
        """Return True if a replica waits for the rebuild of a lost index, and cannot be reported
        yet."""
        here = self.store.volume_set
        return container_id not in here.places and bool(here.waiting_on(container_id))

    def replica_ids(self) -> Sequence[ContainerId]:
        """Return the ids of all replicas, including those that cannot be loaded."""
        known = set(self.store.replica_ids())
        return sorted(known | {item.container_id for item in self.store.unloadable()})

    def report(self, container_id: ContainerId) -> container_pb2.ReplicaReport:
        """Return the report of one replica.

        The state is DELETED if the replica does not exist any more, or if its volume is no longer
        served. A replica with a damaged row is reported as a replica that cannot be loaded.
        """
        try:
            return replica_report(self.store.replica(container_id))
        except DamagedData as damage:
            return unloadable_report(Unloadable(container_id, "", str(damage)))
        except (RefusedError, VolumeFailed) as error:
            if isinstance(error, VolumeFailed) and not self.store.volume_set.is_lost(container_id):
                raise  # the volume is suspect but not fenced, so the replica is not gone
            for item in self.store.unloadable():
                if item.container_id == container_id:
                    return unloadable_report(item)
        return container_pb2.ReplicaReport(
            container_id=container_id, state=container_pb2.DELETED, is_empty=True
        )

    def volumes(self) -> list[datanode_pb2.VolumeStatus]:
        """Return the status of every volume."""
        known, nothing = self.summary().volumes, VolumeSummary()
        found = [
            datanode_pb2.VolumeStatus(
                volume_id=volume.volume_id,
                path=str(volume.path),
                capacity_bytes=volume.capacity_bytes,
                available_bytes=volume.available_bytes,
                used_bytes=volume.used_bytes,
                container_count=volume.container_count,
                failed=volume.failed,
                error=volume.error,
                log_count=volume.log_count,
                log_checksum=bytes.fromhex(volume.log_checksum),
                rebuild_count=volume.rebuild_count,
                rebuild_left_count=volume.rebuild_left_count,
                oldest_scan_at_ms=max(0, known.get(volume.volume_id, nothing).oldest_at_ms),
                data_bytes=known.get(volume.volume_id, nothing).data_bytes,
                in_time_bytes=known.get(volume.volume_id, nothing).in_time_bytes,
            )
            for volume in self.store.volumes()
        ]
        for status in found:
            self.describe(status)
        return found

    def queues(self) -> Iterable[scm_pb2.QueueCount]:
        """Return the number of queued and running tasks of each type."""
        return self.pools.queue_counts()

    def node_state(self) -> NodeState:
        """Return the operational state that the SCM has set for this datanode."""
        return self.store.volume_set.node_state()

    def status(self) -> datanode_pb2.StatusResponse:
        """Return the complete response to the RPC `Status`."""
        summary = self.summary()
        return datanode_pb2.StatusResponse(
            datanode_id=self.about.datanode_id,
            cluster_id=self.about.cluster_id,
            version=self.about.version,
            started_at_ms=self.about.started_at_ms,
            volumes=self.volumes(),
            containers_by_state=dict(summary.states),
            finding_count=summary.finding_count,
            workers=[worker_message(worker) for worker in self.workers()],
            task_count=sum(count.count for count in self.queues()),
            scm_state=self.scm_state(),
            interval_ms=int(self.interval_s * 1000),
            damaged_count=len(summary.damaged),
            damaged=summary.damaged[:DAMAGED_SHOWN_MAX],
            contradictory_count=summary.contradictory_count,
            clock_offset_ms=self.clock_offset_ms(),
        )


def worker_message(worker: WorkerStatus) -> datanode_pb2.WorkerStatus:
    """Return the message about the status of a worker thread."""
    return datanode_pb2.WorkerStatus(
        name=worker.name,
        state=worker.state.value,
        steps=worker.step_count,
        error_count=worker.error_count,
        last_error=worker.last_error,
        quiet_ms=int(worker.quiet_s * 1000),
        stalled=worker.is_stalled(QUIET_MAX_S),
    )
