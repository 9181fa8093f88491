"""Transactions of a volume's index.

An index has these databases. Each has rows of one kind, which are found by their keys:

    replicas    be64 container                        rows.ReplicaRow
    blocks      be64 container, be64 block            merkle.blockrow: committed blocks
    pending     be64 container, be64 block, be64 offset    chunks written and not yet committed
    tombstones  be64 container, be64 block            be64 checksum of the deleted block
    findings    be64 container, be32 number           one finding
    journal     be64 container, kind, ...             unfinished work
    cursors     be64 container                        progress of an unfinished scan
    history     be64 container, be32 number           the replica's newest changes, with reasons
    packed      be64 container, be64 block            range of a small block in its pack
    doubts      be64 container                        count of scans with failed reads

Keys are big-endian, so a cursor visits containers, blocks and chunks in ascending order.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import lmdb

from agent.store.index import replica_history
from agent.store.index.columns import DamagedRows, ReplicaColumns, decode_columns
from agent.store.index.databases import DATABASES, Databases
from agent.store.index.packformat import (
    PackedBlocks,
    PackedPlace,
    decode_packed,
    decode_place,
    encode_packed,
)
from agent.store.index.rows import (
    ROW_VERSION,
    JournalEntry,
    ReplicaRow,
    ScanCursor,
    decode_chunk,
    decode_cursor,
    decode_finding,
    decode_journal,
    decode_replica,
    decode_standing,
    encode_chunk,
    encode_cursor,
    encode_finding,
    encode_journal,
    encode_replica,
    is_newer,
    journal_key,
    not_found,
    reported_part,
)
from merkle.damaged_data import DamagedData
from merkle.replica import Bcsid, BlockId, ChunkInfo, ContainerId, ReplicaState
from scanner.finding import ScanFinding
from suture.errors import Code, RefusedError
from suture.runtime.memory import let_go_of_pages

_U64: Final = struct.Struct(">Q")
_PAIR: Final = struct.Struct(">QQ")
_TRIPLE: Final = struct.Struct(">QQQ")
_NUMBERED: Final = struct.Struct(">QI")


class IndexView:
    """Read access to one consistent snapshot of the index, within a `with Index.read()` block."""

    def __init__(
        self, transaction: "lmdb.Transaction[bytes]", databases: Databases, file: Path
    ) -> None:
        self._txn = transaction
        self._dbs = databases
        self._file = file

    def replica(self, container_id: ContainerId) -> ReplicaRow:
        """Return the row of a replica.

        Raise `RefusedError(CONTAINER_NOT_FOUND)` if there is no row, and `DamagedData` if it is
        damaged.
        """
        return decode_replica(container_id, self._replica_row(container_id))

    def has_replica(self, container_id: ContainerId) -> bool:
        """Return whether a replica has a row, intact or damaged."""
        return self._txn.get(_U64.pack(container_id), db=self._dbs.replicas) is not None

    def standing(self, container_id: ContainerId) -> tuple[int, Bcsid]:
        """Return the replica index and the BCSID of a replica.

        Raise the same errors as `replica`.
        """
        return decode_standing(container_id, self._replica_row(container_id))

    def _replica_row(self, container_id: ContainerId) -> bytes:
        row = self._txn.get(_U64.pack(container_id), db=self._dbs.replicas)
        if row is None:
            raise not_found(container_id)
        return row

    def replicas(self, start: int = 0) -> Iterator[tuple[ContainerId, ReplicaRow | DamagedData]]:
        """Yield all replicas by ascending container id, from container `start` on.

        Yield the error `DamagedData` in the place of a damaged row.
        """
        for key, row in self._walk(self._dbs.replicas, b"", _U64.pack(start)):
            container_id = ContainerId(_U64.unpack(key)[0])
            try:
                yield container_id, decode_replica(container_id, row)
            except DamagedData as damage:
                yield container_id, damage

    def check_not_newer(self, path: Path) -> None:
        """Raise RefusedError if a newer agent wrote a replica row on the volume at `path`."""
        with self._txn.cursor(self._dbs.replicas) as cursor:
            for key, row in cursor:
                if is_newer(row):
                    raise RefusedError(
                        Code.INCONSISTENT_VOLUME,
                        f"cannot read {path}: the row of container {_U64.unpack(key)[0]} has "
                        f"version {row[0]}, this agent supports {ROW_VERSION}",
                        hint="start the agent version that wrote the volume",
                    )
        self.let_go_of_pages()

    def columns(self) -> tuple[ReplicaColumns, DamagedRows]:
        """Return all replicas as columns, and the damaged rows.

        Afterwards, the pages of these rows are unmapped from the memory of this process.
        """
        with self._txn.cursor(self._dbs.replicas) as cursor:
            return decode_columns(cursor, self.let_go_of_pages)

    def let_go_of_pages(self) -> None:
        """Unmap the pages that were read so far from the memory of this process.

        They are not needed soon. The memory map itself stays valid for the open transaction.
        """
        let_go_of_pages(self._file)

    def version(self) -> int:
        """Return the id of the last transaction, which increases with every change of the index."""
        return int(self._txn.id())

    def replica_count(self) -> int:
        """Return the number of replica rows, without reading the rows."""
        return self._txn.stat(self._dbs.replicas)["entries"]

    def block(self, container_id: ContainerId, block_id: BlockId) -> bytes | None:
        """Return the raw row of a committed block, or None if there is no row."""
        return self._txn.get(_PAIR.pack(container_id, block_id), db=self._dbs.blocks)

    def blocks(self, container_id: ContainerId, start: int = 0) -> Iterator[tuple[BlockId, bytes]]:
        """Yield the raw rows of committed blocks by ascending block id, from block `start` on."""
        prefix = _U64.pack(container_id)
        for key, row in self._walk(self._dbs.blocks, prefix, _PAIR.pack(container_id, start)):
            yield BlockId(int.from_bytes(key[8:])), row

    def pending(
        self, container_id: ContainerId, block_id: BlockId | None = None
    ) -> Iterator[tuple[BlockId, ChunkInfo]]:
        """Yield (block id, chunk) for the uncommitted chunks of one block, or of all blocks."""
        prefix = _U64.pack(container_id)
        if block_id is not None:
            prefix += _U64.pack(block_id)
        for key, row in self._walk(self._dbs.pending, prefix, prefix):
            owner = BlockId(int.from_bytes(key[8:16]))
            yield owner, decode_chunk(owner, row)

    def pending_at(
        self, container_id: ContainerId, block_id: BlockId, offset: int
    ) -> ChunkInfo | None:
        """Return the uncommitted chunk that begins at `offset`, or None if there is none."""
        row = self._txn.get(_TRIPLE.pack(container_id, block_id, offset), db=self._dbs.pending)
        return None if row is None else decode_chunk(block_id, row)

    def last_pending(self, container_id: ContainerId, block_id: BlockId) -> ChunkInfo | None:
        """Return the last uncommitted chunk of a block, or None if there is none.

        The last chunk is the one with the highest offset.
        """
        with self._txn.cursor(self._dbs.pending) as cursor:
            behind = _PAIR.pack(container_id, block_id + 1)
            found = cursor.prev() if cursor.set_range(behind) else cursor.last()
            if not found or not cursor.key().startswith(_PAIR.pack(container_id, block_id)):
                return None
            return decode_chunk(block_id, cursor.value())

    def tombstone(self, container_id: ContainerId, block_id: BlockId) -> int | None:
        """Return the checksum in the tombstone of a deleted block.

        Return None if there is no tombstone.
        """
        row = self._txn.get(_PAIR.pack(container_id, block_id), db=self._dbs.tombstones)
        return None if row is None else int.from_bytes(row)

    def tombstones(self, container_id: ContainerId) -> dict[BlockId, int]:
        """Return the checksums in the tombstones of a container, by block id."""
        prefix = _U64.pack(container_id)
        return {
            BlockId(int.from_bytes(key[8:])): int.from_bytes(row)
            for key, row in self._walk(self._dbs.tombstones, prefix, prefix)
        }

    def findings(self, container_id: ContainerId) -> Iterator[ScanFinding]:
        """Yield the unresolved findings of a container.

        Skip damaged rows, because the next scan finds the same faults again.
        """
        prefix = _U64.pack(container_id)
        for _, row in self._walk(self._dbs.findings, prefix, prefix):
            try:
                yield decode_finding(container_id, row)
            except DamagedData:
                continue

    def containers_with_findings(self, start: int) -> Iterator[ContainerId]:
        """Yield the ids of containers with findings, from container `start` on.

        The ids are in ascending order.
        """
        with self._txn.cursor(self._dbs.findings) as cursor:
            found = cursor.set_range(_U64.pack(start))
            while found:
                container_id = _U64.unpack_from(cursor.key())[0]
                yield ContainerId(container_id)
                found = cursor.set_range(_U64.pack(container_id + 1))

    def journal(
        self, container_id: ContainerId | None = None
    ) -> Iterator[tuple[ContainerId, JournalEntry | DamagedData]]:
        """Yield (container id, journal entry) for one container, or for all containers.

        Yield the error `DamagedData` in the place of a damaged entry.
        """
        prefix = b"" if container_id is None else _U64.pack(container_id)
        for key, row in self._walk(self._dbs.journal, prefix, prefix):
            owner = ContainerId(_U64.unpack_from(key)[0])
            try:
                yield owner, decode_journal(owner, row)
            except DamagedData as damage:
                yield owner, damage

    def packed(self, container_id: ContainerId, block_id: BlockId) -> PackedPlace | None:
        """Return the place of a block in its pack file.

        Return None if its row is missing or damaged.
        """
        row = self._txn.get(_PAIR.pack(container_id, block_id), db=self._dbs.packed)
        return None if row is None else decode_place(row)

    def packed_rows(self, container_id: ContainerId) -> Iterator[tuple[BlockId, bytes]]:
        """Yield (block id, raw row) for each packed block of a container."""
        prefix = _U64.pack(container_id)
        for key, row in self._walk(self._dbs.packed, prefix, prefix):
            yield BlockId(int.from_bytes(key[8:])), row

    def packed_blocks(self, container_id: ContainerId) -> PackedBlocks:
        """Return all packed blocks of a container. Omit damaged rows."""
        return decode_packed(self.packed_rows(container_id))

    def cursor(self, container_id: ContainerId) -> ScanCursor | None:
        """Return the progress of an unfinished scan, or None if it is missing or damaged.

        Without a cursor, a scan starts at the beginning of the replica.
        """
        row = self._txn.get(_U64.pack(container_id), db=self._dbs.cursors)
        with suppress(DamagedData):
            return None if row is None else decode_cursor(container_id, row)
        return None

    def unreadable_row(self, container_id: ContainerId) -> bytes | None:
        """Return the raw row that counts a replica's scans with failed reads.

        Return None if there is no row. `agent.store.index.unreadable_rows` defines the format of
        the row.
        """
        return self._txn.get(_U64.pack(container_id), db=self._dbs.doubts)

    def history(self, container_id: ContainerId) -> Iterator[replica_history.HistoryEntry]:
        """Yield the history entries of a replica, the oldest entry first. Skip damaged rows."""
        return (
            entry
            for _, entry in replica_history.entries_of(self.history_rows(_U64.pack(container_id)))
        )

    def history_rows(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the raw history rows whose keys begin with `prefix`.

        An empty prefix selects all rows.
        """
        yield from self._walk(self._dbs.history, prefix, prefix)

    def _walk(
        self, database: lmdb._Database, prefix: bytes, start: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        with self._txn.cursor(database) as cursor:
            if cursor.set_range(start):
                for item in cursor:
                    if not item[0].startswith(prefix):
                        return
                    yield item


class IndexChange(IndexView):
    """Write access to the index in one transaction. All of its changes become durable, or none."""

    def __init__(
        self,
        transaction: "lmdb.Transaction[bytes]",
        databases: Databases,
        file: Path,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(transaction, databases, file)
        self._now_ms = now_ms

    def put_replica(self, container_id: ContainerId, row: ReplicaRow) -> None:
        """Set the row of a replica.

        If the change is visible in reports, add an entry to the history.
        """
        key, raw = _U64.pack(container_id), encode_replica(row)
        had = self._txn.get(key, db=self._dbs.replicas)
        self._txn.put(key, raw, db=self._dbs.replicas)
        is_told = row.tree is not None or row.state is ReplicaState.UNHEALTHY
        if is_told and (had is None or reported_part(had) != reported_part(raw)):
            self._remember(container_id, had, row)

    def _remember(self, container_id: ContainerId, had: bytes | None, row: ReplicaRow) -> None:
        """Add an entry to the history of a replica.

        If the history then has too many entries, delete the oldest.
        """
        try:
            before = None if had is None else decode_replica(container_id, had)
        except DamagedData:
            before = None
        entry = replica_history.entry_of(
            before, row, list(self.findings(container_id)), self._now_ms()
        )
        with self._txn.cursor(self._dbs.history) as cursor:
            replica_history.append(cursor, container_id, entry)

    def put_block(self, container_id: ContainerId, block_id: BlockId, row: bytes) -> None:
        """Set the raw row of a committed block."""
        self._txn.put(_PAIR.pack(container_id, block_id), row, db=self._dbs.blocks)

    def put_blocks(
        self, container_id: ContainerId, block_rows: Iterable[tuple[BlockId, bytes]]
    ) -> None:
        """Set the raw rows of many committed blocks.

        Rows in ascending order of ids are the fastest.
        """
        self._put_pairs(self._dbs.blocks, container_id, block_rows)

    def put_packed(self, container_id: ContainerId, blocks: PackedBlocks) -> None:
        """Record the places of blocks in the container's pack file."""
        self._put_pairs(self._dbs.packed, container_id, encode_packed(blocks))

    def delete_packed(self, container_id: ContainerId, block_ids: Iterable[BlockId]) -> None:
        """Record that blocks are no longer in the container's pack file."""
        for block_id in block_ids:
            self._txn.delete(_PAIR.pack(container_id, block_id), db=self._dbs.packed)

    def _put_pairs(
        self,
        database: lmdb._Database,
        container_id: ContainerId,
        rows: Iterable[tuple[BlockId, bytes]],
    ) -> None:
        key_of = _PAIR.pack
        with self._txn.cursor(database) as cursor:
            cursor.putmulti((key_of(container_id, block_id), row) for block_id, row in rows)

    def delete_block(self, container_id: ContainerId, block_id: BlockId) -> bool:
        """Remove the row of a block; return whether there was one."""
        return self._txn.delete(_PAIR.pack(container_id, block_id), db=self._dbs.blocks)

    def put_pending(self, container_id: ContainerId, block_id: BlockId, chunk: ChunkInfo) -> None:
        """Record a chunk that is durable but not committed."""
        key = _TRIPLE.pack(container_id, block_id, chunk.offset)
        self._txn.put(key, encode_chunk(block_id, chunk), db=self._dbs.pending)

    def delete_pending(
        self, container_id: ContainerId, block_id: BlockId | None = None, *, end: int | None = None
    ) -> None:
        """Remove the records of the uncommitted chunks of a container, or of one block.

        If `end` is given, remove only the records of chunks that begin before `end`.
        """
        prefix = _U64.pack(container_id)
        if block_id is not None:
            prefix += _U64.pack(block_id)
        for key in [key for key, _ in self._walk(self._dbs.pending, prefix, prefix)]:
            if end is None or int.from_bytes(key[16:]) < end:
                self._txn.delete(key, db=self._dbs.pending)

    def put_tombstone(self, container_id: ContainerId, block_id: BlockId, checksum: int) -> None:
        """Record that a block was deleted, together with the checksum of the block."""
        key = _PAIR.pack(container_id, block_id)
        self._txn.put(key, _U64.pack(checksum), db=self._dbs.tombstones)

    def replace_findings(self, container_id: ContainerId, findings: list[ScanFinding]) -> None:
        """Replace all findings of the container."""
        self._delete_all(self._dbs.findings, _U64.pack(container_id))
        for number, finding in enumerate(findings):
            key = _NUMBERED.pack(container_id, number)
            self._txn.put(key, encode_finding(finding), db=self._dbs.findings)

    def put_cursor(self, container_id: ContainerId, cursor: ScanCursor) -> None:
        """Store the progress of an unfinished scan."""
        self._txn.put(_U64.pack(container_id), encode_cursor(cursor), db=self._dbs.cursors)

    def delete_cursor(self, container_id: ContainerId) -> None:
        """Delete the stored progress of a scan."""
        self._txn.delete(_U64.pack(container_id), db=self._dbs.cursors)

    def put_unreadable_row(self, container_id: ContainerId, row: bytes | None) -> None:
        """Set the row that counts a replica's scans with failed reads.

        Delete it if `row` is None.
        """
        self._txn.delete(_U64.pack(container_id), db=self._dbs.doubts)
        if row is not None:
            self._txn.put(_U64.pack(container_id), row, db=self._dbs.doubts)

    def begin_work(self, container_id: ContainerId, entry: JournalEntry) -> None:
        """Write a journal entry for work that is about to start."""
        key = journal_key(container_id, entry)
        self._txn.put(key, encode_journal(entry), db=self._dbs.journal)

    def end_work(self, container_id: ContainerId, entry: JournalEntry) -> None:
        """Remove a journal entry whose work is finished or rolled back."""
        self._txn.delete(journal_key(container_id, entry), db=self._dbs.journal)

    def delete_container(self, container_id: ContainerId) -> None:
        """Remove every row of a container."""
        prefix = _U64.pack(container_id)
        for name in DATABASES:
            self._delete_all(getattr(self._dbs, name), prefix)

    def _delete_all(self, database: lmdb._Database, prefix: bytes) -> None:
        with self._txn.cursor(database) as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                found = cursor.delete()
