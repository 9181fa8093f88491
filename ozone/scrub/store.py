"""A volume of Ozone as a store of replicas, which may be scanned but are never changed.

It implements the store for `agent.scan.container_scan`. Therefore, the agent's code does the
scheduling, limits the rate, continues interrupted scans, and checks the data. The results of scans
are stored in the history, outside the volume.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import structlog

from agent.store.direct_io import ReadBuffers
from agent.store.index.columns import ReplicaColumns
from agent.store.index.facts import ReplicaFacts, ScanBase, ScanCommit
from agent.store.index.rows import STATES, ScanCursor
from merkle.checksum import Algorithm
from merkle.damaged_data import DamagedData
from merkle.replica import TREE_STATES, Bcsid, ContainerId
from ozone.disk.database import ContainerDatabase, DatabaseView
from ozone.disk.descriptor import OzoneDescriptor
from ozone.disk.layout import ContainerPaths, OzoneVolume, check_there, container_ids
from ozone.disk.rows import BYTES_USED, ContainerRows
from ozone.disk.small_files import read_descriptor
from ozone.disk.unsupported_format import UnsupportedFormat
from ozone.scrub.comparison import Agreement, Comparison
from ozone.scrub.history import History
from ozone.scrub.reader import VIEW_AGE_S, OzoneReader, identity_of
from ozone.scrub.result import ContainerResult, ScrubStatus
from ozone.scrub.unread import rows_beside, unread
from scanner.finding import DamageFault, ScanFinding, Verdict
from scanner.ports import ReadSplitting
from scanner.scan_outcome import ScanOutcome
from scanner.unreadable_verdict import incremented, is_over
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.clock import Clock

SURPLUS_MAX: Final = 100  # blocks with trailing bytes to list
LOOKED_AT: Final = frozenset(
    {ScrubStatus.DAMAGED, ScrubStatus.DOUBTFUL}
)  # statuses that an operator must handle
NOT_OVER: Final = "not everything in it was read and judged: it is read again"
SCHEMA_SHARED: Final = 3  # one database for all containers of the volume


log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ContainerOnDisk:
    """A container directory of the volume, with the fields of its descriptor."""

    paths: ContainerPaths
    descriptor: OzoneDescriptor
    used_bytes: int


@dataclass(frozen=True, slots=True)
class VolumeListing:
    """The containers of a volume.

    `refused` has the results of the containers without a usable descriptor.
    """

    replicas: tuple[ContainerOnDisk, ...]
    refused: tuple[ContainerResult, ...]


@dataclass(frozen=True, slots=True)
class _Doubts:
    """The record of the read failures of one container since its last complete scan.

    Implements `scanner.unreadable_verdict.UnreadableRecords`.
    """

    history: History
    container_id: ContainerId
    clock: Clock

    def record_failure(self, why: str) -> None:
        """Count a scan in which a read failed."""
        had = self.history.unreadable_record(self.container_id)
        self.history.put_doubt(self.container_id, incremented(had, self.clock.now_ms(), why))

    def are_over(self) -> bool:
        """Return whether the next scan must report a read failure as UNREADABLE."""
        return is_over(self.history.unreadable_record(self.container_id), self.clock.now_ms())

    def are_noted(self) -> bool:
        """Return whether a read has failed in a scan since the last complete scan."""
        return self.history.unreadable_record(self.container_id) is not None


class OzoneStore:
    """The replicas of one Ozone volume, for scans. Only one thread may use it."""

    algorithm: Final = Algorithm.CRC32C  # Ozone's algorithm, so that trees can be compared

    def __init__(
        self, volume: OzoneVolume, history: History, scratch: Path, clock: Clock, *, database: Path
    ) -> None:
        """Create a store for `volume`.

        `scratch` is a directory of Suture for temporary files. `database` is the path of the
        volume's RocksDB of schema V3.
        """
        self.volume = volume
        self.history = history
        self._scratch = scratch
        self._clock = clock
        self._database = ContainerDatabase(database, scratch)
        self._known: dict[ContainerId, tuple[tuple[int, int, int], OzoneDescriptor]] = {}
        self.unkept: ContainerResult | None = None  # the last result, if it is not in the history
        self._held: dict[ContainerId, tuple[tuple[int, ...], int]] = {}
        self._reading: OzoneReader | None = None
        self._begun: ContainerOnDisk | None = None  # the container being read, as of its start
        self.refused: tuple[ContainerResult, ...] = ()  # results of the last listing for a schedule

    # Contents of the volume.

    def listing(self) -> VolumeListing:
        """Read the descriptors of all containers. Return the containers of the volume.

        Raise VolumeFailed if the volume is no longer at its path, and OSError if it cannot be
        listed.
        """
        replicas: list[ContainerOnDisk] = []
        failed: dict[ContainerId, Exception] = {}
        for container_id in sorted(container_ids(self.volume)):
            try:
                replicas.append(self.replica(container_id))
            except (
                DamagedData,
                UnsupportedFormat,
                OSError,
            ) as why:  # only this container failed; continue with the others
                failed[container_id] = why
        here = {replica.paths.container_id for replica in replicas}
        rows = rows_beside(self.volume, self._database, here)
        if rows.unknown is not None and not (replicas or failed):
            raise rows.unknown
        now_ms = self._clock.now_ms()
        refused = [
            result
            for container_id in sorted(failed.keys() | rows.held)
            if (result := unread(self.volume, container_id, rows, failed.get(container_id), now_ms))
        ]
        check_there(self.volume, held_containers=bool(replicas or refused))
        return VolumeListing(tuple(replicas), tuple(refused))

    def forget_gone(self, listing: VolumeListing) -> None:
        """Remove the stored results of containers that are no longer on the volume.

        Raise RefusedError, VolumeFailed or OSError, without removing results, if the volume is no
        longer at its path.
        """
        here = {replica.paths.container_id for replica in listing.replicas}
        here |= {result.container_id for result in listing.refused}
        gone = sorted(self.history.read_at_ms().keys() - here)
        if gone:
            check_there(self.volume)
            self.history.forget(gone)

    def replica(self, container_id: ContainerId) -> ContainerOnDisk:
        """Return one container of the volume.

        Raise DamagedData if its descriptor is damaged, UnsupportedFormat if another release of
        Ozone wrote it, and OSError if it cannot be read.
        """
        paths = self.volume.paths(container_id)
        status = paths.descriptor.stat()
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        known = self._known.get(container_id)
        if known is None or known[0] != seen:
            try:
                descriptor = read_descriptor(paths)
            except DamagedData:
                descriptor = read_descriptor(paths)  # Ozone may just have replaced it
            known = self._known[container_id] = (seen, descriptor)
        return ContainerOnDisk(paths, known[1], self._used_bytes(paths, known[1], seen))

    def _used_bytes(
        self, paths: ContainerPaths, descriptor: OzoneDescriptor, seen: tuple[int, ...]
    ) -> int:
        """Return the approximate number of bytes to read in a container, or 0 if it is unknown."""
        if descriptor.schema == SCHEMA_SHARED:
            try:
                view = self._database.view(time.monotonic() - VIEW_AGE_S)
                rows = ContainerRows(view, paths.container_id, descriptor.schema)
                return max(0, rows.number(BYTES_USED) or 0)
            except SutureError as error:
                if isinstance(error, RefusedError):
                    raise
                return 0  # reported for each container when its scan begins
        try:
            return self._held_bytes(paths, seen)
        except OSError:
            return 0

    def _held_bytes(self, paths: ContainerPaths, seen: tuple[int, ...]) -> int:
        """Return the total size in bytes of the block files of a container.

        The schedule requests the size every minute, for up to millions of files. Therefore, the
        result is cached until the descriptor or the directory of block files changes.
        """
        status = paths.chunks.stat()
        version = (*seen, status.st_ino, status.st_mtime_ns)
        held = self._held.get(paths.container_id)
        if held is None or held[0] != version:
            length_bytes = sum(file.stat().st_size for file in paths.chunks.glob("*.block"))
            held = self._held[paths.container_id] = (version, length_bytes)
        return held[1]

    # Methods of agent.scan.container_scan.ScannedStore.

    def volume_id(self, container_id: ContainerId) -> str:
        """Return the storage id of the volume."""
        del container_id
        return self.volume.storage_id

    def columns(self, volume_id: str = "") -> Iterator[tuple[str, ReplicaColumns]]:
        """Yield (volume id, replicas that may be scanned, as columns), only once."""
        del volume_id
        listing = self.listing()
        self._tell_of(listing.refused)
        self.forget_gone(listing)
        replicas, read_at_ms = listing.replicas, self.history.read_at_ms()
        ids = [replica.paths.container_id for replica in replicas]
        states = [STATES.index(replica.descriptor.state) for replica in replicas]
        used_bytes = [replica.used_bytes for replica in replicas]
        read = [read_at_ms.get(container_id, 0) for container_id in ids]
        none = np.zeros(len(replicas), np.uint32)
        yield (
            self.volume.storage_id,
            ReplicaColumns(
                np.array(ids, np.uint64),
                np.array(states, np.uint8),
                none,
                np.array(used_bytes, np.uint64),
                np.array(read, np.uint64),
                none,
                none,
            ),
        )

    def _tell_of(self, refused: tuple[ContainerResult, ...]) -> None:
        known = {result.container_id for result in self.refused}
        for result in refused:
            if result.container_id not in known:
                log.warning(
                    "ozone_container_unreadable",
                    container_id=result.container_id,
                    volume_id=self.volume.storage_id,
                    why=result.why,
                )
        self.refused = refused

    def begin_scan(self, container_id: ContainerId) -> ScanBase:
        """Return the state of a container at the start of a scan.

        Raise RefusedError if the container must not be scanned, and OSError if it cannot be read.
        """
        self.unkept = None
        try:
            replica = self.replica(container_id)
            generation = identity_of(replica.paths)
        except FileNotFoundError as error:
            raise RefusedError(
                Code.CONTAINER_NOT_FOUND, f"container {container_id} is no longer here"
            ) from error
        except (DamagedData, UnsupportedFormat) as why:
            raise RefusedError(Code.INELIGIBLE, str(why)) from why
        self._begun = replica
        descriptor = replica.descriptor
        if descriptor.state not in TREE_STATES:
            raise RefusedError(
                Code.UNCLOSED_CONTAINER_IO, f"container {container_id} is {descriptor.state}"
            )
        known = self.history.read_at_ms().get(container_id, 0)
        facts = ReplicaFacts(
            container_id=container_id,
            state=descriptor.state,
            former_state=None,
            replica_index=descriptor.replica_index,
            bcsid=Bcsid(0),
            used_bytes=replica.used_bytes,
            block_count=0,
            origin_datanode_id=descriptor.origin_node_id,
            volume_id=self.volume.storage_id,
            tree=None,
            data_scan_at_ms=known,
            finding_count=0,
        )
        return ScanBase(generation, facts, _Doubts(self.history, container_id, self._clock))

    def generation(self, container_id: ContainerId) -> int:
        """Return a number that changes if another replica replaces the replica of a container.

        Return -1 if there is no replica.
        """
        try:
            return identity_of(self.volume.paths(container_id))
        except OSError:
            return -1

    def kept_cursor(self, container_id: ContainerId) -> ScanCursor | None:
        """Return the progress of an interrupted scan, or None if there is none for this replica."""
        cursor = self.history.cursor(container_id)
        if cursor is None or cursor.generation != self.generation(container_id):
            return None
        return cursor

    def keep_cursor(self, container_id: ContainerId, cursor: ScanCursor) -> None:
        """Store the progress of a scan."""
        self.history.put_cursor(container_id, cursor)

    def open_reader(
        self,
        base: ScanBase,
        *,
        buffers: ReadBuffers | None,
        pieces: ReadSplitting | None,
        insists: bool = False,
    ) -> OzoneReader:
        """Return a reader of a replica.

        `base` is the state of the replica at the start of the scan. Raise SutureError or OSError if
        the replica cannot be read.
        """
        replica, container_id = self._begun, base.facts.container_id
        assert replica is not None
        assert replica.paths.container_id == container_id
        began_at_s = time.monotonic() - (0.0 if self._is_new(replica) else VIEW_AGE_S)
        shared = replica.descriptor.schema == SCHEMA_SHARED
        database = (
            self._database if shared else ContainerDatabase(replica.paths.database, self._scratch)
        )
        found: dict[DatabaseView, ContainerRows] = {}

        def rows_since(since_s: float) -> ContainerRows:
            view = database.view(since_s)
            if view not in found:
                found.clear()
                found[view] = ContainerRows(view, container_id, replica.descriptor.schema)
            return found[view]

        self._reading = OzoneReader(
            replica.paths,
            rows_since,
            began_at_s,
            base.generation,
            buffers=buffers,
            pieces=pieces,
            insists=insists,
        )
        return self._reading

    def _is_new(self, replica: ContainerOnDisk) -> bool:
        """Return whether the container may have changed after the view that its scan may use.

        This is the oldest view of the database that the scan may use.
        """
        try:
            changed_s = replica.paths.descriptor.stat().st_mtime
        except OSError:  # the descriptor may just have been lost, which the reader reports
            return True
        return (changed_s + 2 * VIEW_AGE_S) * 1000 > self._clock.now_ms()

    def log_verdict(self, base: ScanBase, outcome: ScanOutcome, *, why: str) -> None:
        """Do nothing, because Ozone's volumes have no verification log.

        `ozone.scrub.history` stores the results instead.
        """

    def commit_scan(self, base: ScanBase, outcome: ScanOutcome) -> ScanCommit:
        """Store the result of a scan in the history, if the replica is still at its path."""
        assert self._reading is not None
        facts, container_id = base.facts, base.facts.container_id
        committed = self.generation(container_id) == base.generation
        if committed:
            result = self._result(facts, self._reading, outcome)
            if not outcome.complete:
                result = self._added(result)
            try:
                self.history.put(result, is_whole=outcome.complete)
            except SutureError:
                self.unkept = result
                raise
            if result.status in LOOKED_AT:
                log.warning(
                    "ozone_container_fault_found",
                    container_id=container_id,
                    volume_id=self.volume.storage_id,
                    status=result.status.value,
                    finding_count=result.finding_count,
                    doubts=list(result.caveats()),
                )
        return ScanCommit(
            committed=committed,
            state_before=facts.state,
            state_after=facts.state,
            root_changed=False,
        )

    def _result(
        self, facts: ReplicaFacts, reader: OzoneReader, outcome: ScanOutcome
    ) -> ContainerResult:
        """Return the result of a read of a container."""
        now_ms = self._clock.now_ms()
        links = [
            ScanFinding(
                facts.container_id,
                Verdict.OK,
                DamageFault.BLOCK_FILE_LINK,
                block_id,
                -1,
                -1,
                now_ms,
                f"a symbolic link to {target}",
            )
            for block_id, target in sorted(reader.links.items())
        ]
        surplus = [
            ScanFinding(
                facts.container_id,
                Verdict.OK,
                DamageFault.TRAILING_BYTES,
                block_id,
                -1,
                length_bytes,
                now_ms,
                f"{length_bytes} bytes behind the last one that was committed",
            )
            for block_id, length_bytes in sorted(reader.surplus.items())[:SURPLUS_MAX]
        ]
        replica = self._begun  # its descriptor at the start, because losing it is a finding
        assert replica is not None
        return ContainerResult(
            container_id=facts.container_id,
            storage_id=self.volume.storage_id,
            state=facts.state.value,
            replica_index=facts.replica_index,
            schema=replica.descriptor.schema,
            read_at_ms=now_ms,
            bytes_read=outcome.bytes_read,
            block_count=outcome.tree.block_count,
            findings=(*outcome.findings, *links, *surplus),
            finding_count=len(outcome.findings) + len(reader.links) + len(reader.surplus),
            comparison=reader.compare(outcome.tree),
            skipped=reader.skipped,
            skipped_count=reader.skipped_count,
            unknown_row_count=reader.rows.unknown_count,
            lost_rows=reader.rows.lost_rows_text(has_files=reader.has_files),
            is_verified=replica.descriptor.is_verified,
        )

    def _added(self, result: ContainerResult) -> ContainerResult:
        """Return the result of a container after an unfinished read.

        It has the new findings, and the stored findings at other positions.
        """
        known = self.history.result(result.container_id) or replace(
            result, read_at_ms=0, findings=(), comparison=Comparison(Agreement.NO_TREE)
        )
        places = {(item.fault, item.block_id, item.offset): item for item in known.findings}
        places.update({(item.fault, item.block_id, item.offset): item for item in result.findings})
        return replace(
            known,
            findings=tuple(sorted(places.values(), key=lambda item: not item.is_damage)),
            finding_count=len(places),
            why=NOT_OVER,
        )
