"""An index of the blocks of all keys, for lookups of many blocks at once."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from scm.state.entities import Key

CHANGES_MAX: Final = 1_000_000
"""Maximum number of changed blocks since the index was built.

With more changes, a new index needs less memory than this one.
"""


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
        """Return True if so many blocks have changed that a new index should replace this one."""
        return len(self._changes) > CHANGES_MAX

    def add(self, key: Key, count: int) -> None:
        """Record that a key with its blocks was added (`count` is 1) or removed (`count` is -1)."""
        for block in key.blocks:
            place = block.container_id, block.local_id
            self._changes[place] = self._changes.get(place, 0) + count

    def among(self, places: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        """Return the blocks in `places` that belong to keys.

        A block is a pair of a container id and a block id.
        """
        asked = _packed(np.array(places, dtype=np.uint64).ravel())
        first, end = (np.searchsorted(self._sorted, asked, side=side) for side in ("left", "right"))
        counts = (end - first).tolist()
        changes = self._changes.get
        return {
            place for place, count in zip(places, counts, strict=True)
            if count + changes(place, 0) > 0
        }  # fmt: skip


def _packed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    """Encode each pair of numbers as 16 bytes, in the same order as the pairs."""
    return numbers.astype(">u8").view("S16")
