"""Arithmetic over runs of rows: a million small groups at the price of a few passes.

    rows      r0 r1 r2 | r3 | r4 r5 |      sorted by their owner
    starts    0          3    4       6    owner i has rows starts[i] to starts[i + 1]

Owners without rows are allowed everywhere: they count nothing and get the default.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_SPAN_MAX = 1 << 20
"""A key that spans more is numbered first, so that several fit into one word."""

_KEY_MAX = 1 << 62


@dataclass(frozen=True, slots=True)
class Segments:
    """Rows and whose they are: `owner[r]` ascends, `starts` has one element more than owners."""

    owner: Ints
    starts: Ints

    @classmethod
    def of(cls, owner: Ints, count: int) -> "Segments":
        """Return the segments of rows whose owners, numbered below `count`, ascend."""
        return cls(owner, np.searchsorted(owner, np.arange(count + 1)))

    @property
    def count(self) -> int:
        """How many owners there are."""
        return len(self.starts) - 1

    def sizes(self) -> Ints:
        """Return how many rows each owner has."""
        return np.diff(self.starts)

    def tally(self, mask: Bools) -> Ints:
        """Return how many rows of each owner pass."""
        return np.bincount(self.owner[mask], minlength=self.count)

    def some(self, mask: Bools) -> Bools:
        """Return whether any row of an owner passes."""
        found = np.zeros(self.count, dtype=np.bool_)
        found[self.owner[mask]] = True
        return found

    def every(self, mask: Bools) -> Bools:
        """Return whether all rows of an owner pass, as they do where there is none."""
        return ~self.some(~mask)

    def highest(self, values: Ints, default: int, mask: Bools) -> Ints:
        """Return each owner's highest value among the rows that pass."""
        return self._reduced(np.maximum, np.where(mask, values, default), default)

    def total(self, values: Ints) -> Ints:
        """Return each owner's sum, in whole numbers."""
        return self._reduced(np.add, values, 0)

    def bits(self, places: Ints, mask: Bools) -> Ints:
        """Return each owner's mask of the places, below 63, whose rows pass."""
        return self._reduced(np.bitwise_or, np.where(mask, np.int64(1) << places, 0), 0)

    def _reduced(self, operation: np.ufunc, values: Ints, default: int) -> Ints:
        result = np.full(self.count, default, dtype=np.int64)
        filled = self.sizes() > 0
        if filled.any():
            result[filled] = operation.reduceat(values, self.starts[:-1][filled])
        return result


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows that share all of some keys; groups are numbered in the order of their keys."""

    of_row: Ints
    """The group of each row."""
    first: Ints
    """A row of each group: the first."""

    @classmethod
    def of(cls, *keys: NDArray[Any]) -> "Groups":
        """Group rows by their keys, the first of which weighs most."""
        key = _joined(keys)
        order = np.argsort(key, kind="stable")
        ordered = key[order]
        is_new = np.ones(len(key), dtype=np.bool_)
        is_new[1:] = ordered[1:] != ordered[:-1]
        of_row = np.empty(len(key), dtype=np.int64)
        of_row[order] = np.cumsum(is_new) - 1
        return cls(of_row, order[is_new])

    @property
    def count(self) -> int:
        """How many groups there are."""
        return len(self.first)

    def tally(self, mask: Bools | None = None) -> Ints:
        """Return how many rows of each group pass."""
        rows = self.of_row if mask is None else self.of_row[mask]
        return np.bincount(rows, minlength=self.count)

    def some(self, mask: Bools) -> Bools:
        """Return whether any row of a group passes."""
        found = np.zeros(self.count, dtype=np.bool_)
        found[self.of_row[mask]] = True
        return found


def _joined(keys: tuple[NDArray[Any], ...]) -> Ints:
    """Return one number per row that orders rows as all keys together do."""
    total = np.zeros(len(keys[0]), dtype=np.int64)
    if not len(total):
        return total
    width = 1
    for key in keys:
        low = int(key.min())
        span = int(key.max()) - low + 1
        numbers = key.astype(np.int64)
        if span > _SPAN_MAX:
            found, numbers = np.unique(numbers, return_inverse=True)
            low, span = 0, len(found)
        if width * span >= _KEY_MAX:
            found, total = np.unique(total, return_inverse=True)
            width = len(found)
        total = total * span + (numbers - low)
        width *= span
    return total


def is_among(keys: Ints, sorted_keys: Ints) -> Bools:
    """Return which keys are among others, which must be sorted."""
    if not len(sorted_keys):
        return np.zeros(len(keys), dtype=np.bool_)
    places = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return sorted_keys[places] == keys


def popcount(masks: Ints) -> Ints:
    """Return how many bits are set in each mask."""
    return np.bitwise_count(masks).astype(np.int64)
