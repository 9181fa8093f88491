"""The store of one datanode: one interface to the replicas on all of its volumes.

Clients use `create_container`, `writer`, `begin_blocks` and `close_container`. Readers use `view`
and `findings`. Scans use `begin_scan` and `commit_scan`, and reconcile uses `repair`. Each of
`view`, `writer` and `repair` returns a handle for one replica.

Only `agent/store` accesses volumes. The store takes no locks. Callers that change a replica hold
its lease (agent/leases.py). LMDB allows one writer at a time. Reads need neither a lease nor a
lock.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, Self, TypeVar

from agent.store.failure_reports import StoreFailure
from agent.store.files.layout import ReplicaPaths
from agent.store.files.writebehind import Submit
from agent.store.index.columns import ReplicaColumns
from agent.store.index.facts import (
    ReplicaFacts,
    ScanBase,
    ScanCommit,
    Unloadable,
    VolumeFacts,
    facts_of,
)
from agent.store.index.replica_history import Changes
from agent.store.index.rows import ReplicaRow, ScanCursor, not_found
from agent.store.operations.batch_repair import OfferedChunk, install_batch
from agent.store.operations.block_batch_write import NewBlocks
from agent.store.operations.closing import close_replica, create_replica, move_state
from agent.store.operations.deleting import DeleteResult, delete_blocks, delete_replica
from agent.store.operations.reading import LocalReplicaView, changes_of, findings_of, served_columns
from agent.store.operations.repair import ReplicaRepair
from agent.store.operations.replica_import import ImportSpec, ImportVerdict, ReplicaImport
from agent.store.operations.scans import begin_scan, commit_scan, keep_cursor, kept_cursor
from agent.store.operations.write_rules import check_id, check_new, check_same
from agent.store.operations.writing import ReplicaWriter
from agent.store.options import StoreOptions
from agent.store.recovery.opening import open_volumes
from agent.store.replica.handle import ReplicaHandle
from agent.store.replica.packs import PackIndex
from agent.store.replica.quarantine_policy import keep_evidence
from agent.store.replica.states import ReplicaEvent
from agent.store.verification_log.log_entries import log_verdict
from agent.store.volume_services import VolumeModes
from agent.store.volume_set import VolumeSet
from agent.store.volumes.ballast import with_ballast
from agent.store.volumes.service_mode import VolumeMode
from agent.store.volumes.volume import Volume, choose_volume
from merkle.checksum import Algorithm, long_crcs
from merkle.replica import BlockId, ContainerId, ReplicaState
from scanner.finding import ScanFinding
from scanner.scan_outcome import ScanOutcome
from suture.errors import Code, RefusedError, UnavailableError, VolumeFailed

FINDINGS_MAX: Final = 10_000

H = TypeVar("H", bound=ReplicaHandle)


class ReplicaStore:
    """All replicas of one datanode.

    `volume_set` has the volumes with their replicas, and `services` the service mode of each
    volume.
    """

    def __init__(
        self, volume_set: VolumeSet, options: StoreOptions, *, cluster_id: str, datanode_id: str
    ) -> None:
        """Create the store from open volumes.

        Callers use `open`, which also recovers after a crash.
        """
        self._options = options
        self.cluster_id, self.datanode_id = cluster_id, datanode_id
        self.volume_set = volume_set
        self.recovery = volume_set.recovery
        self.on_change = options.on_change
        self.on_trouble = options.on_trouble
        self.services = VolumeModes(volume_set, options, lambda changed: self.on_change(changed))

    @classmethod
    def open(
        cls,
        volume_paths: Sequence[Path],
        *,
        cluster_id: str,
        datanode_id: str,
        options: StoreOptions | None = None,
        keeps_failed: bool = False,
        rebuilds_later: bool = False,
    ) -> Self:
        """Open the volumes of a datanode, format empty ones, and recover after a crash.

        A volume that does not work, or that belongs to another datanode, is not opened, and
        `volumes` lists it as failed. Raise `SutureError`, with no volume open, if no volume works,
        or if another agent uses one. With `keeps_failed`, open the store even if no volume works,
        so that the datanode can report its failed volumes. With `rebuilds_later`, the caller
        rebuilds lost indexes with `volume_set.load_next`.
        """
        long_crcs()  # loads libraries now, because file descriptors may run out later
        chosen = options or StoreOptions()
        opened = open_volumes(
            volume_paths,
            cluster_id=cluster_id,
            datanode_id=datanode_id,
            options=chosen,
            keeps_failed=keeps_failed,
            rebuilds_later=rebuilds_later,
        )
        volumes = VolumeSet(opened.volumes, chosen, opened.shelf, opened.failed)
        return cls(volumes, chosen, cluster_id=cluster_id, datanode_id=datanode_id)

    def close(self) -> None:
        """Close all volumes. No other call may be running."""
        self.volume_set.close()

    # -- facts

    def volumes(self) -> tuple[VolumeFacts, ...]:
        """Return the facts of every volume, failed volumes last."""
        return self.volume_set.volumes()

    def unloadable(self) -> tuple[Unloadable, ...]:
        """Return the replicas that have files on a volume but are not served from it."""
        return self.volume_set.unloadable

    @property
    def algorithm(self) -> Algorithm:
        """Checksum algorithm of new trees."""
        return self._options.algorithm

    def replica(self, container_id: ContainerId) -> ReplicaFacts:
        """Return the facts of one replica.

        Raise `RefusedError(CONTAINER_NOT_FOUND)` if it does not exist.
        """
        volume = self._volume(container_id)
        with volume.index.read() as rows:
            return facts_of(container_id, volume.volume_id, rows.replica(container_id))

    def replicas(
        self, start: int = 0, count: int | None = None, *, volume_id: str = ""
    ) -> list[ReplicaFacts]:
        """Return at most `count` replicas by ascending id, from container `start` on.

        If `volume_id` is not "", return only the replicas on this volume.
        """
        here = (v for v in self.volume_set.working if volume_id in {"", v.volume_id})
        facts = [one for v in here for one in islice(self._replicas_on(v, start), count)]
        return sorted(facts, key=lambda fact: fact.container_id)[:count]

    def columns(self, volume_id: str = "") -> Iterator[tuple[str, ReplicaColumns]]:
        """Yield (volume id, its replicas as columns) for each volume.

        If `volume_id` is not "", yield only this volume.
        """
        here = (v for v in self.volume_set.working if volume_id in {"", v.volume_id})
        return (
            (volume.volume_id, served_columns(volume, self.volume_set.places)) for volume in here
        )

    def _replicas_on(self, volume: Volume, start: int = 0) -> Iterator[ReplicaFacts]:
        with volume.index.read() as rows:
            for container_id, row in rows.replicas(start):
                if (
                    isinstance(row, ReplicaRow)
                    and self.volume_set.places.get(container_id) is volume
                ):
                    yield facts_of(container_id, volume.volume_id, row)

    def replica_ids(self) -> list[ContainerId]:
        """Return the ids of all served replicas, in ascending order.

        This includes the replicas with damaged rows.
        """
        return sorted(self.volume_set.places.copy())

    def paths(self, container_id: ContainerId) -> ReplicaPaths:
        """Return the paths of a replica's files."""
        return self._volume(container_id).paths(container_id)

    def pack(self, container_id: ContainerId) -> PackIndex:
        """Return access to the index rows of a replica's packed blocks."""
        return PackIndex(self._volume(container_id).index, container_id)

    def generation(self, container_id: ContainerId) -> int:
        """Return the generation of a replica, which increases with every change of its data."""
        with self._volume(container_id).index.read() as rows:
            return rows.replica(container_id).generation

    # -- writing

    def create_container(
        self,
        container_id: ContainerId,
        *,
        replica_index: int = 0,
        origin_datanode_id: str = "",
        state: ReplicaState = ReplicaState.OPEN,
    ) -> ReplicaFacts:
        """Create a replica on the volume with the most free space.

        Return the existing replica if it has the same state and index. Raise
        `RefusedError(CONTAINER_EXISTS)` if these differ. A reconstruction creates a replica in
        state RECOVERING.
        """
        check_new(container_id, replica_index, state)
        if container_id in self.volume_set.places or container_id in self.volume_set.lost:
            return check_same(self.replica(container_id), replica_index, state)
        self._check_absent(container_id)
        volume = choose_volume(self.services.in_service(), self._options.reserve_bytes)
        row = ReplicaRow(
            state=state,
            replica_index=replica_index,
            origin_datanode_id=origin_datanode_id or volume.version.datanode_id,
            created_at_ms=self._options.now_ms(),
        )
        create_replica(volume, container_id, row)
        if self.services.of(volume.volume_id).mode is VolumeMode.RETIRED:  # since the choice
            delete_replica(volume, container_id, force=True)
            raise UnavailableError(
                Code.BUSY,
                f"{volume.layout.volume} was retired concurrently",
                container_id=container_id,
            )
        return self._appear(container_id, volume, row)

    def begin_arrival(self, announced: ImportSpec, submit: Submit | None = None) -> ReplicaImport:
        """Reserve space for a replica that is imported from another datanode.

        The caller calls `finish_arrival` if all data has arrived, and `discard` in any case.
        `submit` runs work in other threads. Raise `RefusedError(CONTAINER_EXISTS)` if the replica
        exists. Raise `UnavailableError(BUSY)` if too many imports are running or the container is
        being imported already, and `UnavailableError(DISK_OUT_OF_SPACE)` if no volume has enough
        space.
        """
        check_id(announced.container_id, "container id")
        self._check_absent(announced.container_id)
        return self.services.begin_arrival(announced, self.services.in_service(), submit)

    def finish_arrival(self, arrival: ReplicaImport, received: ImportVerdict) -> ReplicaFacts:
        """Commit an imported replica durably, and serve it."""
        container_id = arrival.announced.container_id
        self._check_absent(container_id, arriving=True)
        return self._appear(container_id, arrival.volume, arrival.publish(received))

    def writer(self, container_id: ContainerId) -> ReplicaWriter:
        """Return the handle for client writes to one replica.

        During each write, the caller must hold the lease of the container.
        """
        return self._handle(ReplicaWriter, container_id)

    def begin_blocks(self, container_id: ContainerId, submit: Submit | None = None) -> NewBlocks:
        """Begin to receive complete new blocks of a container.

        The caller calls `discard` at the end. `submit` runs writes in other threads.
        """
        volume = self._volume(container_id)
        return NewBlocks(volume, self._options, container_id, self.on_trouble, submit)

    def close_container(
        self, container_id: ContainerId, *, bcsid: int = 0, force: bool = False
    ) -> ReplicaFacts:
        """Close a replica.

        The replica becomes CLOSED if its BCSID has reached `bcsid` or `force` is set, and otherwise
        QUASI_CLOSED.
        """
        close_replica(self._handle(ReplicaHandle, container_id), bcsid=bcsid, force=force)
        self.on_change(container_id)
        return self.replica(container_id)

    def expire_recovery(self, container_id: ContainerId) -> None:
        """Mark an abandoned RECOVERING replica as UNHEALTHY. It cannot become healthy again."""
        move_state(self._volume(container_id), container_id, ReplicaEvent.EXPIRED)
        self.on_change(container_id)

    def delete_container(
        self, container_id: ContainerId, *, force: bool = False, proof: str = ""
    ) -> None:
        """Delete a replica. An open or non-empty replica is deleted only with `force`.

        `proof` is written to the verification log. If files could not be removed, call
        `on_trouble`, which causes a check of the volume. Raise `UnavailableError(BUSY)` if two
        volumes have the replica.
        """
        volume = self._volume(container_id)
        self.services.require_no_second(container_id)
        left = with_ballast(
            volume.layout,
            self._options.reserve_bytes,
            lambda: delete_replica(volume, container_id, force=force, proof=proof),
        )
        self.volume_set.places.pop(container_id, None)
        self.on_change(container_id)
        if left:
            self.on_trouble(StoreFailure(container_id, is_disk=True, reason=left))

    def free_blocks(
        self, container_id: ContainerId, ids: Collection[BlockId], kept: Collection[BlockId] = ()
    ) -> DeleteResult:
        """Delete blocks of a closed replica.

        The data of the blocks in `kept` is moved to quarantine. If files could not be removed, call
        `on_trouble`, which causes a check of the volume.
        """
        replica = self._handle(ReplicaHandle, container_id)
        delete = partial(delete_blocks, replica, ids, kept)
        deleted = with_ballast(replica.volume.layout, self._options.reserve_bytes, delete)
        if deleted.freed:
            self.on_change(container_id)
        for error in islice(deleted.left.values(), 1):
            self.on_trouble(StoreFailure(container_id, is_disk=True, reason=str(error)))
        return deleted

    # -- reading

    def view(self, container_id: ContainerId) -> LocalReplicaView:
        """Return the handle for reads of one replica.

        Raise `RefusedError(CONTAINER_NOT_FOUND)` if the replica does not exist.
        """
        volume = self.volume_set.places.get(container_id) or self._volume(container_id)
        return LocalReplicaView(volume, self._options, container_id, self.on_trouble)

    def changes(self, since_ms: int, *, count: int) -> Changes:
        """Return the newest `count` changes of all replicas since `since_ms`."""
        return changes_of(self.volume_set.working, since_ms=since_ms, count=count)

    # -- scans and repairs

    def begin_scan(self, container_id: ContainerId) -> ScanBase:
        """Return the state of the replica at the start of a scan."""
        return begin_scan(self._volume(container_id), container_id)

    def keep_cursor(self, container_id: ContainerId, cursor: ScanCursor) -> None:
        """Store the progress of a scan durably. `commit_scan` deletes the progress."""
        keep_cursor(self._volume(container_id), container_id, cursor)

    def kept_cursor(self, container_id: ContainerId) -> ScanCursor | None:
        """Return the progress of an interrupted scan.

        Return None if the scan has to begin at the start.
        """
        return kept_cursor(self._volume(container_id), container_id)

    def commit_scan(
        self, base: ScanBase, outcome: ScanOutcome, *, is_whole: bool = True
    ) -> ScanCommit:
        """Make the result of a scan durable, if the replica has not changed since `begin_scan`."""
        container_id = base.facts.container_id
        replica = self._handle(ReplicaHandle, container_id)
        commit = commit_scan(replica, base.generation, outcome, is_whole=is_whole)
        if commit.committed:
            self.on_change(container_id)
        return commit

    def log_verdict(
        self, base: ScanBase, outcome: ScanOutcome, *, why: str, is_whole: bool = True
    ) -> None:
        """Write the result of a scan to the verification log, before the agent acts on the result.

        `why` is the reason if the result is held back, which means that it is not committed.
        Otherwise, `why` is "". Nothing is logged for a replica that no longer exists.
        """
        if (volume := self.volume_set.places.get(base.facts.container_id)) is not None:
            log_verdict(volume.verification, base, outcome, why=why, is_whole=is_whole)

    def findings(
        self, container_id: ContainerId | None = None, *, start: int = 0, count: int = FINDINGS_MAX
    ) -> list[ScanFinding]:
        """Return at most `count` unresolved findings of one container.

        Without a container id, return findings of all containers, from container `start` on.
        """
        bound = min(count, FINDINGS_MAX)
        if container_id is not None:
            with self._volume(container_id).index.read() as rows:
                return list(islice(rows.findings(container_id), bound))
        return findings_of(
            self.volume_set.working, self.volume_set.places, start=start, count=bound
        )

    def repair(self, container_id: ContainerId) -> ReplicaRepair:
        """Return the handle for repairs of one replica.

        The caller holds the lease while it uses the handle.
        """
        return self._handle(ReplicaRepair, container_id)

    def install_chunks(
        self, container_id: ContainerId, offers: Sequence[OfferedChunk]
    ) -> frozenset[int]:
        """Install offered chunks together.

        Return the positions in `offers` of the installed chunks. The caller holds the lease, and
        installs the other chunks one by one.
        """
        return install_batch(self._handle(ReplicaHandle, container_id), offers)

    def keep_evidence(self, container_id: ContainerId, pieces: Mapping[str, bytes]) -> None:
        """Store evidence about a replica in the quarantine of its volume.

        The keys of `pieces` describe the pieces of evidence.
        """
        keep_evidence(self._handle(ReplicaHandle, container_id), pieces)

    def volume_id(self, container_id: ContainerId) -> str:
        """Return the id of the volume that serves a replica, or "" if no volume serves it.

        This reads no disk.
        """
        return volume.volume_id if (volume := self.volume_set.places.get(container_id)) else ""

    # -- helpers

    def _appear(self, container_id: ContainerId, volume: Volume, row: ReplicaRow) -> ReplicaFacts:
        """Start to serve a replica that was created on `volume`. Return its facts.

        Raise `VolumeFailed` if the volume has failed in the meantime.
        """
        self.volume_set.places[container_id] = volume
        if volume not in self.volume_set.working:  # the volume failed meanwhile
            self.volume_set.places.pop(container_id, None)
            raise VolumeFailed(Code.IO_EXCEPTION, f"volume {volume.volume_id} has failed")
        self.on_change(container_id)
        return facts_of(container_id, volume.volume_id, row)

    def _check_absent(self, container_id: ContainerId, *, arriving: bool = False) -> None:
        """Raise an error if the datanode already has the replica.

        The replica may be served, on a failed volume, or not loadable. Raise `RefusedError` in
        these cases. Raise `UnavailableError` if the replica waits for the rebuild of a lost index,
        or if it is being imported, unless `arriving`.
        """
        why = ""
        self.volume_set.check_loaded(container_id)
        if container_id in self.volume_set.places:
            why = f"is here, {self.replica(container_id).state}"
        elif container_id in self.volume_set.lost:
            why = "was on a volume that failed"
        else:
            here = (one for one in self.unloadable() if one.container_id == container_id)
            why = next((f"has files here that cannot be loaded: {one.reason}" for one in here), "")
        if why:
            raise RefusedError(
                Code.CONTAINER_EXISTS, f"container {container_id} {why}", container_id=container_id
            )
        if container_id in self.volume_set.arrivals and not arriving:
            raise UnavailableError(
                Code.BUSY, f"container {container_id} is being imported", container_id=container_id
            )

    def _handle(self, kind: type[H], container_id: ContainerId) -> H:
        return kind(self._volume(container_id), self._options, container_id, self.on_trouble)

    def _volume(self, container_id: ContainerId) -> Volume:
        if (volume := self.volume_set.places.get(container_id)) is not None:
            return volume
        self.volume_set.check_loaded(container_id)
        if (why := self.volume_set.lost.get(container_id)) is not None:
            raise VolumeFailed(
                Code.IO_EXCEPTION,
                f"container {container_id} was on a volume that failed: {why}",
                hint="replace the disk, then restart the agent",
                container_id=container_id,
            )
        raise not_found(container_id)
