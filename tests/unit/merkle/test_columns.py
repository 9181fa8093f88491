"""A chunk's offset, length and health in one word."""

import numpy as np
import pytest

from merkle.columns import spans_of
from merkle.damaged import Damaged

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
def test_what_does_not_fit_is_refused(offset: int, length_bytes: int) -> None:
    """
    A number that is cut off would be another chunk.
    """
    with pytest.raises(Damaged, match="not possible"):
        spans_of(words(0, offset), words(1, length_bytes), np.array([True, True]))
