"""The replicas in memory: packed, because there are millions of them."""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, overload

from merkle.replica import ReplicaState
from scm import records
from scm.facts import Replica
from scm.tables import Table, discard, id_key

_WORD: Final = struct.Struct("=I")
_WORDS: Final = struct.Struct("=4I")  # of a packed replica: datanode, origin, volume, error

UNSETTLED_STATES: Final = frozenset(
    {ReplicaState.OPEN, ReplicaState.CLOSING, ReplicaState.QUASI_CLOSED}
)
"""Replica states that a close command may still move."""


class ReplicaTable(Table[tuple[int, str], Replica]):
    """Replicas by container and datanode, and container ids by datanode.

    There are millions of them: each is kept as packed numbers, behind the numbers that stand for
    its words, and becomes a `Replica` when it is asked for.
    """

    def __init__(self) -> None:
        super().__init__(
            "replicas",
            key_bytes=lambda key: id_key(key[0]) + key[1].encode(),
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

    def get(self, key: tuple[int, str]) -> Replica | None:
        """Return one datanode's replica of a container, if reported."""
        packed = self._find(*key)
        return None if packed is None else self._replica(key[0], packed)

    def values(self) -> "Sequence[Replica]":  # type: ignore[override]
        """Return a snapshot of all replicas; each is unpacked as it is reached."""
        return Unpacked(self, list(self._packed.items()), self._count)

    def __len__(self) -> int:
        return self._count

    def load(self, row: bytes) -> None:
        """Take a row in as it was on disk."""
        container_id, numbers, names = records.replica_parts(row)
        self._place(container_id, names[0], self._words(names) + numbers)

    def apply(self, key: tuple[int, str], value: Replica | None) -> Replica | None:
        """Set or remove, and keep the indexes."""
        container_id, datanode_id = key
        packed = None
        if value is not None:
            packed = self._words(records.replica_names(value)) + records.replica_numbers(value)
        before = self._place(container_id, datanode_id, packed)
        return None if before is None else self._replica(container_id, before)

    def of(self, container_id: int) -> tuple[Replica, ...]:
        """Return all replicas of a container, by datanode id."""
        packed = self._packed.get(container_id, ())
        return tuple(self._replica(container_id, one) for one in packed)

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
        before = self._find(container_id, datanode_id)
        others = [one for one in self._packed.get(container_id, ()) if one is not before]
        if packed is not None:
            others.append(packed)
            others.sort(key=self._node_of)
        self._count += (packed is not None) - (before is not None)
        if others:
            self._packed[container_id] = tuple(others)
        else:
            self._packed.pop(container_id, None)
        if packed is not None:
            self._by_node.setdefault(datanode_id, set()).add(container_id)
        else:
            discard(self._by_node, datanode_id, container_id)
        if any(records.replica_state(one[_WORDS.size :]) in UNSETTLED_STATES for one in others):
            self.unsettled.add(container_id)
        else:
            self.unsettled.discard(container_id)
        return before

    def _find(self, container_id: int, datanode_id: str) -> bytes | None:
        for one in self._packed.get(container_id, ()):
            if self._node_of(one) == datanode_id:
                return one
        return None

    def _node_of(self, packed: bytes) -> str:
        number: int = _WORD.unpack_from(packed)[0]
        return self._names[number]

    def _words(self, names: Sequence[str]) -> bytes:
        """Return the numbers that stand for words; a new word gets the next number."""
        numbers = []
        for name in names:
            number = self._name_numbers.get(name)
            if number is None:
                number = self._name_numbers[name] = len(self._names)
                self._names.append(name)
            numbers.append(number)
        return _WORDS.pack(*numbers)

    def _replica(self, container_id: int, packed: bytes) -> Replica:
        a, b, c, d = _WORDS.unpack_from(packed)
        words = self._names
        return records.replica_of(
            container_id, packed[_WORDS.size :], (words[a], words[b], words[c], words[d])
        )


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
