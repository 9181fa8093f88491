"""Import of a replica from another datanode.

It is built in tmp/, then recorded and renamed into place.

1. Reserve space. 2. Write chunks, tree and descriptor to tmp/importing/<id>, and sync them. 3.
   Commit all rows and a journal entry (`MovingEntry`), in one LMDB transaction. 4. Rename the
   directory into place. 5. Remove the journal entry, in a second transaction.

The replica is reported to the SCM only after the last step. If a crash happens before the commit of
step 3, the next start removes the files from tmp/. If it happens later, the next start finds the
journal entry. If the directory is then in place, the replica is complete, and the agent serves it.
Otherwise the agent deletes the rows of the replica.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import BinaryIO, Final

from agent.store.files.layout import ReplicaPaths, replica_paths
from agent.store.files.writebehind import FileWriter, Submit
from agent.store.index.packformat import PACKED_BYTES_MAX, PackedBlocks
from agent.store.index.rows import MovingEntry, ReplicaRow
from agent.store.index.transactions import IndexChange
from agent.store.operations.closing import unhealthy
from agent.store.options import StoreOptions
from agent.store.replica.descriptor import descriptor_of, encode_descriptor
from agent.store.replica.packs import PackWriter
from agent.store.replica.path_conflicts import (
    remove_abandoned,
    remove_failed_replica,
    set_aside_existing,
)
from agent.store.volumes.volume import Volume
from merkle.replica import Bcsid, BlockId, ContainerId, ReplicaState
from merkle.tree import Tree
from merkle.tree_codec import encode_tree
from scanner.finding import ScanFinding
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.runtime.durable import (
    DIRECTORY_MODE,
    disk_errors,
    make_directories,
    move,
    open_new,
    remove_tree,
    sync_file_system,
    sync_path,
)

RESERVED_TIMES: Final = 2  # times the data size, for metadata and file system overhead
RESERVED_BYTES_MIN: Final = 1024**2
ARRIVALS_MAX: Final = 6  # each takes a server thread and some megabytes
ROWS_SUFFIX: Final = ".rows"
FIRST_GENERATION: Final = 1
_COUNT: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSpec:
    """Description of a replica by its sender. `data_bytes` is approximate."""

    container_id: ContainerId
    state: ReplicaState
    former_state: ReplicaState | None
    replica_index: int
    bcsid: Bcsid
    origin_datanode_id: str
    created_at_ms: int
    data_bytes: int
    generation: int = FIRST_GENERATION
    """Generation of the imported tree. A move between volumes increments it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportVerdict:
    """Result of the verification of an imported replica by the receiver.

    `findings` has only damage. `contradictions` has the contradictions with other replicas that the
    sender has reported.
    """

    tree: Tree
    findings: Sequence[ScanFinding]
    contradictions: Sequence[ScanFinding]
    block_count: int
    used_bytes: int
    bcsid: Bcsid


@dataclass(slots=True, eq=False)
class _SpaceReservation:
    """The volume of a running import, and the number of reserved bytes that are not used yet."""

    volume: Volume | None = None
    left_bytes: int = 0


@dataclass(slots=True)
class ReplicaImports:
    """The running imports of a store.

    No lock is needed, because single operations on a dict are atomic. If two imports reserve the
    last space of a volume at the same time, at most one of them is admitted, and possibly none.
    """

    options: StoreOptions
    _claims: dict[ContainerId, _SpaceReservation] = field(default_factory=dict)

    def __contains__(self, container_id: object) -> bool:
        return container_id in self._claims

    def begin(
        self, announced: ImportSpec, volumes: Sequence[Volume], submit: Submit | None
    ) -> "ReplicaImport":
        """Reserve space, and create the directory for an import.

        Raise `UnavailableError(BUSY)` if the container is being imported already or too many
        imports are running. Raise `UnavailableError(DISK_OUT_OF_SPACE)` if no volume has enough
        space.
        """
        container_id = announced.container_id
        if len(self._claims) >= ARRIVALS_MAX:
            raise UnavailableError(
                Code.BUSY, f"cannot import the replica: {ARRIVALS_MAX} imports are already running"
            )
        claim = _SpaceReservation()
        if self._claims.setdefault(container_id, claim) is not claim:
            raise UnavailableError(
                Code.BUSY,
                f"container {container_id} is already being imported",
                container_id=container_id,
            )
        try:
            wanted = max(announced.data_bytes * RESERVED_TIMES, RESERVED_BYTES_MIN)
            self._reserve(claim, wanted, volumes)
            assert claim.volume is not None
            return ReplicaImport(self, claim, claim.volume, announced, submit)
        except BaseException:
            self.forget(container_id)
            raise

    def forget(self, container_id: ContainerId) -> None:
        """End the import of a container, and release its reserved space."""
        self._claims.pop(container_id, None)

    def on(self, volume: Volume) -> list[ContainerId]:
        """Return the ids of the containers that are being imported to a volume."""
        return [key for key, claim in list(self._claims.items()) if claim.volume is volume]

    def reserved_bytes(self, volume: Volume) -> int:
        """Return how many bytes of a volume are reserved for data that has not arrived yet."""
        return sum(
            claim.left_bytes for claim in list(self._claims.values()) if claim.volume is volume
        )

    def _reserve(
        self, claim: _SpaceReservation, wanted_bytes: int, volumes: Sequence[Volume]
    ) -> None:
        """Reserve space on the volume with the most free space.

        Raise `UnavailableError` if it is too small. The reservation is made first and checked
        afterwards. Therefore, the check includes concurrent reservations.
        """
        by_room = sorted(volumes, key=self._free_bytes, reverse=True)
        for volume in by_room:
            claim.left_bytes, claim.volume = wanted_bytes, volume
            if self._free_bytes(volume) >= self.options.reserve_bytes:
                return
            claim.volume = None
        free = max((self._free_bytes(volume) for volume in by_room), default=0)
        raise UnavailableError(
            Code.DISK_OUT_OF_SPACE,
            f"cannot import the replica: it needs {wanted_bytes} bytes, the volume with the "
            f"most space has {max(free - self.options.reserve_bytes, 0)}",
            hint="free space or add a volume",
        )

    def _free_bytes(self, volume: Volume) -> int:
        return volume.available_bytes() - self.reserved_bytes(volume)


@dataclass(eq=False)
class ReplicaImport:
    """A running import. Only one thread may use it, and ends it with `publish` or `discard`."""

    arrivals: ReplicaImports
    claim: _SpaceReservation
    volume: Volume
    announced: ImportSpec
    submit: Submit | None

    def __post_init__(self) -> None:
        container_id = self.announced.container_id
        self._paths: ReplicaPaths = replica_paths(
            self.volume.layout.importing / str(container_id), container_id
        )
        self._rows_path: Path = self.volume.layout.importing / f"{container_id}{ROWS_SUFFIX}"
        with disk_errors(self._paths.root):
            try:
                self._rows, self._directory_fd = self._made()
            except OSError:
                self._clear_away()
                raise
        self._files = FileWriter(self._directory_fd, self.submit)
        self._pack: PackWriter | None = None
        self._allocated_bytes = 0  # of the current file
        self._is_open = True

    def _made(self) -> tuple[BinaryIO, int]:
        """Create the directory of the import.

        Return the open file for block rows, and a descriptor of the directory of block files.
        """
        remove_tree(self._paths.root)
        self._paths.root.mkdir(DIRECTORY_MODE)
        self._paths.chunks.mkdir(DIRECTORY_MODE)
        self._paths.descriptor.parent.mkdir(DIRECTORY_MODE)
        rows = os.fdopen(open_new(self._rows_path), "wb")
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            return rows, os.open(self._paths.chunks, flags)
        except OSError:
            rows.close()
            raise

    def _clear_away(self) -> None:
        for path in (self._paths.root, self._rows_path):
            remove_abandoned(self.volume, path)

    # -- during the import

    def keep_rows(self, block_ids: Sequence[BlockId], rows: Sequence[bytes]) -> int:
        """Store the rows of blocks in a file until the commit, because the rows may need much
        memory. Skip empty rows; return the number of stored rows."""
        if not all(rows):
            block_ids = [block_id for block_id, row in zip(block_ids, rows, strict=True) if row]
            rows = [row for row in rows if row]
        count = len(rows)
        head = struct.pack(f"<I{count}Q{count}I", count, *block_ids, *map(len, rows))
        with disk_errors(self._rows_path):
            self._rows.write(b"".join([head, *rows]))
        return count

    def expect_small(self, count: int) -> None:
        """Announce that `count` small blocks will follow.

        If there are so many that a pack file is cheaper than one file per block, write them to a
        pack file.
        """
        if count >= self.arrivals.options.packed_count_min:
            self._pack = PackWriter(self._directory_fd, self.submit)

    def write_whole(self, blocks: Sequence[tuple[BlockId, memoryview]]) -> None:
        """Write complete blocks by ascending id, in the background.

        The caller must not change the data.
        """
        self._use(sum(len(data) for _, data in blocks))
        with disk_errors(self._paths.chunks):
            if self._pack is not None:
                self._pack.add([block for block in blocks if len(block[1]) <= PACKED_BYTES_MAX])
                blocks = [block for block in blocks if len(block[1]) > PACKED_BYTES_MAX]
            if blocks:
                names = [(f"{block_id}.block", data) for block_id, data in blocks]
                self._files.write_whole(names)

    def begin_file(self, block_id: BlockId, size_bytes: int) -> None:
        """Create the file of a large block. Raise RefusedError if it exceeds the reserved space."""
        self._check_room(size_bytes)
        with disk_errors(self._paths.chunks):
            self._allocated_bytes = self._files.begin(f"{block_id}.block", size_bytes)
        self._use(self._allocated_bytes)

    def append(self, data: memoryview) -> None:
        """Append data to the file that `begin_file` created."""
        if not self._allocated_bytes:
            self._use(len(data))
        with disk_errors(self._paths.chunks):
            self._files.append(data)

    def end_file(self) -> None:
        """Finish the file that `begin_file` created, in the background."""
        with disk_errors(self._paths.chunks):
            self._files.end()

    def rows(self) -> Iterator[tuple[BlockId, bytes]]:
        """Yield the rows that `keep_rows` stored, in the same order."""
        with disk_errors(self._rows_path):
            self._rows.flush()
            with self._rows_path.open("rb") as stored:
                while head := stored.read(_COUNT.size):
                    [count] = _COUNT.unpack(head)
                    about = struct.Struct(f"<{count}Q{count}I")
                    ids_and_sizes = about.unpack(stored.read(about.size))
                    ends = list(accumulate(ids_and_sizes[count:], initial=0))
                    data = stored.read(ends[-1])
                    for block_id, (start, end) in zip(ids_and_sizes, pairwise(ends), strict=False):
                        yield BlockId(block_id), data[start:end]

    def _use(self, size_bytes: int) -> None:
        """Subtract `size_bytes` from the reserved space.

        Raise RefusedError if too little is left.
        """
        self._check_room(size_bytes)
        self.claim.left_bytes -= size_bytes

    def _check_room(self, size_bytes: int) -> None:
        """Raise RefusedError if `size_bytes` exceeds the remaining reserved space of the import."""
        if size_bytes > self.claim.left_bytes:
            raise RefusedError(
                Code.MALFORMED_REQUEST,
                f"received more than {RESERVED_TIMES} times the announced "
                f"{self.announced.data_bytes} bytes",
                container_id=self.announced.container_id,
            )

    # -- end of the import

    def publish(self, received: ImportVerdict) -> ReplicaRow:
        """Make the replica durable and move it into place. Return its row.

        The caller holds the container's lease. If this raises SutureError, the replica is not
        visible, and the caller must still call `discard`.
        """
        container_id = self.announced.container_id
        place = self.volume.paths(container_id)
        tree = received.tree.with_generation(self.announced.generation)
        row = arrived_row(self.announced, received, tree)
        with disk_errors(place.root):
            set_aside_existing(self.volume, container_id)
            packed = PackedBlocks.none() if self._pack is None else self._pack.end()
            self._files.wait_written()
            self._paths.descriptor.write_bytes(encode_descriptor(descriptor_of(container_id, row)))
            self._paths.tree.write_bytes(encode_tree(tree, container_id))
            make_directories(place.root.parent, below=self.volume.layout.current)
            self._sync()
        findings = [*received.findings, *received.contradictions]
        self.volume.index.write(lambda rows: self._record(rows, row, tree, packed, findings))
        try:
            with disk_errors(place.root):
                move(self._paths.root, place.root)
            self.volume.index.write(lambda rows: rows.end_work(container_id, MovingEntry()))
        except SutureError:
            self._remove_import()
            raise
        return row

    def _sync(self) -> None:
        """Make the files of the import and their names durable. Raise OSError if a sync fails.

        If the block data is durable already, sync only the descriptor, the tree and the
        directories. The import then does not wait for other writes to the file system.
        """
        if self._files.unsynced_count or (self._pack is not None and self._pack.unsynced_count):
            sync_file_system(self._directory_fd)
            self._files.drop_cached()
            return
        paths = self._paths
        for path in (paths.descriptor, paths.tree, paths.descriptor.parent):
            sync_path(path)
        os.fsync(self._directory_fd)
        sync_path(paths.root)

    def discard(self) -> None:
        """Remove the files in tmp/ and release the reserved space.

        The replica stays if `publish` succeeded.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._files.abandon()
        if self._pack is not None:
            self._pack.abandon()
        os.close(self._directory_fd)
        with suppress(OSError):
            self._rows.close()
        self._clear_away()
        self.arrivals.forget(self.announced.container_id)

    def _record(
        self,
        rows: IndexChange,
        row: ReplicaRow,
        tree: Tree,
        packed: PackedBlocks,
        findings: list[ScanFinding],
    ) -> None:
        container_id = self.announced.container_id
        rows.delete_container(container_id)  # rows of an import whose rollback failed
        rows.put_blocks(container_id, self.rows())
        rows.put_packed(container_id, packed)
        for block_id, checksum in tree.tombstones().items():
            rows.put_tombstone(container_id, block_id, checksum)
        rows.replace_findings(container_id, findings)
        rows.put_replica(container_id, row)
        rows.begin_work(container_id, MovingEntry())

    def _remove_import(self) -> None:
        """Remove a replica that could not be moved into place, and its rows.

        If the directory cannot be removed, the next start of the agent serves the replica, which is
        complete. If only the rows remain, the next start deletes them.
        """
        container_id = self.announced.container_id
        if remove_failed_replica(self.volume, container_id):
            with suppress(SutureError):
                self.volume.index.write(lambda rows: rows.delete_container(container_id))


def arrived_row(announced: ImportSpec, received: ImportVerdict, tree: Tree) -> ReplicaRow:
    """Return the row of an imported replica.

    The row records no scan. Its state is UNHEALTHY if the replica has findings of damage.
    """
    row = ReplicaRow(
        state=announced.state,
        former_state=announced.former_state,
        replica_index=announced.replica_index,
        bcsid=Bcsid(max(announced.bcsid, received.bcsid)),
        used_bytes=received.used_bytes,
        block_count=received.block_count,
        generation=tree.generation,
        tree=tree.summary(),
        created_at_ms=announced.created_at_ms,
        origin_datanode_id=announced.origin_datanode_id,
        contradiction_count=len(received.contradictions),
    )
    if not received.findings:
        return row
    damaged = unhealthy(announced.container_id, row, finding_count=len(received.findings))
    return replace(damaged, data_scan_at_ms=0)


def finish_move(volume: Volume, container_id: ContainerId) -> str:
    """Complete the import of a replica whose journal entry a start has found.

    If the directory of the replica is in place, remove the journal entry. Otherwise, delete its
    rows. Return a description of what was done.
    """
    if volume.paths(container_id).root.is_dir():
        volume.index.write(lambda rows: rows.end_work(container_id, MovingEntry()))
        return "arrival finished"
    volume.index.write(lambda rows: rows.delete_container(container_id))
    return "arrival taken back"
