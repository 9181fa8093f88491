"""Chunks that lie side by side are one read, up to a size."""

import pytest

from merkle.replica import ChecksumType, ChunkInfo
from scanner.chunk_verdict import Witnesses
from scanner.rows.spans import expected_wholes, spans_of


def chunks(*spans: tuple[int, int]) -> tuple[ChunkInfo, ...]:
    """Return chunks that begin and end there."""
    return tuple(ChunkInfo(start, end - start, ChecksumType.NONE, 0, b"") for start, end in spans)


@pytest.mark.parametrize(
    ("spans", "groups"),
    [
        ([], []),
        ([(0, 30)], [1]),
        ([(0, 4), (4, 10)], [2]),
        ([(0, 4), (4, 11)], [1, 1]),
        ([(0, 4), (5, 9)], [1, 1]),
        ([(0, 30), (30, 35), (35, 40)], [1, 2]),
        ([(20, 24), (24, 28), (28, 30), (30, 31)], [3, 1]),
        ([(0, 5), (5, 10), (10, 15), (15, 20), (20, 25)], [2, 2, 1]),
    ],
    ids=str,
)
def test_chunks_are_grouped_into_reads_of_ten_bytes(
    spans: list[tuple[int, int]], groups: list[int]
) -> None:
    """
    A gap ends a group, and so does the size; a larger chunk is a group of its own.
    """
    found = list(spans_of(chunks(*spans), 10))

    assert groups == [len(group) for group in found]
    assert chunks(*spans) == tuple(chunk for group in found for chunk in group)


def test_expected_checksum_of_a_chunk_is_found_by_its_place() -> None:
    """Without witnesses for whole chunks, nothing is expected."""

    def windows(*_: object) -> bytes:
        return b""

    some = chunks((0, 4), (4, 9))

    assert {} == expected_wholes(some, Witnesses(windows, windows))
    assert {(0, 4): 11, (4, 9): 22} == expected_wholes(
        some, Witnesses(windows, windows, wholes=lambda _: [11, 22])
    )
