"""Rows of replicas in memory. Each replica has a fixed slot, a number that identifies its row.

    block 0  | slot 0: unused | slot 1 | slot 2 | ...
    block 1  | slot 65,536 | ...

A row contains the container id, the numbers of its words, and the numbers that
`scm.state.replicas.replica_rows` stores of a replica. There are millions of rows, in blocks. When
the arena grows, no row is copied. Snapshots share the blocks. A shared block is copied before one
of its rows changes.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scm.state.replicas import replica_rows

SHIFT: Final = 16
BLOCK_ROWS: Final = 1 << SHIFT
ROW: Final = np.dtype(
    [
        ("container_id", "<i8"),
        *((name, "<u4") for name in ("datanode", "origin", "volume", "error", "nothing")),
        *replica_rows.REPLICA_NUMBERS,
    ]
)
"""A replica in memory, as numpy reads it. Words are stored as numbers. `nothing` pads the row to a
multiple of 8 bytes."""
assert ROW.itemsize % 8 == 0
DATANODE_AT: Final[int] = ROW.fields["datanode"][1]  # type: ignore[index]
NUMBERS_AT: Final[int] = ROW.fields["state"][1]  # type: ignore[index]
_PLAIN: Final = np.dtype((np.void, ROW.itemsize))
NOBODY: Final = 0
"""The slot that no row uses."""

Rows = NDArray[Any]
Slots = NDArray[np.int64]


class ReplicaArena:
    """Blocks of rows in memory, one row per replica. A slot is the number of a row; freed slots are
    reused."""

    def __init__(self) -> None:
        self._blocks: list[Rows] = []
        self._views: list[memoryview] = []
        self._shared: list[bool] = []
        self._free: list[int] = []
        self._top = 1

    def allocate(self, count: int) -> Slots:
        """Return free slots; if many are requested, most are adjacent."""
        again = [self._free.pop() for _ in range(min(count, len(self._free)))]
        fresh = np.arange(self._top, self._top + count - len(again), dtype=np.int64)
        self._top += len(fresh)
        while len(self._blocks) << SHIFT < self._top:
            self._blocks.append(np.zeros(BLOCK_ROWS, ROW))
            self._views.append(_bytes_of(self._blocks[-1]))
            self._shared.append(False)
        return np.concatenate((np.array(again, np.int64), fresh))

    def free(self, slots: Slots) -> None:
        """Free these slots."""
        self.write(slots, np.zeros(len(slots), ROW))
        self._free += slots.tolist()

    def read(self, slots: Slots) -> Rows:
        """Return a copy of the rows in these slots, in the given order."""
        return gathered(self._blocks, slots)

    def states(self, slots: Slots) -> NDArray[np.uint8]:
        """Return the states of the rows in these slots, as numbers."""
        found = np.empty(len(slots), np.uint8)
        for number, places, within in _by_block(slots):
            found[places] = self._blocks[number]["state"][within]
        return found

    def write(self, slots: Slots, rows: Rows) -> None:
        """Set the rows in these slots."""
        for number, places, within in _by_block(slots):
            _plain(self._own(number))[within] = _plain(rows)[places]

    def at(self, slot: int) -> tuple[memoryview, int]:
        """Return a view of a block's bytes, and the offset of one row in it. The caller must read
        the row before the arena changes."""
        return self._views[slot >> SHIFT], (slot & (BLOCK_ROWS - 1)) * ROW.itemsize

    def share(self) -> tuple[Rows, ...]:
        """Return an immutable view of all blocks. The container id of an empty row is 0."""
        self._shared = [True] * len(self._blocks)
        return tuple(self._blocks)

    def _own(self, number: int) -> Rows:
        """Return a block that may be written; if the block is shared with a snapshot, copy it
        first."""
        if self._shared[number]:
            self._blocks[number] = copied(self._blocks[number])
            self._views[number] = _bytes_of(self._blocks[number])
            self._shared[number] = False
        return self._blocks[number]


def gathered(blocks: Sequence[Rows], slots: Slots) -> Rows:
    """Return a copy of the rows in these slots of the blocks, in the given order."""
    found = np.empty(len(slots), ROW)
    for number, places, within in _by_block(slots):
        _plain(found)[places] = _plain(blocks[number])[within]
    return found


def picked(rows: Rows, which: NDArray[Any]) -> Rows:
    """Return a copy of some rows, by positions or by a mask."""
    found: Rows = _plain(rows)[which].view(ROW)
    return found


def copied(rows: Rows) -> Rows:
    """Return a copy of all rows."""
    return _plain(rows).copy().view(ROW)


def _plain(rows: Rows) -> NDArray[np.void]:
    """Return a view of rows as opaque bytes, because numpy copies structured rows field by
    field."""
    return rows.view(_PLAIN)


def _bytes_of(rows: Rows) -> memoryview:
    return rows.view(np.uint8).data


def _by_block(slots: Slots) -> Iterator[tuple[int, Any, Any]]:
    """Yield (number of the block, positions in `slots`, slots within the block) for each block that
    contains some of the slots. The last two are slices if the slots are adjacent, as most slots of
    one datanode are."""
    if not len(slots):
        return
    first, last = int(slots[0]), int(slots[-1])
    if last - first == len(slots) - 1 and (np.diff(slots) == 1).all():
        for number in range(first >> SHIFT, (last >> SHIFT) + 1):
            start, stop = max(first, number << SHIFT), min(last + 1, (number + 1) << SHIFT)
            base = number << SHIFT
            yield number, slice(start - first, stop - first), slice(start - base, stop - base)
        return
    block = (slots >> SHIFT).astype(np.uint16)  # a stable sort of these takes a third of the time
    order = np.argsort(block, kind="stable")
    ascending = block[order]
    bounds = np.flatnonzero(np.diff(ascending)) + 1
    for start, stop in pairwise((0, *bounds.tolist(), len(order))):
        places = order[start:stop]
        yield int(ascending[start]), places, slots[places] & (BLOCK_ROWS - 1)
