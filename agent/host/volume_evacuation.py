"""Worker that moves the replicas of retiring volumes to other volumes, one after the other.

For each replica, the worker acquires the lease, closes the replica if it is open, copies it, serves
the copy, reads the copy completely, and deletes the original. A move fails if there is not enough
space, if the replica is damaged, or if another task holds the lease. The worker then logs the
failure and retries the move later. All state is on the disks, so the work continues after the agent
was killed. If a replica is on two volumes, and neither of them is retiring any more, the worker
removes one of the two copies.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

import structlog

from agent.scan.container_scan import StoreScanDeps, scan_container
from agent.store.volume_services import RemainingReplica
from agent.store.volumes.service_mode import VolumeMode, VolumeUse
from agent.transfer.volume_copy import VolumeCopier
from merkle.replica import ID_MAX, TREE_STATES, Bcsid, ContainerId, ReplicaState
from suture.errors import Code, SutureError
from suture.runtime.loop import Busy, Idle, ProgressMarker, Step, WakeEvent

RETRY_S: Final = 30.0  # time until a failed move is retried
REST_TIMES: Final = 50.0  # pause after a search without result, as a multiple of its duration
REST_S_MAX: Final = 120.0
WRITTEN: Final = frozenset({ReplicaState.OPEN, ReplicaState.CLOSING})

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class BlockedMove:
    """A move of a replica that has failed: the reason, and the monotonic time of the next
    attempt."""

    why: str
    again_at_s: float
    code: Code

    @property
    def has_no_room(self) -> bool:
        """True if no other volume has enough space for the replica."""
        return self.code is Code.DISK_OUT_OF_SPACE


@dataclass(slots=True)
class RetirementProgress:
    """Progress of the moves from one volume, since this process has started them."""

    begun_s: float
    moved_count: int = 0
    moved_bytes: int = 0
    stuck: dict[ContainerId, "BlockedMove"] = field(default_factory=dict)
    unmovable: dict[ContainerId, str] = field(default_factory=dict)
    """Replicas that cannot be moved because they cannot be loaded, and the reasons."""
    due: deque[RemainingReplica] = field(default_factory=deque)
    """Replicas that the last search has found, and that are not yet moved."""
    rests_until_s: float = 0.0
    """Earliest monotonic time of the next search. It is set after a search that found no
    replica."""

    def eta_s(self, left_bytes: int, now_s: float) -> float:
        """Return the estimated number of seconds to move `left_bytes` bytes.

        The estimate uses the average rate so far. Return -1 if nothing was moved yet.
        """
        if not left_bytes:
            return 0.0
        if not self.moved_bytes:
            return -1.0
        return left_bytes * max(0.0, now_s - self.begun_s) / self.moved_bytes


@dataclass(eq=False)
class VolumeEvacuator:
    """Worker that moves all replicas from retiring volumes. `bell` wakes the loop of the worker.

    Any thread may call `set_mode` and `progress`.
    """

    name = "volume-moves"

    tools: StoreScanDeps
    mover: VolumeCopier
    _: KW_ONLY
    stop: Callable[[], bool]
    pulse: ProgressMarker
    bell: WakeEvent = field(default_factory=WakeEvent)

    def __post_init__(self) -> None:
        self._store = self.tools.store
        self._progress: dict[str, RetirementProgress] = {}

    def set_mode(self, volume_id: str, mode: VolumeMode, target_id: str = "") -> VolumeUse:
        """Change the service mode of a volume. If the mode is unchanged, retry the moves that have
        failed.

        Raise RefusedError if the mode is not possible.
        """
        before = self._store.services.of(volume_id).mode
        service = self._store.services.change(volume_id, mode, target_id=target_id)
        if service.mode is not before:
            self._progress.pop(volume_id, None)
            log.info("volume_service_changed", volume_id=volume_id, service=service.mode.value)
        elif (progress := self._progress.get(volume_id)) is not None:
            progress.unmovable, progress.rests_until_s = {}, 0.0  # an operator may have fixed it
        self.bell.set()
        return service

    def progress(self, volume_id: str) -> RetirementProgress | None:
        """Return the progress of the moves from a volume; None if no moves have started."""
        return self._progress.get(volume_id)

    def now_s(self) -> float:
        """Return the current monotonic time, which is the time base of `RetirementProgress`."""
        return self.tools.clock.monotonic_s()

    def step(self) -> Step:
        """Move one replica, from the first volume that has a replica to move.

        If a move on one volume raises an error, continue with the next volume. If no replica was
        moved, raise the first of these errors.
        """
        trouble: SutureError | None = None
        for volume in self._store.volumes():
            try:
                if not volume.failed and self._tend(volume.volume_id):
                    return Busy()
            except SutureError as error:
                trouble = trouble or error
        if trouble is not None:
            raise trouble
        return Idle()

    def _tend(self, volume_id: str) -> bool:
        """Move one replica of a volume. Return False if no replica of this volume must be moved
        now."""
        progress = self._progress.setdefault(volume_id, RetirementProgress(self.now_s()))
        if self.stop() or not (progress.due or self._look(volume_id, progress)):
            return False
        left = progress.due.popleft()
        if not self._store.services.is_still(volume_id, left):
            return True
        try:
            self._deal_with(volume_id, left)
        except SutureError as error:
            self._keep_stuck(progress, volume_id, left.container_id, error)
            return True
        progress.stuck.pop(left.container_id, None)
        progress.moved_count += 1
        progress.moved_bytes += left.size_bytes
        return True

    def _look(self, volume_id: str, progress: RetirementProgress) -> bool:
        """Search for replicas of a volume that must be moved now. Return True if there are any.

        A search over 100,000 replicas takes a second. Therefore, the next search is delayed after a
        search that found nothing.
        """
        began_s = self.now_s()
        if began_s < progress.rests_until_s:
            return False
        mode = self._store.services.of(volume_id).mode
        progress.due.extend(self._due(self._wanting(volume_id, mode), progress))
        if progress.due:
            return True
        if mode is VolumeMode.RETIRING:
            progress.unmovable = self._store.services.unmovable_on(volume_id)
            if not progress.stuck and not self._store.services.end_retirement(volume_id):
                log.info("volume_retired", volume_id=volume_id)
        ended_s = self.now_s()
        rest_s = min(REST_TIMES * (ended_s - began_s), REST_S_MAX)
        progress.rests_until_s = ended_s + rest_s
        return False

    def _wanting(self, volume_id: str, mode: VolumeMode) -> list[RemainingReplica]:
        """Return the replicas of a volume that must be moved or closed.

        Replicas whose move was interrupted come first.
        """
        services = self._store.services
        match mode:
            case VolumeMode.RETIRING:
                return sorted(services.left_on(volume_id), key=lambda left: left.is_served)
            case VolumeMode.READ_ONLY:
                here = services.left_on(volume_id)
                still_open = [left for left in here if left.state in WRITTEN and left.is_served]
                return services.seconds_on(volume_id) + still_open
            case _:
                return services.seconds_on(volume_id)

    def _keep_stuck(
        self,
        progress: RetirementProgress,
        volume_id: str,
        container_id: ContainerId,
        error: SutureError,
    ) -> None:
        """Delay the move of a replica by RETRY_S seconds after it has failed.

        Log the error, unless the previous attempt failed with the same error code.
        """
        before = progress.stuck.get(container_id)
        progress.stuck[container_id] = BlockedMove(str(error), self.now_s() + RETRY_S, error.code)
        if before is not None and before.code is error.code:
            return
        log.warning(
            "replica_move_failed",
            container_id=container_id,
            volume_id=volume_id,
            error=str(error),
        )

    def _due(
        self, here: Sequence[RemainingReplica], progress: RetirementProgress
    ) -> Iterator[RemainingReplica]:
        """Yield the replicas in `here` whose next attempt is due.

        `here` has all replicas that are still to be moved. The recorded failures of other replicas
        are removed.
        """
        ids = {left.container_id for left in here}
        for gone in progress.stuck.keys() - ids:
            del progress.stuck[gone]
        now_s = self.now_s()
        for left in here:
            stuck = progress.stuck.get(left.container_id)
            if stuck is None or stuck.again_at_s <= now_s:
                yield left

    def _deal_with(self, volume_id: str, left: RemainingReplica) -> None:
        """Move one replica, or complete its interrupted move.

        If the volume is not retiring, only close the replica. Raise SutureError if this fails.
        """
        container_id = left.container_id
        if left.is_served and left.state in WRITTEN:
            self._close(container_id)
        if left.is_served and self._store.services.of(volume_id).mode is not VolumeMode.RETIRING:
            return
        with self.tools.leases.hold(container_id):
            if left.is_served:
                self._copy(container_id)
                try:
                    self._verify(container_id)
                    self._store.services.drop_moved(volume_id, container_id)
                except SutureError:
                    self._store.services.cancel_move(volume_id, container_id)
                    raise
            else:
                if not self._store.replica(container_id).data_scan_at_ms:
                    self._verify(container_id)
                self._store.services.drop_moved(volume_id, container_id)
        log.info("replica_moved", container_id=container_id, volume_id=volume_id)

    def _copy(self, container_id: ContainerId) -> None:
        """Copy a replica to another volume.

        If the copy finds damage that no scan has recorded, scan the replica, which records the
        damage, and copy it again.
        """
        try:
            self.mover.move(container_id, stop=self._may_not_go_on)
        except SutureError as error:
            if error.code is not Code.CHECKSUM_MISMATCH:
                raise
            self._verify(container_id)
            self.mover.move(container_id, stop=self._may_not_go_on)

    def _verify(self, container_id: ContainerId) -> None:
        """Scan the complete replica, which records its damage."""
        scan_container(
            self.tools,
            container_id,
            stop=self.stop,
            progress=lambda _: self.pulse.mark(),
            holds_lease=True,
        )

    def _may_not_go_on(self) -> bool:
        self.pulse.mark()
        return self.stop()

    def _close(self, container_id: ContainerId) -> None:
        """Close the replica, so that it accepts no more writes.

        The control plane decides later which commit was the last.
        """
        with self.tools.leases.hold(container_id):
            if self._store.replica(container_id).state not in TREE_STATES:
                self._store.close_container(container_id, bcsid=Bcsid(ID_MAX))
