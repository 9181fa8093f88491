"""From suspicion to verdict: who must agree before anything is called corrupt."""

import errno

import pytest

from merkle.checksum import window_checksums
from merkle.replica import ChecksumType, ChunkInfo
from merkle.second_checksum import witness_checksums
from scanner.chunk_verdict import (
    REREADS_MAX,
    WITNESSES,
    ChunkJudgement,
    FirstRead,
    Windows,
    Witnesses,
    judge_chunk,
    read_failure,
)
from scanner.finding import DamageFault, Verdict
from tests.support.storage.replica_reader import WINDOW_BYTES, chunk_of, noise

DEVICE_FAULTS = (
    *(errno.EIO, errno.ENODATA, errno.EILSEQ, errno.EREMOTEIO, errno.ENOLINK, errno.ETIMEDOUT),
    *(errno.EBADMSG, errno.EUCLEAN, errno.ENXIO, errno.ENODEV),
)
GOOD = noise(20_000)
BAD = GOOD[:9_000] + b"\x00" + GOOD[9_001:]
WORSE = GOOD[:9_000] + b"\x01" + GOOD[9_001:]


class Medium:
    """A file that answers each re-read with the next of its contents; the last one for ever."""

    def __init__(self, *contents: bytes) -> None:
        self._contents = list(contents)
        self.read_count = 0

    @property
    def size_bytes(self) -> int:
        return len(self._contents[-1])

    def read(self, offset: int, length_bytes: int) -> memoryview:
        return memoryview(self.reread_past_cache(offset, length_bytes))

    def reread_past_cache(self, offset: int, length_bytes: int) -> bytes:
        content = self._contents[min(self.read_count, len(self._contents) - 1)]
        self.read_count += 1
        return content[offset : offset + length_bytes]

    def close(self) -> None:
        pass


def judged(
    first: bytes, *medium: bytes, chunk: ChunkInfo | None = None, witnesses: Witnesses = WITNESSES
) -> ChunkJudgement:
    """Judge a chunk whose hot-path read gave `first`."""
    chunk = chunk or chunk_of(GOOD)
    sums = witnesses.primary(chunk.checksum_type, chunk.bytes_per_checksum, first)
    return judge_chunk(Medium(*medium), chunk, FirstRead(len(first), sums), witnesses)


def lying(truth: Windows) -> Windows:
    """Return a library that is wrong about everything, always in the same way."""

    def windows(
        checksum_type: ChecksumType, bytes_per_checksum: int, data: bytes | memoryview
    ) -> bytes:
        return bytes(255 - each for each in truth(checksum_type, bytes_per_checksum, data))

    return windows


class TestVerdict:
    def test_two_reads_and_two_witnesses_that_agree_are_corruption(self) -> None:
        """The medium is wrong, and both witnesses agree."""
        judgement = judged(BAD, BAD)

        assert (Verdict.CORRUPT, DamageFault.CHUNK_CHECKSUM) == (judgement.verdict, judgement.fault)
        assert witness_checksums(ChecksumType.CRC32C, WINDOW_BYTES, BAD) == (
            judgement.window_checksums
        )

    def test_a_medium_that_verifies_clears_the_data(self) -> None:
        """Memory or a bus lied once: the host is suspect, the chunk is not."""
        judgement = judged(BAD, GOOD)

        assert Verdict.SUSPECT_HOST == judgement.verdict
        assert judgement.is_decided
        assert "the first read had 1 wrong windows, window 2" in judgement.evidence

    def test_reads_that_differ_are_asked_again(self) -> None:
        """A first read that was wrong in its own way does not count as the second opinion."""
        assert Verdict.CORRUPT == judged(WORSE, BAD, BAD).verdict
        assert Verdict.SUSPECT_HOST == judged(WORSE, BAD, GOOD).verdict

    def test_two_reads_that_are_wrong_alike_are_not_enough(self) -> None:
        """Memory may flip the same bit twice; a third read decides."""
        assert Verdict.SUSPECT_HOST == judged(BAD, BAD, GOOD).verdict
        assert Verdict.SUSPECT_HOST == judged(WORSE, BAD, BAD, GOOD).verdict
        assert Verdict.CORRUPT == judged(BAD, BAD, BAD).verdict

    def test_reads_that_never_agree_are_undecided(self) -> None:
        """The number of re-reads is bounded, and nothing is claimed of the medium."""
        unstable = [GOOD[:at] + b"\xff\xfe" + GOOD[at + 2 :] for at in range(REREADS_MAX + 1)]

        judgement = judged(unstable[-1], *unstable)

        assert (Verdict.SUSPECT_HOST, False) == (judgement.verdict, judgement.is_decided)

    def test_a_library_that_lies_condemns_the_host(self) -> None:
        """Wrong sums for right bytes, stable as they may be, are no corruption."""
        witnesses = Witnesses(primary=lying(window_checksums), second=witness_checksums)

        judgement = judged(GOOD, GOOD, witnesses=witnesses)

        assert (Verdict.SUSPECT_HOST, True) == (judgement.verdict, judgement.is_disagreement)
        assert judgement.is_decided

    def test_a_second_witness_that_lies_condemns_the_host_too(self) -> None:
        """A disagreement only shows that one of the two is wrong."""
        witnesses = Witnesses(primary=window_checksums, second=lying(witness_checksums))

        judgement = judged(BAD, BAD, witnesses=witnesses)

        assert (Verdict.SUSPECT_HOST, True) == (judgement.verdict, judgement.is_disagreement)
        assert not judgement.is_decided

    def test_a_short_read_that_becomes_whole_is_the_host_s_fault(self) -> None:
        """A length needs the same confirmation as a checksum."""
        assert Verdict.SUSPECT_HOST == judged(GOOD[:5_000], GOOD).verdict

    def test_a_file_that_ends_early_twice_is_short(self) -> None:
        """A file that ends before the chunk gives none of its bytes."""
        assert DamageFault.CHUNK_SHORT == judged(GOOD[:5_000], GOOD[:5_000]).fault
        assert DamageFault.CHUNK_MISSING == judged(b"", b"").fault


class Failing(Medium):
    """A file whose reads fail, each with the next error, before it answers."""

    def __init__(self, errors: list[int], *contents: bytes) -> None:
        super().__init__(*contents)
        self._errors = errors

    def reread_past_cache(self, offset: int, length_bytes: int) -> bytes:
        if self._errors:
            raise OSError(self._errors.pop(0), "as the device says")
        return super().reread_past_cache(offset, length_bytes)


def after_an_error(medium: Medium) -> ChunkJudgement:
    """Judge a chunk whose first read the device refused."""
    first = FirstRead(0, b"", OSError(errno.EIO, "as the device says"))
    return judge_chunk(medium, chunk_of(GOOD), first, WITNESSES)


class TestReads:
    @pytest.mark.parametrize(
        ("number", "expected"),
        [
            *((number, Verdict.UNREADABLE) for number in DEVICE_FAULTS),
            (errno.EMFILE, Verdict.TRANSIENT),
            (errno.ENOMEM, Verdict.TRANSIENT),
            (errno.EINTR, Verdict.TRANSIENT),
            (errno.EACCES, Verdict.TRANSIENT),
            (errno.ENOENT, Verdict.TRANSIENT),
            (None, Verdict.TRANSIENT),
        ],
    )
    def test_only_the_device_s_errors_say_something_of_the_data(
        self, number: int | None, expected: Verdict
    ) -> None:
        """A shortage of the host and an unknown error say nothing about the data."""
        error = OSError() if number is None else OSError(number, "")

        assert expected is read_failure(error)

    def test_three_reads_in_a_row_decide_and_five_are_the_most(self) -> None:
        """The scan's own read counts, and no read is wasted."""
        alike, never = Medium(BAD), Medium(*(GOOD[:at] + b"!" + GOOD[at + 1 :] for at in range(9)))
        sums = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES, BAD)
        first = FirstRead(len(BAD), sums)

        corrupt = judge_chunk(alike, chunk_of(GOOD), first, WITNESSES)
        undecided = judge_chunk(never, chunk_of(GOOD), first, WITNESSES)

        assert (Verdict.CORRUPT, 2) == (corrupt.verdict, alike.read_count)
        assert (Verdict.SUSPECT_HOST, 4) == (undecided.verdict, never.read_count)
        assert "5 reads, none verifies and no 3 in a row agree" == undecided.evidence

    def test_a_read_that_failed_counts_for_nothing(self) -> None:
        """Three other reads must agree. One that verifies clears the data and reports the error."""
        bad = Medium(BAD)

        assert Verdict.CORRUPT is after_an_error(bad).verdict
        assert 3 == bad.read_count
        cleared = after_an_error(Medium(GOOD))
        assert (Verdict.SUSPECT_HOST, DamageFault.CHUNK_UNREADABLE) == (
            cleared.verdict,
            cleared.fault,
        )
        assert cleared.evidence.startswith("the first read failed (EIO)")

    def test_a_device_that_refuses_twice_is_unreadable(self) -> None:
        """Both errors are named, and the content gets no verdict."""
        judgement = after_an_error(Failing([errno.ETIMEDOUT], GOOD))

        assert Verdict.UNREADABLE is judgement.verdict
        assert "read failed with EIO, then with ETIMEDOUT" == judgement.evidence
        assert (0, b"") == (judgement.length_bytes, judgement.window_checksums)

    def test_a_host_out_of_something_ends_the_judgement(self) -> None:
        """No verdict at all: it is tried again another time."""
        with pytest.raises(OSError, match="as the device says"):
            after_an_error(Failing([errno.EMFILE], BAD))


class TestCleared:
    def test_the_evidence_says_what_was_wrong_with_the_first_read(self) -> None:
        """Too short, a window, or only the checksum of the whole."""
        right = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES, GOOD)
        whole = judge_chunk(Medium(GOOD), chunk_of(GOOD), FirstRead(len(GOOD), right), WITNESSES)

        assert judged(GOOD[:5_000], GOOD).evidence.startswith(
            "the first read gave 5000 of 20000 bytes"
        )
        assert whole.evidence.startswith("the checksum of the whole was wrong although")
        assert DamageFault.CHUNK_CHECKSUM is whole.fault

    def test_leaf_of_a_cleared_chunk_has_the_bytes_of_the_medium(self) -> None:
        """Length and checksums of the tree are those that were read, or those that verify."""
        short, cleared = judged(GOOD[:5_000], GOOD[:5_000]), judged(BAD, GOOD)

        assert (5_000, 20_000) == (short.length_bytes, cleared.length_bytes)
        assert "the file ends after 5000 of 20000 bytes" in short.evidence
        assert chunk_of(GOOD).window_checksums == cleared.window_checksums


class TestEvidence:
    def test_a_window_is_named_by_its_place_in_the_file(self) -> None:
        """The window's place is that in the file, and not that in the chunk."""
        chunk = chunk_of(GOOD, offset=1_000)

        evidence = judged(BAD, bytes(1_000) + BAD, chunk=chunk).evidence

        assert "1 of 5 windows differ; window 2 at byte 9192: expected " in evidence

    def test_libraries_that_disagree_are_quoted(self) -> None:
        """The evidence has the first bytes of each result."""
        witnesses = Witnesses(primary=lying(window_checksums), second=witness_checksums)
        right = chunk_of(GOOD).window_checksums

        evidence = judged(GOOD, GOOD, witnesses=witnesses).evidence

        assert evidence.endswith(f"and {right[:8].hex()}...")

    @pytest.mark.parametrize(
        ("bad", "words"),
        [
            (GOOD[:8_192] + bytes(4_096) + GOOD[12_288:], "page at byte 8192 is all zero"),
            (GOOD[:16_384] + bytes(3_616), "zero from byte 16384 to the chunk's end"),
            (BAD, "1 of 5 windows differ; window 2 at byte 8192: expected "),
        ],
    )
    def test_the_shape_of_the_damage_is_named(self, bad: bytes, words: str) -> None:
        """The evidence describes the damage in words."""
        assert words in judged(bad, bad).evidence

    @pytest.mark.parametrize(
        ("bad", "words"),
        [
            (
                GOOD[:4_096] + bytes(4_096) + GOOD[8_192:],
                "the 4096-byte page at byte 4096 is all zero",
            ),
            (
                GOOD[:8_192] + bytes(11_808),
                "zero from byte 8192 to the chunk's end: torn at a 4096",
            ),
            (GOOD[:100] + b"\x00" + GOOD[101:], "1 of 1 windows differ"),
        ],
    )
    def test_a_page_inside_a_large_window_is_named(self, bad: bytes, words: str) -> None:
        """Devices lose pages, whatever the writer's window."""
        chunk = chunk_of(GOOD, bytes_per_checksum=20_480)

        assert words in judged(bad, bad, chunk=chunk).evidence

    def test_pages_are_counted_in_the_file_not_in_the_chunk(self) -> None:
        """A chunk need not begin at a page."""
        chunk = chunk_of(GOOD, offset=1_000, bytes_per_checksum=20_480)
        held = GOOD[:3_096] + bytes(4_096) + GOOD[7_192:]

        evidence = judged(held, bytes(1_000) + held, chunk=chunk).evidence

        assert "the 4096-byte page at byte 4096 is all zero" in evidence


class RangedMedium(Medium):
    """A file that records the ranges of its rereads."""

    def __init__(self, *contents: bytes) -> None:
        super().__init__(*contents)
        self.ranges: list[tuple[int, int]] = []

    def reread_past_cache(self, offset: int, length_bytes: int) -> bytes:
        self.ranges.append((offset, length_bytes))
        return super().reread_past_cache(offset, length_bytes)


class TestWrongPart:
    """The first read is complete, and its bytes are known, as in a scan."""

    @staticmethod
    def judged(
        first: bytes, *contents: bytes, witnesses: Witnesses = WITNESSES
    ) -> tuple[ChunkJudgement, list[tuple[int, int]]]:
        """Judge the chunk at byte 1,000 of a file; return also the ranges of the rereads."""
        medium = RangedMedium(*(bytes(1_000) + content for content in contents))
        chunk = chunk_of(GOOD, offset=1_000)
        sums = witnesses.primary(chunk.checksum_type, chunk.bytes_per_checksum, first)
        read = FirstRead(len(first), sums, data=memoryview(first))
        return judge_chunk(medium, chunk, read, witnesses), medium.ranges

    @staticmethod
    def sums_of(data: bytes) -> bytes:
        """Return the checksums of the windows, by the second implementation."""
        return witness_checksums(ChecksumType.CRC32C, WINDOW_BYTES, data)

    def test_only_the_range_of_wrong_windows_is_read_again(self) -> None:
        """The judgement still describes the complete chunk."""
        bad = GOOD[:9_000] + b"\x00" + GOOD[9_001:17_000] + b"\x00" + GOOD[17_001:]

        judgement, ranges = self.judged(bad, bad)

        assert [(9_192, 20_000 - 8_192)] * 2 == ranges
        assert (Verdict.CORRUPT, 20_000) == (judgement.verdict, judgement.length_bytes)
        assert self.sums_of(bad) == judgement.window_checksums
        assert "2 of 5 windows differ; window 2 at byte 9192: expected " in judgement.evidence
        assert (2, 4) == judgement.wrong_windows

    def test_window_that_only_the_first_read_had_wrong_is_right_on_the_disk(self) -> None:
        """A flip in memory is no part of the damage on the disk."""
        first = b"\x00" + BAD[1:]

        judgement, ranges = self.judged(first, BAD)

        assert [(1_000, 3 * WINDOW_BYTES)] * 3 == ranges
        assert Verdict.CORRUPT is judgement.verdict
        assert self.sums_of(BAD) == judgement.window_checksums
        assert (2,) == judgement.wrong_windows

    def test_part_that_verifies_when_read_again_clears_the_chunk(self) -> None:
        """The first read was wrong, and not the disk."""
        judgement, ranges = self.judged(BAD, GOOD)

        assert [(9_192, WINDOW_BYTES)] == ranges
        assert (Verdict.SUSPECT_HOST, True) == (judgement.verdict, judgement.is_decided)
        assert self.sums_of(GOOD) == judgement.window_checksums

    def test_file_that_was_cut_in_the_part_is_short(self) -> None:
        """Nothing of the first read counts behind the end of the file."""
        judgement, _ = self.judged(BAD, BAD[:9_100])

        assert DamageFault.CHUNK_SHORT is judgement.fault
        assert 9_100 == judgement.length_bytes
        assert self.sums_of(BAD[:9_100]) == judgement.window_checksums

    def test_chunk_whose_first_read_was_short_is_read_again_completely(self) -> None:
        """Also if the short read has as many windows as the chunk."""
        judgement, ranges = self.judged(GOOD[:19_990], GOOD[:19_990])

        assert [(1_000, 20_000)] * 2 == ranges
        assert (DamageFault.CHUNK_SHORT, 19_990) == (judgement.fault, judgement.length_bytes)

    def test_libraries_that_disagree_about_the_part_leave_the_chunk_undecided(self) -> None:
        """The row has the checksums of the part of neither library."""
        witnesses = Witnesses(primary=window_checksums, second=lying(witness_checksums))

        judgement, _ = self.judged(BAD, BAD, witnesses=witnesses)
        decided, _ = self.judged(BAD, GOOD, witnesses=witnesses)

        assert (True, False) == (judgement.is_disagreement, judgement.is_decided)
        assert (True, True) == (decided.is_disagreement, decided.is_decided)

    def test_torn_write_is_described_from_the_complete_chunk(self) -> None:
        """The earlier data is compared with all bytes, also those that were read only once."""
        old = noise(9_216, seed=2) + noise(2_000, seed=3) + GOOD[11_216:]
        torn = GOOD[:9_216] + old[9_216:]
        first = FirstRead(len(torn), self.sums_of(torn), data=torn)
        medium = RangedMedium(torn)

        judgement = judge_chunk(medium, chunk_of(GOOD), first, WITNESSES, lambda: [old])

        assert {(8_192, WINDOW_BYTES)} == set(medium.ranges)
        assert judgement.evidence.endswith(
            "from byte 9216 on it is what was here before: torn at a 512-byte sector"
        )
