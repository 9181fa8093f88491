"""Index of the blocks that keys name, for lookups of many blocks at a time."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from scm.state.entities import Key

CHANGES_MAX: Final = 1_000_000
"""Maximum number of blocks that changed since the index was built. Beyond it, a new index needs
less memory."""


class NamedBlocks:
    """The blocks of all keys, in 16 bytes each, and the changes since the index was built."""

    def __init__(self, keys: Iterable[Key]) -> None:
        numbers = (
            number
            for key in keys
            for block in key.blocks
            for number in (block.container_id, block.local_id)
        )
        self._sorted = np.sort(_packed(np.fromiter(numbers, dtype=np.uint64)))
        self._changes: dict[tuple[int, int], int] = {}  # keys added minus keys removed

    @property
    def is_worn(self) -> bool:
        """Return True if so many blocks changed that a new index should replace this one."""
        return len(self._changes) > CHANGES_MAX

    def add(self, key: Key, count: int) -> None:
        """Record that a key with its blocks was added (`count` 1) or removed (-1)."""
        for block in key.blocks:
            place = block.container_id, block.local_id
            self._changes[place] = self._changes.get(place, 0) + count

    def among(self, places: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        """Return the blocks in `places`, each a pair (container id, block id), that belong to
        keys."""
        asked = _packed(np.array(places, dtype=np.uint64).ravel())
        first, end = (np.searchsorted(self._sorted, asked, side=side) for side in ("left", "right"))
        counts = (end - first).tolist()
        changes = self._changes.get
        return {
            place for place, count in zip(places, counts, strict=True)
            if count + changes(place, 0) > 0
        }  # fmt: skip


def _packed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    """Return each pair of numbers as 16 bytes that sort like the pair."""
    return numbers.astype(">u8").view("S16")
