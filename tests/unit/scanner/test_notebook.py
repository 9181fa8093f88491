"""Every finding is counted and its place is in doubt; as many are kept as the index should hold."""

import pytest

from merkle.replica import BlockId, ChecksumType, ContainerId
from scanner.chunk_verdict import ChunkJudgement
from scanner.finding import DamageFault, Forensic, ScanFinding, Verdict
from scanner.finding_collector import (
    FINDINGS_PER_REPLICA_MAX,
    NOTES_PER_REPLICA_MAX,
    FindingCollector,
)
from tests.support.storage.trees import block, rows_of

WINDOW_BYTES = 16 * 1024
BLOCK = block(4, bytes([number // WINDOW_BYTES for number in range(4 * WINDOW_BYTES)]))
CHUNK = BLOCK.chunks[0]


class Notes:
    """A notebook, what it called doubtful, and the clock it reads."""

    def __init__(self) -> None:
        self.doubts: list[tuple[int, int, int]] = []
        self.now_ms = 100
        self.book = FindingCollector(
            ContainerId(7), self.tick, lambda *place: self.doubts.append(place)
        )

    def tick(self) -> int:
        """A millisecond passes with each look."""
        self.now_ms += 1
        return self.now_ms


def corrupt(forensic: Forensic, sums: bytes, *wrong: int) -> ChunkJudgement:
    """Return the verdict on a damaged chunk."""
    return ChunkJudgement(
        Verdict.CORRUPT,
        DamageFault.CHUNK_CHECKSUM,
        "differs",
        CHUNK.length_bytes,
        sums,
        forensic=forensic,
        wrong_windows=wrong,
    )


def swapped_sums() -> bytes:
    """Return the checksums of the chunk with windows 1 and 2 exchanged."""
    sums = CHUNK.window_checksums
    return sums[:4] + sums[8:12] + sums[4:8] + sums[12:]


def test_a_finding_says_what_was_noted() -> None:
    """The finding is about a block, a chunk, or neither."""
    notes = Notes()

    notes.book.add(Verdict.CORRUPT, DamageFault.TREE_STALE, "old")
    notes.book.add(
        Verdict.SUSPECT_HOST, DamageFault.CHUNK_SHORT, "why", BlockId(4), 5, 6, Forensic.STALE
    )

    place = (
        ContainerId(7),
        Verdict.CORRUPT,
        DamageFault.TREE_STALE,
        BlockId(-1),
        -1,
        -1,
        101,
        "old",
    )
    chunk = (
        ContainerId(7),
        Verdict.SUSPECT_HOST,
        DamageFault.CHUNK_SHORT,
        BlockId(4),
        5,
        6,
        102,
        "why",
    )
    assert (ScanFinding(*place), ScanFinding(*chunk, Forensic.STALE)) == notes.book.findings()
    assert [(-1, -1, -1), (4, 5, 6)] == notes.doubts
    assert 2 == notes.book.count


def test_damage_comes_first() -> None:
    """Damage comes first, whatever was found before it."""
    book = Notes().book

    book.add(Verdict.SUSPECT_HOST, DamageFault.CHUNK_CHECKSUM, "host")
    book.add(Verdict.UNREADABLE, DamageFault.CHUNK_UNREADABLE, "disk")
    book.add(Verdict.CORRUPT, DamageFault.CHUNK_CHECKSUM, "data")

    assert ["disk", "data", "host"] == [finding.evidence for finding in book.findings()]


@pytest.mark.parametrize(
    ("verdict", "kept"), [(Verdict.CORRUPT, 1_000), (Verdict.SUSPECT_HOST, 100)]
)
def test_findings_are_kept_up_to_the_limit_and_all_counted(verdict: Verdict, kept: int) -> None:
    """All are counted, and all their places are in doubt."""
    notes = Notes()

    for number in range(kept + 1):
        notes.book.add(verdict, DamageFault.CHUNK_CHECKSUM, str(number))

    assert (1_000, 100) == (FINDINGS_PER_REPLICA_MAX, NOTES_PER_REPLICA_MAX)
    assert [str(number) for number in range(kept)] == [
        finding.evidence for finding in notes.book.findings()
    ]
    assert kept + 1 == notes.book.count == len(notes.doubts)


class TestTrace:
    def test_bytes_of_another_place_are_told(self) -> None:
        """
        The class and the words change, nothing else; of other damage not even those.
        """
        book = Notes().book
        book.add(Verdict.CORRUPT, DamageFault.CHUNK_SHORT, "short", BlockId(2), 1, 2)
        book.chunk(BlockId(4), CHUNK, corrupt(Forensic.UNKNOWN, swapped_sums(), 1, 2))
        before = book.findings()

        book.trace(lambda: rows_of([BLOCK]))

        told = (
            "differs; window 1 is window 2 of the chunk at 0 of block 4; 2 of 2 are of that chunk"
        )
        short, moved = book.findings()
        assert before[0] == short
        assert (Forensic.MISDIRECTED, told) == (moved.forensic, moved.evidence)
        assert (BlockId(4), 0, 4 * WINDOW_BYTES, before[1].found_at_ms) == (
            moved.block_id,
            moved.offset,
            moved.length_bytes,
            moved.found_at_ms,
        )

    @pytest.mark.parametrize(
        "judgement",
        [
            corrupt(Forensic.ZEROED, swapped_sums(), 1, 2),
            corrupt(Forensic.UNKNOWN, swapped_sums()),
            ChunkJudgement(
                Verdict.SUSPECT_HOST,
                DamageFault.CHUNK_CHECKSUM,
                "differs",
                CHUNK.length_bytes,
                swapped_sums(),
                wrong_windows=(1, 2),
            ),
        ],
        ids=["explained", "no window", "no damage"],
    )
    def test_trace_reads_no_rows_for_other_classes(self, judgement: ChunkJudgement) -> None:
        """Only an unknown accident is traced."""
        book = Notes().book
        book.chunk(BlockId(4), CHUNK, judgement)
        before = book.findings()

        def rows() -> list[tuple[BlockId, bytes]]:
            raise AssertionError("the rows were read")

        book.trace(rows)

        assert before == book.findings()

    def test_finding_beyond_the_limit_is_not_traced(self) -> None:
        """There is no finding that could have the result."""
        book = Notes().book
        for number in range(FINDINGS_PER_REPLICA_MAX):
            book.add(Verdict.CORRUPT, DamageFault.BLOCK_FILE_MISSING, "lost", BlockId(number))
        book.chunk(BlockId(4), CHUNK, corrupt(Forensic.UNKNOWN, swapped_sums(), 1, 2))

        book.trace(lambda: rows_of([BLOCK]))

        assert {"lost"} == {finding.evidence for finding in book.findings()}


def test_a_chunk_is_noted_with_its_place_and_its_class() -> None:
    """The note has the place and the class that the judge gave."""
    notes = Notes()

    notes.book.chunk(BlockId(4), CHUNK, corrupt(Forensic.TRUNCATED, b""))

    assert CHUNK.checksum_type is ChecksumType.CRC32C
    [finding] = notes.book.findings()
    assert (Verdict.CORRUPT, DamageFault.CHUNK_CHECKSUM, "differs", Forensic.TRUNCATED) == (
        finding.verdict,
        finding.fault,
        finding.evidence,
        finding.forensic,
    )
    assert [(4, 0, 4 * WINDOW_BYTES)] == notes.doubts
