"""What a scan says of files that cannot be opened, rows that go, and reads that it need not do."""

import errno
import os

import pytest

from merkle.checksum import Algorithm, leaf_checksum
from merkle.replica import BlockId, ChecksumType
from merkle.tree import Leaf
from scanner.finding import DamageFault, Verdict
from scanner.ports import BlockFileReader, Structure
from scanner.replica_scan import ScanOutcome, scan_replica
from scanner.resume import ScanMark
from tests.support.storage.replica_reader import NOW_MS, MemoryReader, MemoryReplica, noise, scan

MIB = 1024**2


@pytest.fixture
def replica() -> MemoryReplica:
    """Return two small blocks, one of two chunks, and one without any."""
    result = MemoryReplica()
    result.put(1, noise(5_000, 1))
    result.put(2, noise(6_000, 2))
    result.put(5, noise(7_000, 5), noise(100, 6))
    result.put(6)
    return result


class Refusing(MemoryReader):
    """A reader whose files cannot be opened; `before` is done first."""

    def __init__(self, replica: MemoryReplica, number: int, block_id: int = 5) -> None:
        super().__init__(replica)
        self._number, self._block_id = number, block_id
        self.is_deleting = False

    def open_block(self, block_id: BlockId) -> BlockFileReader:
        if block_id != self._block_id:
            return super().open_block(block_id)
        if self.is_deleting:
            self.replica.rows.pop(block_id)
        if self._number:
            raise OSError(self._number, os.strerror(self._number))
        return super().open_block(block_id)


def unreadable(offset: int, length_bytes: int) -> Leaf:
    """Return the leaf of a chunk of which nothing can be read."""
    checksum = leaf_checksum(Algorithm.XXH3_64, offset, length_bytes, b"unreadable")
    return Leaf(offset, length_bytes, checksum, healthy=False)


def test_scan_counts_blocks_chunks_and_bytes(replica: MemoryReplica) -> None:
    """Blocks with and without chunks are counted once each."""
    outcome = scan(MemoryReader(replica))

    assert (4, 4, 5_000 + 6_000 + 7_000 + 100) == (
        outcome.block_count,
        outcome.chunk_count,
        outcome.bytes_read,
    )
    assert (0, 0, 0, 0, "", True, False) == (
        outcome.finding_count,
        outcome.disagreement_count,
        outcome.undecided_count,
        outcome.wavering_count,
        outcome.stopped_because,
        outcome.complete,
        outcome.is_damaged,
    )
    assert replica.metadata_tree() == outcome.tree


class TestOpening:
    def test_a_file_that_the_device_refuses_is_unreadable(self, replica: MemoryReplica) -> None:
        """There is one finding for the whole block and one leaf for each chunk, and the others
        are read.
        """
        outcome = scan(Refusing(replica, errno.EIO))

        [finding] = outcome.findings
        assert (Verdict.UNREADABLE, DamageFault.CHUNK_UNREADABLE, 5, 0, 7_100) == (
            finding.verdict,
            finding.fault,
            finding.block_id,
            finding.offset,
            finding.length_bytes,
        )
        assert "opening the file failed with EIO" == finding.evidence
        assert [unreadable(0, 7_000), unreadable(7_000, 100)] == outcome.tree.leaves(5)
        assert (4, 4) == (outcome.block_count, outcome.chunk_count)
        assert outcome.complete

    def test_a_host_that_is_short_of_files_ends_the_scan(self, replica: MemoryReplica) -> None:
        """The block gets no finding."""
        outcome = scan(Refusing(replica, errno.EMFILE))

        assert "TRANSIENT: EMFILE" == outcome.stopped_because
        assert () == outcome.findings
        assert not outcome.complete

    @pytest.mark.parametrize("number", [errno.EIO, errno.ENOENT])
    def test_block_deleted_during_the_scan_has_no_finding(
        self, replica: MemoryReplica, number: int
    ) -> None:
        """Its file cannot be there."""
        reader = Refusing(replica, number)
        reader.is_deleting = True

        outcome = scan(reader)

        assert () == outcome.findings
        assert -1 == outcome.tree.index_of(5)
        assert 3 == outcome.block_count

    def test_trailing_bytes_of_a_block_under_deletion_are_no_finding(
        self, replica: MemoryReplica
    ) -> None:
        """The content of its file does not matter."""
        replica.files[5] += b"more"
        reader = Refusing(replica, 0)
        reader.is_deleting = True

        assert () == scan(reader).findings

    def test_bytes_behind_a_block_are_named(self, replica: MemoryReplica) -> None:
        """The finding has their offset and length."""
        replica.files[5] += b"more"

        [finding] = scan(MemoryReader(replica)).findings

        assert (DamageFault.TRAILING_BYTES, 5, 7_100, 4) == (
            finding.fault,
            finding.block_id,
            finding.offset,
            finding.length_bytes,
        )
        assert "file of 7104 bytes, block of 7100" == finding.evidence

    def test_a_lost_file_is_one_finding(self, replica: MemoryReplica) -> None:
        """The finding covers all its chunks."""
        del replica.files[5]

        [finding] = scan(MemoryReader(replica)).findings

        assert (DamageFault.BLOCK_FILE_MISSING, 5, 0, 7_100) == (
            finding.fault,
            finding.block_id,
            finding.offset,
            finding.length_bytes,
        )
        assert "no file for 2 chunks, 7100 bytes" == finding.evidence

    def test_a_cut_chunk_without_checksums_has_the_leaf_of_nothing(self) -> None:
        """
        Its bytes prove nothing, so that no healthy leaf may equal it.
        """
        replica = MemoryReplica()
        replica.put(1, noise(5_000), checksum_type=ChecksumType.NONE)
        replica.files[1] = replica.files[1][:4_999]

        outcome = scan(MemoryReader(replica))

        assert [unreadable(0, 5_000)] == outcome.tree.leaves(1)
        assert outcome.is_damaged


class TestStructure:
    def test_a_directory_that_cannot_be_listed_ends_the_scan(self, replica: MemoryReplica) -> None:
        """
        No verdict: it may pass.
        """

        class Unlisted(MemoryReader):
            def structure(self) -> Structure:
                raise OSError(errno.EACCES, "no")

        outcome = scan(Unlisted(replica))

        assert ("TRANSIENT: EACCES", ()) == (outcome.stopped_because, outcome.findings)

    def test_a_row_that_came_after_the_walk_is_not_lost(self, replica: MemoryReplica) -> None:
        """The row is kept, and its file is not reported as unknown."""

        class Late(MemoryReader):
            def blocks(self) -> object:  # type: ignore[override]
                return (item for item in super().blocks() if item[0] != 2)

        outcome = scan(Late(replica))

        assert () == outcome.findings
        assert -1 == outcome.tree.index_of(2)

    def test_stale_replica_has_no_missing_blocks(self, replica: MemoryReplica) -> None:
        """Its rows went with the replica."""
        del replica.rows[2]
        replica.is_stale = True

        assert () == scan(MemoryReader(replica)).findings

    def test_lost_rows_and_files_of_nobody_are_told_apart(self, replica: MemoryReplica) -> None:
        """An expected block is damage, with or without its file. An unexpected file is a note."""
        del replica.rows[1], replica.rows[2], replica.files[2]
        replica.files[8] = replica.files[9] = b"left"
        replica.buried[BlockId(9)] = 1

        outcome = scan(MemoryReader(replica))

        assert [
            (Verdict.CORRUPT, 1, "no row; its file is there"),
            (Verdict.CORRUPT, 2, "no row; no file either"),
            (Verdict.OK, 8, "a file of a block that was never committed"),
            (Verdict.OK, 9, "a file of a block that was deleted"),
        ] == [(each.verdict, each.block_id, each.evidence) for each in outcome.findings]
        assert {DamageFault.BLOCK_ROW_MISSING} == {each.fault for each in outcome.findings}


class TestResume:
    def resumed(
        self, reader: MemoryReader, resume: ScanMark | None
    ) -> tuple[ScanOutcome, list[ScanMark], list[int]]:
        """Scan from a mark to the end; return what it learned, its marks and its reads."""
        marks: list[ScanMark] = []
        reads: list[int] = []
        outcome = scan_replica(
            reader,
            algorithm=Algorithm.XXH3_64,
            now_ms=lambda: NOW_MS,
            stop=lambda: False,
            progress=reads.append,
            pace=lambda _: None,
            resume=resume,
            mark=marks.append,
        )
        return outcome, marks, reads

    def test_blocks_before_the_mark_are_not_opened(self, replica: MemoryReplica) -> None:
        """
        Their leaves are in the tree, their bytes in the count.
        """
        reader = MemoryReader(replica)

        mark = ScanMark(BlockId(5), 0, frozenset(), 11_000)
        outcome, _, reads = self.resumed(reader, mark)

        assert replica.metadata_tree() == outcome.tree
        assert [7_100] == reads
        assert 11_000 + 7_100 == outcome.bytes_read
        assert 1 == reader.open_count

    def test_marks_lie_behind_small_blocks_too(self) -> None:
        """
        Each names the block and how far it was read.
        """
        replica = MemoryReplica()
        data = noise(MIB)
        for block_id in (3, 4):
            replica.put(block_id, data)

        _, marks, _ = self.resumed(MemoryReader(replica), None)

        assert [
            ScanMark(BlockId(3), MIB, frozenset(), MIB),
            ScanMark(BlockId(4), MIB, frozenset(), 2 * MIB),
        ] == marks
