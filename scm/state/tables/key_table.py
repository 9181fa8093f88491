"""The table of keys, with the blocks and commits that keys need in each container."""

import hashlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

from scm.state import records
from scm.state.entities import Key, KeyBlock
from scm.state.table import Table
from scm.state.tables.named_blocks import NamedBlocks


class KeyTable(Table[str, Key]):
    """Keys by name, and a sorted list of the names. A name may be longer than an LMDB key."""

    def __init__(self) -> None:
        super().__init__(
            "keys",
            key_bytes=lambda name: hashlib.blake2b(name.encode(), digest_size=32).digest(),
            key_of=lambda key: key.name,
            rows=records.KEY,
        )
        self._names: list[str] = []
        self._blocks_in: dict[int, int] = {}
        self._last_bcsids: dict[int, int] = {}
        self._named: NamedBlocks | None = None
        self._loose: set[int] = set()
        """Containers for which `_last_bcsids` has a commit that no key needs any more."""
        self.touched: set[int] = set()
        """Containers in which keys have added or removed blocks.

        `scm.api.health_totals` clears this set.
        """

    def _load_values(self, values: Sequence[Key]) -> None:
        """Store values from disk, in any order.

        The names are sorted after all values are loaded.
        """
        for value in values:
            self._rows[value.name] = value
            self._count_blocks(value)

    def _all_taken_in(self) -> None:
        self._names = sorted(self._rows)

    def apply(self, key: str, value: Key | None) -> Key | None:
        """Set or remove a key, and update the indexes. Return the earlier key."""
        before = super().apply(key, value)
        if self._named is not None:
            self._note_named(before, value)
        if value is not None:
            self._count_blocks(value)
            for block in value.blocks:
                self.touched.add(block.container_id)
                self._mark_dirty(block.container_id)
        for block in () if before is None else before.blocks:
            self._blocks_in[block.container_id] -= 1
            self.touched.add(block.container_id)
            self._mark_dirty(block.container_id)
            if block.bcsid == self._last_bcsids[block.container_id]:
                self._loose.add(block.container_id)
            if not self._blocks_in[block.container_id]:
                del self._blocks_in[block.container_id]
                del self._last_bcsids[block.container_id]
                self._loose.discard(block.container_id)
        if before is None and value is not None:
            insort(self._names, key)
        elif before is not None and value is None:
            del self._names[bisect_left(self._names, key)]
        return before

    def _count_blocks(self, value: Key) -> None:
        for block in value.blocks:
            number = block.container_id
            self._blocks_in[number] = self._blocks_in.get(number, 0) + 1
            if block.bcsid >= self._last_bcsids.get(number, 0):
                self._last_bcsids[number] = block.bcsid
                self._loose.discard(number)

    def _note_named(self, before: Key | None, value: Key | None) -> None:
        assert self._named is not None
        for key, count in ((before, -1), (value, 1)):
            if key is not None:
                self._named.add(key, count)
        if self._named.is_worn:
            self._named = None

    def named_among(self, places: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        """Return the blocks in `places` that belong to keys.

        A block is a pair of a container id and a block id. The first call reads all keys. Later
        calls read only the changes since then.
        """
        if not places:
            return set()
        if self._named is None:
            self._named = NamedBlocks(self._rows.values())
        return self._named.among(places)

    def forget_named(self) -> None:
        """Free the memory that `named_among` uses."""
        self._named = None

    def blocks_in(self, container_id: int) -> int:
        """Return the number of blocks in a container that belong to keys."""
        return self._blocks_in.get(container_id, 0)

    def blocks_in_each(self, container_ids: Sequence[int]) -> list[int]:
        """Return `blocks_in` for each of these containers."""
        get = self._blocks_in.get
        return [get(number, 0) for number in container_ids]

    def last_bcsid_in(self, container_id: int) -> int:
        """Return the last commit of a container that any present or earlier key needed.

        Return 0 if keys have no block in the container.
        """
        return self._last_bcsids.get(container_id, 0)

    def needed_bcsid_in(self, container_id: int) -> int:
        """Return the last commit of a container that a present key needs.

        Return 0 if it is uncertain.
        """
        return 0 if container_id in self._loose else self.last_bcsid_in(container_id)

    def last_bcsids_in(self, container_ids: Sequence[int]) -> list[int]:
        """Return `last_bcsid_in` for each of these containers."""
        get = self._last_bcsids.get
        return [get(number, 0) for number in container_ids]

    def last_bcsids(self) -> dict[int, int]:
        """Return `last_bcsid_in` for every container in which a key has a block."""
        return self._last_bcsids.copy()

    def blocks_behind(self, container_id: int, bcsid: int) -> list[tuple[KeyBlock, str]]:
        """Return the blocks of a container that keys need and that were committed after `bcsid`.

        Each block comes with the name of its key. The method scans all keys, so it is only used for
        an operator's request about one container.
        """
        return sorted(
            (
                (block, key.name)
                for key in self._rows.values()
                for block in key.blocks
                if block.container_id == container_id and block.bcsid > bcsid
            ),
            key=lambda found: found[0].bcsid,
        )

    def page(self, *, prefix: str, start_after: str, count: int) -> list[Key]:
        """Return up to `count` keys with this prefix whose names sort after `start_after`."""
        first = bisect_left(self._names, prefix)
        if start_after:
            first = max(first, bisect_right(self._names, start_after))
        names = []
        for name in self._names[first : first + count]:
            if not name.startswith(prefix):
                break
            names.append(name)
        return [self._rows[name] for name in names]
