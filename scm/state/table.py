"""The base of all tables of the state.

A table knows the format of its rows on disk but never touches the disk; `scm/state/database.py`
does. `apply` is the only way to change a table, so an undo is an `apply` of the earlier value.
`apply` also removes a changed container from the sets of settled containers
(`StateDatabase.settled`).
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
    """Return the LMDB key of an id; the keys sort like the numbers."""
    return _ID.pack(number)


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable garbage collection while millions of lasting values are created, because the time
    that it takes grows faster than their number."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def rows_on_disk(cursor: Callable[[], Any]) -> tuple[Iterator[bytes], KeyAt]:
    """Return the rows of a database in key order, and a function that returns a row's key. `cursor`
    opens an LMDB cursor. To read millions of keys together with the rows would take three times as
    long."""

    def key_at(place: int) -> bytes:
        keys = cursor().iternext(keys=True, values=False)
        return bytes(next(islice(keys, place, None)))

    return cursor().iternext(keys=False, values=True), key_at


class Table(Generic[K, V]):
    """A table in memory: values by key, and the format of their rows on disk."""

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
        """Return the value under `key`; None if there is none."""
        return self._rows.get(key)

    def values(self) -> list[V]:
        """Return a snapshot of all values."""
        return list(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def load(self, rows: Iterable[bytes], key_at: KeyAt) -> None:
        """Load rows from disk into an empty table. `key_at` returns the key of the row at a
        position. Raise DamagedRow if a row is damaged."""
        waiting, first = iter(rows), 0
        while portion := list(islice(waiting, LOADED_AT_ONCE)):
            self._load_portion(portion, first, key_at)
            first += len(portion)
        self._all_taken_in()

    def _load_portion(self, rows: Sequence[bytes], first: int, key_at: KeyAt) -> None:
        """Load a portion of rows; `first` is the position of its first row. Raise DamagedRow if a
        row is damaged."""
        try:
            self._load_rows(rows)
        except (ValueError, TypeError):
            self._find_damage(rows, first, key_at)
            raise

    def _load_rows(self, rows: Sequence[bytes]) -> None:
        self._load_values(self._values_of(rows))

    def _load_values(self, values: Sequence[V]) -> None:
        """Store values from disk. Their containers are not recorded as changed."""
        for value in values:
            self.apply(self.key_of(value), value)

    def _all_taken_in(self) -> None:
        """Finish the indexes after the last portion of rows is loaded. Subclasses with indexes
        override this method."""

    def _find_damage(self, rows: Iterable[bytes], first: int, key_at: KeyAt) -> None:
        """Raise DamagedRow, with the row's key, for the first row that cannot be decoded."""
        for place, row in enumerate(rows, first):
            try:
                self.value(row)
            except (ValueError, TypeError) as error:
                raise self.damaged(key_at(place), error) from error

    def damaged(self, key: bytes, error: Exception) -> records.DamagedRow:
        """Return the error for a row that cannot be decoded."""
        return records.DamagedRow(f"table {self.name}, key {key.hex()}: {error}")

    def apply(self, key: K, value: V | None) -> V | None:
        """Set a value or, with None, remove it; return the earlier value."""
        before = self._rows.get(key)
        if value is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = value
        return before

    def swap(self, key: K, value: V | None) -> Callable[[], object]:
        """Set or remove a value; return an undo function."""
        before = self.apply(key, value)
        return lambda: self.apply(key, before)

    def _mark_dirty(self, container_id: int) -> None:
        """Remove a container from all sets of settled containers, because it changed."""
        for settled in self.settled:
            settled.discard(container_id)


class PairTable(Table[tuple[int, int], V]):
    """Rows identified by a container and a number, with an index of the numbers of each
    container."""

    def __init__(
        self,
        name: str,
        *,
        key_of: Callable[[V], tuple[int, int]],
        rows: records.RowFormat[V],
    ) -> None:
        super().__init__(name, key_bytes=lambda key: ID_PAIR.pack(*key), key_of=key_of, rows=rows)
        self.by_container: dict[int, set[int]] = {}
        """By container: the numbers of its rows."""

    def apply(self, key: tuple[int, int], value: V | None) -> V | None:
        """Set or remove a row, and update the index."""
        before = super().apply(key, value)
        self._mark_dirty(key[0])
        if value is not None:
            self.by_container.setdefault(key[0], set()).add(key[1])
        else:
            discard(self.by_container, *key)
        return before

    def of(self, container_id: int) -> list[V]:
        """Return the rows of a container, lowest number first."""
        numbers = sorted(self.by_container.get(container_id, ()))
        return [self._rows[(container_id, number)] for number in numbers]

    def has_any(self, container_id: int) -> bool:
        """Return True if a container has rows in this table."""
        return container_id in self.by_container

    def container_ids(self) -> list[int]:
        """Return the containers that have rows in this table."""
        return list(self.by_container)


def discard(index: dict[K, set[int]], key: K, member: int) -> None:
    """Remove a member from a set in an index. Remove the set if it becomes empty."""
    members = index.get(key)
    if members is not None:
        members.discard(member)
        if not members:
            del index[key]
