"""Imports a container from another datanode of Ozone.

All data is verified while it arrives. The agent serves the container only after that. An archive
has these files, which are processed in this order:

    container.yaml  the facts of the replica; its checksum is verified
    <id>.tree       the deleted blocks; the tree's checksums are verified against each other
    db/             the rows, stored in Suture's form; blocks with a pending delete are deleted
    chunks/         each chunk is verified against its row while it is written
    end             if no chunk is missing, the replica is synced, published and reported

An Ozone datanode serves an import before it has verified the data. An agent ends the import if a
chunk is missing or does not match its row, and publishes no part of it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from agent.store.files.writebehind import Submit
from agent.store.index.facts import ReplicaFacts
from agent.store.operations.replica_import import ImportSpec, ImportVerdict, ReplicaImport
from agent.store.replica_store import ReplicaStore
from agent.transfer.chunk_checks import StreamedChunks
from merkle.blockrow import encode_block
from merkle.checksum import Algorithm, block_checksum, leaf_checksum
from merkle.damaged_data import DamagedData
from merkle.replica import (
    CONTAINER_BYTES_MAX,
    TREE_STATES,
    Bcsid,
    BlockData,
    BlockId,
    ContainerId,
    ReplicaState,
)
from merkle.tree_building import build_from_rows
from ozone.disk.descriptor import DESCRIPTOR_BYTES_MAX, OzoneDescriptor, decode_descriptor
from ozone.disk.encoding import decode_noted
from ozone.disk.layout import number_of
from ozone.disk.rows import BYTES_USED, ContainerRows, RowBatch
from ozone.disk.treefile import OzoneTree, decode_tree
from ozone.disk.unsupported_format import UnsupportedFormat
from ozone.transfer.entries import (
    BLOCK_SUFFIX,
    CHUNKS,
    DESCRIPTOR,
    TABLES,
    TREE_SUFFIX,
    ArchiveEntry,
    entries,
    malformed,
)
from ozone.transfer.messages import Compression
from ozone.transfer.scratch import Scratch
from ozone.transfer.tables import SCHEMA, SEQUENCE, keep_table, rows_of
from suture.errors import Code, RefusedError
from suture.runtime.ports import Leases

TREE_BYTES_MAX: Final = 64 * 1024**2  # twice the largest tree that Ozone's datanodes can send


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveImporter:
    """Imports containers into a store.

    `on_arrived` is called with the id of each imported container.
    """

    store: ReplicaStore
    leases: Leases
    now_ms: Callable[[], int]
    on_arrived: Callable[[ContainerId], None]
    submit: Submit | None = None

    def receive(
        self,
        container_id: ContainerId,
        data: Iterator[bytes],
        compression: Compression,
        *,
        replica_index: int = 0,
    ) -> ReplicaFacts:
        """Receive one container, and serve its replica. Return the facts of the replica.

        If `replica_index` is not 0, accept only the shard with this index. If this fails, remove
        all received data and raise SutureError.
        """
        head = _Head(container_id, replica_index)
        with Scratch() as scratch:
            facts = self._receive(head, entries(data, compression), scratch)
        self.on_arrived(container_id)
        return facts

    def _receive(
        self, head: "_Head", files: Iterator[ArchiveEntry], scratch: Scratch
    ) -> ReplicaFacts:
        container_id = head.container_id
        first_block = head.read(files, scratch)
        with rows_of(scratch.path, container_id) as rows:
            announced = head.announced(rows, self.now_ms())
            arrival = self.store.begin_arrival(announced, self.submit)
            try:
                reception = _Reception(arrival, rows, head)
                reception.store_rows()
                if first_block is not None:
                    reception.store_block(first_block)
                for entry in files:
                    reception.store_block(entry)
                received = reception.judged(self.store.algorithm)
                with self.leases.hold(container_id):
                    return self.store.finish_arrival(arrival, received)
            finally:
                arrival.discard()


class _Head:
    """The files of an archive before the block files: descriptor, tree and tables."""

    def __init__(self, container_id: ContainerId, replica_index: int) -> None:
        self.container_id = container_id
        self._replica_index = replica_index
        self._descriptor: OzoneDescriptor | None = None
        self.tree: OzoneTree | None = None

    def read(self, files: Iterator[ArchiveEntry], scratch: Scratch) -> ArchiveEntry | None:
        """Read descriptor, tree and tables.

        Return the first block file, or None if there is none.
        """
        for entry in files:
            if self._descriptor is None:
                self._read_descriptor(entry)
            elif entry.name == f"{self.container_id}{TREE_SUFFIX}" and self.tree is None:
                self.tree = self._decoded_tree(entry.data(TREE_BYTES_MAX))
            elif entry.name.startswith(f"{TABLES}/"):
                keep_table(entry, scratch)
            else:
                return entry
        return None

    def announced(self, rows: ContainerRows, now_ms: int) -> ImportSpec:
        """Return the description of the replica in its descriptor and rows.

        Raise RefusedError if it is invalid.
        """
        descriptor = self._descriptor
        if descriptor is None:
            raise malformed(f"there is no {DESCRIPTOR}")
        if descriptor.state not in TREE_STATES:
            raise RefusedError(
                Code.INVALID_CONTAINER_STATE,
                f"container {self.container_id} is {descriptor.state} at its source",
            )
        is_unhealthy = descriptor.state is ReplicaState.UNHEALTHY
        return ImportSpec(
            container_id=self.container_id,
            state=descriptor.state,
            # The earlier state is unknown. QUASI_CLOSED only means that the replica is consistent
            # in itself, not that it is complete.
            former_state=ReplicaState.QUASI_CLOSED if is_unhealthy else None,
            replica_index=descriptor.replica_index,
            bcsid=Bcsid(max(rows.number(SEQUENCE) or 0, 0)),
            origin_datanode_id=descriptor.origin_node_id,
            created_at_ms=now_ms,
            data_bytes=min(max(rows.number(BYTES_USED) or 0, 0), 2 * CONTAINER_BYTES_MAX),
        )

    def _read_descriptor(self, entry: ArchiveEntry) -> None:
        if entry.name != DESCRIPTOR:
            raise malformed(f"it begins with {entry.name[:100]!r}, not with {DESCRIPTOR}")
        data = entry.data(DESCRIPTOR_BYTES_MAX)
        try:
            self._descriptor = decode_descriptor(data, self.container_id)
        except (DamagedData, UnsupportedFormat) as error:
            raise malformed(str(error)) from error
        if not self._descriptor.is_verified:
            raise malformed("its descriptor has no checksum")
        if self._descriptor.schema != SCHEMA:
            raise RefusedError(
                Code.INELIGIBLE,
                f"container {self.container_id} has schema V{self._descriptor.schema} at its "
                f"source, and archives of schema V{SCHEMA} only are taken",
                hint="a container of an earlier schema stays with Ozone's datanodes",
            )
        index = self._descriptor.replica_index
        if self._replica_index not in {0, index}:
            raise RefusedError(
                Code.INELIGIBLE,
                f"container {self.container_id}: the source has shard {index}, the command is "
                f"for {self._replica_index}",
            )

    def _decoded_tree(self, data: bytes) -> OzoneTree:
        try:
            return decode_tree(data, self.container_id)
        except DamagedData as damage:
            raise malformed(str(damage)) from damage


@dataclass(slots=True)
class _Reception:
    """State of a running import, whose blocks are being received."""

    arrival: ReplicaImport
    rows: ContainerRows
    head: _Head
    block_count: int = 0
    used_bytes: int = 0
    bcsid: int = 0
    _awaited: set[BlockId] = field(default_factory=set)
    _tombstones: dict[BlockId, int] = field(default_factory=dict)

    def store_rows(self) -> None:
        """Store the rows, and record the ids of the blocks whose files must arrive."""
        condemned = self.rows.pending_delete_blocks()
        if self.head.tree is not None:
            self._tombstones |= self.head.tree.tombstones
        for batch in map(self._blocks, self.rows.batches()):
            for block in batch:
                if block.block_id in condemned:
                    self._tombstones.setdefault(block.block_id, _checksum_of(block))
            live = [block for block in batch if block.block_id not in self._tombstones]
            self._store_entry(live)
        self._check_lost()

    def _store_entry(self, live: list[BlockData]) -> None:
        ids = [block.block_id for block in live]
        self.block_count += self.arrival.keep_rows(ids, list(map(encode_block, live)))
        self._awaited.update(block.block_id for block in live if block.chunks)
        self.used_bytes += sum(chunk.length_bytes for block in live for chunk in block.chunks)
        self.bcsid = max([self.bcsid, *(block.bcsid for block in live)])

    def _blocks(self, batch: RowBatch) -> list[BlockData]:
        each = zip(batch.block_ids, batch.rows, batch.tails, strict=True)
        return [self._decoded(*one) for one in each]

    def _decoded(self, block_id: BlockId, row: bytes | None, tail: bytes | None) -> BlockData:
        container_id = self.arrival.announced.container_id
        try:
            return decode_noted(container_id, block_id, row, tail).block
        except (DamagedData, UnsupportedFormat) as error:
            raise malformed(str(error)) from error

    def _check_lost(self) -> None:
        """Raise RefusedError if the tree of the container has a block without a row."""
        tree = self.head.tree
        if tree is None or tree.root is None:
            return
        for block_id in tree.live:
            if self.rows.pair(block_id) == (None, None):
                raise malformed(f"block {block_id} is in its tree, and has no row")

    def store_block(self, entry: ArchiveEntry) -> None:
        """Store the file of a block. Ignore the file if the block is deleted or has no row."""
        folder, _, name = entry.name.rpartition("/")
        number = number_of(name.removesuffix(BLOCK_SUFFIX))
        if folder != CHUNKS or not name.endswith(BLOCK_SUFFIX) or number is None:
            raise malformed(f"{entry.name[:100]!r} is no file of a block")
        block_id = BlockId(number)
        if block_id not in self._awaited:
            return
        self._awaited.remove(block_id)
        self._write(self._decoded(block_id, *self.rows.pair(block_id)), entry)

    def _write(self, block: BlockData, entry: ArchiveEntry) -> None:
        chunks = StreamedChunks(block.chunks)
        left_bytes = block.length_bytes
        self.arrival.begin_file(block.block_id, left_bytes)
        for piece in entry.pieces:
            taken = piece[:left_bytes]  # bytes after the committed end are dropped
            if taken:
                chunks.feed(taken)
                self.arrival.append(taken)
                left_bytes -= len(taken)
        self.arrival.end_file()
        for chunk in (*chunks.wrong, *chunks.missing()):
            raise RefusedError(
                Code.CHECKSUM_MISMATCH,
                f"container {self.arrival.announced.container_id}: the chunk at {chunk.offset} "
                f"of block {block.block_id} does not match its row",
                hint="check the source with Ozone's scanner; otherwise the network damaged "
                "the data",
            )

    def judged(self, algorithm: Algorithm) -> ImportVerdict:
        """Return the result of the verification.

        Raise RefusedError if the file of a block is missing.
        """
        for block_id in sorted(self._awaited)[:1]:
            raise malformed(
                f"{len(self._awaited)} blocks have no file, the first is block {block_id}"
            )
        tree = build_from_rows(self.arrival.rows(), self._tombstones, algorithm=algorithm)
        return ImportVerdict(
            tree=tree,
            findings=(),
            contradictions=(),
            block_count=self.block_count,
            used_bytes=self.used_bytes,
            bcsid=Bcsid(self.bcsid),
        )


def _checksum_of(block: BlockData) -> int:
    """Return the checksum of a block, as Ozone's tree has it after a delete."""
    leaves = [
        leaf_checksum(Algorithm.CRC32C, chunk.offset, chunk.length_bytes, chunk.window_checksums)
        for chunk in block.chunks
    ]
    return block_checksum(Algorithm.CRC32C, block.block_id, leaves)
