"""Read one replica whole and judge it: rows and files in, a tree and findings out.

    row (the witness written with the data) ─┐
                                             ├─ equal: a healthy leaf
    bytes on the medium ── window checksums ─┘  not equal: `scanner.judge`, then a damaged leaf

The tree says what the medium holds: a damaged chunk has the leaf of its damaged bytes and is not
healthy, a missing chunk has no leaf, a block without a file or a row is not there. All faults are
collected, not the first one only: the repair needs them all.

Nothing here writes, marks or repairs, and nothing is reported about a block that was deleted or
rewritten while it was read.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from merkle.blockrow import decode_block
from merkle.checksum import Algorithm, U64s
from merkle.damaged import Damaged
from merkle.replica import BlockData, BlockId, ChecksumType, ChunkInfo
from merkle.tree import Tree, TreeBuilder
from scanner.finding import Fault, Finding, Verdict
from scanner.judge import (
    WITNESSES,
    FirstRead,
    Judgement,
    Witnesses,
    judge_chunk,
    name_of,
    read_failure,
)
from scanner.ports import BlockReader, ReplicaReader, Structure
from scanner.resume import KeepMark, Marker, ScanMark, no_mark

READ_BYTES_MAX: Final = 4 * 1024**2  # larger reads gain nothing, measured on NVMe and SATA
FINDINGS_PER_REPLICA_MAX: Final = 1_000  # a lost directory must not fill the index
NOTES_PER_REPLICA_MAX: Final = 100  # findings that are no damage; never in the way of damage
NO_BLOCK: Final = BlockId(-1)
STOPPED: Final = "stopped"
CHANGED: Final = "changed"

UNREADABLE_LEAF: Final = b"unreadable"
"""Folded instead of sums where there are none, so that the leaf equals no healthy one."""

NOTE_FAULTS: Final = frozenset(
    {Fault.FOREIGN_FILE, Fault.TREE_DAMAGED, Fault.TREE_MISSING, Fault.TREE_STALE}
)
"""Faults that cost no data: a stranger's file; a tree, which this scan makes anew."""


@dataclass(frozen=True, slots=True)
class ScanOutcome:
    """What one scan learned.

    `stopped_because` says why the walk ended early ("stopped", "changed", or a transient errno):
    then neither tree nor findings may be committed. `undecided_count` counts chunks of which not
    even the medium's content is known: then the findings hold, the tree does not. `findings` is
    bounded, `finding_count` is not. `disagreement_count` counts chunks on which the two checksum
    libraries differed.
    """

    tree: Tree
    findings: tuple[Finding, ...]
    finding_count: int
    bytes_read: int
    block_count: int
    chunk_count: int
    stopped_because: str = ""
    undecided_count: int = 0
    disagreement_count: int = 0

    @property
    def complete(self) -> bool:
        """Whether every byte was read and judged, so that the tree may be committed."""
        return not self.stopped_because and not self.undecided_count

    @property
    def is_damaged(self) -> bool:
        """Whether a finding calls for repair."""
        return any(finding.is_damage for finding in self.findings)


class _StopError(Exception):
    """The walk ends here; its text becomes `stopped_because`. Never leaves this module."""


def _transient(error: OSError) -> _StopError:
    """End the walk for what is no verdict on the data: a full file table, no memory."""
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
) -> ScanOutcome:
    """Read every chunk of the replica and judge it.

    `progress` and `pace` are called after each read with the bytes it took; `pace` may wait.
    `stop` is asked before each read. A scan of the same generation that was cut off goes on at
    `resume`, the last mark that `mark` was given. Raise SutureError when the metadata cannot be
    read at all.
    """
    scan = _Scan(reader, algorithm, now_ms, stop, progress, pace, witnesses, resume, mark)
    try:
        scan.walk()
    except _StopError as why:
        return scan.outcome(stopped_because=str(why))
    return scan.outcome()


class _Scan:
    """The state of one walk over one replica."""

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
        self._now_ms = now_ms
        self._stop = stop
        self._progress = progress
        self._pace = pace
        self._witnesses = witnesses
        self._builder = TreeBuilder(algorithm)
        self._damage: list[Finding] = []
        self._notes: list[Finding] = []
        self._finding_count = 0
        self._bytes_read = resume.bytes_read if resume else 0
        self._resume = resume
        self._marker = Marker(mark, resume)
        self._block_count = 0
        self._chunk_count = 0
        self._disagreement_count = 0
        self._undecided_count = 0

    def outcome(self, stopped_because: str = "") -> ScanOutcome:
        return ScanOutcome(
            tree=self._builder.build(),
            findings=(*self._damage, *self._notes),
            finding_count=self._finding_count,
            bytes_read=self._bytes_read,
            block_count=self._block_count,
            chunk_count=self._chunk_count,
            stopped_because=stopped_because,
            undecided_count=self._undecided_count,
            disagreement_count=self._disagreement_count,
        )

    # the walk

    def walk(self) -> None:
        tombstones = self._reader.tombstones()
        for block_id, checksum in tombstones.items():
            self._builder.add_tombstone(block_id, checksum)
        rows: list[int] = []
        for block_id, row in self._reader.blocks():
            rows.append(block_id)
            if block_id not in tombstones:  # a crash between tombstone and row: it is deleted
                self._scan_row(block_id, row)
        try:
            structure = self._reader.structure()
        except OSError as error:
            raise _transient(error) from error
        self._judge_structure(structure, np.array(rows, dtype=np.uint64), tombstones)

    def _scan_row(self, block_id: BlockId, row: bytes) -> None:
        if self._stop():
            raise _StopError(STOPPED)
        block = self._decode(block_id, row)
        if block is None:
            return
        try:
            self._scan_block(block, row)
        except OSError as error:
            raise _transient(error) from error

    def _decode(self, block_id: BlockId, row: bytes) -> BlockData | None:
        """Decode a row, twice if need be; None when it is damaged or the block is gone."""
        try:
            return decode_block(block_id, row)
        except Damaged as first:
            again = self._reader.row(block_id)
            if again is None:
                return None
            try:
                block = decode_block(block_id, again)
            except Damaged:
                evidence = f"row of {len(again)} bytes: {first}"
                self._find(Verdict.CORRUPT, Fault.BLOCK_ROW_DAMAGED, evidence, block_id)
                return None
            evidence = f"the row decodes when read again; first: {first}"
            self._find(Verdict.SUSPECT_HOST, Fault.BLOCK_ROW_DAMAGED, evidence, block_id)
            return block

    def _scan_block(self, block: BlockData, row: bytes) -> None:
        if self._resume is not None and self._resume.covers_block(block):
            self._block_count += 1
            self._builder.add_block(block.block_id)
            for chunk in block.chunks:
                self._healthy(chunk)
            return
        try:
            file = self._reader.open_block(block.block_id)
        except FileNotFoundError:
            self._block_without_file(block, row)
            return
        except OSError as error:
            if read_failure(error) is Verdict.TRANSIENT:
                raise
            self._block_unreadable(block, row, error)
            return
        try:
            self._scan_file(block, row, file)
        finally:
            file.close()

    def _scan_file(self, block: BlockData, row: bytes, file: BlockReader) -> None:
        self._block_count += 1
        self._builder.add_block(block.block_id)
        for span in _spans(block.chunks):
            if self._stop():
                raise _StopError(STOPPED)
            if self._resume is not None and self._resume.covers(block.block_id, span):
                for chunk in span:
                    self._healthy(chunk)
                continue
            self._scan_span(block, row, file, span)
            self._marker.passed(block.block_id, span[-1].end, self._bytes_read)
        trailing_bytes = file.size_bytes - block.length_bytes
        if trailing_bytes > 0 and self._stands(block.block_id, row):
            self._find(
                Verdict.CORRUPT,
                Fault.TRAILING_BYTES,
                f"file of {file.size_bytes} bytes, block of {block.length_bytes}",
                block.block_id,
                block.length_bytes,
                trailing_bytes,
            )

    def _scan_span(
        self, block: BlockData, row: bytes, file: BlockReader, span: tuple[ChunkInfo, ...]
    ) -> None:
        """Read chunks that lie side by side in one go, and compare each with its row."""
        start = span[0].offset
        try:
            view = file.read(start, span[-1].end - start)
        except OSError as error:
            if read_failure(error) is Verdict.TRANSIENT:
                raise
            if len(span) == 1:
                self._judge(block, row, file, span[0], FirstRead(0, b"", error))
                return
            for chunk in span:  # one bad sector must not condemn its neighbours
                self._scan_span(block, row, file, (chunk,))
            return
        self._account(len(view))
        suspects: list[tuple[ChunkInfo, FirstRead]] = []
        for chunk in span:
            data = view[chunk.offset - start : chunk.end - start]
            sums = self._witnesses.primary(chunk.checksum_type, chunk.bytes_per_checksum, data)
            verifies = len(data) == chunk.length_bytes and sums == chunk.window_checksums
            if verifies and not suspects:
                self._healthy(chunk)
            else:
                suspects.append((chunk, FirstRead(len(data), sums)))
        for chunk, first in suspects:
            self._judge(block, row, file, chunk, first)

    def _judge(
        self, block: BlockData, row: bytes, file: BlockReader, chunk: ChunkInfo, first: FirstRead
    ) -> None:
        whole = first.length_bytes == chunk.length_bytes and first.error is None
        if whole and first.window_checksums == chunk.window_checksums:
            self._healthy(chunk)  # only waited for its turn: chunks enter the tree in order
            return
        judgement = judge_chunk(file, chunk, first, self._witnesses)
        self._account(judgement.length_bytes)
        if not self._stands(block.block_id, row):
            return
        if judgement.verdict is Verdict.SUSPECT_HOST:
            self._suspect(block, chunk, judgement)
        else:
            self._damaged(block, chunk, judgement)

    # what goes into the tree and the findings

    def _healthy(self, chunk: ChunkInfo) -> None:
        self._chunk_count += 1
        self._builder.add_chunk(chunk.offset, chunk.length_bytes, chunk.window_checksums, True)

    def _suspect(self, block: BlockData, chunk: ChunkInfo, judgement: Judgement) -> None:
        self._healthy(chunk)
        self._disagreement_count += judgement.is_disagreement
        self._undecided_count += not judgement.is_decided
        self._find_chunk(block.block_id, chunk, judgement)

    def _damaged(self, block: BlockData, chunk: ChunkInfo, judgement: Judgement) -> None:
        self._find_chunk(block.block_id, chunk, judgement)
        if judgement.fault is Fault.CHUNK_MISSING:
            return
        self._chunk_count += 1
        if judgement.verdict is Verdict.UNREADABLE or chunk.checksum_type is ChecksumType.NONE:
            leaf, length_bytes = UNREADABLE_LEAF, chunk.length_bytes
        else:
            leaf, length_bytes = judgement.window_checksums, judgement.length_bytes
        self._builder.add_chunk(chunk.offset, length_bytes, leaf, False)

    def _block_without_file(self, block: BlockData, row: bytes) -> None:
        if not block.chunks:  # nothing was ever written to it
            self._block_count += 1
            self._builder.add_block(block.block_id)
        elif self._stands(block.block_id, row):
            evidence = f"no file for {len(block.chunks)} chunks, {block.length_bytes} bytes"
            self._find(
                Verdict.CORRUPT,
                Fault.BLOCK_FILE_MISSING,
                evidence,
                block.block_id,
                0,
                block.length_bytes,
            )

    def _block_unreadable(self, block: BlockData, row: bytes, error: OSError) -> None:
        if not self._stands(block.block_id, row):
            return
        self._block_count += 1
        self._builder.add_block(block.block_id)
        for chunk in block.chunks:
            self._chunk_count += 1
            self._builder.add_chunk(chunk.offset, chunk.length_bytes, UNREADABLE_LEAF, False)
        self._find(
            Verdict.UNREADABLE,
            Fault.CHUNK_UNREADABLE,
            f"opening the file failed with {name_of(error)}",
            block.block_id,
            0,
            block.length_bytes,
        )

    def _stands(self, block_id: BlockId, row: bytes) -> bool:
        """Whether what was seen in a block may be reported.

        No, when its row went away: deleted while we read. A row or replica that changed ends the
        scan, because what was read belongs to a replica that is no more.
        """
        now = self._reader.row(block_id)
        if now is None:
            return False
        if now != row or not self._reader.is_current():
            raise _StopError(CHANGED)
        return True

    def _judge_structure(
        self, structure: Structure, rows: U64s, tombstones: Mapping[BlockId, int]
    ) -> None:
        for item in structure.faults:
            verdict = Verdict.OK if item.fault in NOTE_FAULTS else Verdict.CORRUPT
            self._find(verdict, item.fault, item.evidence)
        buried = np.fromiter(tombstones, dtype=np.uint64, count=len(tombstones))
        lost = np.setdiff1d(np.setdiff1d(structure.expected_blocks, rows), buried)
        for block_id in map(BlockId, lost.tolist()):
            if self._reader.row(block_id) is None and self._reader.is_current():
                has_file = bool(np.isin(np.uint64(block_id), structure.block_files))
                evidence = f"no row; {'its file is there' if has_file else 'no file either'}"
                self._find(Verdict.CORRUPT, Fault.BLOCK_ROW_MISSING, evidence, block_id)
        strays = np.setdiff1d(np.setdiff1d(structure.block_files, rows), lost)
        for block_id in map(BlockId, strays.tolist()):
            if self._reader.row(block_id) is None:
                why = "deleted" if block_id in tombstones else "never committed"
                evidence = f"a file of a block that was {why}"
                self._find(Verdict.OK, Fault.BLOCK_ROW_MISSING, evidence, block_id)

    def _find_chunk(self, block_id: BlockId, chunk: ChunkInfo, judgement: Judgement) -> None:
        self._find(
            judgement.verdict,
            judgement.fault,
            judgement.evidence,
            block_id,
            chunk.offset,
            chunk.length_bytes,
        )

    def _find(
        self,
        verdict: Verdict,
        fault: Fault,
        evidence: str,
        block_id: BlockId = NO_BLOCK,
        offset: int = -1,
        length_bytes: int = -1,
    ) -> None:
        finding = Finding(
            self._reader.container_id,
            verdict,
            fault,
            block_id,
            offset,
            length_bytes,
            self._now_ms(),
            evidence,
        )
        self._finding_count += 1
        self._marker.doubt(block_id, offset, length_bytes)
        if finding.is_damage:
            kept, kept_max = self._damage, FINDINGS_PER_REPLICA_MAX
        else:
            kept, kept_max = self._notes, NOTES_PER_REPLICA_MAX
        if len(kept) < kept_max:
            kept.append(finding)

    def _account(self, length_bytes: int) -> None:
        self._bytes_read += length_bytes
        self._progress(length_bytes)
        self._pace(length_bytes)


def _spans(chunks: tuple[ChunkInfo, ...]) -> Iterator[tuple[ChunkInfo, ...]]:
    """Group chunks that lie side by side into reads of at most READ_BYTES_MAX.

    A chunk larger than that is a group of its own: a window must not be cut.
    """
    first = 0
    for index in range(1, len(chunks) + 1):
        is_last = index == len(chunks)
        if (
            is_last
            or chunks[index].offset != chunks[index - 1].end
            or chunks[index].end - chunks[first].offset > READ_BYTES_MAX
        ):
            yield chunks[first:index]
            first = index
