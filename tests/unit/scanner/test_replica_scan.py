"""One replica scanned: which damage is found as what, and the tree that the medium deserves."""

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from merkle.checksum import Algorithm, leaf_checksum, window_checksums
from merkle.checksum_columns import whole_checksums
from merkle.replica import BlockId, ChecksumType, ChunkInfo
from merkle.tree import Leaf
from scanner.chunk_verdict import WITNESSES
from scanner.finding import DamageFault, ScanFinding, Verdict
from scanner.finding_collector import FINDINGS_PER_REPLICA_MAX, NOTES_PER_REPLICA_MAX
from scanner.ports import StructureFault
from scanner.replica_scan import READ_BYTES_MAX
from tests.support.storage.replica_reader import (
    NOW_MS,
    WINDOW_BYTES,
    AlteredReader,
    MemoryReader,
    MemoryReplica,
    failing,
    noise,
    scan,
)

LARGE_BYTES = 10 * WINDOW_BYTES + 7

Fact = tuple[Verdict, DamageFault, int, int, int]


def facts(findings: tuple[ScanFinding, ...]) -> list[Fact]:
    """Return what a finding is about, without its words."""
    return [
        (item.verdict, item.fault, item.block_id, item.offset, item.length_bytes)
        for item in findings
    ]


@pytest.fixture
def replica() -> MemoryReplica:
    """Return three blocks: two chunks, one short chunk, and none."""
    result = MemoryReplica()
    result.put(1, noise(10_000, 1), noise(5_000, 2))
    result.put(2, noise(100, 3))
    result.put(3)
    return result


class TestClean:
    @pytest.mark.parametrize("algorithm", list(Algorithm))
    @pytest.mark.parametrize("checksum_type", list(ChecksumType))
    def test_the_tree_is_that_of_the_metadata(
        self, algorithm: Algorithm, checksum_type: ChecksumType
    ) -> None:
        """A clean scan and the close build the same tree for every checksum type of the writer."""
        replica = MemoryReplica()
        replica.put(1, noise(10_000, 1), noise(5_000, 2), checksum_type=checksum_type)
        replica.put(5)
        replica.buried[BlockId(3)] = 0xDEAD

        outcome = scan(MemoryReader(replica), algorithm=algorithm)

        assert replica.metadata_tree(algorithm) == outcome.tree
        assert ((), True, 15_000) == (outcome.findings, outcome.complete, outcome.bytes_read)

    def test_an_empty_replica_has_an_empty_tree(self) -> None:
        """Nothing to read is nothing wrong."""
        outcome = scan(MemoryReader(MemoryReplica()))

        assert MemoryReplica().metadata_tree() == outcome.tree
        assert ((), 0, True) == (outcome.findings, outcome.block_count, outcome.complete)

    def test_chunks_beside_each_other_are_read_at_once(self) -> None:
        """Many small chunks cost few reads, and no read is larger than the bound."""
        replica = MemoryReplica()
        replica.put(1, *(noise(1024 * 1024, seed) for seed in range(6)))
        reads: list[int] = []

        def count(data: bytes) -> bytes:
            reads.append(len(data))
            return data

        outcome = scan(AlteredReader(replica, first=count))

        assert [READ_BYTES_MAX, 6 * 1024 * 1024 - READ_BYTES_MAX] == reads
        assert outcome.complete

    def test_a_chunk_larger_than_a_read_is_read_whole(self) -> None:
        """A window must never be cut, whatever its size."""
        replica = MemoryReplica()
        replica.put(1, noise(READ_BYTES_MAX + 5_000_000), bytes_per_checksum=3_000_000)

        outcome = scan(MemoryReader(replica))

        assert () == outcome.findings
        assert replica.metadata_tree() == outcome.tree


class TestDamagedChunk:
    def test_a_flipped_bit_is_corrupt_with_its_window_and_sums(
        self, replica: MemoryReplica
    ) -> None:
        """The finding has the window and both checksums."""
        good = noise(10_000, 1)
        replica.flip(1, 5_000)

        outcome = scan(MemoryReader(replica))

        assert [(Verdict.CORRUPT, DamageFault.CHUNK_CHECKSUM, 1, 0, 10_000)] == facts(
            outcome.findings
        )
        finding = outcome.findings[0]
        expected = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES, good)[4:8].hex()
        assert f"1 of 3 windows differ; window 1 at byte 4096: expected {expected}" in (
            finding.evidence
        )
        assert NOW_MS == finding.found_at_ms

    def test_the_leaf_is_that_of_the_damaged_bytes(self, replica: MemoryReplica) -> None:
        """The tree has the leaf of the medium, marks it, and keeps the other chunks."""
        replica.flip(1, 5_000)
        held = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES, replica.files[1][:10_000])

        tree = scan(MemoryReader(replica)).tree

        checksum = leaf_checksum(tree.algorithm, 0, 10_000, held)
        whole = replica.metadata_tree().leaves(1)[1]
        assert [Leaf(0, 10_000, checksum, healthy=False), whole] == tree.leaves(1)

    def test_scan_finds_all_damage_and_not_only_the_first(self, replica: MemoryReplica) -> None:
        """A scan continues after damage, in the same block and the next ones."""
        replica.flip(1, 0)
        replica.flip(1, 12_000)
        replica.flip(2, 50)

        assert [
            (Verdict.CORRUPT, DamageFault.CHUNK_CHECKSUM, 1, 0, 10_000),
            (Verdict.CORRUPT, DamageFault.CHUNK_CHECKSUM, 1, 10_000, 5_000),
            (Verdict.CORRUPT, DamageFault.CHUNK_CHECKSUM, 2, 0, 100),
        ] == facts(scan(MemoryReader(replica)).findings)

    def test_a_cut_file_has_a_short_and_a_missing_chunk(self, replica: MemoryReplica) -> None:
        """The chunk that was cut keeps a leaf of what is left; what is gone has none."""
        replica.files[1] = replica.files[1][:6_000]
        held = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES, replica.files[1])

        outcome = scan(MemoryReader(replica))

        assert [
            (Verdict.CORRUPT, DamageFault.CHUNK_SHORT, 1, 0, 10_000),
            (Verdict.CORRUPT, DamageFault.CHUNK_MISSING, 1, 10_000, 5_000),
        ] == facts(outcome.findings)
        checksum = leaf_checksum(outcome.tree.algorithm, 0, 6_000, held)
        assert [Leaf(0, 6_000, checksum, healthy=False)] == outcome.tree.leaves(1)

    def test_a_chunk_without_checksums_is_judged_by_its_length(self) -> None:
        """Type NONE: changed bytes cannot be seen, missing ones can."""
        replica = MemoryReplica()
        replica.put(1, noise(5_000), checksum_type=ChecksumType.NONE)
        replica.flip(1, 3)
        assert () == scan(MemoryReader(replica)).findings

        replica.files[1] = replica.files[1][:4_000]
        outcome = scan(MemoryReader(replica))

        assert [(Verdict.CORRUPT, DamageFault.CHUNK_SHORT, 1, 0, 5_000)] == facts(outcome.findings)
        assert replica.metadata_tree().leaves(1) != outcome.tree.leaves(1)

    def test_bytes_behind_the_block_are_trailing(self, replica: MemoryReplica) -> None:
        """No checksum covers them: they are damage, though every chunk is whole."""
        replica.files[2] += b"garbage"

        outcome = scan(MemoryReader(replica))

        assert [(Verdict.CORRUPT, DamageFault.TRAILING_BYTES, 2, 100, 7)] == facts(outcome.findings)
        assert replica.metadata_tree() == outcome.tree


class TestLargeChunk:
    """Chunks of so many windows that they are compared as a whole."""

    def test_damage_of_one_is_found_between_clean_ones(self) -> None:
        """The one that does not match is judged window by window; the tree keeps the order."""
        replica = MemoryReplica()
        replica.put(1, *(noise(LARGE_BYTES, seed) for seed in range(3)))
        replica.put(2, noise(LARGE_BYTES, 3), noise(LARGE_BYTES + 1, 4))
        clean = replica.metadata_tree()
        replica.flip(1, LARGE_BYTES + 5 * WINDOW_BYTES)

        outcome = scan(MemoryReader(replica))

        assert [
            (Verdict.CORRUPT, DamageFault.CHUNK_CHECKSUM, 1, LARGE_BYTES, LARGE_BYTES)
        ] == facts(outcome.findings)
        assert "window 5 " in outcome.findings[0].evidence
        assert [True, False, True] == [leaf.healthy for leaf in outcome.tree.leaves(1)]
        assert clean.leaves(1)[::2] == outcome.tree.leaves(1)[::2]
        assert clean.leaves(2) == outcome.tree.leaves(2)

    def test_a_wrong_checksum_of_the_whole_is_a_doubt_about_the_host(self) -> None:
        """If every window is right, the data is right, whatever the fast library returns."""
        replica = MemoryReplica()
        replica.put(1, noise(LARGE_BYTES, 1), noise(LARGE_BYTES, 2))

        def lying(chunks: Sequence[ChunkInfo]) -> list[int]:
            return [whole ^ 1 for whole in whole_checksums(chunks)]

        outcome = scan(MemoryReader(replica), witnesses=replace(WITNESSES, wholes=lying))

        assert {Verdict.SUSPECT_HOST} == {item.verdict for item in outcome.findings}
        assert 2 == len(outcome.findings)
        assert "the checksum of the whole was wrong" in outcome.findings[0].evidence
        assert replica.metadata_tree() == outcome.tree


class TestMissing:
    def test_a_block_without_its_file_is_not_in_the_tree(self, replica: MemoryReplica) -> None:
        """Peers then see a missing block and can give it back."""
        del replica.files[2]

        outcome = scan(MemoryReader(replica))

        assert [(Verdict.CORRUPT, DamageFault.BLOCK_FILE_MISSING, 2, 0, 100)] == facts(
            outcome.findings
        )
        assert -1 == outcome.tree.index_of(2)

    def test_a_block_without_chunks_needs_no_file(self, replica: MemoryReplica) -> None:
        """An empty block is in the tree, with or without a file."""
        with_file = MemoryReplica()
        with_file.put(3)
        with_file.files[3] = b""

        assert () == scan(MemoryReader(with_file)).findings
        assert 0 <= scan(MemoryReader(replica)).tree.index_of(3)

    @pytest.mark.parametrize("has_file", [True, False])
    def test_a_lost_row_is_damage(self, replica: MemoryReplica, has_file: bool) -> None:
        """The tree remembers a block that the index forgot, file or no file."""
        del replica.rows[2]
        if not has_file:
            del replica.files[2]

        outcome = scan(MemoryReader(replica))

        assert [(Verdict.CORRUPT, DamageFault.BLOCK_ROW_MISSING, 2, -1, -1)] == facts(
            outcome.findings
        )
        assert ("its file is there" in outcome.findings[0].evidence) is has_file

    def test_a_file_that_nobody_expects_is_a_note(self, replica: MemoryReplica) -> None:
        """A block that was never committed is no loss."""
        replica.files[9] = b"half written"

        outcome = scan(MemoryReader(replica))

        assert [(Verdict.OK, DamageFault.BLOCK_ROW_MISSING, 9, -1, -1)] == facts(outcome.findings)
        assert not outcome.is_damaged

    def test_a_damaged_row_is_found_and_its_block_left_out(self, replica: MemoryReplica) -> None:
        """Without its witness a block cannot be judged; peers can restore the row."""
        row = bytearray(replica.rows[2])
        row[len(row) // 2] ^= 1
        replica.rows[2] = bytes(row)

        outcome = scan(MemoryReader(replica))

        assert [(Verdict.CORRUPT, DamageFault.BLOCK_ROW_DAMAGED, 2, -1, -1)] == facts(
            outcome.findings
        )
        assert -1 == outcome.tree.index_of(2)
        assert outcome.complete

    @pytest.mark.parametrize(
        ("fault", "verdict"),
        [
            (DamageFault.DESCRIPTOR_DAMAGED, Verdict.CORRUPT),
            (DamageFault.DESCRIPTOR_MISSING, Verdict.CORRUPT),
            (DamageFault.CHUNKS_DIRECTORY_MISSING, Verdict.CORRUPT),
            (DamageFault.TREE_STALE, Verdict.OK),
            (DamageFault.TREE_DAMAGED, Verdict.OK),
            (DamageFault.TREE_MISSING, Verdict.OK),
            (DamageFault.FOREIGN_FILE, Verdict.OK),
        ],
    )
    def test_faults_of_the_structure_are_passed_on(
        self, replica: MemoryReplica, fault: DamageFault, verdict: Verdict
    ) -> None:
        """A stale tree is replaced by this scan and a foreign file is harmless. Other faults are
        damage.
        """
        replica.faults.append(StructureFault(fault, "seen"))

        assert [(verdict, fault, -1, -1, -1)] == facts(scan(MemoryReader(replica)).findings)


class TestMeanwhile:
    """What happens to the replica while it is read."""

    def test_a_block_deleted_while_read_is_forgotten(self, replica: MemoryReplica) -> None:
        """Row gone and file gone is a delete, no damage."""

        class Deleting(MemoryReader):
            def open_block(self, block_id: BlockId) -> object:  # type: ignore[override]
                if block_id == 2:
                    self.replica.rows.pop(2, None)
                    self.replica.files.pop(2, None)
                    self.replica.expected.discard(2)
                return super().open_block(block_id)

        outcome = scan(Deleting(replica))

        assert () == outcome.findings
        assert outcome.complete

    @pytest.mark.parametrize("how", ["row", "generation"])
    def test_damage_in_a_replica_that_changed_ends_the_scan(
        self, replica: MemoryReplica, how: str
    ) -> None:
        """The bytes belong to a replica that no longer exists, so nothing is reported."""
        replica.flip(2, 50)

        class Changing(MemoryReader):
            def row(self, block_id: BlockId) -> bytes | None:
                if how == "row":
                    self.replica.put(block_id, noise(100, 9))
                else:
                    self.replica.is_stale = True
                return super().row(block_id)

        outcome = scan(Changing(replica))

        assert () == outcome.findings
        assert (False, "changed") == (outcome.complete, outcome.stopped_because)

    def test_a_repair_that_overtakes_the_scan_is_no_doubt_about_the_host(
        self, replica: MemoryReplica
    ) -> None:
        """The chunk was bad at the first read and good at the second, because a repair changed
        the replica.
        """
        replica.flip(1, 5)

        def mended(data: bytes) -> bytes:
            replica.is_stale = True
            return bytes([data[0]]) + data[1:5] + bytes([data[5] ^ 0x10]) + data[6:]

        outcome = scan(AlteredReader(replica, bytes, mended))

        assert ((), "changed") == (outcome.findings, outcome.stopped_because)

    def test_a_tombstone_beats_the_row_that_a_crash_left(self, replica: MemoryReplica) -> None:
        """A deleted block is neither read nor missed."""
        replica.buried[BlockId(2)] = 77
        del replica.files[2]

        outcome = scan(MemoryReader(replica))

        assert () == outcome.findings
        assert replica.metadata_tree() == outcome.tree

    def test_stop_ends_between_two_reads(self, replica: MemoryReplica) -> None:
        """A stopped scan commits nothing and reports the stop."""
        answers: Iterator[bool] = iter([False, False, True])

        outcome = scan(MemoryReader(replica), stop=lambda: next(answers, True))

        assert (False, "stopped") == (outcome.complete, outcome.stopped_because)


class TestReadErrors:
    @pytest.mark.parametrize(
        "number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EACCES]
    )
    def test_a_host_out_of_something_says_nothing_about_the_data(
        self, replica: MemoryReplica, number: int
    ) -> None:
        """Transient failures end the scan without a finding."""
        outcome = scan(AlteredReader(replica, first=failing(number)))

        assert () == outcome.findings
        assert not outcome.complete
        assert errno.errorcode[number] in outcome.stopped_because

    @pytest.mark.parametrize("number", [errno.EIO, errno.ENODATA, errno.EILSEQ])
    def test_a_device_that_refuses_twice_is_unreadable(
        self, replica: MemoryReplica, number: int
    ) -> None:
        """Each chunk gets a verdict of its own, and none is called corrupt."""
        outcome = scan(AlteredReader(replica, failing(number), failing(number)))

        assert [
            (Verdict.UNREADABLE, DamageFault.CHUNK_UNREADABLE, 1, 0, 10_000),
            (Verdict.UNREADABLE, DamageFault.CHUNK_UNREADABLE, 1, 10_000, 5_000),
            (Verdict.UNREADABLE, DamageFault.CHUNK_UNREADABLE, 2, 0, 100),
        ] == facts(outcome.findings)
        assert outcome.complete
        assert 3 == outcome.tree.unhealthy_count

    def test_an_unreadable_chunk_equals_no_healthy_leaf(self) -> None:
        """The leaves differ even if the healthy leaf folds no checksums."""
        replica = MemoryReplica()
        replica.put(1, noise(5_000), checksum_type=ChecksumType.NONE)
        for algorithm in Algorithm:
            reader = AlteredReader(replica, failing(errno.EIO), failing(errno.EIO))

            tree = scan(reader, algorithm=algorithm).tree

            assert replica.metadata_tree(algorithm).root != tree.root

    def test_single_failed_read_of_a_chunk_is_a_doubt_about_the_host(
        self, replica: MemoryReplica
    ) -> None:
        """The second read is whole, so the chunk is noted and not marked. Its neighbours are not
        even noted.
        """
        span_and_first_chunk = failing(errno.EIO, times=2)

        outcome = scan(AlteredReader(replica, span_and_first_chunk))

        assert [(Verdict.SUSPECT_HOST, DamageFault.CHUNK_UNREADABLE, 1, 0, 10_000)] == facts(
            outcome.findings
        )
        assert replica.metadata_tree() == outcome.tree
        assert outcome.complete

    def test_bad_sector_marks_one_chunk_only(self) -> None:
        """A read that covers many chunks is repeated for each of them."""
        replica = MemoryReplica()
        replica.put(1, *(noise(1_000, seed) for seed in range(50)))
        bad = noise(1_000, 33)

        def read(data: bytes) -> bytes:
            if bad in data:
                raise OSError(errno.EIO, "bad sector")
            return data

        outcome = scan(AlteredReader(replica, read, read))

        assert [(Verdict.UNREADABLE, DamageFault.CHUNK_UNREADABLE, 1, 33_000, 1_000)] == facts(
            outcome.findings
        )

    def test_every_opened_file_is_closed(self, replica: MemoryReplica) -> None:
        """Every opened file is closed, even if its read fails."""
        closed = []

        class Counting(AlteredReader):
            def open_block(self, block_id: BlockId) -> object:  # type: ignore[override]
                block = super().open_block(block_id)
                close: Callable[[], None] = lambda: closed.append(block_id)  # noqa: E731
                block.close = close  # type: ignore[method-assign]
                return block

        scan(Counting(replica, failing(errno.EMFILE)))

        assert [1] == closed


class TestBounds:
    def test_findings_are_bounded_and_counted(self) -> None:
        """A lost directory fills neither memory nor index, and the count stays true."""
        replica = MemoryReplica()
        count = FINDINGS_PER_REPLICA_MAX + 50
        for block_id in range(1, count + 1):
            replica.put(block_id, b"x")
        replica.files.clear()

        outcome = scan(MemoryReader(replica))

        assert FINDINGS_PER_REPLICA_MAX == len(outcome.findings)
        assert count == outcome.finding_count

    def test_notes_never_crowd_out_damage(self) -> None:
        """Damage is kept, however many unknown files there are."""
        replica = MemoryReplica()
        for block_id in range(1, NOTES_PER_REPLICA_MAX + 50):
            replica.files[block_id] = b"x"
        replica.put(5_000, b"x")
        replica.flip(5_000, 0)

        outcome = scan(MemoryReader(replica))

        assert outcome.is_damaged
        assert NOTES_PER_REPLICA_MAX + 1 == len(outcome.findings)
