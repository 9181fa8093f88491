"""A chunk's offset, length and health in one word."""

import numpy as np
import pytest

from merkle.damaged_data import DamagedData
from merkle.replica import ID_MAX
from merkle.tree_columns import Column, check_shape, spans_of

OFFSET_LAST = 2**36 - 1
LENGTH_LAST = 2**27 - 1


def words(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return numbers as a column."""
    return np.array(numbers, dtype=np.uint64)


def test_a_span_has_its_published_layout() -> None:
    """
    Offset from bit 28 on, length from bit 1 on, health below; up to the largest of each.
    """
    spans = spans_of(words(5, OFFSET_LAST), words(3, LENGTH_LAST), np.array([False, True]))

    assert [5 << 28 | 3 << 1, 2**64 - 1] == spans.tolist()


@pytest.mark.parametrize(
    ("offset", "length_bytes"), [(OFFSET_LAST + 1, 1), (0, LENGTH_LAST + 1), (2**63, 2**63)]
)
def test_chunk_out_of_range_is_refused(offset: int, length_bytes: int) -> None:
    """A truncated number would describe another chunk."""
    with pytest.raises(DamagedData, match="not possible"):
        spans_of(words(0, offset), words(1, length_bytes), np.array([True, True]))


def column(dtype: str, *values: int) -> Column:
    """Return values as a column of a type."""
    return np.array(values, dtype=dtype)


# Three blocks: of two chunks, deleted, of one chunk.
SHAPE = {
    "block_ids": column("u8", 3, 5, ID_MAX),
    "block_checksums": column("u8", 7, 8, 9),
    "deleted": column("?", 0, 1, 0),
    "chunk_starts": column("u4", 0, 2, 2, 3),
    "chunk_spans": column("u8", 0 << 28, 1 << 28, 0 << 28),
    "chunk_checksums": column("u8", 1, 2, 3),
}


def test_columns_that_fit_are_a_tree() -> None:
    """
    Ids up to the largest, offsets that begin again with each block; also no blocks at all.
    """
    check_shape(**SHAPE)
    check_shape(
        **{name: values[:0] for name, values in SHAPE.items()} | {"chunk_starts": column("u4", 0)}
    )


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"block_checksums": column("u8", 7, 8)}, "columns of 3 blocks"),
        ({"deleted": column("?", 0, 1, 0, 0)}, "columns of 3 blocks"),
        ({"chunk_starts": column("u4", 0, 2, 3)}, "columns of 3 blocks"),
        ({"chunk_starts": column("u4", 1, 2, 2, 3)}, "starts do not ascend from 0"),
        ({"chunk_starts": column("u4", 0, 3, 2, 3)}, "starts do not ascend from 0"),
        ({"chunk_starts": column("u4", 0, 2, 2, 1)}, "starts do not ascend from 0"),
        ({"chunk_starts": column("u4", 0, 1, 1, 2)}, "have 2 chunks, there are 3 spans"),
        ({"chunk_spans": column("u8", 0, 1 << 28)}, "there are 2 spans and 3 leaves"),
        ({"chunk_checksums": column("u8", 1, 2)}, "there are 3 spans and 2 leaves"),
        ({"block_ids": column("u8", 3, 3, 9)}, "ids do not ascend"),
        ({"block_ids": column("u8", 3, 9, 5)}, "ids do not ascend"),
        ({"block_ids": column("u8", 3, 5, ID_MAX + 1)}, "ids do not ascend"),
        ({"deleted": column("?", 1, 0, 0)}, "a tombstone has chunks"),
        ({"deleted": column("?", 0, 0, 1)}, "a tombstone has chunks"),
        ({"chunk_spans": column("u8", 1 << 28, 1 << 28, 0)}, "offsets do not ascend"),
        ({"chunk_spans": column("u8", 2 << 28, 1 << 28, 0)}, "offsets do not ascend"),
        ({"chunk_spans": column("u8", 0, 1 << 27, 0)}, "offsets do not ascend"),
    ],
    ids=str,
)
def test_columns_that_do_not_fit_are_refused(changed: dict[str, Column], complaint: str) -> None:
    """
    With what is wrong, before anything is folded.
    """
    with pytest.raises(DamagedData, match=complaint):
        check_shape(**SHAPE | changed)
