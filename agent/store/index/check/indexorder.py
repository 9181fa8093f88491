"""Check of the key order of an index: each key must be where a search would find it.

LMDB finds a row by comparing keys from the root downwards, without any checks. If a key is changed
or a page is misplaced, a search does not find an existing row. LMDB then adds a duplicate row, and
iteration over a container ends too early.

The pages are read in the order of the file. This module checks them in key order, level by level,
as columns.
"""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from agent.store.index.check.indexpages import Bytes, Numbers, PageFault, PageNodes

Keys: TypeAlias = npt.NDArray[np.bytes_]  # of equal length, compared as bytes
_LOWEST: Final = b""


class KeyOrder:
    """Checks the order of the keys of one database, level by level from its root.

    `_lows` has the lowest allowed key of each page of the current level. These bounds are the keys
    of the level above.
    """

    def __init__(self, key_bytes: int, *, is_native: bool) -> None:
        """Begin at the root of a database, whose keys have `key_bytes` bytes each.

        `is_native` is True if the keys are numbers in this machine's byte order, and False if they
        are big-endian.
        """
        self._key_bytes = key_bytes
        self._is_native = is_native
        self._lows: Keys = self._made(1)
        self._begin()

    def _begin(self) -> None:
        self._firsts, self._lasts = self._made(len(self._lows)), self._made(len(self._lows))
        self._branches: list[tuple[Numbers, Keys, npt.NDArray[np.bool_]]] = []

    def add_branches(self, pages: Bytes, nodes: PageNodes, places: Numbers) -> None:
        """Add nodes of branch pages.

        `places` has the position in the level of the page of each node.
        """
        self._branches.append((places, self._keys(pages, nodes), nodes.is_first))

    def add_leaves(self, pages: Bytes, nodes: PageNodes, places: Numbers, level: Numbers) -> None:
        """Add nodes of leaf pages. Raise `PageFault` if the keys within a page are not ascending.

        `places` has the position in the level of the page of each node. `level` has the page
        numbers.
        """
        keys, is_first = self._keys(pages, nodes), nodes.is_first
        _expect((keys[1:] > keys[:-1]) | is_first[1:], level[places[1:]])
        is_last = np.append(is_first[1:], True)
        self._firsts[places[is_first]] = keys[is_first]
        self._lasts[places[is_last]] = keys[is_last]

    def end_branches(self) -> None:
        """Continue with the next lower level, after all branch pages of this level were added.

        `end_leaves` later compares the keys of the branches with the leaves. That comparison
        detects branches that are out of order.
        """
        places, keys, is_first = (
            np.concatenate(column) for column in zip(*self._branches, strict=True)
        )
        in_order = np.argsort(places, kind="stable")
        places, keys, is_first = places[in_order], keys[in_order], is_first[in_order]
        keys[is_first] = self._lows[places[is_first]]  # the first key of a branch is unused
        self._lows = keys
        self._begin()

    def end_leaves(self, level: Numbers) -> None:
        """Compare the leaf keys with the keys of the level above.

        Raise `PageFault` if one is out of order.
        """
        _expect(self._firsts[1:] >= self._lows[1:], level[1:])
        _expect(self._lasts[:-1] < self._lows[1:], level[:-1])

    def _keys(self, pages: Bytes, nodes: PageNodes) -> Keys:
        flat, size = pages.reshape(-1), self._key_bytes
        everywhere: Keys = np.ndarray(len(flat) - size + 1, f"S{size}", flat, strides=(1,))
        # the first key of a branch may be shorter, and end at the last byte
        at = np.minimum(nodes.data_at - nodes.key_bytes, len(everywhere) - 1)
        keys: Keys = everywhere[at]
        if self._is_native:
            turned = np.ascontiguousarray(keys.view(np.uint8).reshape(-1, size)[:, ::-1])
            keys = turned.view(keys.dtype)[:, 0]
        return keys

    def _made(self, count: int) -> Keys:
        return np.full(count, _LOWEST, f"S{self._key_bytes}")


def _expect(is_good: npt.NDArray[np.bool_], numbers: Numbers) -> None:
    if not is_good.all():
        raise PageFault(f"page {numbers[~is_good][0]} has a key that is not in its place")
