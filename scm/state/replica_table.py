"""The replicas in memory: packed, because there are millions of them."""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from merkle.replica import ReplicaState
from scm.state import records
from scm.state.facts import Replica
from scm.state.tables import Table, discard, id_key

_WORD: Final = struct.Struct("=I")
_END: Final = b"\0"  # of a datanode's id in a key: no id has it, and it sorts before all others
_NAMES_KNOWN_MAX: Final = 100_000  # while rows are read: different names of replicas, some 20 MB
_WORDS: Final = struct.Struct("=4I")  # of a packed replica: datanode, origin, volume, error
_FLAGS_AT: Final = _WORDS.size + records.FLAGS_AT

_COLUMNS: Final = np.dtype(
    [
        *((name, "=u4") for name in ("datanode", "origin", "volume", "error")),
        *records.REPLICA_NUMBERS,
    ]
)
"""A packed replica as numpy reads it."""

UNSETTLED_STATES: Final = frozenset(
    {ReplicaState.OPEN, ReplicaState.CLOSING, ReplicaState.QUASI_CLOSED}
)
"""Replica states that a close command may still move."""


class ReplicaTable(Table[tuple[int, str], Replica]):
    """Replicas by container and datanode, and container ids by datanode.

    There are millions of them: each is kept as packed numbers, behind the numbers that stand for
    its words, and becomes a `Replica` when it is asked for. On disk those of one datanode lie
    together, because they are reported together: a report of 10,000 changes hundreds of pages, and
    not as many as there are replicas in it.
    """

    def __init__(self) -> None:
        super().__init__(
            "replicas_by_node",
            key_bytes=lambda key: key[1].encode() + _END + id_key(key[0]),
            key_of=lambda replica: (replica.container_id, replica.datanode_id),
            row=records.replica_row,
            value=records.replica_from,
        )
        self._packed: dict[int, tuple[bytes, ...]] = {}
        self._by_node: dict[str, set[int]] = {}
        self._names: list[str] = []
        self._name_numbers: dict[str, int] = {}
        self._count = 0
        self.unsettled: set[int] = set()
        self.recovering_count = 0
        self.touched: set[int] = set()
        """Containers whose replicas were set or removed since `scm.edge.totals` took these."""

    def get(self, key: tuple[int, str]) -> Replica | None:
        """Return one datanode's replica of a container, if reported."""
        packed = self._find(*key)
        return None if packed is None else self._replica(key[0], packed)

    def values(self) -> "Sequence[Replica]":  # type: ignore[override]
        """Return a snapshot of all replicas; each is unpacked as it is reached."""
        return Unpacked(self, list(self._packed.items()), self._count)

    def __len__(self) -> int:
        return self._count

    def load(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Take rows in as they were on disk, by ascending key, into an empty table.

        A row is checked and packed, and nothing is made of it: there are millions, and everybody
        waits. Raises DamagedRow.
        """
        known: dict[bytes, bytes] = {}
        unsettled = {records.state_byte(state) for state in UNSETTLED_STATES}
        recovering = records.state_byte(ReplicaState.RECOVERING)
        packed = self._packed
        for key, row in rows:
            try:
                container_id, numbers, names = records.replica_split(row)
                words = known.get(names)
                if words is None:
                    if len(known) >= _NAMES_KNOWN_MAX:
                        known.clear()
                    words = known[names] = self._words(records.names_of(names))
            except ValueError as error:
                raise self.damaged(key, error) from error
            packed[container_id] = (*packed.get(container_id, ()), words + numbers)
            if numbers[0] in unsettled:
                self.unsettled.add(container_id)
            self.recovering_count += numbers[0] == recovering
            self._count += 1
        held_by: dict[bytes, list[int]] = {}
        for container_id, held in packed.items():  # one int for all of its replicas
            for one in held:
                held_by.setdefault(one[: _WORD.size], []).append(container_id)
        self._by_node = {
            self._names[_WORD.unpack(word)[0]]: set(ids) for word, ids in held_by.items()
        }

    def apply(self, key: tuple[int, str], value: Replica | None) -> Replica | None:
        """Set or remove, and keep the indexes."""
        before = self._place(*key, self._pack(value))
        return None if before is None else self._replica(key[0], before)

    def swap(self, key: tuple[int, str], value: Replica | None) -> Callable[[], object]:
        """Set or remove; return what puts back what was there before, which stays packed."""
        return partial(self._place, *key, self._place(*key, self._pack(value)))

    @staticmethod
    def node_of_key(key: bytes) -> bytes:
        """Return the datanode id in a key."""
        return key[: -len(_END + id_key(0))]

    @staticmethod
    def key_since_6(key: bytes) -> bytes:
        """Return the key of what had `key` before version 6: then the container came first."""
        return key[8:] + _END + key[:8]

    def confirm(self, replica: Replica) -> bool:
        """Whether a replica is known just so; then only the time of the report is taken.

        That is in memory only, and it stays whatever becomes of the change it came with.
        """
        held = self._packed.get(replica.container_id, ())
        at = self._at(held, replica.datanode_id)
        if at < 0:
            return False
        packed = self._pack(replica)
        assert packed is not None
        if not records.is_same_but_for_time(held[at], packed, first=_WORDS.size):
            return False
        self._packed[replica.container_id] = (*held[:at], packed, *held[at + 1 :])
        return True

    def may_be_empty(self, container_id: int, without: Collection[str] = ()) -> bool:
        """Whether no replica of a container says that it holds anything; not those of `without`."""
        for one in self._packed.get(container_id, ()):
            is_empty = records.is_empty_byte(one[_FLAGS_AT])
            if not is_empty and (not without or self._node_of(one) not in without):
                return False  # as the first one nearly always does
        return True

    def of(self, container_id: int) -> tuple[Replica, ...]:
        """Return all replicas of a container, by datanode id."""
        packed = self._packed.get(container_id, ())
        return tuple(self._replica(container_id, one) for one in packed)

    def columns(self, container_ids: Iterable[int]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return how many replicas each of these containers has, and all of them as one array.

        They come container by container, and by datanode id; the fields `datanode`, `origin` and
        `error` are numbers of words (`words`), the others those of `records.REPLICA_NUMBERS`.
        """
        held = [self._packed.get(container_id, ()) for container_id in container_ids]
        counts = np.fromiter(map(len, held), np.int64, len(held))
        return counts, np.frombuffer(b"".join(chain.from_iterable(held)), _COLUMNS)

    def words(self, numbers: Iterable[int]) -> list[str]:
        """Return the words that stand behind numbers of `columns`."""
        return [self._names[number] for number in numbers]

    def container_ids(self) -> list[int]:
        """Return the ids of all containers that have a replica."""
        return list(self._packed)

    def on(self, datanode_id: str) -> frozenset[int]:
        """Return the ids of the containers that a datanode holds."""
        return frozenset(self._by_node.get(datanode_id, ()))

    def count_on(self, datanode_id: str) -> int:
        """Return how many replicas a datanode holds."""
        return len(self._by_node.get(datanode_id, ()))

    def unpack(self, container_id: int, packed: Sequence[bytes]) -> Iterator[Replica]:
        """Yield the replicas of a container from what `values` took."""
        return (self._replica(container_id, one) for one in packed)

    def _place(self, container_id: int, datanode_id: str, packed: bytes | None) -> bytes | None:
        self.touched.add(container_id)
        self._stir(container_id)
        held = self._packed.get(container_id, ())
        at = self._at(held, datanode_id)
        before = None if at < 0 else held[at]
        others = held if at < 0 else held[:at] + held[at + 1 :]
        if packed is None:
            held = others
            discard(self._by_node, datanode_id, container_id)
        elif before is not None:
            held = (*held[:at], packed, *held[at + 1 :])
        else:
            held = tuple(sorted((*others, packed), key=self._node_of))
            self._by_node.setdefault(datanode_id, set()).add(container_id)
        self._count += (packed is not None) - (before is not None)
        self.recovering_count += _is_recovering(packed) - _is_recovering(before)
        if held:
            self._packed[container_id] = held
        else:
            self._packed.pop(container_id, None)
        if any(records.replica_state(one[_WORDS.size :]) in UNSETTLED_STATES for one in held):
            self.unsettled.add(container_id)
        else:
            self.unsettled.discard(container_id)
        return before

    def _find(self, container_id: int, datanode_id: str) -> bytes | None:
        held = self._packed.get(container_id, ())
        at = self._at(held, datanode_id)
        return None if at < 0 else held[at]

    def _at(self, held: Sequence[bytes], datanode_id: str) -> int:
        """Return where a datanode's replica is among those of a container; -1 if nowhere."""
        number = self._name_numbers.get(datanode_id)
        if number is not None:
            word = _WORD.pack(number)
            for i, one in enumerate(held):
                if one.startswith(word):
                    return i
        return -1

    def _pack(self, value: Replica | None) -> bytes | None:
        if value is None:
            return None
        return self._words(records.replica_names(value)) + records.replica_numbers(value)

    def _node_of(self, packed: bytes) -> str:
        number: int = _WORD.unpack_from(packed)[0]
        return self._names[number]

    def _words(self, names: Sequence[str]) -> bytes:
        """Return the numbers that stand for words; a new word gets the next number."""
        known = self._name_numbers
        for name in names:
            if name not in known:
                known[name] = len(self._names)
                self._names.append(name)
        return _WORDS.pack(*(known[name] for name in names))

    def _replica(self, container_id: int, packed: bytes) -> Replica:
        a, b, c, d = _WORDS.unpack_from(packed)
        words = self._names
        return records.replica_of(
            container_id, packed[_WORDS.size :], (words[a], words[b], words[c], words[d])
        )


def _is_recovering(packed: bytes | None) -> bool:
    """Whether a packed replica, if there is one, is a shard that is being made."""
    state = None if packed is None else records.replica_state(packed[_WORDS.size :])
    return state is ReplicaState.RECOVERING


class Unpacked(Sequence[Replica]):
    """All replicas at one moment, unpacked one by one and as often as they are gone through."""

    def __init__(
        self, table: ReplicaTable, packed: list[tuple[int, tuple[bytes, ...]]], count: int
    ) -> None:
        self._table = table
        self._packed = packed
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Replica]:
        for container_id, packed in self._packed:
            yield from self._table.unpack(container_id, packed)

    @overload
    def __getitem__(self, index: int) -> Replica: ...
    @overload
    def __getitem__(self, index: slice) -> list[Replica]: ...
    def __getitem__(self, index: int | slice) -> Replica | list[Replica]:
        return list(self)[index]
