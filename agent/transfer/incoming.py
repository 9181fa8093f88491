"""Receives a copy of a replica. Every message and every window is verified before it is accepted.

1. The header describes the replica. The receiver reserves space. 2. The tree must match the
checksums of its own leaves. 3. The checksum windows of the blocks are verified against the rows
while the data is written. 4. At the end, all blocks must be present and the rows must match the
tree. The replica is then synced, moved to its final path and reported.

Damage that the source has declared is accepted and recorded. If there is any other damage, the copy
fails, and all received data is removed.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Protocol, cast

import numpy as np

from agent.store.files.writebehind import Submit
from agent.store.index.facts import ReplicaFacts
from agent.store.index.packformat import PACKED_BYTES_MAX
from agent.store.operations.replica_import import ImportSpec, ImportVerdict, ReplicaImport
from agent.store.replica_store import ReplicaStore
from agent.transfer.chunk_checks import StreamedChunks
from agent.transfer.declared_damage import FINDINGS_MAX, DeclaredDamage
from agent.transfer.import_tree import ImportTreeBuilder, plain, rebuild_tree
from agent.transfer.parts import (
    PART_BLOCKS_MAX,
    PART_BYTES,
    ImportMessage,
    cut_off,
    read_part,
)
from agent.transfer.prefetch import read_ahead
from merkle.blockrow import decode_block
from merkle.checksum import Algorithm, windows_verify
from merkle.checksum_columns import fold_each
from merkle.damaged_data import DamagedData
from merkle.replica import (
    BLOCK_BYTES_MAX,
    CONTAINER_BYTES_MAX,
    TREE_STATES,
    BlockData,
    BlockId,
    ChecksumType,
    ChunkInfo,
    ContainerId,
    ReplicaState,
)
from merkle.tree import Tree
from scanner.finding import DamageFault, ScanFinding, Verdict
from scanner.rows.small_blocks import FIRST_SUM_END, SUMS_START, SimpleRun, runs
from suture.errors import Code, RefusedError
from suture.runtime.memory import trim_heap
from suture.runtime.ports import Executor, Leases
from suture.wire.mapping import codec, tree_pages
from suture.wire.v1 import datanode_pb2 as pb

TREE_BYTES_MAX: Final = 64 * tree_pages.ROWS_MAX  # twice the size of the largest tree
SMALL_BYTES_MAX: Final = PART_BYTES
STEP_BYTES: Final = 512 * 1024


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Result of an import: the facts of the replica, and the number of its damaged chunks."""

    facts: ReplicaFacts
    damaged_chunk_count: int


class ArrivingReplicas(Protocol):
    """A store that accepts imported replicas: a `ReplicaStore`, or its wrapper for moves between
    volumes."""

    def begin_arrival(self, announced: ImportSpec, submit: Submit | None = ...) -> ReplicaImport:
        """Reserve space for a replica, and return the object that writes its data.

        When all data has arrived, the caller calls `finish_arrival`. In any case, the caller must
        call `discard` of the returned object at the end.
        """

    def finish_arrival(self, arrival: ReplicaImport, received: ImportVerdict) -> ReplicaFacts:
        """Sync and commit the imported replica, begin to serve it, and return its facts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaImporter:
    """Receives the replicas that other datanodes send.

    `on_arrived` is called with the container id after each import. The replicas are imported into
    `target`, or into `store` if `target` is None.
    """

    store: ReplicaStore
    leases: Leases
    executor: Executor
    now_ms: Callable[[], int]
    on_arrived: Callable[[ContainerId], None] = lambda _: None
    target: ArrivingReplicas | None = None

    def read_part(self, encoded: bytes) -> ImportMessage:
        """Decode one message of the stream. Raise DecodeError if the message is invalid."""
        return read_part(encoded)

    def receive(self, parts: Iterator[ImportMessage]) -> ImportResult:
        """Receive one replica. Raise SutureError if this fails; all its data is then removed."""
        first = next(parts, None)
        if first is None or first.kind != "header":
            raise codec.malformed("parts", "the stream does not begin with a header")
        header = first.message.header
        announced = parse_header(header, self.store.cluster_id, self.now_ms())
        target = self.target or self.store
        arrival = target.begin_arrival(announced, self.executor.submit)
        try:
            reception = _ImportStream(arrival, header, self.now_ms())
            with closing(read_ahead(parts, self.executor)) as ahead:  # uses one thread
                reception.process_all(ahead)
            received = reception.judged(self.store.algorithm)
            with self.leases.hold(announced.container_id):
                facts = target.finish_arrival(arrival, received)
        finally:
            arrival.discard()
            trim_heap()
        self.on_arrived(announced.container_id)
        return ImportResult(facts, len(received.findings))


def parse_header(header: pb.ImportHeader, cluster_id: str, now_ms: int) -> ImportSpec:
    """Return the description of the replica that the header announces.

    Raise RefusedError if the header is invalid, or if the sender belongs to another cluster.
    """
    if header.cluster_id != cluster_id:
        raise RefusedError(
            Code.WRONG_CLUSTER, f"the sender belongs to another cluster: {header.cluster_id!r}"
        )
    state = codec.parse_state(header.state, "header.state")
    if state not in TREE_STATES:
        raise codec.malformed("header.state", f"{state} replicas are not copied")
    former = None
    if state is ReplicaState.UNHEALTHY and header.former_state:
        former = codec.parse_state(header.former_state, "header.former_state")
        if former not in {ReplicaState.CLOSED, ReplicaState.QUASI_CLOSED}:
            raise codec.malformed("header.former_state", f"{former} is nothing to heal to")
    return ImportSpec(
        container_id=codec.parse_container_id(header.container_id, "header.container_id"),
        state=state,
        former_state=former,
        replica_index=codec.parse_replica_index(header.replica_index, "header.replica_index"),
        bcsid=codec.parse_bcsid(header.bcsid, "header.bcsid"),
        origin_datanode_id=codec.parse_datanode_id(
            header.origin_datanode_id, "header.origin_datanode_id"
        ),
        created_at_ms=now_ms,
        data_bytes=codec.parse_int(
            header.data_bytes, "header.data_bytes", low=0, high=2 * CONTAINER_BYTES_MAX
        ),
    )


@dataclass(slots=True)
class _OpenBlock:
    """A block whose data has arrived only in part. `block` is None if its row cannot be decoded."""

    block_id: BlockId
    block: BlockData | None
    left_bytes: int
    chunks: StreamedChunks


class _ImportStream:
    """The state of one import, which processes one stream of messages."""

    def __init__(self, arrival: ReplicaImport, header: pb.ImportHeader, now_ms: int) -> None:
        self._arrival = arrival
        self._container_id = arrival.announced.container_id
        where = "header.source_datanode_id"
        self._sender = codec.parse_datanode_id(header.source_datanode_id, where)
        self._now_ms = now_ms
        self._pages: list[pb.HashesPage] = []
        self._pages_bytes = 0
        self._tree: Tree | None = None
        self._folding: ImportTreeBuilder | None = None
        self._declared = DeclaredDamage(self._container_id)
        self._open: _OpenBlock | None = None
        self._last_id = 0
        self._sent_count = 0
        self._row_count = 0
        self._bytes_used = 0
        self._bcsid = 0
        self._findings: list[ScanFinding] = []
        self.data_bytes = 0

    def process_all(self, parts: Iterator[ImportMessage]) -> None:
        """Process all messages of the stream. Raise SutureError if a message is invalid or
        missing."""
        for part in parts:
            match part.kind:
                case "tree" if self._tree is None:
                    self._add_page(part.message.tree)
                case "findings" if self._tree is None:
                    self._declared.add(part.message.findings)
                case "blocks":
                    self._process_blocks(part.message.blocks, part.data)
                case "end":
                    self._process_end(part.message.end)
                    return
                case kind:
                    raise codec.malformed("parts", f"{kind or 'nothing'} is out of order")
        raise cut_off()

    def judged(self, algorithm: Algorithm) -> ImportVerdict:
        """Check that the received replica is consistent, and return its tree and its findings.

        The tree of a healthy replica has the checksum algorithm of this datanode. A damaged replica
        keeps the tree of the source, because this tree describes the data that the source has read.
        Raise RefusedError if the rows do not match the tree.
        """
        received = self._known_tree()
        tree = self._fold().tree()
        self._check_rows(received, tree)
        if self._findings or self._arrival.announced.state is ReplicaState.UNHEALTHY:
            tree = received
        elif algorithm is not received.algorithm:
            tree = rebuild_tree(self._arrival.rows(), received, algorithm)
        return ImportVerdict(
            tree=tree,
            findings=self._findings,
            contradictions=self._declared.contradictions,
            block_count=self._row_count,
            used_bytes=self._bytes_used,
            bcsid=codec.parse_bcsid(self._bcsid, "blocks.rows.bcsid"),
        )

    # -- the tree

    def _add_page(self, page: pb.HashesPage) -> None:
        """Store a page of the source's tree. The tree is decoded after all pages have arrived."""
        self._pages_bytes += page.ByteSize()
        if self._pages_bytes > TREE_BYTES_MAX:
            raise codec.malformed("tree", f"more than {TREE_BYTES_MAX} bytes")
        self._pages.append(page)

    def _known_tree(self) -> Tree:
        """Return the source's tree. All of its pages must have arrived. The first call decodes
        them."""
        if self._tree is None:
            summary, tree = tree_pages.read_tree(iter(self._pages))
            if tree.summary() != replace(summary, generation=tree.generation):
                raise codec.malformed("tree", "is not what its summary says")
            self._tree, self._pages = tree, []
            self._arrival.expect_small(small_count(tree))
            self._folding = ImportTreeBuilder(tree)
        return self._tree

    def _fold(self) -> ImportTreeBuilder:
        """Return the builder that computes a tree from the arriving rows, with the source's
        algorithm."""
        self._known_tree()
        assert self._folding is not None, "it begins with the tree"
        return self._folding

    def _check_rows(self, received: Tree, folded: Tree) -> None:
        """Raise RefusedError if the arrived rows do not match the source's tree.

        `folded` is the tree that was computed from the arrived rows, and `received` the tree that
        the source has sent. The checksums of their blocks must be equal. Blocks with declared
        damage, and blocks with unhealthy chunks in the source's tree, are not compared.
        """
        excused = received.unhealthy_block_ids()
        named = np.array(sorted(key for key in self._declared.evidence if key > 0), np.uint64)
        excused = np.union1d(excused, named)
        ours, theirs = plain(folded, excused), plain(received, excused)
        same = all(np.array_equal(*pair) for pair in zip(ours, theirs, strict=True))
        if not same:
            raise _undeclared(self._container_id, "the rows do not fold to the tree they came with")

    # -- blocks

    def _process_blocks(self, part: pb.ImportBlocks, data: memoryview) -> None:
        if len(data) > PART_BYTES:
            raise codec.malformed("blocks.data", f"{len(data)} bytes are more than {PART_BYTES}")
        self._known_tree()
        ids, sizes = self._checked_ids(part)
        if ids and self._open is not None and self._open.left_bytes > len(data):
            raise codec.malformed("blocks", "a block begins before the one before it has ended")
        self.data_bytes += len(data)
        at = self._go_on(data)
        if ids:
            at = self._process_started_blocks(ids, list(part.rows), sizes, data, at)
        if at != len(data):
            raise codec.malformed("blocks.data", f"{len(data) - at} bytes belong to no block")

    def _process_started_blocks(
        self, ids: list[BlockId], rows: list[bytes], sizes: list[int], data: memoryview, at: int
    ) -> int:
        """Process the blocks that begin in a message. Return the offset after the last one.

        The data of the first of these blocks begins at offset `at` of `data`.
        """
        self._row_count += self._arrival.keep_rows(ids, rows)
        self._sent_count += len(ids)
        whole = len(ids)
        ends: list[int] = (at + np.cumsum(np.maximum(np.array(sizes, dtype=np.int64), 0))).tolist()
        if ends[-1] > len(data):
            whole -= 1
            if whole and ends[whole - 1] > len(data):
                raise codec.malformed("blocks.file_bytes", "more than one block goes on")
        starts = [at, *ends]
        self._process_complete_blocks(ids[:whole], rows[:whole], sizes[:whole], starts, data)
        at = starts[whole]
        if whole < len(ids):
            self._begin(ids[whole], rows[whole], sizes[whole], is_folded=False)
            at += self._go_on(data[at:])
        return at

    def _checked_ids(self, part: pb.ImportBlocks) -> tuple[list[BlockId], list[int]]:
        ids = cast(list[BlockId], list(part.local_ids))
        sizes = list(part.file_bytes)
        if not len(ids) == len(part.rows) == len(sizes) <= PART_BLOCKS_MAX:
            raise codec.malformed(
                "blocks", f"{len(ids)} ids, {len(part.rows)} rows, {len(sizes)} sizes"
            )
        if ids:
            codec.parse_block_id(min(ids), "blocks.local_ids")
            codec.parse_block_id(max(ids), "blocks.local_ids")
            for before, block_id in zip([self._last_id, *ids], ids, strict=False):
                if block_id <= before:
                    raise codec.malformed("blocks.local_ids", f"{block_id} does not ascend")
            self._last_id = ids[-1]
            codec.parse_int(min(sizes), "blocks.file_bytes", low=-1, high=BLOCK_BYTES_MAX)
            codec.parse_int(max(sizes), "blocks.file_bytes", low=-1, high=BLOCK_BYTES_MAX)
        return ids, sizes

    def _process_complete_blocks(
        self,
        ids: list[BlockId],
        rows: list[bytes],
        sizes: list[int],
        starts: list[int],
        data: memoryview,
    ) -> None:
        """Process the blocks whose data is completely in one message.

        Blocks with only one chunk are processed together.
        """
        files: list[tuple[BlockId, memoryview]] = []
        index = 0
        algorithm = self._known_tree().algorithm
        for item in runs(zip(ids, rows, strict=True), algorithm, SMALL_BYTES_MAX):
            if isinstance(item, SimpleRun):
                count = len(item.rows)
                self._fold().add_run(item)
                part = slice(index, index + count)
                files += self._process_small_blocks(item, sizes[part], starts[index:], data)
                index += count
                continue
            view = data[starts[index] : starts[index + 1]]
            self._begin(item[0], item[1], sizes[index], is_folded=False)
            self._go_on(view)
            index += 1
        if files:
            self._arrival.write_whole(files)

    def _process_small_blocks(
        self, run: SimpleRun, sizes: list[int], starts: list[int], data: memoryview
    ) -> list[tuple[BlockId, memoryview]]:
        """Verify several small blocks that have one chunk each.

        Return the pairs (block id, data) of the blocks that are intact; the caller writes them
        together. The other blocks are processed one by one.
        """
        ids = cast(list[BlockId], run.block_ids.tolist())
        count = len(ids)
        is_crc32c = run.checksum_type is ChecksumType.CRC32C
        if is_crc32c and sizes == run.lengths_bytes and run.sums_ends == [FIRST_SUM_END] * count:
            views = [data[start:end] for start, end in pairwise(starts[: count + 1])]
            if np.array_equal(fold_each(Algorithm.CRC32C, views, count), run.first_sums):
                self._bytes_used += sum(sizes)
                self._bcsid = max(self._bcsid, int(run.bcsids.max()))
                return list(zip(ids, views, strict=True))
        files = []
        items = zip(
            ids,
            run.bcsids.tolist(),
            run.rows,
            run.lengths_bytes,
            run.window_bytes,
            run.sums_ends,
            sizes,
            starts,
            strict=False,
        )
        for block_id, bcsid, row, length, window_bytes, sums_end, size, start in items:
            view, sums = data[start : start + length], row[SUMS_START:sums_end]
            if size == length and windows_verify(run.checksum_type, window_bytes, sums, view):
                files.append((block_id, view))
                self._bytes_used += length
                self._bcsid = max(self._bcsid, bcsid)
            else:
                self._begin(block_id, row, size, is_folded=True)
                self._go_on(data[start : start + max(size, 0)])
        return files

    def _begin(self, block_id: BlockId, row: bytes, file_bytes: int, *, is_folded: bool) -> None:
        """Begin a block whose data is processed in several steps.

        `is_folded` is True if the row of the block was already added to the tree that is computed.
        """
        block = self._decoded(block_id, row)
        chunks: tuple[ChunkInfo, ...] = ()
        if block is not None:
            chunks = block.chunks
            if not is_folded:
                self._fold().add_block(block)
            self._bytes_used += sum(chunk.length_bytes for chunk in chunks)
            self._bcsid = max(self._bcsid, block.bcsid)
            if file_bytes > block.length_bytes:
                raise codec.malformed(
                    "blocks.file_bytes",
                    f"{file_bytes} bytes of block {block_id}: its row ends before",
                )
        if file_bytes >= 0:
            self._arrival.begin_file(block_id, file_bytes)
        self._open = _OpenBlock(block_id, block, max(file_bytes, 0), StreamedChunks(chunks))
        if file_bytes <= 0:
            self._end_block(self._open, has_file=file_bytes == 0)

    def _decoded(self, block_id: BlockId, row: bytes) -> BlockData | None:
        try:
            return decode_block(block_id, row)
        except DamagedData as damage:
            fault = DamageFault.BLOCK_ROW_DAMAGED if row else DamageFault.BLOCK_ROW_MISSING
            self._record_declared_damage(fault, block_id, -1, -1, str(damage))
            return None

    def _go_on(self, data: memoryview) -> int:
        """Append data to the block that is still incomplete. Return the number of bytes that belong
        to it."""
        block = self._open
        if block is None:
            return 0
        piece = data[: block.left_bytes]
        for start in range(0, len(piece), STEP_BYTES):  # small steps stay in the CPU's cache
            step = piece[start : start + STEP_BYTES]
            block.chunks.feed(step)
            self._arrival.append(step)
        block.left_bytes -= len(piece)
        if not block.left_bytes:
            self._end_block(block, has_file=True)
        return len(piece)

    def _end_block(self, block: _OpenBlock, *, has_file: bool) -> None:
        self._open = None
        if has_file:
            self._arrival.end_file()
        missing = DamageFault.CHUNK_SHORT if has_file else DamageFault.BLOCK_FILE_MISSING
        for chunk in block.chunks.wrong:
            self._note_chunk(DamageFault.CHUNK_CHECKSUM, block.block_id, chunk)
        for chunk in block.chunks.missing():
            self._note_chunk(missing, block.block_id, chunk)
        for chunk in block.block.chunks if block.block is not None else ():
            known = (block.block_id, chunk.offset) in self._declared.places
            if known and chunk.checksum_type is ChecksumType.NONE:
                self._note_chunk(DamageFault.CHUNK_CHECKSUM, block.block_id, chunk)

    # -- damage

    def _note_chunk(self, fault: DamageFault, block_id: BlockId, chunk: ChunkInfo) -> None:
        what = f"chunk at {chunk.offset} of block {block_id} arrived damaged: {fault}"
        self._record_declared_damage(fault, block_id, chunk.offset, chunk.length_bytes, what)

    def _record_declared_damage(
        self, fault: DamageFault, block_id: BlockId, offset: int, length_bytes: int, what: str
    ) -> None:
        """Record a finding for damage that the source has declared. Raise RefusedError for any
        other damage."""
        if not self._declared.covers(self._known_tree(), block_id, offset):
            raise _undeclared(self._container_id, what)
        if len(self._findings) >= FINDINGS_MAX:
            raise codec.malformed("blocks", f"more than {FINDINGS_MAX} damaged chunks")
        said = self._declared.evidence.get(block_id, "unhealthy in its tree")
        self._findings.append(
            ScanFinding(
                container_id=self._container_id,
                verdict=Verdict.CORRUPT,
                fault=fault,
                block_id=block_id,
                offset=offset,
                length_bytes=length_bytes,
                found_at_ms=self._now_ms,
                evidence=f"{what}; datanode {self._sender} had found: {said}",
            )
        )

    def _process_end(self, end: pb.ImportEnd) -> None:
        self._known_tree()
        if self._open is not None:
            raise cut_off()
        came = (self._sent_count, self.data_bytes)
        if came != (end.block_count, end.data_bytes):
            raise codec.malformed(
                "end",
                f"{came[0]} blocks and {came[1]} bytes came, "
                f"{end.block_count} and {end.data_bytes} were sent",
            )


def small_count(tree: Tree) -> int:
    """Return the number of blocks that have only one chunk, and whose chunk is small."""
    alone = tree.chunk_starts[:-1][tree.chunk_counts == 1]
    return int(np.count_nonzero(tree.chunk_lengths[alone] <= PACKED_BYTES_MAX))


def _undeclared(container_id: ContainerId, what: str) -> RefusedError:
    return RefusedError(
        Code.CHECKSUM_MISMATCH,
        what,
        hint="scan the source, which has not reported this damage",
        container_id=container_id,
    )
