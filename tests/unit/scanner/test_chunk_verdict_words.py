"""What an operator reads of a judgement, letter by letter, and which failures never pass."""

import errno
import zlib

import pytest

from merkle.checksum import window_checksums
from merkle.replica import ChecksumType, ChunkInfo
from scanner.chunk_verdict import (
    WITNESSES,
    ChunkJudgement,
    FirstRead,
    RepeatedError,
    Witnesses,
    describe_windows,
    is_lasting,
    judge_chunk,
    name_of,
    persistent_error,
    read_failure,
)
from scanner.finding import DamageFault, Forensic, Verdict
from tests.support.storage.replica_reader import chunk_of, noise

WINDOW_BYTES = 1_000
GOOD = noise(2_500)
GARBAGE = GOOD[:1_200] + noise(600, 9) + GOOD[1_800:]


class Medium:
    """A file whose re-reads give these contents, or fail with these errors, one after the other."""

    size_bytes = 0

    def __init__(self, *answers: bytes | OSError) -> None:
        self.answers = list(answers)

    def read(self, offset: int, length_bytes: int) -> memoryview:
        """Is not asked."""
        raise AssertionError((offset, length_bytes))

    def reread_past_cache(self, offset: int, length_bytes: int) -> bytes:
        """Return the next answer; the last one for ever."""
        assert (500, 2_500) == (offset, length_bytes)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer

    def close(self) -> None:
        """Nothing is open."""


def sums_of(data: bytes) -> bytes:
    """Return the checksums of the windows by zlib."""
    windows = (data[start : start + WINDOW_BYTES] for start in range(0, len(data), WINDOW_BYTES))
    return b"".join(zlib.crc32(window).to_bytes(4) for window in windows)


CHUNK = ChunkInfo(500, 2_500, ChecksumType.CRC32, WINDOW_BYTES, sums_of(GOOD))


def judged(
    first: bytes | OSError, *medium: bytes | OSError, witnesses: Witnesses = WITNESSES
) -> ChunkJudgement:
    """Judge a chunk at byte 500 of its file."""
    read = (
        FirstRead(0, b"", first)
        if isinstance(first, OSError)
        else FirstRead(len(first), sums_of(first))
    )
    return judge_chunk(Medium(*medium), CHUNK, read, witnesses)


def window(data: bytes, index: int) -> str:
    """Return one checksum as it is shown."""
    return sums_of(data)[4 * index : 4 * index + 4].hex()


def test_garbage_is_shown_by_its_windows() -> None:
    """The evidence has the number of wrong windows, and the place and the expected checksum of
    the first. Without windows it has none of them.
    """
    found = judged(GARBAGE, GARBAGE)

    assert (
        f"1 of 3 windows differ; window 1 at byte 1500: expected {window(GOOD, 1)}, "
        f"actual {window(GARBAGE, 1)}"
    ) == found.evidence
    assert (2_500, sums_of(GARBAGE), (1,)) == (
        found.length_bytes,
        found.window_checksums,
        found.wrong_windows,
    )
    assert (Forensic.UNKNOWN, True, False) == (
        found.forensic,
        found.is_decided,
        found.is_disagreement,
    )


def test_evidence_names_the_flipped_bit_and_its_place() -> None:
    """The offset is that in the file."""
    flipped = GOOD[:1_200] + bytes([GOOD[1_200] ^ 1]) + GOOD[1_201:]

    found = judged(flipped, flipped)

    assert Forensic.SINGLE_BIT is found.forensic
    assert found.evidence.endswith("; bit 0 of byte 1700 is flipped, nothing else")


@pytest.mark.parametrize(
    ("held", "fault", "evidence"),
    [
        (
            GOOD[:2_499],
            DamageFault.CHUNK_SHORT,
            "the file ends after 2499 of 2500 bytes; cut at byte 2999",
        ),
        (
            GOOD[:12],
            DamageFault.CHUNK_SHORT,
            "the file ends after 12 of 2500 bytes; cut at byte 512: torn at a 512-byte sector",
        ),
        (b"", DamageFault.CHUNK_MISSING, "the file ends at or before byte 500; cut at byte 500"),
    ],
)
def test_a_file_that_ends_early_is_shown_by_its_end(
    held: bytes, fault: DamageFault, evidence: str
) -> None:
    """
    In the chunk or before it.
    """
    found = judged(held, held)

    assert (Verdict.CORRUPT, fault, evidence) == (found.verdict, found.fault, found.evidence)
    assert (len(held), sums_of(held)) == (found.length_bytes, found.window_checksums)


@pytest.mark.parametrize(
    ("first", "fault", "why"),
    [
        (OSError(errno.EIO, ""), DamageFault.CHUNK_UNREADABLE, "the first read failed (EIO)"),
        (GOOD[:7], DamageFault.CHUNK_CHECKSUM, "the first read gave 7 of 2500 bytes"),
        (
            GOOD,
            DamageFault.CHUNK_CHECKSUM,
            "the checksum of the whole was wrong although that of every window is right",
        ),
        (
            GARBAGE,
            DamageFault.CHUNK_CHECKSUM,
            f"the first read had 1 wrong windows, window 1: {window(GOOD, 1)} was "
            f"{window(GARBAGE, 1)}",
        ),
    ],
)
def test_a_host_that_was_wrong_is_told_how(
    first: bytes | OSError, fault: DamageFault, why: str
) -> None:
    """The text also says that the medium is fine."""
    found = judged(first, GOOD)

    assert (Verdict.SUSPECT_HOST, fault) == (found.verdict, found.fault)
    assert f"{why}; read again, the medium verifies with both libraries" == found.evidence
    assert (2_500, CHUNK.window_checksums, True) == (
        found.length_bytes,
        found.window_checksums,
        found.is_decided,
    )


@pytest.mark.parametrize(
    ("sums", "shown"), [(b"12345678", "3132333435363738"), (b"123456789", "3132333435363738...")]
)
def test_libraries_that_disagree_are_quoted(sums: bytes, shown: str) -> None:
    """
    The first eight bytes of each.
    """
    witnesses = Witnesses(primary=lambda *_: sums, second=lambda *_: b"other")

    found = judged(GARBAGE, GARBAGE, witnesses=witnesses)

    assert (
        f"two CRC32 libraries disagree on the same bytes: {shown} and 6f74686572" == found.evidence
    )
    assert (DamageFault.CHUNK_CHECKSUM, 2_500, CHUNK.window_checksums, True, False) == (
        found.fault,
        found.length_bytes,
        found.window_checksums,
        found.is_disagreement,
        found.is_decided,
    )


def test_reads_that_never_agree_are_undecided_until_a_scan_insists() -> None:
    """
    Then they are unreadable.
    """
    answers = [GOOD[:at] + b"?!" + GOOD[at + 2 :] for at in range(5)]
    first = FirstRead(2_500, sums_of(GARBAGE))
    told = "5 reads, none verifies and no 3 in a row agree"

    found = judge_chunk(Medium(*answers), CHUNK, first, WITNESSES)
    final = judge_chunk(Medium(*answers), CHUNK, first, WITNESSES, insists=True)

    assert (
        ChunkJudgement(
            Verdict.SUSPECT_HOST,
            DamageFault.CHUNK_CHECKSUM,
            told,
            2_500,
            CHUNK.window_checksums,
            is_decided=False,
            is_wavering=True,
        )
        == found
    )
    told = f"{told}, as in scans before"
    assert ChunkJudgement(Verdict.UNREADABLE, DamageFault.CHUNK_UNREADABLE, told, 0, b"") == final


def test_a_device_that_refuses_is_named_twice() -> None:
    """The device is named twice even if the first read returned data."""
    eio, medium = OSError(errno.EIO, ""), OSError(errno.ENODATA, "")

    assert "read failed with ENODATA, then with ENODATA" == judged(GARBAGE, medium).evidence
    assert "read failed with EIO, then with ENODATA" == judged(eio, medium).evidence
    assert (
        "read failed with ENODATA, then with ENODATA" == judged(GARBAGE, GARBAGE, medium).evidence
    )


class TestFormer:
    def test_former_bytes_are_read_only_for_a_damaged_chunk(self) -> None:
        """The former bytes are not read if the medium has nothing of the chunk."""
        asked: list[bytes] = []
        first = FirstRead(0, b"")

        def former() -> list[bytes]:
            asked.append(b"")
            return [GARBAGE]

        judge_chunk(Medium(b""), CHUNK, first, WITNESSES, former)
        judge_chunk(Medium(GOOD), CHUNK, first, WITNESSES, former)
        assert [] == asked
        found = judge_chunk(Medium(GARBAGE), CHUNK, first, WITNESSES, former)

        assert Forensic.STALE is found.forensic
        assert 1 == len(asked)


class TestDescription:
    def test_windows_that_nobody_expects_differ(self) -> None:
        """Unexpected windows and missing windows both differ."""
        more, fewer = CHUNK.window_checksums + b"more", CHUNK.window_checksums[:8]
        last = CHUNK.window_checksums[8:].hex()

        assert describe_windows(CHUNK, more) == (
            "1 of 3 windows differ; window 3 at byte 3500: expected , actual 6d6f7265"
        )
        assert describe_windows(CHUNK, fewer) == (
            f"1 of 3 windows differ; window 2 at byte 2500: expected {last}, actual "
        )

    def test_without_checksums_no_window_differs(self) -> None:
        """
        A chunk of which nothing was recorded.
        """
        chunk = ChunkInfo(0, 10, ChecksumType.NONE, 10, b"")

        assert describe_windows(chunk, b"") == (
            "0 of 1 windows differ; window 0 at byte 0: expected , actual "
        )


class TestFailures:
    @pytest.mark.parametrize(
        ("error", "name"),
        [
            (OSError(errno.EIO, ""), "EIO"),
            (OSError(99_999, ""), "errno 99999"),
            (OSError(), "errno None"),
            (RepeatedError(errno.EACCES, ""), "EACCES, as again and again before"),
        ],
    )
    def test_an_error_has_the_name_that_is_searched_for(self, error: OSError, name: str) -> None:
        """An error without a name has its number."""
        assert name == name_of(error)

    @pytest.mark.parametrize(
        "number",
        [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.EINTR],
    )
    def test_a_host_that_is_short_of_something_is_never_insisted_on(self, number: int) -> None:
        """A shortage is never insisted on, however often it occurs."""
        error = OSError(number, "why", "file")

        assert error is persistent_error(error)
        assert Verdict.TRANSIENT is read_failure(persistent_error(error))
        assert not is_lasting(f"TRANSIENT: {errno.errorcode[number]}")

    def test_any_other_failure_is(self) -> None:
        """
        The same one, as one that does not pass.
        """
        found = persistent_error(OSError(errno.EACCES, "why", "file"))

        assert (errno.EACCES, "why", "file") == (found.errno, found.strerror, found.filename)
        assert Verdict.UNREADABLE is read_failure(found)
        assert is_lasting("TRANSIENT: EACCES")

    @pytest.mark.parametrize("why", ["", "stopped", "changed", "UNREADABLE: EACCES"])
    def test_no_other_end_of_a_scan_need_last(self, why: str) -> None:
        """The scan was stopped, or the replica changed."""
        assert not is_lasting(why)


def test_the_slow_form_of_the_quick_check_compares_windows() -> None:
    """Written data verifies, and any other does not."""
    chunk = chunk_of(GOOD)
    witnesses = Witnesses(primary=window_checksums, second=window_checksums)

    def verifies(data: bytes) -> bool:
        return witnesses.verify(
            chunk.checksum_type, chunk.bytes_per_checksum, chunk.window_checksums, data
        )

    assert verifies(GOOD)
    assert not verifies(GARBAGE)
