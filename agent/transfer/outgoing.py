"""Sends a replica as a stream of messages: header, tree, findings, blocks, end.

During the transfer, the source shares the container's lease, so that no chunk is written. It reads
the data past the page cache, a few messages in advance, and does not verify the data. The target
verifies every checksum window against the row. Known damage is declared before the blocks. If other
damage is found, the stream ends. The source then scans the replica and sends it again with the
findings.
"""

import errno
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import merge
from operator import itemgetter
from typing import Final, cast

import numpy as np

from agent.services import report_messages
from agent.store.files.blockfile import ALIGNMENT_BYTES
from agent.store.files.writebehind import REFUSED
from agent.store.index.facts import ReplicaFacts
from agent.store.operations.replica_export import ABSENT, ExportFiles, ReadsAhead, WholeFiles
from agent.store.replica_store import ReplicaStore
from agent.transfer.parts import (
    FINDINGS_PER_PART,
    PART_BYTES,
    blocks_part,
    part_with_hole,
)
from agent.transfer.pieces import SPREAD_BYTES_MAX, BlockSpan, ExportPiece, SmallBlockBatch
from agent.transfer.replica_condition import (
    ReplicaCondition,
    lost_rows,
    statement_of,
    undeclared_damage_error,
)
from merkle.blockrow import decode_block
from merkle.damaged_data import DamagedData
from merkle.replica import TREE_STATES, BlockId, ContainerId
from merkle.tree import Tree
from scanner.rows.small_blocks import SimpleRun, runs
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.runtime.durable import error_of
from suture.runtime.ports import Executor, Future, Pace, at_once
from suture.wire.mapping import tree_pages
from suture.wire.v1 import datanode_pb2 as pb

NO_DATA: Final = frozenset({errno.EIO, errno.ENOENT})
READ_AHEAD_PARTS: Final = 4  # messages read ahead; one MiB each


@dataclass(slots=True)
class ReplicaExport:
    """The export of one replica.

    Only one thread at a time may use it. Its reads are executed in other threads.
    """

    store: ReplicaStore
    container_id: ContainerId
    executor: Executor
    stop: Callable[[], bool] = lambda: False
    pace: Pace = at_once
    failure: SutureError | None = None
    is_finished: bool = False
    parts_count: int = 0
    block_count: int = 0
    data_bytes: int = 0
    damaged_block_ids: frozenset[int] = frozenset()
    _files: ExportFiles = field(init=False)
    _ahead: ReadsAhead = field(init=False)

    def stream(self) -> Iterator[bytes]:
        """Yield the encoded messages of the replica.

        If the export fails, end the stream early and set `failure`. The target refuses a stream
        whose last message is missing.
        """
        try:
            for part in self._parts():
                if self.stop():
                    raise UnavailableError(Code.CANCELLED, "the export was stopped")
                self.parts_count += 1
                yield part
                self.pace(len(part), self.stop)
            self.is_finished = True
        except SutureError as error:
            self.failure = error

    def _parts(self) -> Iterator[bytes]:
        facts = self.store.replica(self.container_id)
        check_exportable(facts)
        said = statement_of(self.store, facts)
        tree, findings = said.tree, said.findings
        yield pb.ImportPart(header=self._header(facts, said)).SerializeToString()
        everything = tree_pages.TreeQuery(pb.CHUNKS, *[np.empty(0, np.uint64)] * 4)
        for page in tree_pages.pages(tree, everything):
            yield pb.ImportPart(tree=page).SerializeToString()
        told = [*findings, *said.contradictions]
        for start in range(0, len(told), FINDINGS_PER_PART):
            some = report_messages.FINDING.messages(told[start : start + FINDINGS_PER_PART])
            yield pb.ImportPart(findings=pb.ImportFindings(findings=some)).SerializeToString()
        self.damaged_block_ids = said.damaged_block_ids
        yield from self._blocks(said)
        end = pb.ImportEnd(block_count=self.block_count, data_bytes=self.data_bytes)
        yield pb.ImportPart(end=end).SerializeToString()

    def _header(self, facts: ReplicaFacts, said: ReplicaCondition) -> pb.ImportHeader:
        rowless_bytes = sum(max(size, 0) for size in said.without_row.values())
        return pb.ImportHeader(
            cluster_id=self.store.cluster_id,
            source_datanode_id=self.store.datanode_id,
            container_id=facts.container_id,
            state=facts.state,
            former_state=facts.former_state,
            replica_index=facts.replica_index,
            bcsid=facts.bcsid,
            origin_datanode_id=facts.origin_datanode_id,
            data_bytes=facts.used_bytes + rowless_bytes,
        )

    # -- blocks

    def _blocks(self, said: ReplicaCondition) -> Iterator[bytes]:
        self._files = ExportFiles(
            self.store.paths(self.container_id).chunks, self.store.pack(self.container_id).blocks()
        )
        self._ahead = ReadsAhead(self._files)
        pieces = self._pieces(said.tree, said.without_row)
        pending: deque[tuple[ExportPiece, Future]] = deque()
        try:
            for piece in pieces:
                pending.append((piece, self._begin(piece)))
                if len(pending) >= READ_AHEAD_PARTS:
                    yield self._next_read(pending)
            while pending:
                yield self._next_read(pending)
        finally:
            for _, future in pending:
                if not future.cancel():  # wait, because it uses the directory that is closed below
                    with suppress(Exception):
                        future.result()
            self._ahead.close()
            self._files.close()

    def _next_read(self, pending: "deque[tuple[ExportPiece, Future]]") -> bytes:
        piece, future = pending.popleft()
        part: bytes = future.result()
        self.block_count += len(piece.local_ids)
        self.data_bytes += piece.data_bytes
        return part

    def _pieces(self, tree: Tree, without_row: Mapping[BlockId, int]) -> Iterator[ExportPiece]:
        """Divide the replica into the contents of messages. Blocks without a row are sent with an
        empty row."""
        known = self.store.view(self.container_id).block_rows()
        lost = lost_rows(self.store, self.container_id, without_row)
        rows = merge(known, lost, key=itemgetter(0)) if lost else known
        named = [key for key in self.damaged_block_ids if key > 0]  # others name no block
        damaged = np.array(sorted(named), np.uint64)
        batch = SmallBlockBatch()
        for item in runs(rows, tree.algorithm, PART_BYTES):
            if not isinstance(item, SimpleRun):
                yield from batch.taken()
                yield from self._single(*item)
                continue
            ids = cast(list[BlockId], item.block_ids.tolist())
            sizes = np.array(item.lengths_bytes)
            start = 0
            for index in np.flatnonzero(np.isin(item.block_ids, damaged)).tolist():
                before = slice(start, index)
                yield from batch.add(ids[before], item.rows[before], sizes[before])
                yield from batch.taken()
                yield from self._single(ids[index], item.rows[index])
                start = index + 1
            yield from batch.add(ids[start:], item.rows[start:], sizes[start:])
        yield from batch.taken()

    def _single(self, block_id: BlockId, row: bytes) -> Iterator[ExportPiece]:
        """Yield the contents of the messages for one block that is large or has known damage."""
        is_damaged = block_id in self.damaged_block_ids
        actual = self._files.size_bytes(block_id)
        size = actual
        with suppress(DamagedData):
            wanted = decode_block(block_id, row).length_bytes
            if wanted > max(actual, 0) and not is_damaged:
                raise undeclared_damage_error(f"block {block_id} has {actual} of {wanted} bytes")
            size = min(actual, wanted) if wanted or actual == ABSENT else 0
        first = True
        for offset in range(0, max(size, 1), PART_BYTES):
            length = min(PART_BYTES, size - offset)
            begins = ([block_id], [row], [size]) if first else ([], [], [])
            yield ExportPiece(*begins, BlockSpan(block_id, offset, max(length, 0), is_damaged))
            first = False

    def _begin(self, piece: ExportPiece) -> Future:
        """Start to build one message, and return a future of the message.

        Small files and full pages of a file are read by asynchronous I/O, because threads that open
        files would mostly wait for the GIL. All other data is read in a thread.
        """
        span = piece.span
        if not self._ahead.is_possible:
            return self.executor.submit(self._read, piece)
        if span is None:
            small = self._small_files(piece)
            return _Later(partial(self._finish_small, piece, small), small.close)
        is_aligned = not (span.offset | span.length_bytes) % ALIGNMENT_BYTES
        if is_aligned and span.length_bytes and not span.is_damaged:
            about = (piece.local_ids, piece.rows, piece.file_bytes)
            part, hole = part_with_hole(*about, span.length_bytes)
            with suppress(OSError):  # a reader thread handles the error
                number = self._ahead.begin(span.block_id, span.offset, hole)
                finish = partial(self._finish, span, part, hole, number)
                return _Later(finish, partial(self._ahead.count, number))
        return self.executor.submit(self._read, piece)

    def _finish(self, span: BlockSpan, part: bytes, hole: memoryview, number: int) -> bytes:
        """Wait until the data of a message is read into `hole`, and return the message `part`.

        `hole` is the range of the message that is reserved for the data. Raise SutureError if the
        read has failed.
        """
        try:
            count = self._ahead.count(number)
        except OSError as error:
            if error.errno not in REFUSED:
                raise self._trouble(span.block_id, error) from error
            count = 0
        if count < span.length_bytes:  # the file changed, or cannot be read this way
            self._fill(span, hole)
        return part

    def _read(self, piece: ExportPiece) -> bytes:
        """Read the data of one message, and return the message. This method runs in a thread of the
        executor."""
        span = piece.span
        if span is None:
            return self._finish_small(piece, self._small_files(piece))
        buffer = self._files.borrow(SPREAD_BYTES_MAX)
        try:
            self._fill(span, buffer[: span.length_bytes])
            return self._part(piece, [buffer[: span.length_bytes]])
        finally:
            self._files.release(buffer)

    def _small_files(self, piece: ExportPiece) -> WholeFiles:
        """Start to read several small blocks without known damage."""
        files = list(zip(piece.local_ids, piece.file_bytes, strict=True))
        return WholeFiles(self._files, files, SPREAD_BYTES_MAX)

    def _finish_small(self, piece: ExportPiece, small: WholeFiles) -> bytes:
        """Wait until the small blocks of a message are read, and return the message.

        Raise SutureError if a read has failed.
        """
        data = []
        with closing(small):
            blocks = zip(piece.local_ids, piece.file_bytes, small.read_results(), strict=True)
            for block_id, length_bytes, found in blocks:
                if isinstance(found, OSError):
                    raise self._trouble(block_id, found) from found
                if len(found) < length_bytes:
                    raise self._trouble(block_id, None)
                data.append(found)
            return self._part(piece, data)

    def _part(self, piece: ExportPiece, data: Sequence[memoryview]) -> bytes:
        about = (piece.local_ids, piece.rows, piece.file_bytes)
        return blocks_part(*about, *data)

    def _fill(self, span: BlockSpan, target: memoryview) -> None:
        """Read a range of a block's file into `target`.

        If the block has known damage, bytes that cannot be read become zeros. Otherwise, raise
        SutureError.
        """
        count = 0
        try:
            count = self._files.read(span.block_id, span.offset, target) if target else 0
        except OSError as error:
            if not span.is_damaged or error.errno not in NO_DATA:
                raise self._trouble(span.block_id, error) from error
        if count < len(target):
            if not span.is_damaged:
                raise self._trouble(span.block_id, None)
            target[count:] = bytes(len(target) - count)

    def _trouble(self, block_id: BlockId, error: OSError | None) -> SutureError:
        """Return the error for a block that cannot be read.

        `error` is the error of the read, or None if the file is shorter than its row.
        """
        if error is not None and error.errno not in NO_DATA:
            return error_of(error, self.store.paths(self.container_id).chunks)
        what = "ends too early" if error is None else f"fails with {error.strerror}"
        return undeclared_damage_error(f"reading block {block_id} {what}")


@dataclass(frozen=True, slots=True)
class _Later:
    """A message that is completed when a thread calls `result`."""

    finish: Callable[[], bytes]
    give_up: Callable[[], object]  # waits until the kernel does not write to its memory any more

    def result(self) -> bytes:
        """Return the complete message."""
        return self.finish()

    def cancel(self) -> bool:
        """Wait for the running read of the message's data, then discard the message. Always return
        True.

        The result True means that the caller does not need to wait any more.
        """
        with suppress(OSError):
            self.give_up()
        return True


def check_exportable(facts: ReplicaFacts) -> None:
    """Raise RefusedError if the replica is not closed. Such a replica may change or be
    incomplete."""
    if facts.state not in TREE_STATES:
        raise RefusedError(
            Code.INVALID_CONTAINER_STATE,
            f"cannot copy container {facts.container_id}: it is {facts.state}, not closed",
            container_id=facts.container_id,
        )
