"""Replicas in memory: one row of numbers per replica, in large blocks.

    block 0  | slot 0: unused | slot 1 | slot 2 | ...
    block 1  | slot 65,536 | ...

Each row has a fixed slot, which is the number of the row. A row contains the container id, numbers
that stand for texts, and the numbers of `scm.state.replicas.replica_rows`. The arena grows by whole
blocks, so rows are never copied when it grows. A snapshot shares the blocks with the arena. Before
a row of a shared block changes, the block is copied.
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
"""The numpy type of a replica in memory.

Texts are replaced by numbers. The field `nothing` makes the size of a row a multiple of 8 bytes.
"""
assert ROW.itemsize % 8 == 0
DATANODE_AT: Final[int] = ROW.fields["datanode"][1]  # type: ignore[index]
NUMBERS_AT: Final[int] = ROW.fields["state"][1]  # type: ignore[index]
_PLAIN: Final = np.dtype((np.void, ROW.itemsize))
NOBODY: Final = 0
"""The slot that no row uses. It means that there is no replica."""

Rows = NDArray[Any]
Slots = NDArray[np.int64]


class ReplicaArena:
    """Blocks of rows in memory, one row per replica.

    A slot is the number of a row. Slots of removed rows are used again.
    """

    def __init__(self) -> None:
        self._blocks: list[Rows] = []
        self._views: list[memoryview] = []
        self._shared: list[bool] = []
        self._free: list[int] = []
        self._top = 1

    def allocate(self, count: int) -> Slots:
        """Return `count` free slots. If many are requested, most of them are adjacent."""
        again = [self._free.pop() for _ in range(min(count, len(self._free)))]
        fresh = np.arange(self._top, self._top + count - len(again), dtype=np.int64)
        self._top += len(fresh)
        while len(self._blocks) << SHIFT < self._top:
            self._blocks.append(np.zeros(BLOCK_ROWS, ROW))
            self._views.append(_bytes_of(self._blocks[-1]))
            self._shared.append(False)
        return np.concatenate((np.array(again, np.int64), fresh))

    def free(self, slots: Slots) -> None:
        """Clear the rows in these slots, and make the slots available again."""
        self.write(slots, np.zeros(len(slots), ROW))
        self._free += slots.tolist()

    def read(self, slots: Slots) -> Rows:
        """Return a copy of the rows in these slots, in the given order."""
        return gathered(self._blocks, slots)

    def states(self, slots: Slots) -> NDArray[np.uint8]:
        """Return the numbers of the replica states in these slots."""
        found = np.empty(len(slots), np.uint8)
        for number, places, within in _by_block(slots):
            found[places] = self._blocks[number]["state"][within]
        return found

    def write(self, slots: Slots, rows: Rows) -> None:
        """Write rows to these slots."""
        for number, places, within in _by_block(slots):
            _plain(self._own(number))[within] = _plain(rows)[places]

    def at(self, slot: int) -> tuple[memoryview, int]:
        """Return a view of the bytes of a block, and the offset of one row in it.

        The caller must read the row before the arena changes.
        """
        return self._views[slot >> SHIFT], (slot & (BLOCK_ROWS - 1)) * ROW.itemsize

    def share(self) -> tuple[Rows, ...]:
        """Return all blocks as a snapshot that does not change. Empty rows have container id 0."""
        self._shared = [True] * len(self._blocks)
        return tuple(self._blocks)

    def _own(self, number: int) -> Rows:
        """Return a block that may be changed. If a snapshot shares the block, copy it first."""
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
    """Return a copy of some rows. `which` are their positions, or one boolean per row."""
    found: Rows = _plain(rows)[which].view(ROW)
    return found


def copied(rows: Rows) -> Rows:
    """Return a copy of all rows."""
    return _plain(rows).copy().view(ROW)


def _plain(rows: Rows) -> NDArray[np.void]:
    """Return a view of rows as opaque bytes.

    numpy copies structured rows field by field, which takes longer.
    """
    return rows.view(_PLAIN)


def _bytes_of(rows: Rows) -> memoryview:
    return rows.view(np.uint8).data


def _by_block(slots: Slots) -> Iterator[tuple[int, Any, Any]]:
    """Group slots by the block that contains them. Yield one item per block.

    An item has the number of the block, the positions in `slots`, and the positions in the block.
    The positions are slices if the slots are adjacent, as most slots of one datanode are.
    """
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
