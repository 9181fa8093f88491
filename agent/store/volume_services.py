"""Service mode of each volume, and moves of replicas between the volumes of a host.

A move has these steps:

1. `begin_move` reserves space on another volume, and the caller copies the replica.
2. `finish_move` serves the copy instead of the original.
3. The caller reads the copy completely.
4. `drop_moved` deletes the original. If the copy is worse, `cancel_move` serves the original
   again and deletes the copy.

At every moment, one of the two is served and the other is complete. If the agent crashes and the
two are equal, the next start serves the copy on the volume that does not retire, and the move
continues.

A volume that does not retire can also have a second replica of a container. Two causes are a
cancelled retirement, and a disk that was absent while the container was copied to another volume.
The second replica is reported as not served. It is removed with `drop_moved`, like the original of
a move. Until then, the served replica is neither deleted nor moved. Otherwise, the next start of
the agent would serve the second replica.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from agent.store.files.layout import VolumeLayout, VolumeVersion
from agent.store.files.writebehind import Submit
from agent.store.index.facts import ReplicaFacts, VolumeFacts, facts_of
from agent.store.index.rows import ReplicaRow
from agent.store.operations.deleting import delete_replica
from agent.store.operations.reading import volume_facts
from agent.store.operations.replica_import import ImportSpec, ImportVerdict, ReplicaImport
from agent.store.options import StoreOptions
from agent.store.read_speed import measured_bytes_per_s
from agent.store.recovery.opening import check_apart, check_single
from agent.store.recovery.startup_recovery import StartupResult, recover, replica_directories
from agent.store.replica.lost_rows import blocks_without_row
from agent.store.volume_set import VolumeSet
from agent.store.volumes.identity import read_versions
from agent.store.volumes.service_mode import VolumeMode, VolumeUse, read_service, write_service
from agent.store.volumes.volume import Volume, open_volume
from agent.store.volumes.volume_registry import newest_known, remember
from merkle.damaged_data import DamagedData
from merkle.replica import ContainerId, ReplicaState
from suture.errors import Code, RefusedError, UnavailableError


@dataclass(frozen=True, slots=True)
class RemainingReplica:
    """A replica that is still on a volume.

    `is_served` is False if another volume serves the container.
    """

    container_id: ContainerId
    state: ReplicaState
    size_bytes: int
    is_served: bool


@dataclass(frozen=True, slots=True)
class _Entry:
    """The entry of a volume in the volume registry.

    `is_added` is True if an operator added the volume at run time.
    """

    volume: Volume
    path: str
    is_added: bool


class VolumeModes:
    """The service modes of the volumes in a `VolumeSet`, and the moves between these volumes."""

    def __init__(
        self, volumes: VolumeSet, options: StoreOptions, on_change: Callable[[ContainerId], None]
    ) -> None:
        self._set = volumes
        self._options = options
        self._on_change = on_change
        self._services: dict[str, VolumeUse] = {}
        self._forgotten: dict[str, _Entry] = {}  # retired volumes; they can return to service

    def of(self, volume_id: str) -> VolumeUse:
        """Return the service mode of a volume, or the default mode if the volume is not open."""
        for volume in self._set.working:
            if volume.volume_id == volume_id:
                return self._service_of(volume)
        return VolumeUse()

    def change(self, volume_id: str, mode: VolumeMode, *, target_id: str = "") -> VolumeUse:
        """Change the service mode of a volume durably.

        Raise RefusedError, with nothing changed, if no other volume is in service, or if the volume
        `target_id`, to which the replicas are moved, is not in service.
        """
        volume = self._set.by_id(volume_id)
        before = self._service_of(volume)
        others = [other for other in self.in_service() if other is not volume]
        if mode is not VolumeMode.IN_SERVICE and not others:
            raise RefusedError(
                Code.INELIGIBLE,
                f"cannot retire {volume.layout.volume}: it is the only volume of this datanode "
                "in service",
                hint="suture scm decommission empties a datanode; suture volume add adds a volume",
            )
        if target_id and target_id not in {other.volume_id for other in others}:
            raise RefusedError(
                Code.INELIGIBLE,
                f"cannot move replicas of {volume_id} to {target_id}: no other volume in "
                "service has this id",
                hint="suture volumes lists all volumes",
            )
        if (mode, target_id) == (before.mode, before.target_id) or (
            mode is VolumeMode.RETIRING and before.mode is VolumeMode.RETIRED
        ):
            return before
        total_bytes = volume_facts(volume).used_bytes if mode is VolumeMode.RETIRING else 0
        service = VolumeUse(mode, target_id, total_bytes, self._options.now_ms())
        if (
            before.mode is VolumeMode.RETIRED
        ):  # before the mode, so that the next start opens the volume
            own = _Entry(volume, str(volume.layout.volume), is_added=True)
            self._remember(self._forgotten.get(volume_id, own))
        if before.mode is VolumeMode.RETIRING:
            self._tell_seconds(volume)
        return self._store_mode(volume, service)

    def in_service(self) -> tuple[Volume, ...]:
        """Return the volumes that accept new replicas."""
        return tuple(v for v in self._set.working if self._service_of(v).takes_replicas)

    def left_on(self, volume_id: str) -> list[RemainingReplica]:
        """Return all replicas on a volume, by ascending id, served or not."""
        volume = self._set.by_id(volume_id)
        with volume.index.read() as rows:
            found = [(key, row) for key, row in rows.replicas() if isinstance(row, ReplicaRow)]
        return [
            RemainingReplica(key, row.state, row.used_bytes, self._set.places.get(key) is volume)
            for key, row in found
        ]

    def seconds_on(self, volume_id: str) -> list[RemainingReplica]:
        """Return the replicas on this volume whose container another volume serves.

        Only replicas that are reported as not served are returned. For a retiring volume, the list
        is empty, because `left_on` returns all replicas of such a volume.
        """
        volume = self._set.by_id(volume_id)
        told = [one.container_id for one in self._set.unloadable if one.volume_id == volume_id]
        return [
            RemainingReplica(container_id, row.state, row.used_bytes, is_served=False)
            for container_id in told
            if self._is_second(volume, container_id)
            and (row := _row_or_none(volume, container_id)) is not None
        ]

    def is_still(self, volume_id: str, left: RemainingReplica) -> bool:
        """Return whether the replica is still on the volume, and served or not as before."""
        volume = self._set.by_id(volume_id)
        if left.is_served:
            return self._set.places.get(left.container_id) is volume
        return volume in self._set.others(left.container_id)

    def begin_move(self, announced: ImportSpec, submit: Submit | None = None) -> ReplicaImport:
        """Reserve space on another volume for a replica on a retiring volume.

        Raise the same errors as `begin_arrival`. Raise `UnavailableError(BUSY)` if another volume
        already has a replica of the container. The caller holds the container's lease until the
        move ends.
        """
        source = self._retiring(announced.container_id)
        for other in self._set.others(announced.container_id):
            raise UnavailableError(
                Code.BUSY,
                f"{other.layout.volume} has another replica of the container",
                hint="suture volumes shows why the replica is still there",
                container_id=announced.container_id,
            )
        wanted = self._service_of(source).target_id
        targets = [v for v in self.in_service() if wanted in {"", v.volume_id}]
        return self.begin_arrival(announced, targets, submit)

    def begin_arrival(
        self, announced: ImportSpec, targets: Sequence[Volume], submit: Submit | None = None
    ) -> ReplicaImport:
        """Reserve space for a replica on one of the volumes `targets`.

        Raise the same errors as `ReplicaImports.begin`. Raise `UnavailableError(BUSY)` if the
        chosen volume no longer accepts replicas. The service mode of this volume is checked after
        the reservation. A volume whose mode changes later is not retired before the import ends.
        """
        arrival = self._set.arrivals.begin(announced, targets, submit)
        if not self._service_of(arrival.volume).takes_replicas:
            arrival.discard()
            raise UnavailableError(
                Code.BUSY,
                f"{arrival.volume.layout.volume} no longer accepts new replicas",
                container_id=announced.container_id,
            )
        return arrival

    def finish_move(self, arrival: ReplicaImport, received: ImportVerdict) -> ReplicaFacts:
        """Commit the copy of a replica, and serve it instead of the original."""
        container_id = arrival.announced.container_id
        source = self._retiring(container_id)
        row = arrival.publish(received)
        self._set.places[container_id] = arrival.volume
        if arrival.volume not in self._set.working:  # the volume failed meanwhile
            self._set.places[container_id] = source
        self._on_change(container_id)
        return facts_of(container_id, self._set.places[container_id].volume_id, row)

    def drop_moved(self, volume_id: str, container_id: ContainerId) -> None:
        """Delete a replica that another volume serves, for example the original of a move.

        Raise RefusedError(INELIGIBLE) unless the served copy was read completely, and `worse_than`
        and `forgotten` find no reason to keep this replica.
        """
        self._set.check_loaded(container_id)
        left, served = self._set.by_id(volume_id), self._volume_of(container_id)
        why = "it is the one that is served"
        if served is not left:
            why = worse_than(_row(served, container_id), _row(left, container_id))
            why = why or forgotten(served, left, container_id)
        if why:
            raise RefusedError(
                Code.INELIGIBLE,
                f"cannot remove container {container_id} from {left.layout.volume}: {why}",
                container_id=container_id,
            )
        delete_replica(left, container_id, force=True)
        self._set.stop_serving(container_id, left)

    def cancel_move(self, volume_id: str, container_id: ContainerId) -> None:
        """Serve the original on `volume_id` again, and delete its copy.

        Do nothing if the delete of the original has begun, because the copy is then the only
        replica.
        """
        left, copy = self._set.by_id(volume_id), self._volume_of(container_id)
        if copy is left or _row(left, container_id).state is ReplicaState.DELETED:
            return
        self._set.places[container_id] = left
        self._set.forget_second(container_id, left)
        self._on_change(container_id)
        self._set.record_second(container_id, copy)
        delete_replica(copy, container_id, force=True)
        self._set.stop_serving(container_id, copy)

    def require_no_second(self, container_id: ContainerId) -> None:
        """Raise UnavailableError if another volume has a second replica of the same shard.

        The served replica must then not be deleted, because the next start of the agent would serve
        the second replica.
        """
        served = self._volume_of(container_id)
        for volume in self._set.others(container_id):
            if _are_one_shard(served, volume, container_id):
                raise UnavailableError(
                    Code.BUSY,
                    f"container {container_id} is on both {volume.layout.volume} and "
                    f"{served.layout.volume}; the latter serves it",
                    hint="suture volumes shows the reason; remove one of the two first",
                    container_id=container_id,
                )

    def end_retirement(self, volume_id: str) -> str:
        """Mark a retiring volume as RETIRED if it is empty. Return "" in this case.

        Otherwise, return the reason why the volume is not empty, or that it does not retire.
        """
        volume = self._set.by_id(volume_id)
        before = self._service_of(volume)
        if before.mode is not VolumeMode.RETIRING:
            return "it does not retire"
        if why := self._contents(volume):
            return why
        self._store_mode(volume, VolumeUse(VolumeMode.RETIRED, since_ms=self._options.now_ms()))
        if why := self._contents(volume):  # from a request before the change
            self._store_mode(volume, before)
            return why
        self._remember()
        return ""

    def unmovable_on(self, volume_id: str) -> dict[ContainerId, str]:
        """Return the replicas on a volume that cannot be loaded, with the reasons, by container id.

        A replica that cannot be loaded cannot be moved either.
        """
        volume = self._set.by_id(volume_id)
        found = StartupResult()
        directories = replica_directories(volume, found)
        with volume.index.read() as rows:
            known = dict(rows.replicas())
        told = {one.container_id: one for one in self._set.unloadable if one.volume_id == volume_id}
        reasons = {one.container_id: one.reason for one in found.unloadable}
        for container_id in sorted(directories - known.keys()):
            root = volume.paths(container_id).root
            if root.is_dir():  # otherwise, the replica was deleted meanwhile
                one = told.get(container_id)
                reasons[container_id] = f"{root}: {one.reason if one else 'no row in the index'}"
        for container_id, row in known.items():
            if isinstance(row, DamagedData):
                root = volume.paths(container_id).root
                reasons[container_id] = f"{root}: {row}; a restart loads it if its files allow"
        return reasons

    def add_volume(
        self, path: Path, check: Callable[[VolumeFacts, float], object] = lambda *_: None
    ) -> VolumeFacts:
        """Open a volume at run time, and serve its replicas.

        Format an empty directory. Return its facts. The path is stored on all volumes, so that the
        next start of the agent opens the volume even if it is not in the config. `check` gets the
        facts and the read speed (bytes per second) of the volume, and may raise an error to refuse
        it. Raise RefusedError or VolumeFailed, with nothing changed, if the volume cannot be used.
        """
        first = self._set.working[0].version
        layout = VolumeLayout(Path(os.path.realpath(path)), first.cluster_id)
        known = newest_known([volume.layout for volume in self._set.working])
        check_apart(
            layout, [*map(Path, known.volumes), *(v.layout.volume for v in self._set.working)]
        )
        version = read_versions([path])[path]
        volume_id = version.volume_id if isinstance(version, VolumeVersion) else ""
        check_single(layout, volume_id, self._set.working)
        volume = open_volume(
            path,
            cluster_id=first.cluster_id,
            datanode_id=first.datanode_id,
            options=self._options,
            expected=known.at(path),
        )
        try:
            shelf = self._recovered(volume)
            check(volume_facts(volume), measured_bytes_per_s(volume))
            if read_service(layout).mode is VolumeMode.RETIRED:
                write_service(layout, VolumeUse())
        except BaseException:
            volume.close(is_well=False)
            raise
        self._set.admit(volume, shelf)
        self._remember(_Entry(volume, str(Path(path).absolute()), is_added=True))
        for container_id in shelf.places:
            self._on_change(container_id)
        return volume_facts(volume)

    # -- helpers

    def _service_of(self, volume: Volume) -> VolumeUse:
        return self._services.setdefault(volume.volume_id, read_service(volume.layout))

    def _is_second(self, volume: Volume, container_id: ContainerId) -> bool:
        is_served = container_id in self._set.places
        return is_served and volume in self._set.others(container_id)

    def _tell_seconds(self, volume: Volume) -> None:
        """Report the second replicas on this volume as not served.

        A replica is a second one if another volume serves its container. Withdraw the report of a
        replica if its move ends in the meantime.
        """
        for left in self.left_on(volume.volume_id):
            if not left.is_served:
                self._set.record_second(left.container_id, volume)
                if not self._is_second(volume, left.container_id):
                    self._set.forget_second(left.container_id, volume)

    def _store_mode(self, volume: Volume, service: VolumeUse) -> VolumeUse:
        write_service(volume.layout, service)
        self._services[volume.volume_id] = service
        return service

    def _recovered(self, volume: Volume) -> StartupResult:
        """Recover a volume that was opened.

        Return its replicas. Raise SutureError if the recovery fails.
        """
        shelf = recover([volume], self._options)
        for _, failure in shelf.failed:
            raise failure
        return shelf

    def _volume_of(self, container_id: ContainerId) -> Volume:
        volume = self._set.places.get(container_id)
        if volume is None:
            raise RefusedError(
                Code.CONTAINER_NOT_FOUND, f"no volume serves a replica of container {container_id}"
            )
        return volume

    def _retiring(self, container_id: ContainerId) -> Volume:
        volume = self._volume_of(container_id)
        if self._service_of(volume).mode is not VolumeMode.RETIRING:
            raise RefusedError(
                Code.INELIGIBLE,
                f"cannot move container {container_id}: its volume {volume.layout.volume} is "
                "not retiring",
                container_id=container_id,
            )
        return volume

    def _contents(self, volume: Volume) -> str:
        """Return a description of the replicas and running imports of a volume.

        Return "" if it has none.
        """
        arriving = self._set.arrivals.on(volume)  # first, because a finished import has a row
        left_count = len(self.left_on(volume.volume_id))
        unmovable_count = len(self.unmovable_on(volume.volume_id))
        if left_count or unmovable_count:
            count = left_count + unmovable_count
            return f"{count} replicas are left, {unmovable_count} of which cannot be loaded"
        return f"{len(arriving)} replicas are arriving" if arriving else ""

    def _remember(self, joins: _Entry | None = None) -> None:
        """Write the list of the volumes that are not retired to each of these volumes.

        The start of the agent writes the same list. `joins` is the entry of a volume to add to the
        list.
        """
        new = joins.volume if joins else None
        modes = {volume: self._service_of(volume).mode for volume in self._set.working}
        gone = {
            v.volume_id: v
            for v, mode in modes.items()
            if mode is VolumeMode.RETIRED and v is not new
        }
        stay = [volume.layout for volume in modes if volume not in gone.values()]
        known = newest_known(stay)
        here, added = dict(known.volumes), set(known.added)
        for path, volume_id in known.volumes.items():
            if volume_id in gone:
                is_added = path in added
                self._forgotten[volume_id] = _Entry(gone[volume_id], path, is_added=is_added)
                del here[path]
        if joins:
            here[joins.path] = joins.volume.volume_id
            added |= {joins.path} if joins.is_added else set()
        named = {Path(path): volume_id for path, volume_id in here.items()}
        remember(stay, known, named, added=added & here.keys())


def worse_than(served: ReplicaRow, left: ReplicaRow) -> str:
    """Return the reason why the `served` replica must not replace the replica `left`.

    Both are on this host. Return "" if there is no such reason. No I/O.
    """
    if served.replica_index != left.replica_index:
        return f"its copy is shard {served.replica_index}, it is {left.replica_index}"
    if not served.data_scan_at_ms:
        return "its copy was not read whole yet"
    sick = ReplicaState.UNHEALTHY
    if served.state is sick and (left.state is not sick or left.tree is None):
        return "its copy is damaged"
    if left.state is ReplicaState.CLOSED and served.state is not ReplicaState.CLOSED:
        return f"its copy is {served.state}"
    if served.bcsid < left.bcsid:
        return f"its copy ends at commit {served.bcsid}, it at {left.bcsid}"
    if served.tree is None or left.tree is None:
        return "" if left.tree is None else "its copy has no tree"
    is_same_kind = served.tree.algorithm is left.tree.algorithm
    lacks_commits = left.state is not ReplicaState.CLOSED and left.bcsid < served.bcsid
    if served.state is ReplicaState.CLOSED and (left.state is sick or lacks_commits):
        return ""  # the roots may differ, because `left` is older or damaged
    if is_same_kind and served.tree.root != left.tree.root:
        return "its copy has another root"
    return ""


def forgotten(served: Volume, left: Volume, container_id: ContainerId) -> str:
    """Return the reason why the replica on `served` lacks a block or a delete.

    `left` is another volume with a replica of the same container. Return "" if it lacks none. It
    lacks a block if `left` has a row or bytes of the block and `served` has no record of it. It
    lacks a delete if only `left` has the tombstone of a block. The reason names the block.
    """
    with served.index.read() as there, left.index.read() as here:
        lost = blocks_without_row(here, left.paths(container_id), container_id)
        with_bytes = (block_id for block_id, size_bytes in lost.items() if size_bytes > 0)
        with_row = (block_id for block_id, _ in here.blocks(container_id))
        known = {*blocks_without_row(there, served.paths(container_id), container_id)}
        buried = there.tombstones(container_id)
        for block_id in here.tombstones(container_id):
            if block_id not in buried:
                return f"its copy does not know that block {block_id} was deleted"
        known.update(buried)
        for block_id in chain(with_bytes, with_row):
            if block_id not in known and there.block(container_id, block_id) is None:
                return f"its copy has no data of block {block_id}"
    return ""


def _are_one_shard(served: Volume, left: Volume, container_id: ContainerId) -> bool:
    """Return whether two replicas have the same replica index.

    Return True if an index is unknown.
    """
    rows = _row_or_none(served, container_id), _row_or_none(left, container_id)
    indexes = {row.replica_index for row in rows if row is not None}
    return len(indexes) < 2


def _row_or_none(volume: Volume, container_id: ContainerId) -> ReplicaRow | None:
    """Return the row of a replica, or None if the row is damaged or missing."""
    try:
        return _row(volume, container_id)
    except (DamagedData, RefusedError):
        return None


def _row(volume: Volume, container_id: ContainerId) -> ReplicaRow:
    with volume.index.read() as rows:
        return rows.replica(container_id)
