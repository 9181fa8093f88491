"""Reads a complete replica, verifies its data, and returns a tree and findings.

The scan computes the window checksums of the bytes on disk, and compares them with the row that was
stored at the write. If they are equal, the chunk has a healthy leaf in the tree. Otherwise,
`scanner.chunk_verdict` decides whether the chunk is corrupt. A corrupt chunk has an unhealthy leaf.

The tree describes the content on disk. The leaf of a damaged chunk is computed from the damaged
bytes. A missing chunk has no leaf. A block without a file or without a row is not in the tree. The
scan does not stop at a fault, because the repair needs all of them.

The scan writes and repairs nothing, and does not mark the replica. It reports no finding about a
block that was deleted or rewritten during the read.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, TypeAlias

import numpy as np

from merkle.blockrow import decode_block
from merkle.checksum import Algorithm, long_crcs
from merkle.checksum_columns import NO_WHOLE, U64s
from merkle.damaged_data import DamagedData
from merkle.replica import BlockData, BlockId, ChunkInfo
from scanner.chunk_verdict import (
    WITNESSES,
    ChunkJudgement,
    FirstRead,
    Witnesses,
    judge_chunk,
    name_of,
    read_failure,
)
from scanner.finding import DamageFault, Verdict
from scanner.ports import BlockFileReader, ReplicaReader
from scanner.resume import KeepMark, ScanMark, ScanMarkRecorder, no_mark
from scanner.rows.small_blocks import SUMS_START, SimpleRun, runs_and_alike
from scanner.rows.spans import Wholes, expected_wholes, spans_of
from scanner.rows.uniform_chunks import UniformChunks
from scanner.scan_outcome import ScanOutcome, ScanRecord
from scanner.unreadable_verdict import RetryingReader

READ_BYTES_MAX: Final = 4 * 1024**2  # larger reads gain nothing, measured on NVMe and SATA
Attempt: TypeAlias = memoryview | OSError | None  # result of a first, quick read of a block
STOPPED: Final = "stopped"
CHANGED: Final = "changed"


class _StopError(Exception):
    """Ends the scan. The text of the exception becomes `stopped_because` of the outcome. Only this
    module catches it."""


def _transient(error: OSError) -> _StopError:
    """Return the exception that ends the scan after an error that is not a fault of the data, for
    instance a full file table."""
    return _StopError(f"{Verdict.TRANSIENT}: {name_of(error)}")


def scan_replica(
    reader: ReplicaReader,
    *,
    algorithm: Algorithm,
    now_ms: Callable[[], int],
    stop: Callable[[], bool],
    progress: Callable[[int], None],
    pace: Callable[[int], None],
    witnesses: Witnesses = WITNESSES,
    resume: ScanMark | None = None,
    mark: KeepMark = no_mark,
    insists: bool = False,
) -> ScanOutcome:
    """Read and verify every chunk of the replica. Return the tree, the findings and the counts.

    `progress` and `pace` are called after each read with the number of bytes read; `pace` may wait.
    For a block without data, `progress` receives 0. `stop` is called before each read, and ends the
    scan if it returns True. `mark` is called with marks of the scan's progress. If `resume` is such
    a mark, and the replica has the same generation, the scan continues there. If `insists` is True,
    data that cannot be read, as in earlier scans, is reported as UNREADABLE. Raise SutureError if
    the metadata cannot be read.
    """
    reader = RetryingReader(reader) if insists else reader
    scan = _Scan(reader, algorithm, now_ms, stop, progress, pace, witnesses, resume, mark)
    try:
        scan.walk()
    except _StopError as why:
        return scan.outcome(stopped_because=str(why))
    return scan.outcome()


class _Scan:
    """The state of one scan of one replica."""

    def __init__(
        self,
        reader: ReplicaReader,
        algorithm: Algorithm,
        now_ms: Callable[[], int],
        stop: Callable[[], bool],
        progress: Callable[[int], None],
        pace: Callable[[int], None],
        witnesses: Witnesses,
        resume: ScanMark | None,
        mark: KeepMark,
    ) -> None:
        self._reader = reader
        self._stop = stop
        self._progress = progress
        self._pace = pace
        self._witnesses = witnesses
        self._verify = witnesses.quick or witnesses.verify
        self._long_crcs = long_crcs()
        self._algorithm = algorithm
        self._bytes_read = resume.bytes_read if resume else 0
        self._resume = resume
        self._marker = ScanMarkRecorder(mark, resume)
        doubt = self._marker.mark_for_reread
        self._record = ScanRecord(reader.container_id, algorithm, now_ms=now_ms, doubt=doubt)
        self._tree, self._notebook = self._record.tree, self._record.notebook

    def outcome(self, stopped_because: str = "") -> ScanOutcome:
        return self._record.outcome(bytes_read=self._bytes_read, stopped_because=stopped_because)

    def walk(self) -> None:
        tombstones = self._reader.tombstones()
        for block_id, checksum in tombstones.items():
            self._tree.add_tombstone(block_id, checksum)
        seen: list[U64s] = []
        others: list[int] = []
        for item in runs_and_alike(self._reader.blocks(), self._algorithm, READ_BYTES_MAX):
            if isinstance(item, SimpleRun):
                seen.append(item.block_ids)
                self._scan_run(item, tombstones)
            elif isinstance(item, UniformChunks):
                others.append(item.block_id)
                self._scan_alike(item, tombstones)
            else:
                others.append(item[0])
                self._scan_row(*item, tombstones)
        try:
            structure = self._reader.structure()
        except OSError as error:
            raise _transient(error) from error
        known = np.concatenate([*seen, np.array(others, dtype=np.uint64)])
        self._record.structure(structure, known, tombstones, self._reader, look=self._look)
        self._notebook.trace(self._reader.blocks)

    def _scan_run(self, run: SimpleRun, tombstones: Mapping[BlockId, int]) -> None:
        """Read a series of small blocks. A block whose data does not match its recorded checksums
        is scanned separately."""
        read, verify, marker = self._reader.read_whole, self._verify, self._marker
        resume = self._resume
        kind = run.checksum_type
        resumed_id = -1 if self._resume is None else self._resume.block_id
        start = 0  # index of the first clean block that is not in the tree yet
        block_ids = map(BlockId, run.block_ids.tolist())
        items = zip(
            block_ids, run.rows, run.lengths_bytes, run.window_bytes, run.sums_ends, strict=True
        )
        for index, (block_id, row, length_bytes, window_bytes, sums_end) in enumerate(items):
            if self._stop():
                self._tree.run(run, start, index)
                raise _StopError(STOPPED)
            if resume is not None and block_id not in tombstones and resume.covers_id(block_id):
                continue
            attempt: Attempt = None
            if block_id > resumed_id and block_id not in tombstones:
                try:
                    view = attempt = read(block_id, length_bytes)
                except OSError as error:
                    attempt = error if read_failure(error) is Verdict.UNREADABLE else None
                else:
                    self._account(len(view))
                    sums = row[SUMS_START:sums_end]
                    if len(view) == length_bytes and verify(kind, window_bytes, sums, view):
                        marker.passed(block_id, length_bytes, self._bytes_read)
                        continue
            self._tree.run(run, start, index)
            start = index + 1
            self._scan_row(block_id, row, tombstones, attempt)
        self._tree.run(run, start, len(run.rows))

    def _scan_alike(self, block: UniformChunks, tombstones: Mapping[BlockId, int]) -> None:
        """Read and verify the chunks of a block with many equal small chunks, many at once. After a
        mismatch, read them one by one."""
        is_resumed = self._resume is not None and block.block_id <= self._resume.block_id
        file = None
        if not is_resumed and block.block_id not in tombstones:
            if self._stop():
                raise _StopError(STOPPED)
            with suppress(OSError):  # `_scan_row` opens the file again, and reports the error
                file = self._reader.open_block(block.block_id)
        if file is None:
            self._scan_row(block.block_id, block.row, tombstones)
            return
        try:
            self._scan_stretches(block, file)
        except OSError as error:
            raise _transient(error) from error
        finally:
            file.close()

    def _scan_stretches(self, block: UniformChunks, file: BlockFileReader) -> None:
        stretches = block.stretches(READ_BYTES_MAX)
        wholes = expected_wholes(tuple(one.chunk for one in stretches), self._witnesses)
        for stretch in stretches:
            chunk = stretch.chunk
            if self._stop():
                self._tree.alike(block, stretch.first)
                raise _StopError(STOPPED)
            attempt: Attempt
            try:
                attempt = view = file.read(chunk.offset, chunk.length_bytes)
            except OSError as error:
                attempt = error
            else:
                self._account(len(view))
                whole = wholes.get((chunk.offset, chunk.end), NO_WHOLE)
                if self._compare(chunk, view, whole) is None:
                    self._marker.passed(block.block_id, chunk.end, self._bytes_read)
                    continue
            chunks = decode_block(block.block_id, block.row)
            self._tree.begin(block.block_id)
            self._tree.healthy(*chunks.chunks[: stretch.first])
            spans = spans_of(chunks.chunks[stretch.first :], READ_BYTES_MAX)
            self._scan_spans(chunks, block.row, file, spans, attempt)
            return
        self._tree.alike(block, len(block.ends))
        self._judge_length(block.block_id, block.length_bytes, block.row, file)

    def _scan_row(
        self,
        block_id: BlockId,
        row: bytes,
        tombstones: Mapping[BlockId, int],
        attempt: Attempt = None,
    ) -> None:
        if block_id in tombstones:  # deleted; a crash left the row beside the tombstone
            return
        if self._stop():
            raise _StopError(STOPPED)
        block = self._decode(block_id, row)
        if block is None:
            return
        try:
            self._scan_block(block, row, attempt)
        except OSError as error:
            raise _transient(error) from error

    def _decode(self, block_id: BlockId, row: bytes) -> BlockData | None:
        """Return the block that a row describes. If the row is damaged, read the row again. Return
        None if it is still damaged, or if the block was deleted."""
        try:
            return decode_block(block_id, row)
        except DamagedData as first:
            again = self._reader.row(block_id)
            if again is None:
                return None
            try:
                block = decode_block(block_id, again)
            except DamagedData:
                evidence = f"row of {len(again)} bytes: {first}"
                self._notebook.add(
                    Verdict.CORRUPT, DamageFault.BLOCK_ROW_DAMAGED, evidence, block_id
                )
                return None
            evidence = f"the row decodes when read again; first: {first}"
            self._notebook.add(
                Verdict.SUSPECT_HOST, DamageFault.BLOCK_ROW_DAMAGED, evidence, block_id
            )
            return block

    def _scan_block(self, block: BlockData, row: bytes, attempt: Attempt) -> None:
        if self._resume is not None and self._resume.covers_block(block):
            self._tree.begin(block.block_id)
            self._tree.healthy(*block.chunks)
            return
        try:
            file = self._reader.open_block(block.block_id)
        except FileNotFoundError as error:
            if not block.chunks:  # it has no data
                self._tree.begin(block.block_id)
            elif self._stands(block.block_id, row):
                self._record.without_file(block, error)
            return
        except OSError as error:
            if read_failure(error) is Verdict.TRANSIENT:
                raise
            if self._stands(block.block_id, row):
                self._record.unreadable(block, error)
            return
        try:
            self._scan_file(block, row, file, attempt)
        finally:
            file.close()

    def _scan_file(
        self, block: BlockData, row: bytes, file: BlockFileReader, attempt: Attempt
    ) -> None:
        self._tree.begin(block.block_id)
        self._scan_spans(block, row, file, spans_of(block.chunks, READ_BYTES_MAX), attempt)

    def _scan_spans(
        self,
        block: BlockData,
        row: bytes,
        file: BlockFileReader,
        spans: Iterable[tuple[ChunkInfo, ...]],
        attempt: Attempt,
    ) -> None:
        """Read the chunks of a block. Each item of `spans` has adjacent chunks, which are read
        together. `attempt` is the result of an earlier read of the first item; None if there was
        none."""
        wholes = expected_wholes(block.chunks, self._witnesses)
        for span in spans:
            if self._stop():
                raise _StopError(STOPPED)
            resume = self._resume
            parts = [(False, span)] if resume is None else resume.parts(block.block_id, span)
            for is_covered, part in parts:
                if is_covered:
                    self._tree.healthy(*part)
                else:
                    self._scan_span(block, row, file, part, wholes, attempt)
            self._marker.passed(block.block_id, span[-1].end, self._bytes_read)
            attempt = None
        self._judge_length(block.block_id, block.length_bytes, row, file)

    def _judge_length(
        self, block_id: BlockId, length_bytes: int, row: bytes, file: BlockFileReader
    ) -> None:
        trailing_bytes = file.size_bytes - length_bytes
        if trailing_bytes > 0 and self._stands(block_id, row):
            evidence = f"file of {file.size_bytes} bytes, block of {length_bytes}"
            place = (block_id, length_bytes, trailing_bytes)
            self._notebook.add(Verdict.CORRUPT, DamageFault.TRAILING_BYTES, evidence, *place)

    def _scan_span(
        self,
        block: BlockData,
        row: bytes,
        file: BlockFileReader,
        span: tuple[ChunkInfo, ...],
        wholes: Wholes,
        attempt: Attempt = None,
    ) -> None:
        """Read the adjacent chunks in `span` together, and compare each with its row.

        `attempt` is the result of an earlier read of these chunks; None if there was none. `wholes`
        has the expected CRC of each complete chunk.
        """
        start = span[0].offset
        try:
            if isinstance(attempt, OSError):
                raise attempt
            view = file.read(start, span[-1].end - start) if attempt is None else attempt
        except OSError as error:
            if read_failure(error) is Verdict.TRANSIENT:
                raise
            if len(span) == 1:
                unread = self._judge(block, file, span[0], FirstRead(0, b"", error))
                if self._stands(block.block_id, row):
                    self._record.judged(block, span[0], unread)
                return
            for chunk in span:  # one bad sector must not make the adjacent chunks unreadable
                self._scan_span(block, row, file, (chunk,), wholes)
            return
        if attempt is None:
            self._account(len(view))
        suspects: list[tuple[ChunkInfo, FirstRead | None]] = []
        for chunk in span:
            data = view[chunk.offset - start : chunk.end - start]
            first = self._compare(chunk, data, wholes.get((chunk.offset, chunk.end), NO_WHOLE))
            if first is None and not suspects:
                self._tree.healthy(chunk)
            else:
                suspects.append((chunk, first))
        judged = [
            (chunk, None if first is None else self._judge(block, file, chunk, first))
            for chunk, first in suspects
        ]
        stands = bool(judged) and self._stands(block.block_id, row)
        for chunk, judgement in judged:
            if judgement is None:
                self._tree.healthy(chunk)  # only now, because the tree gets the chunks in order
            elif stands:
                self._record.judged(block, chunk, judgement)

    def _compare(self, chunk: ChunkInfo, data: memoryview, whole: int) -> FirstRead | None:
        """Compare `data` with the checksums in the row of `chunk`.

        Return None if they match, else the length and the checksums of `data`. `whole` is the
        expected CRC of the complete chunk; NO_WHOLE if it is unknown.
        """
        kind, window_bytes, expected = (
            chunk.checksum_type,
            chunk.bytes_per_checksum,
            chunk.window_checksums,
        )
        if len(data) == chunk.length_bytes:
            if whole != NO_WHOLE:
                if self._long_crcs[kind](data) == whole:
                    return None
            elif self._verify(kind, window_bytes, expected, data):
                return None
        sums = self._witnesses.primary(kind, window_bytes, data)
        return FirstRead(len(data), sums, data=data)

    def _judge(
        self, block: BlockData, file: BlockFileReader, chunk: ChunkInfo, first: FirstRead
    ) -> ChunkJudgement:
        judgement = judge_chunk(
            file,
            chunk,
            first,
            self._witnesses,
            lambda: self._reader.former_bytes(block.block_id, chunk.offset),
            insists=isinstance(self._reader, RetryingReader),
        )
        self._account(judgement.length_bytes)
        return judgement

    def _stands(self, block_id: BlockId, row: bytes) -> bool:
        """Return True if findings about a block may be reported.

        Return False if the block was deleted during the read. If the row or the replica has
        changed, end the scan, because the data that was read no longer exists.
        """
        now = self._reader.row(block_id)
        if now is None:
            return False
        if now != row or not self._reader.is_current():
            raise _StopError(CHANGED)
        return True

    def _look(self) -> None:
        """Report progress, and end the scan if a stop was requested. Called during long work
        without reads."""
        if self._stop():
            raise _StopError(STOPPED)
        self._progress(0)

    def _account(self, length_bytes: int) -> None:
        self._bytes_read += length_bytes
        self._progress(length_bytes)
        self._pace(length_bytes)
