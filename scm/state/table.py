"""The base class of all tables of the state.

A table defines the format of its rows on disk, but it never accesses the disk;
`scm/state/database.py` does. `apply` is the only method that changes a table. Therefore, a change
is undone by calling `apply` with the earlier value. `apply` also removes a changed container from
the sets of containers that need no check (`StateDatabase.settled`).
"""

import gc
import struct
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, Generic, TypeAlias, TypeVar

from scm.state import records
from scm.state.container_queues import ContainerBitmap, DirtyContainers

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

LOADED_AT_ONCE: Final = 16_384  # rows per portion
_ID: Final = struct.Struct(">Q")
ID_PAIR: Final = struct.Struct(">QQ")
KeyAt: TypeAlias = Callable[[int], bytes]


def id_key(number: int) -> bytes:
    """Return the LMDB key of an id. The keys have the same order as the ids."""
    return _ID.pack(number)


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable garbage collection while the body runs.

    It is used while millions of objects are created, because the time of a collection grows with
    their number and none of them can be freed.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def rows_on_disk(cursor: Callable[[], Any]) -> tuple[Iterator[bytes], KeyAt]:
    """Return the rows of a database in the order of their keys, and a function for the keys.

    The function returns the key of the row at a position. `cursor` opens an LMDB cursor. The keys
    are not read with the rows, because this would take three times as long for millions of rows.
    """

    def key_at(place: int) -> bytes:
        keys = cursor().iternext(keys=True, values=False)
        return bytes(next(islice(keys, place, None)))

    return cursor().iternext(keys=False, values=True), key_at


class Table(Generic[K, V]):
    """A table in memory: its values by key, and the format of their rows on disk."""

    def __init__(
        self,
        name: str,
        *,
        key_bytes: Callable[[K], bytes],
        key_of: Callable[[V], K],
        rows: records.RowFormat[V],
    ) -> None:
        self.name: Final = name
        self.key_bytes: Final = key_bytes
        self.key_of: Final = key_of
        self.row: Final = rows.row
        self.value: Final = rows.value
        self._values_of: Final = rows.values
        self._rows: dict[K, V] = {}
        self.settled: list[ContainerBitmap | DirtyContainers] = []

    def get(self, key: K) -> V | None:
        """Return the value for `key`. Return None if there is none."""
        return self._rows.get(key)

    def values(self) -> list[V]:
        """Return a snapshot of all values."""
        return list(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def load(self, rows: Iterable[bytes], key_at: KeyAt) -> None:
        """Load rows from disk into an empty table.

        `key_at` returns the key of the row at a position. Raise DamagedRow if a row is damaged.
        """
        waiting, first = iter(rows), 0
        while portion := list(islice(waiting, LOADED_AT_ONCE)):
            self._load_portion(portion, first, key_at)
            first += len(portion)
        self._all_taken_in()

    def _load_portion(self, rows: Sequence[bytes], first: int, key_at: KeyAt) -> None:
        """Load some rows. `first` is the position of the first of them among all rows.

        Raise DamagedRow if a row is damaged.
        """
        try:
            self._load_rows(rows)
        except (ValueError, TypeError):
            self._find_damage(rows, first, key_at)
            raise

    def _load_rows(self, rows: Sequence[bytes]) -> None:
        self._load_values(self._values_of(rows))

    def _load_values(self, values: Sequence[V]) -> None:
        """Store values from disk. Their containers do not count as changed."""
        for value in values:
            self.apply(self.key_of(value), value)

    def _all_taken_in(self) -> None:
        """Complete the indexes after all rows are loaded.

        Subclasses with such indexes override this method.
        """

    def _find_damage(self, rows: Iterable[bytes], first: int, key_at: KeyAt) -> None:
        """Raise DamagedRow, with the key of the row, for the first row that cannot be decoded."""
        for place, row in enumerate(rows, first):
            try:
                self.value(row)
            except (ValueError, TypeError) as error:
                raise self.damaged(key_at(place), error) from error

    def damaged(self, key: bytes, error: Exception) -> records.DamagedRow:
        """Return the error for a row that cannot be decoded."""
        return records.DamagedRow(f"table {self.name}, key {key.hex()}: {error}")

    def apply(self, key: K, value: V | None) -> V | None:
        """Set the value of a key, or remove it if `value` is None. Return the earlier value."""
        before = self._rows.get(key)
        if value is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = value
        return before

    def swap(self, key: K, value: V | None) -> Callable[[], object]:
        """Set or remove a value. Return a function that undoes this."""
        before = self.apply(key, value)
        return lambda: self.apply(key, before)

    def _mark_dirty(self, container_id: int) -> None:
        """Record in all sets of `settled` that a container changed."""
        for settled in self.settled:
            settled.discard(container_id)


class PairTable(Table[tuple[int, int], V]):
    """A table whose key is a container id and a second number.

    An index has the second numbers for each container.
    """

    def __init__(
        self,
        name: str,
        *,
        key_of: Callable[[V], tuple[int, int]],
        rows: records.RowFormat[V],
    ) -> None:
        super().__init__(name, key_bytes=lambda key: ID_PAIR.pack(*key), key_of=key_of, rows=rows)
        self.by_container: dict[int, set[int]] = {}
        """For each container, the second numbers of its rows."""

    def apply(self, key: tuple[int, int], value: V | None) -> V | None:
        """Set or remove a row, and update the index. Return the earlier row."""
        before = super().apply(key, value)
        self._mark_dirty(key[0])
        if value is not None:
            self.by_container.setdefault(key[0], set()).add(key[1])
        else:
            discard(self.by_container, *key)
        return before

    def of(self, container_id: int) -> list[V]:
        """Return the rows of a container, sorted by the second number."""
        numbers = sorted(self.by_container.get(container_id, ()))
        return [self._rows[(container_id, number)] for number in numbers]

    def has_any(self, container_id: int) -> bool:
        """Return True if a container has rows in this table."""
        return container_id in self.by_container

    def container_ids(self) -> list[int]:
        """Return the containers that have rows in this table."""
        return list(self.by_container)


def discard(index: dict[K, set[int]], key: K, member: int) -> None:
    """Remove a member from the set of a key. Remove the key if the set becomes empty."""
    members = index.get(key)
    if members is not None:
        members.discard(member)
        if not members:
            del index[key]
