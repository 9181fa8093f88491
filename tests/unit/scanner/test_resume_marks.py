"""A mark covers what lies before it and is not in doubt, to the byte."""

import pytest

from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo
from scanner.resume import DOUBTS_MAX, MARK_BYTES_MIN, ScanMark, ScanMarkRecorder, no_mark

MIB = 1024**2
MARK = ScanMark(
    BlockId(5), 100, frozenset({(BlockId(5), 40, 20), (BlockId(3), 0, 10), (BlockId(3), 90, 10)}), 7
)


def chunks(*spans: tuple[int, int]) -> tuple[ChunkInfo, ...]:
    """Return chunks that begin and end there."""
    return tuple(ChunkInfo(start, end - start, ChecksumType.NONE, 0, b"") for start, end in spans)


@pytest.mark.parametrize(("block_id", "is_covered"), [(2, True), (3, False), (4, True), (5, False)])
def test_blocks_before_the_mark_are_covered_unless_in_doubt(
    block_id: int, is_covered: bool
) -> None:
    """
    The mark lies inside of its own block.
    """
    assert is_covered is MARK.covers_block(BlockData(BlockId(block_id), Bcsid(1)))


@pytest.mark.parametrize(
    ("block_id", "spans", "is_covered"),
    [
        (5, [(0, 40)], True),
        (5, [(60, 100)], True),
        (5, [(0, 41)], False),
        (5, [(59, 100)], False),
        (5, [(45, 50)], False),
        (5, [(0, 100)], False),
        (5, [(0, 20), (20, 40)], True),
        (5, [(30, 40), (40, 60), (60, 70)], False),
        (5, [(60, 101)], False),
        (6, [(0, 1)], False),
        (4, [(0, 1_000)], True),
        (3, [(10, 90)], True),
        (3, [(10, 91)], False),
        (3, [(9, 90)], False),
    ],
    ids=str,
)
def test_chunks_before_the_mark_are_covered_unless_in_doubt(
    block_id: int, spans: list[tuple[int, int]], is_covered: bool
) -> None:
    """
    A byte of doubt is enough to read them again; a neighbour is none.
    """
    assert is_covered is MARK.covers(BlockId(block_id), chunks(*spans))


class TestMarker:
    def test_a_mark_is_offered_for_every_mebibyte_that_was_read(self) -> None:
        """
        Counted from the last one that was offered.
        """
        marks: list[ScanMark] = []
        marker = ScanMarkRecorder(marks.append, None)

        marker.passed(BlockId(1), 10, MIB - 1)
        assert [] == marks
        marker.passed(BlockId(1), 20, MIB)
        marker.passed(BlockId(1), 30, 2 * MIB - 1)
        marker.passed(BlockId(2), 5, 2 * MIB)

        assert MARK_BYTES_MIN == MIB
        assert [
            ScanMark(BlockId(1), 20, frozenset(), MIB),
            ScanMark(BlockId(2), 5, frozenset(), 2 * MIB),
        ] == marks

    def test_mark_is_never_before_the_one_resumed_from(self) -> None:
        """The mark is not at the same place either, and the bytes count on from there."""
        marks: list[ScanMark] = []
        marker = ScanMarkRecorder(marks.append, ScanMark(BlockId(5), 100, frozenset(), 3 * MIB))

        marker.passed(BlockId(9), 1, 4 * MIB - 1)
        marker.passed(BlockId(4), 900, 4 * MIB)
        marker.passed(BlockId(5), 100, 4 * MIB)
        assert [] == marks
        marker.passed(BlockId(5), 101, 4 * MIB)

        assert [ScanMark(BlockId(5), 101, frozenset(), 4 * MIB)] == marks

    @pytest.mark.parametrize(("block_id", "end", "count"), [(0, 0, 0), (0, 1, 1), (1, 0, 1)])
    def test_the_first_lies_behind_the_first_byte(
        self, block_id: int, end: int, count: int
    ) -> None:
        """
        A mark at the beginning would say nothing.
        """
        marks: list[ScanMark] = []

        ScanMarkRecorder(marks.append, None).passed(BlockId(block_id), end, MIB)

        assert count == len(marks)

    @pytest.mark.parametrize(("count", "is_offered"), [(1_000, True), (1_001, False)])
    def test_doubts_go_with_it_as_long_as_they_are_few(self, count: int, is_offered: bool) -> None:
        """No mark is kept for a replica with too many doubts."""
        marks: list[ScanMark] = []
        marker = ScanMarkRecorder(marks.append, None)
        doubts = [(BlockId(number), 2, 3) for number in range(count)]
        for doubt in doubts:
            marker.mark_for_reread(*doubt)

        marker.passed(BlockId(5_000), 1, MIB)

        assert DOUBTS_MAX == 1_000
        expected = [ScanMark(BlockId(5_000), 1, frozenset(doubts), MIB)] if is_offered else []
        assert expected == marks

    def test_a_scan_that_is_not_resumed_keeps_none(self) -> None:
        """
        Marks go nowhere.
        """
        ScanMarkRecorder(no_mark, None).passed(BlockId(1), 1, MIB)
