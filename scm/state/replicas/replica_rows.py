"""The binary format of replicas, which is compact because there are millions of them.

    row = CRC32 of the rest | container id | numbers, big-endian | four strings

The length of each string precedes it. `suture.wire.mapping.replica_columns` defines the numbers.
"""

import struct
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import count
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from merkle.checksum import Algorithm
from merkle.replica import ReplicaState
from merkle.tree_summary import TreeSummary
from scm.state.entities import Replica
from scm.state.records import CRC, DamagedRow, check_all
from suture.wire.mapping.replica_columns import (
    COLUMNS,
    CONTRADICTORY,
    EMPTY,
    HAS_TREE,
    ReplicaColumn,
)

_ID: Final = struct.Struct(">Q")
_HEAD: Final = struct.Struct(">IQ")  # of a replica's row: checksum and container id
_LENGTH: Final = struct.Struct(">H")
_NAMES: Final = 4

_REPORTED_AT: Final = 9  # column with the time of the report
_KEPT: Final = (
    *COLUMNS[:_REPORTED_AT],
    ReplicaColumn("reported_at_ms", "<u8", ""),
    *COLUMNS[_REPORTED_AT:],
)
REPLICA_NUMBERS: Final = tuple((c.name, c.type.replace("<", ">")) for c in _KEPT)
"""The name and the numpy type of each number in a row of a replica."""
REPLICA_HEAD: Final = np.dtype([("checksum", ">u4"), ("container_id", ">u8"), *REPLICA_NUMBERS])
"""The numpy type of the part of a row before the strings."""
_LETTERS: Final = {"|u1": "B", "<u8": "Q"}
_NUMBERS: Final = struct.Struct(">" + "".join(_LETTERS[c.type] for c in _KEPT))
_PLACES: Final = {c.name: i for i, c in enumerate(_KEPT)}
_OWN: Final = tuple(c for c in _KEPT if c.field and "." not in c.field and c.name != "state")
_TREE: Final = tuple(c for c in _KEPT if c.field.startswith("tree.") and c.name != "algorithm")
_OWN_OF: Final = attrgetter(*(c.field for c in _OWN))
_TREE_OF: Final = attrgetter(*(c.field.removeprefix("tree.") for c in _TREE))
_STATES: Final = tuple(ReplicaState)
_ALGORITHMS: Final = tuple(Algorithm)
_NAMES_AT: Final = _HEAD.size + _NUMBERS.size
_HEAD_BYTES: Final = _ID.size + _NUMBERS.size
_OWN_FIELDS: Final = tuple((c.field, _PLACES[c.name]) for c in _OWN)
_TREE_FIELDS: Final = tuple((c.field.removeprefix("tree."), _PLACES[c.name]) for c in _TREE)


def replica_row(replica: Replica) -> bytes:
    """Encode a replica as a row for the disk."""
    names = names_bytes(replica_names(replica))
    body = _ID.pack(replica.container_id) + replica_numbers(replica) + names
    return CRC.pack(zlib.crc32(body)) + body


def replica_rows(heads: bytes, names: Iterable[bytes]) -> list[bytes]:
    """Return the rows of several replicas.

    `heads` has their container ids and numbers, concatenated. `names` has their encoded strings.
    """
    size, crc, pack_crc = _HEAD_BYTES, zlib.crc32, CRC.pack
    bodies = (heads[i * size : (i + 1) * size] + own for i, own in enumerate(names))
    return [pack_crc(crc(body)) + body for body in bodies]


@lru_cache(maxsize=65_536)
def names_bytes(names: tuple[str, str, str, str]) -> bytes:
    """Encode the four strings at the end of a replica's row."""
    strings = [name.encode() for name in names]
    return b"".join(_LENGTH.pack(len(string)) + string for string in strings)


def replica_heads(
    rows: Sequence[bytes],
) -> tuple[NDArray[np.void], list[bytes], NDArray[np.int64]]:
    """Decode rows of replicas.

    Return an array with their container ids and numbers, a list of the different encoded strings,
    and the index in this list for each row. Raise DamagedRow if a row is damaged.
    """
    if min(map(len, rows)) <= _NAMES_AT:
        raise DamagedRow("a row is too short for a replica")
    if len(set(map(len, rows))) == 1:  # usual; rows of one datanode often have the same names
        table = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)
        heads = np.ascontiguousarray(table[:, :_NAMES_AT]).view(REPLICA_HEAD)[:, 0]
        tails = table[:, _NAMES_AT:]
        is_other = np.ones(len(rows), np.bool_)  # differs from the previous row
        is_other[1:] = (tails[1:] != tails[:-1]).any(axis=1)
    else:
        heads = np.frombuffer(b"".join([row[:_NAMES_AT] for row in rows]), REPLICA_HEAD)
        is_other = np.ones(len(rows), np.bool_)
    places = defaultdict[bytes, int](count().__next__)
    others = [places[rows[place][_NAMES_AT:]] for place in np.flatnonzero(is_other).tolist()]
    which = np.array(others, np.int64)[np.cumsum(is_other) - 1]
    check_all(heads["checksum"], [row[CRC.size :] for row in rows])
    return heads, list(places), which


def names_of(data: bytes) -> tuple[str, str, str, str]:
    """Decode the four strings of a replica: datanode, origin, volume, and load error.

    Raise DamagedRow if they are damaged.
    """
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
    """Decode a row from the disk to a replica."""
    heads, (names,), _ = replica_heads([row])
    return replica_of(int(heads["container_id"][0]), names_of(names), row, _HEAD.size)


def replica_names(replica: Replica) -> tuple[str, str, str, str]:
    """Return the four strings of a replica. Many replicas have the same strings."""
    return (
        replica.datanode_id,
        replica.origin_datanode_id,
        replica.volume_id,
        replica.load_error,
    )


def replica_numbers(replica: Replica) -> bytes:
    """Encode all numbers of a replica as bytes."""
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
    """Create a replica from its strings and from the encoded numbers at offset `at` of `packed`."""
    numbers = _NUMBERS.unpack_from(packed, at)
    datanode_id, origin_datanode_id, volume_id, load_error = names
    flags = numbers[_PLACES["flags"]]
    tree = None
    if flags & HAS_TREE:
        algorithm = _ALGORITHMS[numbers[_PLACES["algorithm"]]]
        tree = TreeSummary(algorithm, **{field: numbers[i] for field, i in _TREE_FIELDS})
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
    """Return the number that represents a replica state in rows."""
    return _STATES.index(state)
