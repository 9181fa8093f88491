"""Functions by which operators inspect and change the volumes of this host."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path
from typing import Final

import structlog

from agent.host.volume_evacuation import VolumeEvacuator
from agent.observe.datanode_status import DatanodeStatus
from agent.observe.disk_reports import disk_reports
from agent.scan.volume_latency import LatencyWatch
from agent.store.index.facts import RecoveryStep, VolumeFacts
from agent.store.replica_store import ReplicaStore
from agent.store.volumes.service_mode import VolumeMode
from suture.errors import Code, RefusedError
from suture.wire.v1 import datanode_pb2 as pb

ASKED: Final = {
    mode.value: mode for mode in (VolumeMode.IN_SERVICE, VolumeMode.READ_ONLY, VolumeMode.RETIRING)
}
STUCK_SHOWN_MAX: Final = 1_000
STEPS_SHOWN: Final = 3

log = structlog.get_logger()


@dataclass(eq=False)
class VolumeAdmin:
    """Changes the volumes of this host, and reports their status.

    It implements `agent.services.service_protocols.VolumeControl`. `check` is called with the facts
    and the read speed of a new volume, and raises an error to refuse the volume. `on_added` is
    called with a volume that was added, to start its scans, checks and reports.
    """

    store: ReplicaStore
    moves: VolumeEvacuator
    observer: DatanodeStatus
    check: Callable[[VolumeFacts, float], object]
    on_added: Callable[[VolumeFacts], object]

    def set_mode(self, volume_id: str, *, service: str, target_id: str) -> None:
        """Change the service mode of a volume: in service, read-only or retiring.

        Raise RefusedError if the volume or the mode is unknown.
        """
        mode = ASKED.get(service)
        if mode is None:
            raise RefusedError(
                Code.MALFORMED_REQUEST,
                f"invalid service {service!r}: expected one of {', '.join(ASKED)}",
            )
        if volume_id not in {volume.volume_id for volume in self.store.volumes()}:
            raise RefusedError(
                Code.WRONG_DATANODE,
                f"this datanode has no volume {volume_id!r}",
                hint="suture volumes lists all volumes",
            )
        self.moves.set_mode(volume_id, mode, target_id)

    def add(self, path: str) -> None:
        """Open a volume and serve its replicas. Raise SutureError if the volume cannot be used."""
        if not path.startswith("/"):
            raise RefusedError(
                Code.MALFORMED_REQUEST, f"invalid path {path!r}: expected an absolute path"
            )
        if not Path(path).is_dir():
            raise RefusedError(
                Code.INCONSISTENT_VOLUME,
                f"cannot add volume {path}: the agent sees no directory there",
                hint="create it, chown it to the user of the agent, and add it to "
                "ReadWritePaths= of the unit",
            )
        volume = self.store.services.add_volume(Path(path), self.check)
        log.info("volume_added", volume_id=volume.volume_id, path=path)
        self.observer.note_volume(volume.volume_id)
        self.on_added(volume)

    def disks(self) -> Sequence[pb.DiskReport]:
        """Return the health reports of the disks of all volumes."""
        return disk_reports(self.store.volumes())

    def status(self) -> Sequence[pb.VolumeStatus]:
        """Return the status of every volume."""
        return self.observer.volumes()


@dataclass(frozen=True, slots=True)
class VolumeDescriber:
    """Adds the latency, the service mode and the progress of a retirement to the status of a
    volume."""

    store: ReplicaStore
    moves: VolumeEvacuator
    slow_disks: LatencyWatch

    def __call__(self, status: pb.VolumeStatus) -> None:
        """Add the latency, the service mode and the progress of a retirement to a status message.

        A volume that accepts no new replicas is reported with 0 bytes available. The message of a
        failed volume is not changed.
        """
        if status.failed:
            return
        word = self.slow_disks.word(status.volume_id)
        status.read_us, status.write_us = int(word.read_ms * 1000), int(word.write_ms * 1000)
        status.slow = word.slow
        service = self.store.services.of(status.volume_id)
        status.service, status.service_since_ms = service.mode.value, service.since_ms
        if not service.takes_replicas:
            status.available_bytes = 0  # because the volume accepts no new replicas
        progress = self.moves.progress(status.volume_id)
        if progress is not None:
            stuck = progress.stuck.copy()
            reasons = progress.unmovable | {key: one.why for key, one in stuck.items()}
            status.stuck_container_ids.extend(nsmallest(STUCK_SHOWN_MAX, reasons))
            status.stuck_count = len(reasons)
            status.stuck_reason = reasons[min(reasons)] if reasons else ""
            unplaceable = (key for key, one in stuck.items() if one.has_no_room)
            status.unplaceable_container_ids.extend(nsmallest(STUCK_SHOWN_MAX, unplaceable))
        if service.mode is VolumeMode.RETIRING:
            status.retiring_bytes = service.total_bytes
            eta_s = progress.eta_s(status.used_bytes, self.moves.now_s()) if progress else -1
            status.eta_ms = int(eta_s * 1000) if eta_s >= 0 else -1


def log_start(store: ReplicaStore) -> None:
    """Log the volumes that are not served, and the steps by which other volumes were recovered at
    the start."""
    for volume in store.volumes():
        if volume.failed:
            log.error(
                "volume_not_served",
                volume_id=volume.volume_id,
                path=str(volume.path),
                error=volume.error,
            )
    by_volume: dict[str, list[RecoveryStep]] = {}
    for step in store.recovery.steps:
        by_volume.setdefault(step.volume_id, []).append(step)
    for volume_id, steps in by_volume.items():
        log.warning(
            "volume_recovered",
            volume_id=volume_id,
            count=len(steps),
            first=[f"container {step.container_id}: {step.what}" for step in steps[:STEPS_SHOWN]],
        )
