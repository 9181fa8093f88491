"""Sums over runs of rows, and groups by several keys: as plain Python has them."""

import numpy as np
import pytest

from health.segmented_rows import Groups, Segments, first_that_holds, is_among, popcount

LOW, HIGH = -(1 << 63), (1 << 63) - 1
WIDE = 1 << 20

KEYS: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((),),
    ((5,),),
    ((3, 1, 3, 2, 1),),
    ((1_000, 0, 500, 0),),  # few of many: sorted, not counted
    ((-1, -1, 0, 0), (5, 4, 5, 5)),
    ((0, 0, 1, 1), (-7, -7, -7, 9), (2, 2, 1, 1)),
    ((HIGH, LOW, 0, HIGH), (1, 0, 0, 1)),  # wider than a word
    ((0, 1, 0, 1), (HIGH, LOW, HIGH, LOW + 1)),
    ((7, 7 + WIDE, 7), (1, 1, 1)),
    ((0, 0, 0, 1, 1, 2), (HIGH, LOW, HIGH, 7, 7, LOW)),  # wide, and mostly equal: as roots are
    ((0, 0, 1), (HIGH, HIGH, LOW), (1, 0, 0)),
    tuple((0, WIDE - 1, place % 2, place % 3) for place in range(5)),  # wider together
    tuple((WIDE - 1, 0, WIDE - 1, 0) for _ in range(8)),
)


@pytest.mark.parametrize("keys", KEYS)
def test_rows_with_equal_keys_are_one_group_in_the_order_of_the_keys(
    keys: tuple[tuple[int, ...], ...],
) -> None:
    """Rows with equal keys form one group, however far apart the numbers are."""
    rows = list(zip(*keys, strict=True))
    order = sorted(set(rows))

    found = Groups.of(*(np.array(key, dtype=np.int64) for key in keys))

    assert found.of_row.tolist() == [order.index(row) for row in rows]
    assert found.first.tolist() == [rows.index(row) for row in order]
    assert found.count == len(order)
    assert found.tally().tolist() == [rows.count(row) for row in order]
    mask = np.arange(len(rows)) % 2 == 0
    passed = [row for row, passes in zip(rows, mask, strict=True) if passes]
    assert found.tally(mask).tolist() == [passed.count(row) for row in order]
    assert found.some(mask).tolist() == [row in passed for row in order]


def test_sums_and_extremes_use_the_rows_of_each_owner() -> None:
    """Owners without rows count nothing and get the default, also the last one."""
    rows = Segments.of(np.array([0, 0, 2, 2, 2]), 4)
    values = np.array([5, -3, 1, 7, 2])
    mask = np.array([True, False, False, True, True])

    assert rows.count == 4
    assert rows.sizes().tolist() == [2, 0, 3, 0]
    assert rows.tally(mask).tolist() == [1, 0, 2, 0]
    assert rows.some(mask).tolist() == [True, False, True, False]
    assert rows.every(mask).tolist() == [False, True, False, True]
    assert rows.highest(values, -9, mask).tolist() == [5, -9, 7, -9]
    assert rows.highest(values, -9, ~mask).tolist() == [-3, -9, 1, -9]
    assert rows.total(values).tolist() == [2, 0, 10, 0]
    assert rows.bits(np.array([1, 2, 0, 62, 5]), mask).tolist() == [2, 0, (1 << 62) + 32, 0]


def test_no_rows_at_all_are_nothing() -> None:
    """No rows give no groups, for two owners and for none."""
    none = np.zeros(0, dtype=np.int64)

    assert Segments.of(none, 2).total(none).tolist() == [0, 0]
    assert Segments.of(none, 0).highest(none, 3, none == 0).tolist() == []


def test_sums_are_right_beyond_what_a_word_of_a_float_holds() -> None:
    """
    Whole numbers to the last bit, also where the sum of all rows is wider than a word.
    """
    rows = Segments.of(np.array([0, 0, 1, 2]), 3)

    found = rows.total(np.array([1 << 61, 1, HIGH, 5]))

    assert found.tolist() == [(1 << 61) + 1, HIGH, 5]


def test_first_rule_that_holds_counts() -> None:
    """If none holds, the default counts."""
    first, second = np.array([True, False, False]), np.array([True, True, False])

    assert first_that_holds([(first, 7), (second, 8)], 9).tolist() == [7, 8, 9]


def test_keys_are_found_among_sorted_ones_only() -> None:
    """
    Below the first, between, beyond the last, and where there is none.
    """
    keys = np.array([0, 1, 2, 5, 6])

    assert is_among(keys, np.array([1, 5])).tolist() == [False, True, False, True, False]
    assert is_among(keys, np.array([], dtype=np.int64)).tolist() == [False] * 5


def test_bits_are_counted() -> None:
    """
    All 63 that a mask may have.
    """
    assert popcount(np.array([0, 1, 6, (1 << 62) | 1])).tolist() == [0, 1, 2, 2]
