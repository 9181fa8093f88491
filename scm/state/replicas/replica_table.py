"""The table of replicas in memory.

Replicas are rows of arrays, because there are millions of them.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, overload

import numpy as np
from numpy.typing import NDArray

from merkle.replica import ReplicaState
from scm.state.entities import Replica
from scm.state.records import RowFormat
from scm.state.replicas import replica_rows
from scm.state.replicas.arena import (
    DATANODE_AT,
    NOBODY,
    NUMBERS_AT,
    ROW,
    ReplicaArena,
    Rows,
    Slots,
    copied,
    gathered,
    picked,
)
from scm.state.replicas.holders import Ids, NodeReplicas, ReplicaChains
from scm.state.replicas.reported_replicas import ReportedReplicas
from scm.state.table import Table, id_key
from suture.wire.mapping.replica_columns import EMPTY

_WORD: Final = struct.Struct("<I")
_WORDS: Final = struct.Struct("<4I")
_ID: Final = struct.Struct("<q")
_END: Final = b"\0"  # ends a datanode's id in a key: it is in no id, and it sorts first
NO_WORD: Final = 0
"""The number of the empty text, for instance of the load error of a replica without an error."""
_COPY_AT_ONCE: Final = 1_024  # rows of a snapshot that are decoded together

UNSETTLED_STATES: Final = frozenset(
    {ReplicaState.OPEN, ReplicaState.CLOSING, ReplicaState.QUASI_CLOSED}
)
"""Replica states that a close command can still change."""

_FORMAT: Final = RowFormat(
    replica_rows.replica_row,
    replica_rows.replica_from,
    lambda rows: list(map(replica_rows.replica_from, rows)),
)
_RECOVERING: Final = replica_rows.state_code(ReplicaState.RECOVERING)
_UNSETTLED: Final = np.array([state in UNSETTLED_STATES for state in ReplicaState])
"""One boolean per replica state: True if a close command can still change the state."""


class ReplicaTable(Table[tuple[int, str], Replica]):
    """The replicas, indexed by container and by datanode.

    There are millions of replicas. Each is a row of numbers (`scm.state.replicas.arena`). Some of
    the numbers represent texts. A `Replica` object is only created on request. A report of a
    datanode is compared and applied as one array (`apply_report`).

    On disk, the replicas of one datanode are adjacent, because they are reported together. A report
    of 10,000 replicas then changes hundreds of pages instead of thousands.
    """

    def __init__(self) -> None:
        super().__init__(
            "replicas_by_node",
            key_bytes=lambda key: key[1].encode() + _END + id_key(key[0]),
            key_of=lambda replica: (replica.container_id, replica.datanode_id),
            rows=_FORMAT,
        )
        self._arena = ReplicaArena()
        self._chains = ReplicaChains()
        self._held: dict[str, NodeReplicas] = {}
        self._names: list[str] = [""]
        self._name_numbers: dict[str, int] = {"": NO_WORD}
        self._count = 0
        self.unsettled: set[int] = set()
        self.recovering_count = 0
        self.touched: set[int] = set()
        """Containers whose replicas changed since `scm.api.health_totals` last cleared this set."""

    def get(self, key: tuple[int, str]) -> Replica | None:
        """Return a datanode's replica of a container.

        Return None if the datanode has reported none.
        """
        slot = self._find(*key)
        return None if slot == NOBODY else self._replica(*self._arena.at(slot))

    def values(self) -> "Sequence[Replica]":  # type: ignore[override]
        """Return a snapshot of all replicas. Each is decoded when the caller reads it."""
        return ReplicaIterator(self, self._arena.share(), self._count)

    def __len__(self) -> int:
        return self._count

    def _load_rows(self, rows: Sequence[bytes]) -> None:
        """Verify rows from disk, and store them. They must be sorted by key.

        They are not decoded to objects, because there are millions and the start waits for them.
        """
        heads, names, which = replica_rows.replica_heads(rows)
        numbers = [self._words(replica_rows.names_of(one)) for one in names]
        loaded = np.zeros(len(rows), ROW)
        loaded["container_id"] = heads["container_id"]
        _bytes_of(loaded)[:, NUMBERS_AT:] = _bytes_of(heads)[:, -_NUMBERS_BYTES:]
        words = np.array(numbers, np.uint32)[which]
        for place, name in enumerate(_WORD_COLUMNS):
            loaded[name] = words[:, place]
        for number in dict.fromkeys(words[:, 0].tolist()):
            self._append(self._names[number], picked(loaded, words[:, 0] == number))

    def apply(self, key: tuple[int, str], value: Replica | None) -> Replica | None:
        """Set a replica, or remove it if `value` is None. Return the earlier replica."""
        before = self.get(key)
        self._set(key[1], key[0], None if value is None else ReportedReplicas.of(key[1], [value]))
        return before

    def swap(self, key: tuple[int, str], value: Replica | None) -> Callable[[], object]:
        """Set or remove a replica. Return a function that undoes this."""
        before = self.apply(key, value)
        return lambda: self.apply(key, before)

    def _set(self, datanode_id: str, container_id: int, reported: ReportedReplicas | None) -> None:
        if reported is not None:
            self._put(datanode_id, self._own(reported.rows, datanode_id, reported.words))
        else:
            self.remove_all(datanode_id, np.array([container_id], np.int64))

    def apply_report(
        self, there: Rows, told: ReportedReplicas
    ) -> tuple[Rows, Callable[[], object]]:
        """Apply a datanode's report.

        Return the rows that have changed, and a function that undoes the change. `there` are rows
        of `told`, one per container, sorted. If only the report time of a replica has changed, the
        time is updated in memory; this is not undone, and the row is not in the result.
        """
        rows = self._own(there, told.datanode_id, told.words)
        slots = self._held_by(told.datanode_id).find(rows["container_id"])
        known = np.flatnonzero(slots)
        before = self._arena.read(slots[known])
        is_same = _same_but_for_time(before, picked(rows, known))
        self._arena.write(slots[known[is_same]], picked(rows, known[is_same]))
        is_new = np.ones(len(rows), np.bool_)
        is_new[known[is_same]] = False
        changed = picked(rows, is_new)
        if len(changed):
            self._put(told.datanode_id, changed)
        made = rows["container_id"][slots == NOBODY]
        return changed, partial(self._undo, told.datanode_id, made, picked(before, ~is_same))

    def remove_all(self, datanode_id: str, container_ids: Ids) -> tuple[Ids, Callable[[], object]]:
        """Remove a datanode's replicas of these containers.

        Return the containers of which the datanode had a replica, and a function that undoes the
        removal.
        """
        held = self._held_by(datanode_id)
        slots = held.find(container_ids)
        known, slots = container_ids[slots != NOBODY], slots[slots != NOBODY]
        if not len(known):
            return known, lambda: None
        before = self._arena.read(slots)
        for container_id, slot in zip(known.tolist(), slots.tolist(), strict=True):
            self._chains.unlink(container_id, slot)
        held.drop(known)
        self._arena.free(slots)
        self._count -= len(known)
        self.recovering_count -= _recovering_count(before)
        self._changed(known)
        return known, partial(self._put, datanode_id, before)

    def disk_rows(self, datanode_id: str, rows: Rows) -> Iterator[tuple[bytes, bytes]]:
        """Yield the LMDB keys and rows for the changed rows that `apply_report` returned."""
        ids = rows["container_id"].astype(">u8").tobytes()
        prefix = datanode_id.encode() + _END
        heads = np.concatenate(
            (
                rows["container_id"].astype(">u8").view(np.uint8).reshape(-1, 8),
                _bytes_of(np.ascontiguousarray(rows))[:, NUMBERS_AT:],
            ),
            axis=1,
        ).tobytes()
        words = zip(*(rows[name].tolist() for name in _WORD_COLUMNS), strict=True)
        known: dict[tuple[int, ...], bytes] = {}
        names = [known.get(own) or known.setdefault(own, self._names_bytes(own)) for own in words]
        keys = [prefix + ids[i : i + 8] for i in range(0, len(ids), 8)]
        return zip(keys, replica_rows.replica_rows(heads, names), strict=True)

    def _names_bytes(self, words: Sequence[int]) -> bytes:
        a, b, c, d = (self._names[number] for number in words)
        return replica_rows.names_bytes((a, b, c, d))

    @staticmethod
    def node_of_key(key: bytes) -> bytes:
        """Return the datanode id in an LMDB key, as bytes."""
        return key[: -len(_END + id_key(0))]

    def has_data(self, container_ids: Ids, without: Collection[str] = ()) -> NDArray[np.bool_]:
        """Return one boolean per container: True if some replica is not empty.

        Replicas on datanodes in `without` are ignored.
        """
        owner, slots = self._chains.of_all(container_ids)
        rows = self._arena.read(slots)
        is_held = rows["flags"] & EMPTY == 0
        if without:
            is_held &= ~np.isin(rows["datanode"], self.numbers(without))
        found = np.zeros(len(container_ids), np.bool_)
        found[owner[is_held]] = True
        return found

    def of(self, container_id: int) -> tuple[Replica, ...]:
        """Return the replicas of a container, sorted by datanode id."""
        found = [self._replica(*self._arena.at(slot)) for slot in self._chains.of(container_id)]
        return tuple(sorted(found, key=lambda replica: replica.datanode_id))

    def owned(self, container_ids: Sequence[int] | Ids) -> tuple[NDArray[np.int64], Rows]:
        """Return the replicas of these containers as an array, grouped by container.

        The first array has the position of each replica's container in `container_ids`. In the
        second array, the fields `datanode`, `origin`, `volume` and `error` are numbers that `words`
        converts to texts. The other fields are those of `replica_rows.REPLICA_NUMBERS`.
        """
        owner, slots = self._chains.of_all(np.array(container_ids, np.int64))
        return owner, self._arena.read(slots)

    def words(self, numbers: Iterable[int]) -> list[str]:
        """Return the texts (datanode, origin, volume or load error) with these numbers."""
        return [self._names[number] for number in numbers]

    def numbers(self, words: Iterable[str]) -> list[int]:
        """Return the numbers that represent these texts. Texts without a number are skipped."""
        return [self._name_numbers[word] for word in words if word in self._name_numbers]

    def of_node(self, datanode_id: str, container_ids: Ids) -> Rows:
        """Return a datanode's replicas of these containers as an array.

        Containers of which the datanode has no replica are skipped.
        """
        slots = self._held_by(datanode_id).find(container_ids)
        return self._arena.read(slots[slots != NOBODY])

    def container_ids(self) -> Ids:
        """Return the ids of all containers that have a replica."""
        return self._chains.container_ids()

    def on(self, datanode_id: str) -> frozenset[int]:
        """Return the ids of the containers of which a datanode has a replica."""
        return frozenset(self.ids_on(datanode_id).tolist())

    def ids_on(self, datanode_id: str) -> Ids:
        """Return the ids of the containers of which a datanode has a replica, as a sorted array."""
        held = self._held.get(datanode_id)
        return np.zeros(0, np.int64) if held is None else held.ids

    def ids_besides(self, datanode_id: str, container_ids: Ids) -> Ids:
        """Return the ids of a datanode's containers that are not in `container_ids`, sorted."""
        return self._held_by(datanode_id).ids_except(container_ids)

    def count_on(self, datanode_id: str) -> int:
        """Return the number of replicas on a datanode."""
        return len(self.ids_on(datanode_id))

    def unpack(self, rows: Rows) -> Iterator[Replica]:
        """Decode rows of a snapshot, and yield the replicas."""
        packed = memoryview(rows.tobytes())
        for at in range(0, len(packed), ROW.itemsize):
            yield self._replica(packed, at)

    def _append(self, datanode_id: str, rows: Rows) -> None:
        """Add new replicas of a datanode. The rows must be sorted by container id.

        The containers are not recorded as changed.
        """
        slots = self._arena.allocate(len(rows))
        self._arena.write(slots, rows)
        self._chains.link(rows["container_id"], slots)
        self._held_by(datanode_id).add(rows["container_id"], slots)
        self._count += len(rows)
        self.recovering_count += _recovering_count(rows)
        self.unsettled.update(rows["container_id"][_UNSETTLED[rows["state"]]].tolist())

    def _put(self, datanode_id: str, rows: Rows) -> None:
        """Add or replace replicas of a datanode. The rows must be sorted by container id."""
        ids = rows["container_id"]
        slots = self._held_by(datanode_id).find(ids)
        is_known = slots != NOBODY
        if is_known.any():
            known = slots[is_known]
            self.recovering_count -= _recovering_count(self._arena.read(known))
            self._arena.write(known, picked(rows, is_known))
            self.recovering_count += _recovering_count(picked(rows, is_known))
        self._append(datanode_id, picked(rows, ~is_known))
        self._changed(ids)

    def _undo(self, datanode_id: str, made: Ids, before: Rows) -> None:
        """Undo `apply_report`: remove the added replicas, and restore the changed ones."""
        self.remove_all(datanode_id, made)
        if len(before):
            self._put(datanode_id, before)

    def _changed(self, container_ids: Ids) -> None:
        """Record that replicas of these containers changed.

        Update `unsettled` and `touched`, and remove the containers from the sets in `settled`.
        """
        self.touched.update(container_ids.tolist())
        for settled in self.settled:
            settled.discard_all(container_ids)
        owner, slots = self._chains.of_all(container_ids)
        is_unsettled = _UNSETTLED[self._arena.states(slots)]
        self.unsettled.difference_update(container_ids.tolist())
        self.unsettled.update(container_ids[owner[is_unsettled]].tolist())

    def _own(self, rows: Rows, datanode_id: str, words: Sequence[str]) -> Rows:
        """Return a copy of a datanode's rows with the numbers that represent texts in this table.

        The original rows have numbers that refer to the texts of the report.
        """
        numbers = np.array(self._words([datanode_id, *words]), np.uint32)
        own = copied(rows)
        own["datanode"] = numbers[0]
        for name in _WORD_COLUMNS[1:]:
            own[name] = numbers[1:][rows[name]]
        return own

    def _held_by(self, datanode_id: str) -> NodeReplicas:
        return self._held.setdefault(datanode_id, NodeReplicas())

    def _find(self, container_id: int, datanode_id: str) -> int:
        """Return the slot (row number in the arena) of a replica.

        Return NOBODY (0) if the datanode has no replica of the container.
        """
        number = self._name_numbers.get(datanode_id)
        for slot in self._chains.of(container_id) if number is not None else ():
            packed, at = self._arena.at(slot)
            if _WORD.unpack_from(packed, at + DATANODE_AT)[0] == number:
                return slot
        return NOBODY

    def _words(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the numbers that represent these texts. A new text gets the next number."""
        known = self._name_numbers
        for name in names:
            if name not in known:
                known[name] = len(self._names)
                self._names.append(name)
        return tuple(known[name] for name in names)

    def _replica(self, packed: memoryview, at: int) -> Replica:
        a, b, c, d = _WORDS.unpack_from(packed, at + DATANODE_AT)
        (container_id,) = _ID.unpack_from(packed, at)
        words = self._names
        names = (words[a], words[b], words[c], words[d])
        return replica_rows.replica_of(container_id, names, packed, at + NUMBERS_AT)


_REPORTED_AT: Final[int] = ROW.fields["reported_at_ms"][1] // 8  # type: ignore[index]
_NUMBERS_BYTES: Final = ROW.itemsize - NUMBERS_AT  # the end of a row, the same here and on disk
_WORD_COLUMNS: Final = ("datanode", "origin", "volume", "error")


def _bytes_of(rows: Rows) -> NDArray[np.uint8]:
    return rows.view(np.uint8).reshape(len(rows), rows.itemsize)


def _recovering_count(rows: Rows) -> int:
    """Return the number of rows with the state RECOVERING."""
    return int(np.count_nonzero(rows["state"] == _RECOVERING))


def _same_but_for_time(one: Rows, other: Rows) -> NDArray[np.bool_]:
    """Return one boolean per row: True if both rows are equal except for the report time."""
    width = ROW.itemsize // 8
    pair = (rows.view(np.uint64).reshape(len(rows), width) for rows in (one, other))
    differs = np.not_equal(*pair)
    differs[:, _REPORTED_AT] = False
    is_same: NDArray[np.bool_] = ~np.logical_or.reduce(differs, axis=1)
    return is_same


class ReplicaIterator(Sequence[Replica]):
    """A snapshot of all replicas, sorted by container id and datanode id.

    Each iteration decodes the replicas again.
    """

    def __init__(self, table: ReplicaTable, blocks: tuple[Rows, ...], count: int) -> None:
        self._table = table
        self._blocks = blocks
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Replica]:
        order = self._order() if self._count else np.zeros(0, np.int64)
        for start in range(0, len(order), _COPY_AT_ONCE):
            slots = order[start : start + _COPY_AT_ONCE]
            yield from self._table.unpack(gathered(self._blocks, slots))

    def _order(self) -> Slots:
        ids = np.concatenate([block["container_id"] for block in self._blocks])
        there = np.flatnonzero(ids)
        nodes, which = np.unique(
            np.concatenate([block["datanode"] for block in self._blocks])[there],
            return_inverse=True,
        )
        names = self._table.words(nodes.tolist())
        rank = np.empty(len(names), np.int64)
        rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        return there[np.lexsort((rank[which], ids[there]))]

    @overload
    def __getitem__(self, index: int) -> Replica: ...
    @overload
    def __getitem__(self, index: slice) -> list[Replica]: ...
    def __getitem__(self, index: int | slice) -> Replica | list[Replica]:
        return list(self)[index]
