"""The volumes of one datanode, and the volume that serves each replica.

`ReplicaStore` uses this.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter
from pathlib import Path

from agent.store.index.facts import RecoveryReport, Unloadable, VolumeFacts
from agent.store.operations.deleting import PurgeResult, purge_deleted
from agent.store.operations.reading import facts_or_failure, failed_facts, index_version
from agent.store.operations.replica_import import ReplicaImports
from agent.store.options import StoreOptions
from agent.store.recovery.startup_recovery import (
    ADOPTED_MAX,
    RECOVERY_ERRORS,
    UNFINISHED,
    Rank,
    StartupResult,
    failure_of,
    load_directories,
    rank,
)
from agent.store.replica.quarantine_policy import purge_quarantine
from agent.store.volumes.ballast import fill_ballast
from agent.store.volumes.op_state_file import NodeState, SeenStart, newest_state, write_state
from agent.store.volumes.probe import Probe, probe
from agent.store.volumes.volume import Volume
from merkle.damaged_data import DamagedData
from merkle.replica import ContainerId
from suture.errors import Code, SutureError, UnavailableError, VolumeFailed


@dataclass(frozen=True, slots=True)
class IndexBacklog:
    """The replicas of a volume with a lost index that are not loaded yet (`left`), and the number
    of replicas at the start."""

    left: dict[ContainerId, None]
    count: int


class VolumeSet:
    """The open volumes (`working`), and the volume that serves each replica (`places`).

    Only the store and its parts change these fields. A volume with a lost index serves the replicas
    that `load_next` has loaded. Calls for the other replicas of its backlog (`backlogs`) are
    refused as BUSY.
    """

    def __init__(
        self,
        volumes: Sequence[Volume],
        options: StoreOptions,
        shelf: StartupResult,
        failed: Sequence[VolumeFacts],
    ) -> None:
        """Create the set from open volumes and the result of their recovery."""
        self.working = tuple(volumes)
        self._options = options
        self.places = shelf.places
        self.backlogs: Mapping[Volume, IndexBacklog] = {
            volume: IndexBacklog(dict.fromkeys(left), len(left))
            for volume, left in shelf.backlogs.items()
        }
        self._unloadable = dict.fromkeys(shelf.unloadable)
        self.failed = tuple(failed)
        self._fenced: tuple[Volume, ...] = ()
        self.lost: Mapping[ContainerId, str] = {}
        self.arrivals = ReplicaImports(options)
        self._node_state_lock = threading.Lock()
        self.recovery = RecoveryReport(tuple(shelf.steps))

    def close(self) -> None:
        """Close all volumes. No other call may be running."""
        for volume in (*self.working, *self._fenced):
            volume.close(is_well=volume not in self._fenced)
        self.working, self._fenced, self.places = (), (), {}

    def volumes(self) -> tuple[VolumeFacts, ...]:
        """Return the facts of every volume, failed volumes last.

        Volumes on the same file system report equal shares of its space.
        """
        working = self.working
        sharing = Counter(volume.device for volume in working)
        found = (self._facts(one, sharing=sharing[one.device]) for one in working)
        return (*found, *self.failed)

    def _facts(self, volume: Volume, *, sharing: int) -> VolumeFacts:
        facts, backlog = facts_or_failure(volume, sharing=sharing), self.backlogs.get(volume)
        if backlog is None:
            return facts
        return replace(facts, rebuild_count=backlog.count, rebuild_left_count=len(backlog.left))

    @property
    def unloadable(self) -> tuple[Unloadable, ...]:
        """Replicas that have files on a volume but are not served from there."""
        return tuple(self._unloadable)

    def record_second(self, container_id: ContainerId, volume: Volume) -> None:
        """Report the replica on `volume` as not served.

        The reason is that another volume serves the container.
        """
        self._unloadable[_second(container_id, volume)] = None

    def forget_second(self, container_id: ContainerId, volume: Volume) -> None:
        """Stop reporting the replica on `volume` as not served.

        It was deleted, or it is served now.
        """
        for one in self.unloadable:
            if (one.container_id, one.volume_id) == (container_id, volume.volume_id):
                self._unloadable.pop(one, None)

    def others(self, container_id: ContainerId) -> list[Volume]:
        """Return the working volumes that have a replica of the container but do not serve it."""
        served, waiting = self.places.get(container_id), self.waiting_on(container_id)
        return [
            volume
            for volume in self.working
            if volume is not served and (volume in waiting or _has_row(volume, container_id))
        ]

    # -- lost indexes

    def waiting_on(self, container_id: ContainerId) -> list[Volume]:
        """Return the volumes on which a replica waits for the rebuild of a lost index."""
        return [volume for volume, log in self.backlogs.items() if container_id in log.left]

    def check_loaded(self, container_id: ContainerId) -> None:
        """Raise `UnavailableError(BUSY)` if a replica waits for the rebuild of a lost index."""
        for volume in self.waiting_on(container_id):
            raise UnavailableError(
                Code.BUSY,
                f"container {container_id} is on {volume.layout.volume}, whose lost index is being "
                "rebuilt",
                hint="suture volumes shows the progress",
                container_id=container_id,
            )

    def load_next(self, volume: Volume) -> Sequence[ContainerId]:
        """Load the next replicas of a volume's backlog, and serve them. Return their ids. Raise
        `UnavailableError(BUSY)` if the host is short of descriptors or memory, and another
        SutureError if the volume does not work."""
        backlog, shelf = self.backlogs.get(volume), StartupResult()
        if backlog is None:
            return ()
        batch = list(islice(backlog.left, ADOPTED_MAX))
        try:
            load_directories(volume, self._options, batch, shelf)
        except RECOVERY_ERRORS as error:
            raise failure_of(error, volume) from error
        for container_id in shelf.places:
            if container_id in self.places:
                self.record_second(container_id, volume)
            else:
                self.places[container_id] = volume
        self._unloadable |= dict.fromkeys(shelf.unloadable)
        for container_id in batch:
            backlog.left.pop(container_id)
        if not backlog.left:
            self._end_rebuild(volume)
        if volume not in self.working:  # fenced meanwhile
            for container_id in batch:
                self.stop_serving(container_id, volume)
            return ()
        return tuple(shelf.places)

    def _end_rebuild(self, volume: Volume) -> None:
        self.backlogs = {v: log for v, log in self.backlogs.items() if v is not volume}

    def version(self) -> tuple[tuple[str, int], ...]:
        """Return a value that changes with every change of the index of any volume."""
        return tuple((volume.volume_id, index_version(volume)) for volume in self.working)

    def probe(self, volume_id: str) -> Probe:
        """Test a volume: write, sync, read and remove a file. The call hangs if the disk hangs."""
        return probe(self.by_id(volume_id).layout)

    def canary_directory(self, volume_id: str) -> Path:
        """Return the directory of the volume's canary, which is a test store. It may not exist."""
        return self.by_id(volume_id).layout.canary

    def fail_volume(self, volume_id: str, reason: str) -> tuple[ContainerId, ...]:
        """Stop using a volume until the next start.

        Return the ids of the containers that it served. Calls for these replicas are rejected, and
        the replicas are no longer reported. If another working volume has a second replica of a
        container, serve that replica. Nothing on the failed volume is changed.
        """
        volume = self.by_id(volume_id)
        lost = tuple(key for key, place in dict(self.places).items() if place is volume)
        if (backlog := self.backlogs.get(volume)) is not None:
            lost += tuple(key for key in backlog.left.copy() if key not in self.places)
        self.lost = {**self.lost, **dict.fromkeys(lost, f"{volume.layout.volume}: {reason}")}
        self.working = tuple(other for other in self.working if other is not volume)
        self._fenced = (*self._fenced, volume)
        self.failed = (*self.failed, failed_facts(volume, reason))
        self._end_rebuild(volume)
        seconds = self._seconds_of(lost)
        for container_id in lost:
            if (second := seconds.get(container_id)) is not None:
                self.places[container_id] = second
                self.forget_second(container_id, second)
            else:
                self.places.pop(container_id, None)
        return lost

    def _seconds_of(self, lost: Sequence[ContainerId]) -> dict[ContainerId, Volume]:
        """Return the working volume with a second replica, for each container that has one.

        That volume can serve the container. `lost` has the ids of the containers on a failed
        volume.
        """
        found: dict[ContainerId, tuple[Rank, Volume]] = {}
        for volume in self.working:
            for container_id in _served_by_a_start(volume, lost):
                with suppress(SutureError, DamagedData):
                    candidate = rank(volume, container_id), volume
                    best = found.get(container_id, candidate)
                    found[container_id] = max(best, candidate, key=itemgetter(0))
        return {container_id: volume for container_id, (_, volume) in found.items()}

    def stop_serving(self, container_id: ContainerId, volume: Volume) -> None:
        """Stop reporting a second replica on `volume`, whose container another volume serves.

        If the other volume has failed, `volume` serves the second replica. In this case, stop
        serving it.
        """
        self.forget_second(container_id, volume)
        if self.places.get(container_id) is volume:
            self.places.pop(container_id, None)

    def admit(self, volume: Volume, shelf: StartupResult) -> None:
        """Serve the replicas of a volume that was opened at run time.

        `shelf` is the result of its recovery.
        """
        twice = self.places.keys() & shelf.places.keys()
        self.failed = tuple(one for one in self.failed if one.path != volume.layout.volume)
        self.working = (*self.working, volume)
        for container_id in shelf.places.keys() - twice:
            self.places[container_id] = volume
        self.lost = {k: v for k, v in self.lost.items() if k not in shelf.places}
        for one in self.unloadable:
            if one.volume_id == volume.volume_id:
                self._unloadable.pop(one, None)
        self._unloadable |= dict.fromkeys(shelf.unloadable)
        for container_id in sorted(twice):
            self.record_second(container_id, volume)

    def is_lost(self, container_id: ContainerId) -> bool:
        """Return whether the replica was on a failed volume.

        Return False if another volume serves the container.
        """
        return container_id in self.lost and container_id not in self.places

    def let_go_of_pages(self) -> None:
        """Unmap the pages of all indexes from the memory of this process.

        Call this after work on all replicas.
        """
        for volume in self.working:
            with volume.index.read() as rows:
                rows.let_go_of_pages()

    def purge_quarantine(self, older_than_s: float) -> int:
        """Remove copies in quarantine that are older than `older_than_s` seconds.

        Return their number.
        """
        return purge_quarantine(self.working, self._options, older_than_s)

    def purge_deleted(self, known: Mapping[str, Collection[Path]]) -> dict[str, PurgeResult]:
        """Try again to remove the files of deleted replicas. Return the results by volume id.

        `known` has the paths that the previous check found, by volume id. Only these are removed.
        The result omits volumes whose directory cannot be listed.
        """
        found = {}
        for volume in self.working:
            with suppress(SutureError):
                found[volume.volume_id] = purge_deleted(volume, known.get(volume.volume_id, ()))
                fill_ballast(volume.layout, self._options.reserve_bytes)
        return found

    # -- this datanode

    def upgraded_at_ms(self) -> int:
        """Return the latest time in milliseconds at which this version first wrote to a volume.

        Return 0 if no other version wrote to a volume before.
        """
        return max((volume.verification.upgraded_at_ms for volume in self.working), default=0)

    def node_state(self) -> NodeState:
        """Return the last decision of the SCM about the operational state of this datanode."""
        return newest_state([volume.layout for volume in self.working])

    def set_node_state(self, op_state: str, op_expiry_ms: int) -> None:
        """Store a decision of the SCM about this datanode durably on every working volume."""
        self._change_node_state(
            lambda state: replace(state, op_state=op_state, op_expiry_ms=op_expiry_ms)
        )

    def keep_seen_starts(self, starts: Sequence[SeenStart], *, is_everywhere: bool) -> None:
        """Store the known starts of SCM processes durably.

        Write them to every working volume if `is_everywhere`, and otherwise to one.
        """
        self._change_node_state(
            lambda state: replace(state, seen_starts=tuple(starts)), is_everywhere=is_everywhere
        )

    def _change_node_state(
        self, changed: Callable[[NodeState], NodeState], *, is_everywhere: bool = True
    ) -> None:
        with self._node_state_lock:
            layouts = [volume.layout for volume in self.working]
            newest = newest_state(layouts)
            state = replace(changed(newest), version=newest.version + 1)
            write_state(layouts, state, is_everywhere=is_everywhere)

    def by_id(self, volume_id: str) -> Volume:
        """Return the working volume with this id. Raise VolumeFailed if there is none."""
        for volume in self.working:
            if volume.volume_id == volume_id:
                return volume
        raise VolumeFailed(Code.IO_EXCEPTION, f"volume {volume_id} has failed")


def _has_row(volume: Volume, container_id: ContainerId) -> bool:
    with volume.index.read() as rows:
        return rows.has_replica(container_id)


def _served_by_a_start(volume: Volume, container_ids: Sequence[ContainerId]) -> list[ContainerId]:
    """Return the containers whose replica on this volume a start would serve unchanged.

    The containers are returned as ids.
    """
    found = []
    with suppress(SutureError), volume.index.read() as rows:
        for container_id in container_ids:
            if not rows.has_replica(container_id):
                continue
            with suppress(DamagedData):
                if rows.replica(container_id).state not in UNFINISHED:
                    found.append(container_id)
    return found


def _second(container_id: ContainerId, volume: Volume) -> Unloadable:
    return Unloadable(container_id, volume.volume_id, "another volume serves another replica of it")
