"""Whether the keys of an index lie where a search looks for them.

LMDB finds a row by comparing keys on its way down, and believes what it meets: where one key is
another than it was, or a page is that of another place, a row that is there is not found, another
one is made beside it, and a walk over a container ends too early. Pages are read as they lie in the
file; here they are judged in the order of their keys, level by level, as columns.
"""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from agent.store.index.check.indexpages import Bytes, Nodes, Numbers, PageFault

Keys: TypeAlias = npt.NDArray[np.bytes_]  # all of one length: compared byte by byte
_LOWEST: Final = b""


class KeyOrder:
    """The keys of one database, from its root on. `lows` are those from which on each page of a
    level has keys, as the level above says; the first page has none."""

    def __init__(self, key_bytes: int, *, is_native: bool) -> None:
        """`is_native`: keys are numbers as this machine has them, not big-endian."""
        self._key_bytes = key_bytes
        self._is_native = is_native
        self._lows: Keys = self._made(1)
        self._begin()

    def _begin(self) -> None:
        self._firsts, self._lasts = self._made(len(self._lows)), self._made(len(self._lows))
        self._branches: list[tuple[Numbers, Keys, npt.NDArray[np.bool_]]] = []

    def take_branches(self, pages: Bytes, nodes: Nodes, places: Numbers) -> None:
        """Take branches; `places` say which page of the level each node is in."""
        self._branches.append((places, self._keys(pages, nodes), nodes.is_first))

    def take_leaves(self, pages: Bytes, nodes: Nodes, places: Numbers, level: Numbers) -> None:
        """Take leaves of a level with these pages. Raises `PageFault`."""
        keys, is_first = self._keys(pages, nodes), nodes.is_first
        _expect((keys[1:] > keys[:-1]) | is_first[1:], level[places[1:]])
        is_last = np.append(is_first[1:], True)
        self._firsts[places[is_first]] = keys[is_first]
        self._lasts[places[is_last]] = keys[is_last]

    def end_branches(self) -> None:
        """Go on to the level below, as all branches of this one were taken. What they say is
        compared with the leaves: between them nothing can be out of order unseen."""
        places, keys, is_first = (
            np.concatenate(column) for column in zip(*self._branches, strict=True)
        )
        in_order = np.argsort(places, kind="stable")
        places, keys, is_first = places[in_order], keys[in_order], is_first[in_order]
        keys[is_first] = self._lows[places[is_first]]  # the first key of a branch says nothing
        self._lows = keys
        self._begin()

    def end_leaves(self, level: Numbers) -> None:
        """Compare the leaves, all of which were taken, with the level above. Raises `PageFault`."""
        _expect(self._firsts[1:] >= self._lows[1:], level[1:])
        _expect(self._lasts[:-1] < self._lows[1:], level[:-1])

    def _keys(self, pages: Bytes, nodes: Nodes) -> Keys:
        flat, size = pages.reshape(-1), self._key_bytes
        everywhere: Keys = np.ndarray(len(flat) - size + 1, f"S{size}", flat, strides=(1,))
        # the first key of a branch may be shorter, and lie at the very end
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
