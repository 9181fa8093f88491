"""One replica scanned, each way that blocks are read: when it stops, resumes, or looks twice."""

import errno
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from merkle.blockrow import encode_block
from merkle.checksum import Algorithm, window_checksums
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo
from scanner.chunk_verdict import Witnesses
from scanner.finding import DamageFault, Verdict
from scanner.ports import BlockFileReader
from scanner.replica_scan import STOPPED, scan_replica
from scanner.resume import ScanMark
from scanner.scan_outcome import ScanOutcome
from tests.support.storage.replica_reader import (
    NOW_MS,
    AlteredReader,
    MemoryReader,
    MemoryReplica,
    failing,
    noise,
    scan,
)

KIB = 1024
MIB = 1024 * KIB


def small() -> MemoryReplica:
    """Return blocks of one small chunk each: they are read in one call each."""
    replica = MemoryReplica()
    for block_id in range(1, 7):
        replica.put(block_id, noise(3_000, block_id))
    return replica


def alike() -> MemoryReplica:
    """Return blocks of many chunks of one length: they are read as if they were large ones."""
    replica = MemoryReplica()
    for block_id in range(1, 4):
        replica.put(block_id, *(noise(64 * KIB, 100 * block_id + at) for at in range(80)))
    return replica


def various() -> MemoryReplica:
    """Return blocks of chunks whose checksums do not fold into one: each row is decoded."""
    replica = MemoryReplica()
    for block_id, count in ((1, 2), (2, 6), (3, 2)):
        pieces = [noise(MIB + 4_096 * at, 10 * block_id + at) for at in range(count)]
        replica.put(block_id, *pieces, checksum_type=ChecksumType.MD5, bytes_per_checksum=MIB)
    return replica


SHAPES = pytest.mark.parametrize("made", [small, alike, various])
Made = Callable[[], MemoryReplica]


class Told(MemoryReader):
    """Notes which blocks are opened."""

    def __init__(self, replica: MemoryReplica) -> None:
        super().__init__(replica)
        self.opened: list[int] = []

    def open_block(self, block_id: BlockId) -> BlockFileReader:
        self.opened.append(block_id)
        return super().open_block(block_id)


def scanned(
    reader: MemoryReader,
    *,
    stop: Callable[[], bool] = lambda: False,
    resume: ScanMark | None = None,
) -> tuple[ScanOutcome, list[int], list[ScanMark]]:
    """Scan; return what it learned, the bytes of its reads, and its marks."""
    reads: list[int] = []
    marks: list[ScanMark] = []
    outcome = scan_replica(
        reader,
        algorithm=Algorithm.XXH3_64,
        now_ms=lambda: NOW_MS,
        stop=stop,
        progress=reads.append,
        pace=lambda _: None,
        resume=resume,
        mark=marks.append,
    )
    return outcome, reads, marks


@SHAPES
def test_after_a_stop_nothing_is_read(made: Made) -> None:
    """No read follows the stop, whatever was read before."""
    replica = made()
    _, all_reads, _ = scanned(MemoryReader(replica))
    for count in range(len(all_reads)):
        reads: list[int] = []
        outcome = scan(
            MemoryReader(replica), stop=partial(has, reads, count), progress=reads.append
        )

        assert (False, STOPPED, count) == (outcome.complete, outcome.stopped_because, len(reads))


def has(reads: list[int], count: int) -> bool:
    """Whether there were so many reads."""
    return len(reads) >= count


@SHAPES
def test_deleted_block_that_still_has_a_row_is_not_opened(made: Made) -> None:
    """A crash came between its tombstone and its row. This holds also if a scan resumes."""
    replica = made()
    replica.buried[BlockId(2)] = 0xDEAD
    del replica.files[2]
    replica.expected.discard(2)
    for resume in (None, ScanMark(BlockId(3), 0, frozenset(), 0)):
        reader = Told(replica)
        outcome, _, _ = scanned(reader, resume=resume)

        assert 2 not in reader.opened
        assert ((), True) == (outcome.findings, outcome.complete)


@SHAPES
def test_doubtful_chunk_before_the_mark_is_read_again(made: Made) -> None:
    """Clean chunks before the mark are not, and their leaves are in the tree all the same."""
    replica = made()
    doubt = (BlockId(1), 0, 3_000)
    reader = Told(replica)
    last = max(replica.rows)

    outcome, _, _ = scanned(reader, resume=ScanMark(BlockId(last), 0, frozenset({doubt}), 5))

    assert {1, last} == set(reader.opened)
    assert replica.metadata_tree() == outcome.tree


def test_marks_lie_behind_what_is_read_of_large_blocks() -> None:
    """Each mark has the block and the offset reached. A scan resumed there reads the rest."""
    replica = various()
    outcome, reads, marks = scanned(MemoryReader(replica))
    middle = marks[len(marks) // 2]
    block = [mark for mark in marks if mark.block_id == middle.block_id]

    assert [1, 2, 3] == sorted({mark.block_id for mark in marks})
    assert len(block) > 1
    assert [mark.offset for mark in block] == sorted({mark.offset for mark in block})
    rest, rest_reads, _ = scanned(MemoryReader(replica), resume=middle)
    assert outcome.tree == rest.tree
    assert sum(reads) - middle.bytes_read == sum(rest_reads)


class RowOnce(MemoryReader):
    """Gives a row damaged when all are listed, and whole when it alone is asked for."""

    def blocks(self) -> Iterator[tuple[BlockId, bytes]]:
        for block_id, row in super().blocks():
            yield block_id, bytes([row[0] ^ 1]) + row[1:] if block_id == 2 else row


@SHAPES
def test_a_row_that_is_whole_when_it_is_read_again_is_a_doubt_about_the_host(made: Made) -> None:
    """
    Its block is judged by it, as if nothing had been.
    """
    replica = made()
    [finding] = scan(RowOnce(replica)).findings

    assert (Verdict.SUSPECT_HOST, DamageFault.BLOCK_ROW_DAMAGED, 2) == (
        finding.verdict,
        finding.fault,
        finding.block_id,
    )
    assert "decodes when read again" in finding.evidence
    assert replica.metadata_tree() == scan(RowOnce(replica)).tree


class RowGone(RowOnce):
    """Has no such row any more when it alone is asked for."""

    def row(self, block_id: BlockId) -> bytes | None:
        return None if block_id == 2 else super().row(block_id)


@SHAPES
def test_a_damaged_row_that_is_gone_says_nothing(made: Made) -> None:
    """
    Its block was deleted meanwhile, with its file.
    """
    replica = made()
    del replica.files[2]
    replica.expected.discard(2)

    outcome = scan(RowGone(replica))

    assert ((), True) == (outcome.findings, outcome.complete)


class FailingOnce(MemoryReader):
    """Has no descriptor left for the first quick read of a block."""

    has_failed = False

    def read_whole(self, block_id: BlockId, length_bytes: int) -> memoryview:
        if not self.has_failed:
            self.has_failed = True
            raise OSError(errno.EMFILE, "too many open files")
        return super().read_whole(block_id, length_bytes)


def test_a_quick_read_that_lacked_something_is_made_again() -> None:
    """The failed read says nothing about the block, and the next attempt does."""
    replica = small()
    outcome = scan(FailingOnce(replica))

    assert ((), True) == (outcome.findings, outcome.complete)
    assert replica.metadata_tree() == outcome.tree


@SHAPES
def test_a_scan_that_insists_calls_unreadable_what_others_tried_in_vain(made: Made) -> None:
    """A failure that is possibly temporary and never ends becomes a finding."""
    lacking = AlteredReader(made(), failing(errno.EACCES), failing(errno.EACCES))
    assert scan(lacking).stopped_because.startswith(Verdict.TRANSIENT)

    outcome = scan_replica(
        lacking,
        algorithm=Algorithm.XXH3_64,
        now_ms=lambda: NOW_MS,
        stop=lambda: False,
        progress=lambda _: None,
        pace=lambda _: None,
        insists=True,
    )

    assert outcome.complete
    assert {Verdict.UNREADABLE} == {finding.verdict for finding in outcome.findings}


def test_bytes_behind_a_small_block_without_checksums_are_trailing() -> None:
    """Only the length of the block shows which bytes belong to it."""
    replica = MemoryReplica()
    replica.put(1, noise(1_000), checksum_type=ChecksumType.NONE)
    replica.put(2, noise(1_000), checksum_type=ChecksumType.CRC32)
    for block_id in (1, 2):
        replica.files[block_id] += b"?"

    found = scan(MemoryReader(replica)).findings

    assert [(DamageFault.TRAILING_BYTES, 1), (DamageFault.TRAILING_BYTES, 2)] == [
        (finding.fault, finding.block_id) for finding in found
    ]


def test_bytes_read_to_confirm_damage_are_counted() -> None:
    """Damage is read once more past every cache before it is reported."""
    replica = various()
    whole = scan(MemoryReader(replica)).bytes_read
    replica.flip(2, 5)

    assert whole + MIB == scan(MemoryReader(replica)).bytes_read


@SHAPES
def test_witnesses_without_a_quick_one_are_enough(made: Made) -> None:
    """The slow form gives the same result."""
    replica = made()
    witnesses = Witnesses(window_checksums, window_checksums)
    assert () == scan(MemoryReader(replica), witnesses=witnesses).findings
    replica.flip(2, 5)

    [finding] = scan(MemoryReader(replica), witnesses=witnesses).findings
    assert (Verdict.CORRUPT, 2) == (finding.verdict, finding.block_id)


def test_a_chunk_behind_the_end_of_its_file_is_damage() -> None:
    """Its row has its place, and the file ends before it."""
    replica = small()
    hole = ChunkInfo(5_000, 10, ChecksumType.CRC32C, 4_096, bytes(4))
    replica.rows[2] = encode_block(BlockData(BlockId(2), Bcsid(1), (hole,)))
    [finding] = scan(MemoryReader(replica)).findings

    assert (Verdict.CORRUPT, 2, 5_000) == (finding.verdict, finding.block_id, finding.offset)
