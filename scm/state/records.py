"""Rows of the state: a value as bytes, and back.

    row = CRC32 of the rest, big-endian ‖ UTF-8 JSON array of the value's fields in a fixed order

JSON keeps the state readable with any LMDB tool at three in the morning; only replicas, of which
there are millions, are packed numbers and strings (`replica_row`). The CRC finds a damaged
page before a half-true cluster map is acted on. The order of fields is the format: it changes
only together with `FORMAT_VERSION`.
"""

import base64
import json
import re
import struct
import sys
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from itertools import accumulate, count, pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.rpc.wire.replica_columns import COLUMNS, CONTRADICTORY, EMPTY, HAS_TREE, Column
from health.tables.replica_numbers import LATER, LATEST, later_count
from merkle.checksum import Algorithm
from merkle.replica import ReplicaState
from merkle.tree import Summary
from scm.state.facts import (
    Allocation,
    Container,
    ContainerState,
    Deleted,
    Forgotten,
    Hold,
    Key,
    KeyBlock,
    Kind,
    Node,
    OpState,
    Outcome,
    OutcomeState,
    Pending,
    Priority,
    Replica,
    Transaction,
)

_FIRST: Final = 7  # before a number was added to replicas
FORMAT_VERSION: Final = _FIRST + LATEST
# 4: commands without their cause; 6: without their shards
FORMAT_VERSIONS_READ: Final = (4, 5, 6, *range(_FIRST, FORMAT_VERSION + 1))

_DECODER: Final = json.JSONDecoder()  # itself: no guess at the encoding, of millions of rows
_CRC: Final = struct.Struct(">I")
_ID: Final = struct.Struct(">Q")
_HEAD: Final = struct.Struct(">IQ")  # of a replica's row: checksum and container id
_LENGTH: Final = struct.Struct(">H")
_NAMES: Final = 4

_REPORTED_AT: Final = 9  # the place among the columns of when they were reported
_KEPT: Final = (
    *COLUMNS[:_REPORTED_AT],
    Column("reported_at_ms", "<u8", ""),
    *COLUMNS[_REPORTED_AT:],
)
REPLICA_NUMBERS: Final = tuple((c.name, c.type.replace("<", ">")) for c in _KEPT)
"""The numbers of a packed replica as numpy reads them: name and type."""
REPLICA_HEAD: Final = np.dtype([("checksum", ">u4"), ("container_id", ">u8"), *REPLICA_NUMBERS])
"""The row of a replica before its names, as numpy reads it."""
_LETTERS: Final = {"|u1": "B", "<u8": "Q"}
_NUMBERS: Final = struct.Struct(">" + "".join(_LETTERS[c.type] for c in _KEPT))
_PLACES: Final = {c.name: i for i, c in enumerate(_KEPT)}
_OWN: Final = tuple(c for c in _KEPT if c.field and "." not in c.field and c.name != "state")
_TREE: Final = tuple(c for c in _KEPT if c.field.startswith("tree.") and c.name != "algorithm")
_OWN_OF: Final = attrgetter(*(c.field for c in _OWN))
_TREE_OF: Final = attrgetter(*(c.field.removeprefix("tree.") for c in _TREE))
_STATES: Final = tuple(ReplicaState)
_ALGORITHMS: Final = tuple(Algorithm)
_CONTAINER_STATES: Final = {str(state): state for state in ContainerState}
_CONTAINER_PLACES: Final = tuple(getattr(Container, one.name).__set__ for one in fields(Container))
_CONTAINER_FIELDS: Final = len(_CONTAINER_PLACES)
_DIGITS: Final = b"0123456789"
_NUMBER: Final = "(?:0|[1-9][0-9]{0,18}),"
_WORD: Final = r'"[ !#-\[\]-~]*"'
_AT_REST: Final = re.compile(  # the body of the row of a container, as `pack` writes it
    rf'\[[1-9][0-9]{{0,18}},"CLOSED",(?:{_NUMBER}){{3}}\[\],{_WORD},(?:true|false),'
    rf'(?:{_NUMBER}){{4}}{_WORD},"(?P<scheme>[a-z0-9-]*)"\]'.encode()
)
NO_COUNT: Final = -1
"""In place of a number of replicas: it does not say enough of this container."""
_KEY_FIELDS: Final = 4
_NODE_FIELDS: Final = (10, 11)  # of version 5, and of this one
_PENDING_FIELDS: Final = (13, 14, 15)  # of version 4, of version 6, and of this one
_NAMES_AT: Final = _HEAD.size + _NUMBERS.size
_HEAD_BYTES: Final = _ID.size + _NUMBERS.size
_LATER_BYTES: Final = {
    version: 8 * (len(LATER) - later_count(max(0, version - _FIRST)))
    for version in FORMAT_VERSIONS_READ
}
"""How many bytes of numbers the row of a replica lacks, by the version of the state."""
_OWN_FIELDS: Final = tuple((c.field, _PLACES[c.name]) for c in _OWN)
_TREE_FIELDS: Final = tuple((c.field.removeprefix("tree."), _PLACES[c.name]) for c in _TREE)
FORMAT_VERSIONS_WIDENED: Final = frozenset(v for v, count in _LATER_BYTES.items() if count)
"""Versions whose replicas lack a number that is kept now."""


class DamagedRow(ValueError):
    """A row that is not what was written."""


def pack(values: list[Any]) -> bytes:
    """Return the row of these values."""
    body = json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()
    return _CRC.pack(zlib.crc32(body)) + body


def unpack(row: bytes, *field_counts: int) -> list[Any]:
    """Return the fields of `row`, which are as many as one of `field_counts`. Raises DamagedRow."""
    body = row[_CRC.size :]
    if len(row) < _CRC.size or _CRC.unpack_from(row)[0] != zlib.crc32(body):
        raise DamagedRow(f"row of {len(row)} bytes does not match its checksum")
    values = _DECODER.decode(body.decode())
    if not isinstance(values, list) or len(values) not in field_counts:
        raise DamagedRow(f"row does not have {' or '.join(map(str, field_counts))} fields")
    return values


def unpack_all(rows: Sequence[bytes], field_count: int) -> list[list[Any]]:
    """Return what `unpack` does of each row: together, for a third of the time. Raises
    DamagedRow."""
    bodies = [row[_CRC.size :] for row in rows]
    if not all(bodies):
        raise DamagedRow("a row is too short for a checksum")
    checksums = np.frombuffer(b"".join([row[: _CRC.size] for row in rows]), ">u4")
    _check_all(checksums, bodies)
    found: list[list[Any]] = _DECODER.decode(f"[{b','.join(bodies).decode()}]")
    if len(found) != len(rows) or {(type(one), len(one)) for one in found} - {(list, field_count)}:
        raise DamagedRow(f"a row does not have {field_count} fields")
    return found


def _rows_of(noun: type) -> Callable[[Any], bytes]:
    """Return what encodes values of a noun whose row is all its fields, in their order."""
    values_of = attrgetter(*(field.name for field in fields(noun)))
    return lambda value: pack(list(values_of(value)))


node_row: Final[Callable[[Node], bytes]] = _rows_of(Node)
container_row: Final[Callable[[Container], bytes]] = _rows_of(Container)
allocation_row: Final[Callable[[Allocation], bytes]] = _rows_of(Allocation)
transaction_row: Final[Callable[[Transaction], bytes]] = _rows_of(Transaction)
hold_row: Final[Callable[[Hold], bytes]] = _rows_of(Hold)


def node_from(row: bytes) -> Node:
    """Decode a node."""
    values = unpack(row, *_NODE_FIELDS)
    values[5] = OpState(values[5])
    return Node(*values)


def container_from(row: bytes) -> Container:
    """Decode a container."""
    return _container_of(unpack(row, _CONTAINER_FIELDS))


def containers_from(rows: Sequence[bytes]) -> list[Container]:
    """Decode containers, of which there are millions: field by field, for a third of the time that
    the constructor takes. Raises ValueError, TypeError."""
    columns: list[Iterable[Any]] = list(zip(*unpack_all(rows, _CONTAINER_FIELDS), strict=True))
    if not columns:
        return []
    columns[1] = [_CONTAINER_STATES.get(state) or ContainerState(state) for state in columns[1]]
    columns[5] = map(tuple, columns[5])
    made = [Container.__new__(Container) for _ in rows]
    for place, values in zip(_CONTAINER_PLACES, columns, strict=True):
        deque(map(place, made, values), maxlen=0)
    return made


class AtRest(NamedTuple):
    """What is read off the rows of containers that are closed with nobody to wait for: which rows
    these are, the containers' ids, and how many replicas they are to have, of erasure-coded ones
    NO_COUNT."""

    places: list[int]
    ids: list[int]
    replica_counts: list[int]


def at_rest(rows: Sequence[bytes]) -> AtRest:
    """Find the containers at rest, of which there are millions. The row of one can be decoded
    later: that cannot fail any more. Raises DamagedRow.

    But for digits most rows are the same, and what is a number in one is a number in the others, as
    their checksums are right: one of each kind is looked at closely.
    """
    if rows and min(map(len, rows)) < _CRC.size:
        raise DamagedRow("a row is too short for a checksum")
    checksums = np.frombuffer(b"".join([row[: _CRC.size] for row in rows]), ">u4")
    bodies = [row[_CRC.size :] for row in rows]
    _check_all(checksums, bodies)
    kinds = [body.translate(None, _DIGITS) for body in bodies]
    looked_at = [
        (kind, match)
        for kind, body in dict(zip(kinds, bodies, strict=True)).items()
        if (match := _AT_REST.fullmatch(body)) is not None
    ]
    is_coded = {kind: bool(match["scheme"]) for kind, match in looked_at}
    places = [place for place, kind in enumerate(kinds) if kind in is_coded]
    return AtRest(
        places,
        [int(bodies[place][1:].split(b",", 1)[0]) for place in places],
        [
            NO_COUNT if is_coded[kinds[place]] else int(bodies[place].split(b",", 3)[2])
            for place in places
        ],
    )


def _container_of(values: list[Any]) -> Container:
    values[1] = _CONTAINER_STATES.get(values[1]) or ContainerState(values[1])
    values[5] = tuple(values[5])
    return Container(*values)


def replica_row(replica: Replica) -> bytes:
    """Encode a replica: CRC32 ‖ container id ‖ numbers ‖ four strings, each behind its length."""
    names = names_bytes(replica_names(replica))
    body = _ID.pack(replica.container_id) + replica_numbers(replica) + names
    return _CRC.pack(zlib.crc32(body)) + body


def replica_rows(heads: bytes, names: Iterable[bytes]) -> list[bytes]:
    """Return rows: `heads` are their container ids and numbers, one behind the other."""
    size, crc, pack_crc = _HEAD_BYTES, zlib.crc32, _CRC.pack
    bodies = (heads[i * size : (i + 1) * size] + own for i, own in enumerate(names))
    return [pack_crc(crc(body)) + body for body in bodies]


@lru_cache(maxsize=65_536)
def names_bytes(names: tuple[str, str, str, str]) -> bytes:
    """Return the four strings at the end of a replica's row."""
    strings = [name.encode() for name in names]
    return b"".join(_LENGTH.pack(len(string)) + string for string in strings)


def replica_heads(
    rows: Sequence[bytes],
) -> tuple[NDArray[np.void], list[bytes], NDArray[np.int64]]:
    """Return container ids and numbers of rows as `REPLICA_HEAD`; what names there are, as they
    lie; and which of these each row has. Raises DamagedRow."""
    if min(map(len, rows)) <= _NAMES_AT:
        raise DamagedRow("a row is too short for a replica")
    if len(set(map(len, rows))) == 1:  # as most are, and those of a datanode have the same names
        table = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)
        heads = np.ascontiguousarray(table[:, :_NAMES_AT]).view(REPLICA_HEAD)[:, 0]
        tails = table[:, _NAMES_AT:]
        is_other = np.ones(len(rows), np.bool_)  # than the row before
        is_other[1:] = (tails[1:] != tails[:-1]).any(axis=1)
    else:
        heads = np.frombuffer(b"".join([row[:_NAMES_AT] for row in rows]), REPLICA_HEAD)
        is_other = np.ones(len(rows), np.bool_)
    places = defaultdict[bytes, int](count().__next__)
    others = [places[rows[place][_NAMES_AT:]] for place in np.flatnonzero(is_other).tolist()]
    which = np.array(others, np.int64)[np.cumsum(is_other) - 1]
    _check_all(heads["checksum"], [row[_CRC.size :] for row in rows])
    return heads, list(places), which


def _check_all(found: NDArray[np.uint32], bodies: Sequence[bytes]) -> None:
    """Compare the checksums that were found with those of the bodies. Raises DamagedRow."""
    expected = np.fromiter(map(zlib.crc32, bodies), np.uint32, len(bodies))
    is_damaged = found != expected
    if is_damaged.any():
        size = len(bodies[int(is_damaged.argmax())]) + _CRC.size
        raise DamagedRow(f"row of {size} bytes does not match its checksum")


def _check(row: bytes) -> None:
    if len(row) < _CRC.size or _CRC.unpack_from(row)[0] != zlib.crc32(row[_CRC.size :]):
        raise DamagedRow(f"row of {len(row)} bytes does not match its checksum")


def names_of(data: bytes) -> tuple[str, str, str, str]:
    """Return the words of a replica. Raises DamagedRow."""
    names, at = [], 0
    try:
        for _ in range(_NAMES):
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size + length
            names.append(sys.intern(data[at - length : at].decode()))
    except (struct.error, UnicodeDecodeError) as error:
        raise DamagedRow(f"its names cannot be read: {error}") from error
    datanode_id, origin_datanode_id, volume_id, load_error = names
    return datanode_id, origin_datanode_id, volume_id, load_error


def replica_from(row: bytes) -> Replica:
    """Decode a replica."""
    heads, (names,), _ = replica_heads([row])
    return replica_of(int(heads["container_id"][0]), names_of(names), row, _HEAD.size)


def widened(row: bytes, version: int) -> bytes:
    """Return the row of a replica in a state of some version as this version has it: a number that
    was added since is 0. Raises DamagedRow."""
    lacking = _LATER_BYTES[version]
    if not lacking:
        return row
    _check(row)
    names_at = _NAMES_AT - lacking
    body = row[_CRC.size : names_at] + bytes(lacking) + row[names_at:]
    return _CRC.pack(zlib.crc32(body)) + body


def replica_names(replica: Replica) -> tuple[str, str, str, str]:
    """Return the words of a replica, of which there are few different ones."""
    return (
        replica.datanode_id,
        replica.origin_datanode_id,
        replica.volume_id,
        replica.load_error,
    )


def replica_numbers(replica: Replica) -> bytes:
    """Return all of a replica that is a number, packed: there are millions of them in memory."""
    tree = replica.tree
    flags = (EMPTY if replica.is_empty else 0) | (0 if tree is None else HAS_TREE)
    flags |= CONTRADICTORY if replica.is_contradictory else 0
    values = dict.fromkeys(_PLACES, 0)
    values |= {c.name: value for c, value in zip(_OWN, _OWN_OF(replica), strict=True)}
    if tree is not None:
        values |= {c.name: value for c, value in zip(_TREE, _TREE_OF(tree), strict=True)}
        values["algorithm"] = _ALGORITHMS.index(tree.algorithm)
    values |= {
        "state": _STATES.index(replica.state),
        "flags": flags,
        "reported_at_ms": replica.reported_at_ms,
    }
    return _NUMBERS.pack(*values.values())


def replica_of(
    container_id: int, names: tuple[str, str, str, str], packed: bytes | memoryview, at: int
) -> Replica:
    """Put a replica together, whose numbers begin at a place of `packed`."""
    numbers = _NUMBERS.unpack_from(packed, at)
    datanode_id, origin_datanode_id, volume_id, load_error = names
    flags = numbers[_PLACES["flags"]]
    tree = None
    if flags & HAS_TREE:
        algorithm = _ALGORITHMS[numbers[_PLACES["algorithm"]]]
        tree = Summary(algorithm, **{field: numbers[i] for field, i in _TREE_FIELDS})
    return Replica(
        container_id=container_id,
        datanode_id=datanode_id,
        state=_STATES[numbers[0]],
        origin_datanode_id=origin_datanode_id,
        is_empty=bool(flags & EMPTY),
        tree=tree,
        volume_id=volume_id,
        load_error=load_error,
        reported_at_ms=numbers[_REPORTED_AT],
        is_contradictory=bool(flags & CONTRADICTORY),
        **{field: numbers[i] for field, i in _OWN_FIELDS},
    )


def state_code(state: ReplicaState) -> int:
    """Return the number by which packed replicas are of this state."""
    return _STATES.index(state)


def allocation_from(row: bytes) -> Allocation:
    """Decode an allocation."""
    return Allocation(*unpack(row, 5))


def key_row(key: Key) -> bytes:
    """Encode a key."""
    blocks = [[b.container_id, b.local_id, b.bcsid, b.length_bytes] for b in key.blocks]
    return pack([key.name, key.size_bytes, key.created_at_ms, blocks])


def key_from(row: bytes) -> Key:
    """Decode a key."""
    return _key_of(unpack(row, _KEY_FIELDS))


def keys_from(rows: Sequence[bytes]) -> list[Key]:
    """Decode keys, of which there are millions. Raises ValueError, TypeError."""
    return list(map(_key_of, unpack_all(rows, _KEY_FIELDS)))


def _key_of(values: list[Any]) -> Key:
    name, size_bytes, created_at_ms, blocks = values
    return Key(name, size_bytes, created_at_ms, tuple(KeyBlock(*block) for block in blocks))


def pending_row(pending: Pending) -> bytes:
    """Encode a command; when it was sent is not kept: a restarted SCM sends again."""
    return pack(
        [
            pending.command_id,
            pending.kind,
            pending.container_id,
            pending.datanode_id,
            pending.priority,
            pending.bcsid,
            pending.force,
            pending.created_at_ms,
            pending.target_id,
            pending.size_bytes,
            pending.keep_count,
            pending.op_state,
            pending.op_expiry_ms,
            pending.why,
            pending.shards,
        ]
    )


def pending_from(row: bytes) -> Pending:
    """Decode a command as a queued one."""
    values = unpack(row, *_PENDING_FIELDS)
    values[1] = Kind(values[1])
    values[4] = Priority(values[4])
    always_count = _PENDING_FIELDS[0]
    why, shards = values[always_count:] + ["", []][len(values) - always_count :]
    made_of = tuple((index, datanode_id) for index, datanode_id in shards)
    return replace(Pending(*values[:always_count]), why=why, shards=made_of)


def transaction_from(row: bytes) -> Transaction:
    """Decode a transaction of block deletes."""
    values = unpack(row, 5)
    values[2] = tuple(values[2])
    values[4] = tuple(values[4])
    return Transaction(*values)


def deleted_row(deleted: Deleted) -> bytes:
    """Encode deleted blocks: each id as what it is beyond the one before it."""
    steps = [after - before for before, after in pairwise((0, *deleted.local_ids))]
    return pack([deleted.container_id, deleted.transaction_id, steps])


def deleted_from(row: bytes) -> Deleted:
    """Decode deleted blocks."""
    container_id, transaction_id, steps = unpack(row, 3)
    return Deleted(container_id, transaction_id, tuple(accumulate(steps)))


def hold_from(row: bytes) -> Hold:
    """Decode a hold."""
    return Hold(*unpack(row, 4))


def forgotten_row(forgotten: Forgotten) -> bytes:
    """Encode a forgotten container."""
    container = base64.b64encode(container_row(forgotten.container)).decode("ascii")
    return pack([container, forgotten.at_ms, forgotten.key_count])


def forgotten_from(row: bytes) -> Forgotten:
    """Decode a forgotten container."""
    container, at_ms, key_count = unpack(row, 3)
    return Forgotten(container_from(base64.b64decode(container)), at_ms, key_count)


def outcome_row(outcome: Outcome) -> bytes:
    """Encode an outcome."""
    return pack(
        [
            outcome.command_id,
            outcome.datanode_id,
            outcome.reported_at_ms,
            outcome.state,
            outcome.kind,
            outcome.container_id,
            outcome.code,
            outcome.message,
            base64.b64encode(outcome.detail).decode("ascii"),
        ]
    )


def outcome_from(row: bytes) -> Outcome:
    """Decode an outcome."""
    values = unpack(row, 9)
    values[3] = OutcomeState(values[3])
    values[8] = base64.b64decode(values[8])
    return Outcome(*values)
