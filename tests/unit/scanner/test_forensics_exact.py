"""Where exactly one kind of accident ends and another begins: every edge, byte by byte."""

import pytest

from merkle.checksum import window_checksums
from merkle.replica import BlockId, ChecksumType, ChunkInfo
from scanner.finding import Forensic
from scanner.forensics import (
    Explanation,
    UnexplainedChunk,
    explain,
    find_places,
    unexplained_chunk,
    wrong_windows,
)
from tests.support.storage.replica_reader import chunk_of, noise
from tests.support.storage.trees import block, rows_of

WINDOW_BYTES = 2_048
GOOD = b"\xff" * 12_288
OLD = b"\xaa" * 12_288
TORN_PAGE, TORN_SECTOR = ": torn at a 4096-byte page", ": torn at a 512-byte sector"


def zeroed(start: int, end: int, length_bytes: int = 12_288) -> bytes:
    """Return what is left of the good bytes when these are zero."""
    return GOOD[:start] + bytes(end - start) + GOOD[end:length_bytes]


def told(
    bad: bytes,
    *,
    offset: int = 0,
    length_bytes: int = 12_288,
    former: tuple[bytes, ...] = (),
    good: bytes | None = None,
) -> tuple[Forensic, str]:
    """Explain damage to a chunk of 0xff."""
    chunk = chunk_of(GOOD[:length_bytes], offset, bytes_per_checksum=WINDOW_BYTES)
    sums = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES, bad)
    found = explain(chunk, bad, sums, former=former, good=good)
    return found.forensic, found.words


NOTHING = (Forensic.UNKNOWN, "")


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (2_048, 4_096, (Forensic.ZEROED, "zero from byte 2048 to 4096")),
        (512, 1_024, (Forensic.ZEROED, "zero from byte 512 to 1024")),
        (500, 1_100, (Forensic.ZEROED, "zero from byte 512 to 1024")),
        (513, 1_537, (Forensic.ZEROED, "zero from byte 1024 to 1536")),
        (500, 1_000, NOTHING),
        (100, 612, NOTHING),
        (512, 1_023, NOTHING),
        (513, 1_535, NOTHING),
        (0, 512, (Forensic.ZEROED, "zero from byte 0 to 512")),
        (0, 511, NOTHING),
        (4_096, 8_192, (Forensic.ZEROED, "the 4096-byte page at byte 4096 is all zero")),
        (0, 4_096, (Forensic.ZEROED, "the 4096-byte page at byte 0 is all zero")),
        (2_048, 6_144, (Forensic.ZEROED, "zero from byte 2048 to 6144")),
        (4_096, 8_704, (Forensic.ZEROED, "zero from byte 4096 to 8704")),
        (0, 12_288, (Forensic.ZEROED, "zero from byte 0 to 12288")),
        (8_192, 12_288, (Forensic.TORN_4096, f"zero from byte 8192 to the chunk's end{TORN_PAGE}")),
        (512, 12_288, (Forensic.TORN_512, f"zero from byte 512 to the chunk's end{TORN_SECTOR}")),
        (700, 12_288, (Forensic.TORN_512, f"zero from byte 1024 to the chunk's end{TORN_SECTOR}")),
        (
            11_776,
            12_288,
            (Forensic.TORN_512, f"zero from byte 11776 to the chunk's end{TORN_SECTOR}"),
        ),
        (11_777, 12_288, NOTHING),
    ],
)
def test_zeros_count_by_whole_sectors(start: int, end: int, expected: tuple[Forensic, str]) -> None:
    """
    Only such a device loses; to the chunk's end they are a tear.
    """
    assert expected == told(zeroed(start, end))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (4_096, 5_000, (Forensic.TORN_4096, f"zero from byte 4096 to the chunk's end{TORN_PAGE}")),
        (4_096, 4_609, (Forensic.ZEROED, "zero from byte 4096 to 4608")),
        (4_300, 5_000, NOTHING),
        (3_000, 5_000, (Forensic.TORN_512, f"zero from byte 3072 to the chunk's end{TORN_SECTOR}")),
    ],
)
def test_the_last_window_may_be_short(start: int, end: int, expected: tuple[Forensic, str]) -> None:
    """
    Its end is the chunk's, in the middle of a sector.
    """
    assert expected == told(zeroed(start, end, 5_000), length_bytes=5_000)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (3_096, 7_192, (Forensic.ZEROED, "the 4096-byte page at byte 4096 is all zero")),
        (4_096, 8_192, (Forensic.ZEROED, "zero from byte 5096 to 9192")),
        (536, 1_048, (Forensic.ZEROED, "zero from byte 1536 to 2048")),
        (512, 1_024, NOTHING),
        (7_192, 12_288, (Forensic.TORN_4096, f"zero from byte 8192 to the chunk's end{TORN_PAGE}")),
    ],
)
def test_sectors_are_those_of_the_file(
    start: int, end: int, expected: tuple[Forensic, str]
) -> None:
    """The chunk begins at byte 1000."""
    assert expected == told(zeroed(start, end), offset=1_000)


def test_two_places_are_no_tear_and_other_damage_is_no_zero() -> None:
    """
    From the first to the last, if each wrong window has zeros.
    """
    two = zeroed(2_048, 4_096)[:10_240] + bytes(2_048)
    other = zeroed(2_048, 4_096)[:10_000] + b"damage" + GOOD[10_006:]

    assert (Forensic.ZEROED, "zero from byte 2048 to 12288") == told(two)
    assert NOTHING == told(other)


@pytest.mark.parametrize(
    ("length_bytes", "words"),
    [
        (0, f"cut at byte 0{TORN_PAGE}"),
        (4_096, f"cut at byte 4096{TORN_PAGE}"),
        (512, f"cut at byte 512{TORN_SECTOR}"),
        (12_287, "cut at byte 12287"),
    ],
)
def test_a_cut_is_named_by_its_place(length_bytes: int, words: str) -> None:
    """The cut is named by its place and by the unit in which the device tears."""
    assert (Forensic.TRUNCATED, words) == told(GOOD[:length_bytes])
    assert NOTHING == told(GOOD)


class TestFormer:
    def test_windows_that_are_the_old_ones_are_stale(self) -> None:
        """The windows are stale as far as the old bytes are known."""
        bad = GOOD[:2_048] + OLD[2_048:4_096] + GOOD[4_096:]
        stale = (Forensic.STALE, "it is what was here before the last write")

        assert stale == told(bad, former=(b"", b"\x55" * 12_288, OLD))
        assert stale == told(bad, former=(OLD[:4_096],))
        assert NOTHING == told(bad, former=(OLD[:4_095],))

    @pytest.mark.parametrize(
        ("bad", "expected"),
        [
            (
                GOOD[:1_024] + OLD[1_024:],
                (Forensic.TORN_512, f"from byte 1024 on it is what was here before{TORN_SECTOR}"),
            ),
            (
                GOOD[:3_600] + OLD[3_600:],
                (Forensic.TORN_4096, f"from byte 4096 on it is what was here before{TORN_PAGE}"),
            ),
            (GOOD[:11_777] + OLD[11_777:], NOTHING),
            (GOOD[:1_024] + OLD[1_024:-1] + b"x", NOTHING),
        ],
    )
    def test_from_a_sector_on_they_are_a_tear(
        self, bad: bytes, expected: tuple[Forensic, str]
    ) -> None:
        """A last sector that is torn in itself, or wrong windows that do not reach the end, are
        not a tear.
        """
        assert expected == told(bad, former=(OLD,))

    def test_a_tear_needs_all_of_the_old_bytes(self) -> None:
        """Bytes beyond the kept ones cannot be compared."""
        assert NOTHING == told(GOOD[:1_024] + OLD[1_024:], former=(OLD[:-1],))


class TestGoodBytes:
    @pytest.mark.parametrize(
        ("bad", "is_torn"),
        [
            (GOOD[:1_024] + OLD[1_024:], True),
            (GOOD[:1_031] + OLD[1_031:], True),
            (GOOD[:1_032] + OLD[1_032:], False),
            (GOOD[:1_024] + OLD[1_024:-7] + GOOD[-7:], True),
            (GOOD[:1_024] + OLD[1_024:-8] + GOOD[-8:], False),
            (OLD, False),
            (GOOD[:3] + OLD[3:], False),
            (GOOD[:1_024] + (b"\xff" + b"\xaa" * 10) * 1_024, True),
            (GOOD[:1_024] + (b"\xff" + b"\xaa" * 7) * 1_408, False),
        ],
        ids=range(9),
    )
    def test_a_tear_begins_at_a_sector_and_stays(self, bad: bytes, is_torn: bool) -> None:
        """
        Some bytes are equal by chance: few, and not more than seven at the ends.
        """
        words = f"from byte 1024 to the chunk's end it is something else{TORN_SECTOR}"
        expected = (Forensic.TORN_512, words) if is_torn else NOTHING

        assert 12_288 == len(bad)
        assert expected == told(bad, good=GOOD)

    def test_the_first_sector_of_a_chunk_may_be_part_of_one(self) -> None:
        """The beginning of the tear is then invisible."""
        assert NOTHING == told(GOOD[:20] + OLD[20:], offset=1_000, good=GOOD)
        assert (
            Forensic.TORN_512,
            f"from byte 1024 to the chunk's end it is something else{TORN_SECTOR}",
        ) == told(GOOD[:24] + OLD[24:], offset=1_000, good=GOOD)

    def test_good_bytes_of_another_length_say_nothing(self) -> None:
        """The good bytes are not those of this chunk."""
        assert NOTHING == told(GOOD[:1_024] + OLD[1_024:], good=GOOD[:-1])
        assert Forensic.ZEROED is told(zeroed(512, 1_024), good=GOOD[:-1])[0]


class TestBits:
    @pytest.mark.parametrize(
        ("count", "forensic"), [(8, Forensic.SINGLE_BIT), (9, Forensic.UNKNOWN)]
    )
    def test_bits_in_more_than_eight_windows_are_not_classified_as_bits(
        self, count: int, forensic: Forensic
    ) -> None:
        """Eight windows are."""
        data = noise(1_024)
        bad = bytearray(data)
        for number in range(count):
            bad[100 * number] ^= 16
        chunk = chunk_of(data, bytes_per_checksum=100)

        found = explain(chunk, bytes(bad), window_checksums(ChecksumType.CRC32C, 100, bad))

        assert forensic is found.forensic
        assert tuple(range(count)) == found.wrong_windows

    @pytest.mark.parametrize(
        ("window_bytes", "expected"),
        [
            (
                1024**2,
                Explanation(Forensic.SINGLE_BIT, "bit 2 of byte 17 is flipped, nothing else", (0,)),
            ),
            (1024**2 + 1, Explanation(Forensic.UNKNOWN, "", (0,))),
        ],
    )
    def test_a_bit_is_not_looked_for_in_a_window_of_any_size(
        self, window_bytes: int, expected: Explanation
    ) -> None:
        """
        A mebibyte is the largest.
        """
        chunk = chunk_of(b"data", 16, bytes_per_checksum=window_bytes)
        bad = b"d\x65ta"

        assert expected == explain(
            chunk, bad, window_checksums(ChecksumType.CRC32C, window_bytes, bad)
        )


def test_wrong_windows_are_those_whose_checksums_differ() -> None:
    """There are none without checksums, or with another number of them."""
    chunk = ChunkInfo(0, 300, ChecksumType.CRC32, 100, b"aaaabbbbcccc")

    assert (0, 2) == wrong_windows(chunk, b"aaaxbbbbxccc")
    assert () == wrong_windows(chunk, b"aaaabbbbcccc")
    assert () == wrong_windows(chunk, b"xxxxbbbb")
    assert () == wrong_windows(ChunkInfo(0, 300, ChecksumType.NONE, 100, b""), b"")


class TestPlaces:
    rows = (
        block(4, b"4" * 40_000, b"5" * 40_000),
        block(6, b"6" * 20_000, checksum_type=ChecksumType.MD5),
        block(8, b"8" * 40_000),
    )

    def wanted(self, position: int, *indexes: tuple[int, int, int]) -> UnexplainedChunk:
        """Return a damaged chunk of block 1 that holds windows of (row, chunk, window)."""
        windows = []
        for number, (row, chunk, window) in enumerate(indexes):
            sums = self.rows[row].chunks[chunk].window_checksums
            windows.append((10 + number, sums[4 * window : 4 * window + 4]))
        return UnexplainedChunk(position, BlockId(1), self.rows[0].chunks[0], tuple(windows))

    def test_the_place_of_the_first_window_is_told(self) -> None:
        """The text gives the place of the first window and the number of windows of the same
        chunk.
        """
        items = [
            self.wanted(3, (0, 1, 2), (2, 0, 0), (0, 1, 0)),
            self.wanted(5, (2, 0, 2)),
            UnexplainedChunk(7, BlockId(1), self.rows[0].chunks[0], ((0, b"none"),)),
        ]

        assert {
            3: "window 10 is window 2 of the chunk at 40000 of block 4; 2 of 3 are of that chunk",
            5: "window 10 is window 2 of the chunk at 0 of block 8; 1 of 1 are of that chunk",
        } == find_places(rows_of(self.rows), items)

    @pytest.mark.parametrize(
        "chunk",
        [
            ChunkInfo(0, 40_000, ChecksumType.CRC32, 16_384, bytes(12)),
            ChunkInfo(0, 40_000, ChecksumType.CRC32C, 8_192, bytes(12)),
        ],
        ids=["type", "window"],
    )
    def test_checksums_of_another_kind_are_not_compared(self, chunk: ChunkInfo) -> None:
        """
        Equal numbers mean nothing then.
        """
        window = self.rows[0].chunks[0].window_checksums[:4]

        assert {} == find_places(
            rows_of(self.rows), [UnexplainedChunk(0, BlockId(1), chunk, ((0, window),))]
        )

    def test_rows_that_are_damaged_are_passed_over(self) -> None:
        """Their length does not matter, and the other rows are searched."""
        rows = rows_of(self.rows)
        torn = [(BlockId(1), rows[0][1][:-3]), (BlockId(2), rows[0][1][:-8]), *rows]

        assert find_places(rows, [self.wanted(0, (0, 0, 1))]) == find_places(
            torn, [self.wanted(0, (0, 0, 1))]
        )

    def test_sixteen_windows_are_sought_at_most(self) -> None:
        """At most sixteen windows are looked up, and none if no window is wrong."""
        chunk = ChunkInfo(0, 2_000, ChecksumType.CRC32, 100, bytes(80))
        sums = bytes(range(80))

        found = unexplained_chunk(2, BlockId(1), chunk, sums, range(1, 20))

        windows = tuple((index, sums[4 * index : 4 * index + 4]) for index in range(1, 17))
        assert UnexplainedChunk(2, BlockId(1), chunk, windows) == found
        assert unexplained_chunk(2, BlockId(1), chunk, sums, ()) is None
