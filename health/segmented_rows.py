"""Operations over groups of adjacent rows: a million small groups in a few numpy passes.

    rows      r0 r1 r2 | r3 | r4 r5 |      sorted by their owner
    starts    0          3    4       6    owner i has rows starts[i] to starts[i + 1]

An owner may have no rows. Its counts are then 0, and its other results are the default.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_SPAN_MAX = 1 << 20
"""Keys with a larger range of values are replaced by their ranks, so that several keys fit into one
word."""

_KEY_MAX = 1 << 62

_DENSE = 8
"""Rows are grouped by counting if there are at most this many possible keys per row; otherwise by
sorting."""


@dataclass(frozen=True, slots=True)
class Segments:
    """Rows and their owners. Row r belongs to `owner[r]`, and `owner` ascends. Owner i has the rows
    from `starts[i]` to before `starts[i + 1]`.
    """

    owner: Ints
    starts: Ints

    @classmethod
    def of(cls, owner: Ints, count: int) -> "Segments":
        """Return the segments of rows. `owner` has the owner of each row, ascending and below
        `count`."""
        starts = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(np.bincount(owner, minlength=count), out=starts[1:])
        return cls(owner, starts)

    @property
    def count(self) -> int:
        """Number of owners."""
        return len(self.starts) - 1

    def sizes(self) -> Ints:
        """Return how many rows each owner has."""
        return np.diff(self.starts)

    def tally(self, mask: Bools) -> Ints:
        """Return how many rows of each owner are in the mask."""
        return np.bincount(self._passing(mask), minlength=self.count)

    def by_code(self, mask: Bools, codes: Ints, width: int) -> Ints:
        """Return an array with a row for each code below `width`: the number of each owner's rows
        in the mask that have the code."""
        rows = np.flatnonzero(mask)
        keys = codes[rows] * self.count + self.owner[rows]
        return np.bincount(keys, minlength=self.count * width).reshape(width, -1)

    def some(self, mask: Bools) -> Bools:
        """Return a mask of the owners that have a row in the mask."""
        found = np.zeros(self.count, dtype=np.bool_)
        found[self._passing(mask)] = True
        return found

    def every(self, mask: Bools) -> Bools:
        """Return a mask of the owners whose rows are all in the mask; True for owners without
        rows."""
        return ~self.some(~mask)

    def highest(self, values: Ints, default: int, mask: Bools) -> Ints:
        """Return the highest value of each owner's rows in the mask, but at least `default`."""
        found = np.full(self.count, default, dtype=np.int64)
        rows = np.flatnonzero(mask)
        np.maximum.at(found, self.owner[rows], values[rows])
        return found

    def total(self, values: Ints) -> Ints:
        """Return the sum of the values of each owner's rows."""
        sums = np.zeros(len(values) + 1, dtype=np.int64)
        np.cumsum(values, out=sums[1:])
        return np.diff(sums[self.starts])

    def bits(self, places: Ints, mask: Bools) -> Ints:
        """Return, for each owner, a number in which bit `places[row]` is set for each of its rows
        in the mask. Places must be below 63."""
        found = np.zeros(self.count, dtype=np.int64)
        rows = np.flatnonzero(mask)
        np.bitwise_or.at(found, self.owner[rows], np.int64(1) << places[rows])
        return found

    def _passing(self, mask: Bools) -> Ints:
        return self.owner[np.flatnonzero(mask)]  # three times as fast as indexing by mask


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows with equal keys; groups are numbered in the order of their keys."""

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
        """Group rows by keys below `width`, by marking occurring keys, which is cheaper than
        sorting."""
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
        """Return how many rows of each group are in the mask."""
        rows = self.of_row if mask is None else self.of_row[np.flatnonzero(mask)]
        return np.bincount(rows, minlength=self.count)

    def some(self, mask: Bools) -> Bools:
        """Return a mask of the groups that have a row in the mask."""
        found = np.zeros(self.count, dtype=np.bool_)
        found[self.of_row[np.flatnonzero(mask)]] = True
        return found


def _combine_keys(keys: tuple[NDArray[Any], ...]) -> tuple[Ints, int]:
    """Return one number per row that sorts the rows like all keys together. Also return an upper
    bound of the numbers."""
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
    """Return the rank of each value of `key`, and the number of ranks. The ranks are comparable
    only among rows with the same `total`, the combination of the earlier keys.

    Roots are as wide as a word, and nearly all rows of a container have the same root. Therefore
    only the containers with different roots are sorted; all other rows have rank 0.
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
    """Return, for each element, the code of the first (mask, code) rule whose mask is True there;
    `default` if there is none."""
    found = np.full(len(rules[0][0]), default, dtype=np.int64)
    for mask, code in reversed(rules):
        np.copyto(found, code, where=mask)
    return found


def is_among(keys: Ints, sorted_keys: Ints) -> Bools:
    """Return a mask of the keys that are in `sorted_keys`."""
    if not len(sorted_keys):
        return np.zeros(len(keys), dtype=np.bool_)
    places = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return sorted_keys[places] == keys


def first_of_run(values: Ints) -> Bools:
    """Return a mask of the values that differ from the previous value, and of the first value."""
    is_first = np.ones(len(values), dtype=np.bool_)
    is_first[1:] = values[1:] != values[:-1]
    return is_first


def popcount(masks: Ints) -> Ints:
    """Return how many bits are set in each mask."""
    return np.bitwise_count(masks).astype(np.int64)
