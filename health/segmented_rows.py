"""Operations on groups of rows, which process a million small groups in a few numpy calls.

    rows      r0 r1 r2 | r3 | r4 r5 |      sorted by their owner
    starts    0          3    4       6    owner i has rows starts[i] to starts[i + 1]

An owner may have no rows. The number of its rows is then 0, and its other results are the default.
A mask is a boolean array with one value per row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_SPAN_MAX = 1 << 20
"""Keys with a larger range of values are replaced by their ranks, so that several keys fit into a
64-bit number."""

_KEY_MAX = 1 << 62

_DENSE = 8
"""If there are at most this many possible keys per row, rows are grouped by counting; otherwise by
sorting."""


@dataclass(frozen=True, slots=True)
class Segments:
    """Rows with their owners. Row r belongs to `owner[r]`, and the values of `owner` ascend. Owner
    i has the rows from `starts[i]` up to, but not including, `starts[i + 1]`."""

    owner: Ints
    starts: Ints

    @classmethod
    def of(cls, owner: Ints, count: int) -> "Segments":
        """Return the segments for the rows whose owners are `owner`. The values of `owner` must
        ascend and be below `count`."""
        starts = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(np.bincount(owner, minlength=count), out=starts[1:])
        return cls(owner, starts)

    @property
    def count(self) -> int:
        """Number of owners."""
        return len(self.starts) - 1

    def sizes(self) -> Ints:
        """Return the number of rows of each owner."""
        return np.diff(self.starts)

    def tally(self, mask: Bools) -> Ints:
        """Return the number of rows of each owner for which `mask` is True."""
        return np.bincount(self._passing(mask), minlength=self.count)

    def by_code(self, mask: Bools, codes: Ints, width: int) -> Ints:
        """Return an array of shape (width, owners): the number of rows of each owner that have each
        code. Only rows for which `mask` is True are counted."""
        rows = np.flatnonzero(mask)
        keys = codes[rows] * self.count + self.owner[rows]
        return np.bincount(keys, minlength=self.count * width).reshape(width, -1)

    def some(self, mask: Bools) -> Bools:
        """Return, for each owner, True if `mask` is True for at least one of its rows."""
        found = np.zeros(self.count, dtype=np.bool_)
        found[self._passing(mask)] = True
        return found

    def every(self, mask: Bools) -> Bools:
        """Return, for each owner, True if `mask` is True for all its rows. The result is True for
        an owner without rows."""
        return ~self.some(~mask)

    def highest(self, values: Ints, default: int, mask: Bools) -> Ints:
        """Return the highest of each owner's `values` for which `mask` is True, but at least
        `default`."""
        found = np.full(self.count, default, dtype=np.int64)
        rows = np.flatnonzero(mask)
        np.maximum.at(found, self.owner[rows], values[rows])
        return found

    def total(self, values: Ints) -> Ints:
        """Return the sum of the `values` of each owner's rows."""
        sums = np.zeros(len(values) + 1, dtype=np.int64)
        np.cumsum(values, out=sums[1:])
        return np.diff(sums[self.starts])

    def bits(self, places: Ints, mask: Bools) -> Ints:
        """Return an integer for each owner, in which bit `places[row]` is set for each of its rows
        in `mask`. The places must be below 63."""
        found = np.zeros(self.count, dtype=np.int64)
        rows = np.flatnonzero(mask)
        np.bitwise_or.at(found, self.owner[rows], np.int64(1) << places[rows])
        return found

    def _passing(self, mask: Bools) -> Ints:
        return self.owner[np.flatnonzero(mask)]  # three times as fast as indexing by mask


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of rows with equal keys. The groups are numbered in the order of their keys."""

    of_row: Ints
    """The group of each row."""
    first: Ints
    """The first row of each group."""

    @classmethod
    def of(cls, *keys: NDArray[Any]) -> "Groups":
        """Return the groups of rows with equal keys; the first key is the primary one."""
        key, width = _combine_keys(keys)
        if ascends(key):  # usual for the rows of a batch
            is_new = first_of_run(key)
            return cls(np.cumsum(is_new) - 1, np.flatnonzero(is_new))
        if width <= _DENSE * len(key):
            return cls._counted(key, width)
        order = np.argsort(key, kind="stable")
        is_new = first_of_run(key[order])
        of_row = np.empty(len(key), dtype=np.int64)
        of_row[order] = np.cumsum(is_new) - 1
        return cls(of_row, order[is_new])

    @classmethod
    def _counted(cls, key: Ints, width: int) -> "Groups":
        """Group rows whose keys are below `width`. The function marks the keys that occur, which is
        cheaper than sorting."""
        occurs = np.zeros(width, dtype=np.bool_)
        occurs[key] = True
        of_row = (np.cumsum(occurs) - 1)[key]
        first = np.empty(np.count_nonzero(occurs), dtype=np.int64)
        first[of_row[::-1]] = np.arange(len(key))[::-1]  # the last assignment stays: the first row
        return cls(of_row, first)

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.first)

    def tally(self, mask: Bools | None = None) -> Ints:
        """Return the number of rows of each group; with `mask`, of the rows for which it is
        True."""
        rows = self.of_row if mask is None else self.of_row[np.flatnonzero(mask)]
        return np.bincount(rows, minlength=self.count)

    def some(self, mask: Bools) -> Bools:
        """Return, for each group, True if `mask` is True for at least one of its rows."""
        found = np.zeros(self.count, dtype=np.bool_)
        found[self.of_row[np.flatnonzero(mask)]] = True
        return found


def _combine_keys(keys: tuple[NDArray[Any], ...]) -> tuple[Ints, int]:
    """Return one number per row, so that sorting by this number sorts the rows by all keys. Also
    return an upper bound of the numbers."""
    total = np.zeros(len(keys[0]), dtype=np.int64)
    if not len(total):
        return total, 1
    width = 1
    for key in keys:
        low = int(key.min())
        span = int(key.max()) - low + 1
        numbers = key.astype(np.int64, copy=False)
        if span > _SPAN_MAX:
            numbers, span = _ranks(total, numbers)
            low = 0
        if width * span >= _KEY_MAX:
            found, total = np.unique(total, return_inverse=True)
            width = len(found)
        total = numbers - low if width == 1 else total * span + (numbers - low)
        width *= span
    return total, width


def _ranks(total: Ints, key: Ints) -> tuple[Ints, int]:
    """Return the rank of each value of `key` in sorted order, and the number of ranks.

    The ranks of two rows are comparable only if the rows have the same `total`, the combination of
    the earlier keys. Roots have 64 bits, and nearly all rows of a container have the same root.
    Therefore, only the rows of containers with different roots are sorted; all other rows have rank
    0.
    """
    odd = np.arange(len(key))
    if ascends(total):
        is_new = first_of_run(total)
        run = np.cumsum(is_new) - 1
        is_mixed = np.zeros(int(run[-1]) + 1, dtype=np.bool_)
        is_mixed[run[key != key[is_new][run]]] = True
        odd = np.flatnonzero(is_mixed[run])
    numbers = np.zeros(len(key), dtype=np.int64)
    found, numbers[odd] = np.unique(key[odd], return_inverse=True)
    return numbers, max(1, len(found))


def ascends(values: Ints) -> bool:
    """Return True if no value is less than the previous value."""
    return bool((values[1:] >= values[:-1]).all())


def first_that_holds(rules: Sequence[tuple[Bools, int]], default: int) -> Ints:
    """Return, for each element, the code of the first rule (mask, code) whose mask is True for the
    element. Return `default` if there is none."""
    found = np.full(len(rules[0][0]), default, dtype=np.int64)
    for mask, code in reversed(rules):
        np.copyto(found, code, where=mask)
    return found


def is_among(keys: Ints, sorted_keys: Ints) -> Bools:
    """Return, for each key, True if it is in `sorted_keys`."""
    if not len(sorted_keys):
        return np.zeros(len(keys), dtype=np.bool_)
    places = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return sorted_keys[places] == keys


def first_of_run(values: Ints) -> Bools:
    """Return, for each value, True if it differs from the previous value. The result is True for
    the first value."""
    is_first = np.ones(len(values), dtype=np.bool_)
    is_first[1:] = values[1:] != values[:-1]
    return is_first


def popcount(masks: Ints) -> Ints:
    """Return the number of set bits in each integer."""
    return np.bitwise_count(masks).astype(np.int64)
