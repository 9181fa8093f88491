"""fsck: a read-only check of one volume while no agent uses it.

fsck checks VERSION and the lock, then the journal and tmp/. It compares every row with its files,
and every directory with the rows. With `read_data`, it verifies every chunk against its checksums.
It computes counts and block ends from the rows itself. Therefore, it also detects errors that a bug
of the store has caused.
"""

from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agent.store.files import blockfile
from agent.store.files.layout import (
    VERSION_BYTES_MAX,
    ReplicaPaths,
    VolumeLayout,
    container_id_of,
    decode_version,
    holds_data,
)
from agent.store.index.environment import Index
from agent.store.index.packformat import PackedBlocks
from agent.store.index.rows import ReplicaRow
from agent.store.index.transactions import IndexView
from agent.store.operations.closing import data_sizes
from agent.store.replica.descriptor import descriptor_of, read_descriptor
from agent.store.replica.packs import BlockBytes, place_of, read_table
from agent.store.replica.trees import read_tree_file
from agent.store.volumes.volume import reading_lock
from merkle.blockrow import decode_block
from merkle.checksum import window_checksums
from merkle.damaged_data import DamagedData
from merkle.replica import (
    TREE_STATES,
    WRITABLE_STATES,
    BlockData,
    BlockId,
    ChunkInfo,
    ContainerId,
    ReplicaState,
)
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.runtime.durable import TEMPORARY_SUFFIX, read_head

PROBLEMS_MAX: Final = 10_000  # a longer list is useless to an operator
MAP_BYTES: Final = 1024**3  # LMDB uses the size in the file if that is larger
GROWING: Final = WRITABLE_STATES | {ReplicaState.CLOSING}
"""States in which a block file may be longer than its row says, after an interrupted write or
close."""


@dataclass(frozen=True, slots=True)
class FsckProblem:
    """A fault that fsck found on a volume."""

    path: str
    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckReport:
    """Result of an fsck.

    `problem_count` includes problems that are too many for the list `problems`.
    """

    problems: tuple[FsckProblem, ...]
    problem_count: int
    replica_count: int
    block_count: int
    chunk_count: int
    pending_chunk_count: int
    bytes_recorded: int
    bytes_read: int


@dataclass(slots=True)
class _Tally:
    """Counters and problems of a running fsck."""

    problems: list[FsckProblem] = field(default_factory=list)
    problem_count: int = 0
    replica_count: int = 0
    block_count: int = 0
    chunk_count: int = 0
    pending_chunk_count: int = 0
    bytes_recorded: int = 0
    bytes_read: int = 0

    def add(self, path: Path, kind: str, message: str) -> None:
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(FsckProblem(str(path), kind, message))

    def report(self) -> FsckReport:
        return FsckReport(
            problems=tuple(self.problems),
            problem_count=self.problem_count,
            replica_count=self.replica_count,
            block_count=self.block_count,
            chunk_count=self.chunk_count,
            pending_chunk_count=self.pending_chunk_count,
            bytes_recorded=self.bytes_recorded,
            bytes_read=self.bytes_read,
        )


def fsck(volume_path: Path, *, read_data: bool = False) -> FsckReport:
    """Check a volume. Return the report.

    Raise `RefusedError(VOLUME_IN_USE)` if an agent uses the volume. Raise
    `RefusedError(INCONSISTENT_VOLUME)` if the path is not a volume, or a newer agent wrote it.
    """
    layout = volume_layout(volume_path.resolve())
    tally = _Tally()
    with reading_lock(layout):
        _check_directories(layout, tally)
        try:
            index = Index(layout.database, map_bytes=MAP_BYTES, readonly=True)
        except SutureError as error:
            tally.add(layout.database, "INDEX_UNREADABLE", str(error))
            return tally.report()
        with closing(index):
            _check_not_newer(layout, index)
            _check_index(layout, index, tally, read_data=read_data)
    return tally.report()


def volume_layout(path: Path) -> VolumeLayout:
    """Return the layout of the volume at `path`, with the cluster id from its VERSION file.

    Raise `RefusedError(INCONSISTENT_VOLUME)` if the file cannot be read or is invalid.
    """
    version = VolumeLayout(path, "").version
    try:
        data = read_head(version, VERSION_BYTES_MAX)
    except OSError as error:
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"{version}: {error.strerror}",
            hint="name the directory that contains hdds/",
        ) from error
    return VolumeLayout(path, decode_version(data, version).cluster_id)


def _check_directories(layout: VolumeLayout, tally: _Tally) -> None:
    for directory in layout.directories():
        if not directory.is_dir():
            tally.add(directory, "DIRECTORY_MISSING", "the layout has this directory")
    for directory in (layout.importing, layout.deleting):
        for path in _entries(directory, tally):
            tally.add(path, "TEMPORARY_LEFT", "the next start of the agent removes it")
    for path in _entries(layout.quarantine, tally):
        if path.name.endswith(TEMPORARY_SUFFIX):
            tally.add(path, "TEMPORARY_LEFT", "a cut-off copy; the next start removes it")


def _check_not_newer(layout: VolumeLayout, index: Index) -> None:
    with suppress(UnavailableError), index.read() as rows:  # `_check_index` reports the error
        rows.check_not_newer(layout.volume)


def _check_index(layout: VolumeLayout, index: Index, tally: _Tally, *, read_data: bool) -> None:
    known: set[ContainerId] = set()
    try:
        with index.read() as rows:
            for container_id, entry in rows.journal():
                where = layout.replica(container_id).root
                tally.add(where, "JOURNAL_NOT_EMPTY", f"{entry}: the next start rolls it")
            for container_id, row in rows.replicas():
                known.add(container_id)
                tally.replica_count += 1
                paths = layout.replica(container_id)
                if isinstance(row, DamagedData):
                    tally.add(paths.root, "REPLICA_ROW_DAMAGED", str(row))
                else:
                    _Check(rows, container_id, row, paths, tally).run(read_data=read_data)
    except SutureError as error:
        tally.add(layout.database, "INDEX_UNREADABLE", str(error))
    _check_strays(layout, known, tally)


def _check_strays(layout: VolumeLayout, known: set[ContainerId], tally: _Tally) -> None:
    for group in _entries(layout.current, tally):
        for path in _entries(group, tally):
            container_id = container_id_of(path.name)
            if container_id is None or path != layout.replica(container_id).root:
                tally.add(path, "FOREIGN_FILE", "not where a replica can be")
            elif container_id not in known:
                tally.add(path, "REPLICA_ROW_MISSING", "the index does not know this replica")


def _entries(directory: Path, tally: _Tally) -> list[Path]:
    try:
        return sorted(directory.iterdir()) if directory.is_dir() else []
    except OSError as error:
        tally.add(directory, "UNREADABLE", str(error.strerror))
        return []


@dataclass(eq=False)
class _Check:
    """The fsck of one replica: its rows, its files and, on request, its data."""

    rows: IndexView
    container_id: ContainerId
    row: ReplicaRow
    paths: ReplicaPaths
    tally: _Tally

    def run(self, *, read_data: bool) -> None:
        if self.row.state is ReplicaState.DELETED:
            self.tally.add(self.paths.root, "DELETE_UNFINISHED", "the next start finishes it")
            return
        if not self.paths.chunks.is_dir():
            self.tally.add(self.paths.chunks, "CHUNKS_DIRECTORY_MISSING", "directory is missing")
            return
        try:
            self._check_descriptor()
            self._check_tree()
            self._check_blocks(read_data=read_data)
        except OSError as error:
            self.tally.add(self.paths.root, "UNREADABLE", f"{error.filename}: {error.strerror}")

    def _check_descriptor(self) -> None:
        path = self.paths.descriptor
        try:
            descriptor = read_descriptor(path, self.container_id)
        except OSError as error:
            self.tally.add(path, "DESCRIPTOR_MISSING", str(error.strerror))
            return
        except DamagedData as damage:
            self.tally.add(path, "DESCRIPTOR_DAMAGED", str(damage))
            return
        wanted = descriptor_of(self.container_id, self.row)
        if descriptor.state is not wanted.state:
            message = f"says {descriptor.state}, the index says {wanted.state}"
            self.tally.add(path, "DESCRIPTOR_STALE", message)
        if descriptor.replica_index != wanted.replica_index:
            message = f"says index {descriptor.replica_index}, the index {wanted.replica_index}"
            self.tally.add(path, "DESCRIPTOR_STALE", message)

    def _check_tree(self) -> None:
        known = self.row.tree
        path = self.paths.tree
        if known is None:
            if self.row.state in TREE_STATES - {ReplicaState.UNHEALTHY}:
                self.tally.add(path, "TREE_MISSING", f"a {self.row.state} replica has a tree")
            return
        try:
            tree = read_tree_file(path, self.container_id)
            tree.verify()
        except OSError as error:
            self.tally.add(path, "TREE_MISSING", str(error.strerror))
            return
        except DamagedData as damage:
            self.tally.add(path, "TREE_DAMAGED", str(damage))
            return
        if tree.summary() != known:
            self.tally.add(
                path,
                "TREE_STALE",
                f"generation {tree.generation}, root {tree.root:#x}; the index remembers "
                f"generation {known.generation}, root {known.root:#x}",
            )
        dead = set(tree.tombstones())
        if dead != set(self.rows.tombstones(self.container_id)):
            self.tally.add(path, "TOMBSTONES_DIFFER", "tree and index name other tombstones")

    def _check_blocks(self, *, read_data: bool) -> None:
        packed = self.rows.packed_blocks(self.container_id)
        sizes_bytes = data_sizes(self.paths, packed)
        self._check_foreign()
        self._check_pack(packed)
        tombstones = self.rows.tombstones(self.container_id)
        block_count = used_bytes = 0
        pending: dict[BlockId, list[ChunkInfo]] = {}
        for block_id, chunk in self.rows.pending(self.container_id):
            pending.setdefault(block_id, []).append(chunk)
        for block_id, raw in self.rows.blocks(self.container_id):
            block_count += 1
            size = sizes_bytes.pop(block_id, blockfile.ABSENT)
            path = self._place(block_id).name
            if block_id in tombstones:
                self.tally.add(path, "TOMBSTONE_AND_ROW", "a deleted block still has its row")
            try:
                block = decode_block(block_id, raw)
            except DamagedData as damage:
                self.tally.add(path, "BLOCK_ROW_DAMAGED", str(damage))
                continue
            self._check_block(block, size, pending.pop(block_id, []), read_data=read_data)
            used_bytes += sum(chunk.length_bytes for chunk in block.chunks)
        for block_id, chunks in pending.items():
            size = sizes_bytes.pop(block_id, blockfile.ABSENT)
            uncommitted = BlockData(block_id, self.row.bcsid)
            self._check_block(uncommitted, size, chunks, read_data=read_data)
        used_bytes += sum(chunk.length_bytes for _, chunk in self.rows.pending(self.container_id))
        if self.row.state not in GROWING:
            for block_id, size in sizes_bytes.items():
                path = self._place(block_id).name
                self.tally.add(path, "BLOCK_ROW_MISSING", f"{size} bytes that no row describes")
        self._check_counts(block_count, used_bytes)

    def _check_foreign(self) -> None:
        for path in self.paths.chunks.iterdir():
            if not holds_data(path.name) or path.is_symlink() or not path.is_file():
                self.tally.add(path, "FOREIGN_FILE", "not a block file")

    def _place(self, block_id: BlockId) -> BlockBytes:
        return place_of(self.rows, self.paths, self.container_id, block_id)

    def _check_pack(self, packed: PackedBlocks) -> None:
        """Compare the index rows of packed blocks with the table in the pack file."""
        path = self.paths.pack
        damaged_count = sum(1 for _ in self.rows.packed_rows(self.container_id)) - len(packed)
        if damaged_count:
            self.tally.add(path, "PACKED_ROW_DAMAGED", f"{damaged_count} rows cannot be read")
        try:
            table = read_table(self.paths)
        except OSError as error:
            self.tally.add(path, "PACK_TABLE_DAMAGED", str(error.strerror))
            return
        except DamagedData as damage:
            self.tally.add(path, "PACK_TABLE_DAMAGED", str(damage))
            return
        if len(packed) and path.is_file():
            wrong = sum(table.of(block_id) != place for block_id, place in packed)
            if wrong:
                message = f"{wrong} rows say other places than the table in the pack"
                self.tally.add(path, "PACKED_ROW_DIFFERS", message)

    def _check_counts(self, block_count: int, used_bytes: int) -> None:
        self.tally.block_count += block_count
        self.tally.bytes_recorded += used_bytes
        counted = (self.row.block_count, self.row.used_bytes)
        if counted != (block_count, used_bytes):
            message = (
                f"the replica's row counts {counted[0]} blocks of {counted[1]} bytes, "
                f"its block rows {block_count} of {used_bytes}"
            )
            self.tally.add(self.paths.root, "COUNTS_DIFFER", message)

    def _check_block(
        self, block: BlockData, size_bytes: int, pending: list[ChunkInfo], *, read_data: bool
    ) -> None:
        place = self._place(block.block_id)
        path = place.name
        is_writable = self.row.state in WRITABLE_STATES
        if pending and self.row.state not in GROWING:
            self.tally.add(path, "PENDING_LEFT", f"{len(pending)} chunks were never committed")
        chunks = [*block.chunks, *(pending if is_writable else ())]
        self.tally.chunk_count += len(block.chunks)
        self.tally.pending_chunk_count += len(pending)
        self._check_chain(path, chunks)
        end = chunks[-1].end if chunks else 0
        if size_bytes == blockfile.ABSENT and end:
            self.tally.add(path, "BLOCK_FILE_MISSING", f"{end} bytes are recorded")
        elif max(size_bytes, 0) < end:
            self.tally.add(path, "BLOCK_FILE_SHORT", f"{size_bytes} bytes, {end} are recorded")
        elif size_bytes > end and self.row.state not in GROWING:
            self.tally.add(path, "TRAILING_BYTES", f"{size_bytes} bytes, {end} are recorded")
        if read_data and size_bytes != blockfile.ABSENT:
            self._read_chunks(place, chunks)

    def _check_chain(self, path: Path, chunks: Iterable[ChunkInfo]) -> None:
        end = 0
        for chunk in chunks:
            if chunk.offset != end:
                message = f"chunk at {chunk.offset}, the one before it ends at {end}"
                self.tally.add(path, "CHUNKS_NOT_CHAINED", message)
            end = chunk.end

    def _read_chunks(self, place: BlockBytes, chunks: Iterable[ChunkInfo]) -> None:
        path = place.name
        for chunk in chunks:
            where = f"chunk at {chunk.offset} of {chunk.length_bytes} bytes"
            try:
                data = place.read_past_cache(chunk.offset, chunk.length_bytes)
            except OSError as error:
                self.tally.add(path, "CHUNK_UNREADABLE", f"{where}: {error.strerror}")
                continue
            self.tally.bytes_read += len(data)
            actual = window_checksums(chunk.checksum_type, chunk.bytes_per_checksum, data)
            if len(data) < chunk.length_bytes or actual != chunk.window_checksums:
                self.tally.add(path, "CHUNK_CHECKSUM", f"{where}: checksums do not match")
