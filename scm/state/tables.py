"""The state in memory: one table per noun, with the indexes that calls need.

A table knows how its rows lie on disk but never touches it; `scm/state/database.py` does. `apply`
is the only way to change one, so that an undo is an `apply` of the value before; and it tells those
who keep count of what is settled (`State.settled`) which container is concerned.
"""

import struct
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from scm.state import records
from scm.state.facts import (
    Allocation,
    Container,
    ContainerState,
    Forgotten,
    Hold,
    Key,
    Kind,
    Node,
    Pending,
    Transaction,
)
from scm.state.quiet_containers import Settled, Stirred
from scm.state.replicas.wanted_counts import WantedCounts

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

LOADED_AT_ONCE: Final = 16_384  # rows
_ID: Final = struct.Struct(">Q")
ID_PAIR: Final = struct.Struct(">QQ")
KeyAt: TypeAlias = Callable[[int], bytes]


def id_key(number: int) -> bytes:
    """Return the LMDB key of an id; ids sort as numbers."""
    return _ID.pack(number)


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


class NodeTable(Table[str, Node]):
    """Registered datanodes by id."""

    def __init__(self) -> None:
        super().__init__(
            "nodes",
            key_bytes=str.encode,
            key_of=lambda node: node.datanode_id,
            row=records.node_row,
            value=records.node_from,
        )


class ContainerTable(Table[int, Container]):
    """Containers by id; the open ones by writer, the unfinished ones as a set.

    Most are closed, and nothing happens to them for months: these stay the rows that they are on
    disk until somebody asks for one. To decode millions at a start takes longer than to read them.
    """

    def __init__(self) -> None:
        super().__init__(
            "containers",
            key_bytes=id_key,
            key_of=lambda container: container.container_id,
            row=records.container_row,
            value=records.container_from,
            values=records.containers_from,
        )
        self._stored = cast("dict[int, Container | bytes]", self._rows)
        self._open_by_client: dict[str, set[int]] = {}
        self.closing: set[int] = set()
        self.states: Counter[ContainerState] = Counter()
        """How many are in each state."""
        self.touched: set[int] = set()
        """Containers that were set or removed since `scm.edge.health_totals` took these."""
        self.wanted = WantedCounts()

    def _take_in_rows(self, rows: Sequence[bytes]) -> None:
        found = records.at_rest(rows)
        is_other = np.ones(len(rows), np.bool_)
        is_other[found.places] = False
        others = np.flatnonzero(is_other).tolist()
        ids = np.zeros(len(rows), np.int64)
        ids[found.places] = found.ids
        self.wanted.set_all(ids[found.places], np.array(found.replica_counts, np.int64))
        stored: list[Container | bytes] = list(rows)
        decoded = records.containers_from([rows[place] for place in others])
        for place, value in zip(others, decoded, strict=True):
            ids[place], stored[place] = value.container_id, value
            self.states[value.state] += 1
            self._index(value)
            self.wanted.note(value.container_id, value)
        self.states[ContainerState.CLOSED] += len(found.ids)
        self._stored.update(zip(ids.tolist(), stored, strict=True))

    def get(self, key: int) -> Container | None:
        """Return a container, if there is one; it is decoded once."""
        found = self._stored.get(key)
        if isinstance(found, bytes):
            found = self._stored[key] = records.container_from(found)
        return found

    def values(self) -> list[Container]:
        """Return a snapshot of all containers."""
        stored = list(self._stored.values())
        made = iter(records.containers_from([one for one in stored if isinstance(one, bytes)]))
        return [next(made) if isinstance(one, bytes) else one for one in stored]

    def apply(self, key: int, value: Container | None) -> Container | None:
        """Set or remove, and keep the indexes."""
        self.touched.add(key)
        before = self.get(key)
        super().apply(key, value)
        self._stir(key)
        if before is not None:
            self.states[before.state] -= 1
        if value is not None:
            self.states[value.state] += 1
        if before is not None and before.state is ContainerState.OPEN:
            discard(self._open_by_client, before.client_id, key)
        self.closing.discard(key)
        if value is not None:
            self._index(value)
        self.wanted.note(key, value)
        return before

    def _index(self, value: Container) -> None:
        if value.state is ContainerState.OPEN:
            self._open_by_client.setdefault(value.client_id, set()).add(value.container_id)
        elif value.state in {ContainerState.CLOSING, ContainerState.QUASI_CLOSED}:
            self.closing.add(value.container_id)

    def ids(self) -> NDArray[np.int64]:
        """Return the ids of all containers."""
        return np.fromiter(self._rows, np.int64, len(self._rows))

    def missing(self, container_ids: Iterable[int]) -> list[int]:
        """Return which of some ids are of no container."""
        known = self._rows
        return [number for number in container_ids if number not in known]

    def at_rest(self, container_ids: Iterable[int]) -> list[int]:
        """Return which of some containers are closed, with nobody to wait for."""
        get, closed = self._stored.get, ContainerState.CLOSED
        return [
            number
            for number in container_ids
            if isinstance(found := get(number), bytes)
            or (found is not None and found.state is closed and not found.pipeline)
        ]

    def not_closed(self) -> list[Container]:
        """Return all that are in any state but closed."""
        closed = ContainerState.CLOSED
        found = (one for one in self._stored.values() if not isinstance(one, bytes))
        return [one for one in found if one.state is not closed]

    def open_of(self, client_id: str) -> list[Container]:
        """Return the open containers of one writer's session, oldest first."""
        return [self._rows[key] for key in sorted(self._open_by_client.get(client_id, ()))]

    def open_all(self) -> list[Container]:
        """Return all open containers."""
        return [self._rows[key] for keys in self._open_by_client.values() for key in keys]


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


class AllocationTable(PairTable[Allocation]):
    """Blocks promised to writers and not committed, by container and block."""

    def __init__(self) -> None:
        super().__init__(
            "allocations",
            key_of=lambda allocation: (allocation.container_id, allocation.local_id),
            row=records.allocation_row,
            value=records.allocation_from,
        )


class PendingTable(Table[int, Pending]):
    """Unanswered commands by id, by datanode in order, and by what they are about."""

    def __init__(self) -> None:
        super().__init__(
            "commands",
            key_bytes=id_key,
            key_of=lambda pending: pending.command_id,
            row=records.pending_row,
            value=records.pending_from,
        )
        self._by_node: dict[str, dict[int, None]] = {}
        self._by_target: dict[tuple[Kind, int, str], int] = {}
        self.by_container: dict[int, set[int]] = {}
        """The commands about each container about which there is one."""
        self._adds: dict[str, set[int]] = {}
        self.kinds: Counter[Kind] = Counter()
        """How many there are of each kind."""
        self.add_count = 0
        """Replicas on their way in the whole cluster, all targets of a reconstruction counted."""

    def apply(self, key: int, value: Pending | None) -> Pending | None:
        """Set or remove, and keep the indexes."""
        before = super().apply(key, value)
        pending = value or before
        if pending is None:
            return None
        self._stir(pending.container_id)
        self.kinds[pending.kind] += (value is not None) - (before is not None)
        target = (pending.kind, pending.container_id, pending.subject_id)
        if value is not None:
            for node in _targets(value):
                adds = self._adds.setdefault(node, set())
                self.add_count += key not in adds
                adds.add(key)
            self._by_node.setdefault(value.datanode_id, {})[key] = None
            self._by_target[target] = key
            self.by_container.setdefault(value.container_id, set()).add(key)
        else:
            ids = self._by_node[pending.datanode_id]
            del ids[key]
            if not ids:
                del self._by_node[pending.datanode_id]
            self._by_target.pop(target, None)
            discard(self.by_container, pending.container_id, key)
            for node in _targets(pending):
                self.add_count -= key in self._adds.get(node, ())
                discard(self._adds, node, key)
        return before

    @property
    def delete_count(self) -> int:
        """Replicas that are being removed in the whole cluster."""
        return self.kinds[Kind.DELETE]

    def of_node(self, datanode_id: str) -> list[Pending]:
        """Return the commands of one datanode, oldest first."""
        return [self._rows[key] for key in sorted(self._by_node.get(datanode_id, ()))]

    def count_of_node(self, datanode_id: str) -> int:
        """Return how many commands one datanode has not answered."""
        return len(self._by_node.get(datanode_id, ()))

    def adds_to(self, datanode_id: str) -> list[Pending]:
        """Return the commands that bring replicas to a datanode."""
        return [self._rows[key] for key in self._adds.get(datanode_id, ())]

    def about(self, kind: Kind, container_id: int, datanode_id: str) -> Pending | None:
        """Return the unanswered command of this kind for this replica, if any."""
        key = self._by_target.get((kind, container_id, datanode_id))
        return None if key is None else self._rows[key]

    def has_any(self, container_id: int) -> bool:
        """Whether any command about a container is pending."""
        return container_id in self.by_container

    def of_container(self, container_id: int) -> list[Pending]:
        """Return the commands about one container, oldest first."""
        return [self._rows[key] for key in sorted(self.by_container.get(container_id, ()))]


def _targets(command: Pending) -> tuple[str, ...]:
    """Return the datanodes that get a replica by this command."""
    if command.kind is Kind.REPLICATE:
        return (command.target_id,)
    return tuple(dict.fromkeys(node for _index, node in command.shards))


class TransactionTable(PairTable[Transaction]):
    """Block deletes by container and transaction, oldest first."""

    def __init__(self) -> None:
        super().__init__(
            "transactions",
            key_of=lambda transaction: (transaction.container_id, transaction.transaction_id),
            row=records.transaction_row,
            value=records.transaction_from,
        )


class HoldTable(Table[tuple[int, str], Hold]):
    """What nothing is ordered about, by container and datanode; no datanode: all of it."""

    def __init__(self) -> None:
        super().__init__(
            "holds",
            key_bytes=lambda key: id_key(key[0]) + key[1].encode(),
            key_of=lambda hold: (hold.container_id, hold.datanode_id),
            row=records.hold_row,
            value=records.hold_from,
        )

        self._by_container: dict[int, dict[str, Hold]] = {}

    def apply(self, key: tuple[int, str], value: Hold | None) -> Hold | None:
        """Set or remove, and keep the index."""
        container_id, datanode_id = key
        self._stir(container_id)
        if value is not None:
            self._by_container.setdefault(container_id, {})[datanode_id] = value
        elif (held := self._by_container.get(container_id)) is not None:
            held.pop(datanode_id, None)
            if not held:
                del self._by_container[container_id]
        return super().apply(key, value)

    def of(self, container_id: int) -> list[Hold]:
        """Return what is held of a container."""
        return list(self._by_container.get(container_id, {}).values())

    def is_suppressed(self, container_id: int) -> bool:
        """Whether a container is left alone as a whole."""
        return (container_id, "") in self._rows


class ForgottenTable(Table[int, Forgotten]):
    """Containers that were given up, by id."""

    def __init__(self) -> None:
        super().__init__(
            "forgotten",
            key_bytes=id_key,
            key_of=lambda forgotten: forgotten.container.container_id,
            row=records.forgotten_row,
            value=records.forgotten_from,
        )

    def lost_of(self, key: Key) -> list[int]:
        """Return the forgotten containers in which a key has blocks, ascending."""
        if not self._rows:
            return []
        return sorted({b.container_id for b in key.blocks if b.container_id in self._rows})


def discard(index: dict[K, set[int]], key: K, member: int) -> None:
    """Take a member out of an index of sets, and the set with its last."""
    members = index.get(key)
    if members is not None:
        members.discard(member)
        if not members:
            del index[key]
