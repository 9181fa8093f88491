"""What all tables of the state have in common.

A table knows how its rows lie on disk but never touches it; `scm/state/database.py` does. `apply`
is the only way to change one, so that an undo is an `apply` of the value before; and it tells those
who keep count of what is settled (`State.settled`) which container is concerned.
"""

import gc
import struct
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, Generic, TypeAlias, TypeVar

from scm.state import records
from scm.state.quiet_containers import Settled, Stirred

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

LOADED_AT_ONCE: Final = 16_384  # rows
_ID: Final = struct.Struct(">Q")
ID_PAIR: Final = struct.Struct(">QQ")
KeyAt: TypeAlias = Callable[[int], bytes]


def id_key(number: int) -> bytes:
    """Return the LMDB key of an id; ids sort as numbers."""
    return _ID.pack(number)


@contextmanager
def without_collection() -> Iterator[None]:
    """Look for no garbage while millions of values are made that all stay: it is not linear."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def rows_on_disk(cursor: Callable[[], Any]) -> tuple[Iterator[bytes], KeyAt]:
    """Return the rows of a database in the order of their keys, and what says which key one has.
    `cursor` opens one of LMDB's. With their keys millions of rows take three times as long."""

    def key_at(place: int) -> bytes:
        keys = cursor().iternext(keys=True, values=False)
        return bytes(next(islice(keys, place, None)))

    return cursor().iternext(keys=False, values=True), key_at


class Table(Generic[K, V]):
    """Rows by key."""

    def __init__(
        self,
        name: str,
        *,
        key_bytes: Callable[[K], bytes],
        key_of: Callable[[V], K],
        row: Callable[[V], bytes],
        value: Callable[[bytes], V],
        values: Callable[[Sequence[bytes]], list[V]] | None = None,
    ) -> None:
        """`values` does as `value` of many rows at once: for a table of millions."""
        self.name: Final = name
        self.key_bytes: Final = key_bytes
        self.key_of: Final = key_of
        self.row: Final = row
        self.value: Final = value
        self._values_of: Final = values or (lambda rows: [value(row) for row in rows])
        self._rows: dict[K, V] = {}
        self.settled: list[Settled | Stirred] = []

    def get(self, key: K) -> V | None:
        """Return the value under `key`, if any."""
        return self._rows.get(key)

    def values(self) -> list[V]:
        """Return a snapshot of all values."""
        return list(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def load(self, rows: Iterable[bytes], key_at: KeyAt) -> None:
        """Take rows in as they were on disk, into an empty table; `key_at` says which key the row
        at a place has. Raises DamagedRow."""
        waiting, first = iter(rows), 0
        while portion := list(islice(waiting, LOADED_AT_ONCE)):
            self._load_portion(portion, first, key_at)
            first += len(portion)
        self._all_taken_in()

    def _load_portion(self, rows: Sequence[bytes], first: int, key_at: KeyAt) -> None:
        """Take in rows of which the first is at the place `first`. Raises DamagedRow."""
        try:
            self._take_in_rows(rows)
        except (ValueError, TypeError):
            self._find_damage(rows, first, key_at)
            raise

    def _take_in_rows(self, rows: Sequence[bytes]) -> None:
        self._take_in(self._values_of(rows))

    def _take_in(self, values: Sequence[V]) -> None:
        """Take in what comes from the disk; nobody has to be told."""
        for value in values:
            self.apply(self.key_of(value), value)

    def _all_taken_in(self) -> None:
        """Do what is left to do when all has come from the disk."""

    def _find_damage(self, rows: Iterable[bytes], first: int, key_at: KeyAt) -> None:
        """Raise DamagedRow, with its key, for the first row that cannot be understood."""
        for place, row in enumerate(rows, first):
            try:
                self.value(row)
            except (ValueError, TypeError) as error:
                raise self.damaged(key_at(place), error) from error

    def damaged(self, key: bytes, error: Exception) -> records.DamagedRow:
        """Return what to raise for a row that cannot be understood."""
        return records.DamagedRow(f"table {self.name}, key {key.hex()}: {error}")

    def apply(self, key: K, value: V | None) -> V | None:
        """Set or, with None, remove; return what was there before."""
        before = self._rows.get(key)
        if value is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = value
        return before

    def swap(self, key: K, value: V | None) -> Callable[[], object]:
        """Set or remove; return what puts back what was there before."""
        before = self.apply(key, value)
        return lambda: self.apply(key, before)

    def _stir(self, container_id: int) -> None:
        """Note that something about a container changes."""
        for settled in self.settled:
            settled.discard(container_id)


class PairTable(Table[tuple[int, int], V]):
    """Rows by a container and a number in it, with the numbers of each container."""

    def __init__(
        self,
        name: str,
        *,
        key_of: Callable[[V], tuple[int, int]],
        row: Callable[[V], bytes],
        value: Callable[[bytes], V],
    ) -> None:
        super().__init__(
            name, key_bytes=lambda key: ID_PAIR.pack(*key), key_of=key_of, row=row, value=value
        )
        self.by_container: dict[int, set[int]] = {}
        """The numbers of each container that has rows."""

    def apply(self, key: tuple[int, int], value: V | None) -> V | None:
        """Set or remove, and keep the index."""
        before = super().apply(key, value)
        self._stir(key[0])
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
        """Whether there is a row of this container."""
        return container_id in self.by_container

    def container_ids(self) -> list[int]:
        """Return the containers that have rows."""
        return list(self.by_container)


def discard(index: dict[K, set[int]], key: K, member: int) -> None:
    """Take a member out of an index of sets, and the set with its last."""
    members = index.get(key)
    if members is not None:
        members.discard(member)
        if not members:
            del index[key]
