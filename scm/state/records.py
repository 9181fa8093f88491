"""Encodes and decodes the rows of the state.

A row is a big-endian CRC32 of the rest, followed by the rest: a UTF-8 JSON array of the value's
fields in a fixed order.

JSON keeps the state readable with any LMDB tool in an emergency. Only replicas, of which there are
millions, are packed (`scm.state.replicas.replica_rows`). The CRC detects a damaged page before the
control plane acts on a partly wrong cluster map. The order of fields is the format: it changes only
together with `FORMAT_VERSION`.
"""

import base64
import json
import re
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scm.state.entities import (
    Allocation,
    CommandKind,
    CommandOutcome,
    CommandPriority,
    Container,
    ContainerState,
    DeletedBlocks,
    DeleteTransaction,
    ForgottenContainer,
    Hold,
    Key,
    KeyBlock,
    Node,
    OpState,
    OutcomeState,
    PendingCommand,
)

FORMAT_VERSION: Final = 1  # a state of another version is refused (`scm.state.state_metadata`)

_DECODER: Final = json.JSONDecoder()  # used directly: no guess of the encoding for millions of rows
CRC: Final = struct.Struct(">I")
_CONTAINER_STATES: Final = {str(state): state for state in ContainerState}
_CONTAINER_PLACES: Final = tuple(getattr(Container, one.name).__set__ for one in fields(Container))
_CONTAINER_FIELDS: Final = len(_CONTAINER_PLACES)
_PROMISED: Final = [one.name for one in fields(Container)].index("allocated_bcsid")
_DIGITS: Final = b"0123456789"
_NUMBER: Final = "(?:0|[1-9][0-9]{0,18}),"
_WORD: Final = r'"[ !#-\[\]-~]*"'
_AT_REST: Final = re.compile(  # the body of a container's row, as `pack` writes it
    rf'\[[1-9][0-9]{{0,18}},"CLOSED",(?:{_NUMBER}){{3}}\[\],{_WORD},(?:true|false),'
    rf'(?:{_NUMBER}){{4}}{_WORD},"(?P<scheme>[a-z0-9-]*)"\]'.encode()
)
NO_COUNT: Final = -1
"""Stands for a replica count if a number is not sufficient to describe the container."""
_KEY_FIELDS: Final = 4
_NODE_FIELDS: Final = 11
_PENDING_FIELDS: Final = 15


class DamagedRow(ValueError):
    """Raised if a row differs from the row that was written."""


def pack(values: list[Any]) -> bytes:
    """Return the row of these values."""
    body = json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()
    return CRC.pack(zlib.crc32(body)) + body


def unpack(row: bytes, field_count: int) -> list[Any]:
    """Return the fields of `row`. Raise DamagedRow if it is damaged."""
    body = row[CRC.size :]
    if len(row) < CRC.size or CRC.unpack_from(row)[0] != zlib.crc32(body):
        raise DamagedRow(f"row of {len(row)} bytes does not match its checksum")
    values = _DECODER.decode(body.decode())
    if not isinstance(values, list) or len(values) != field_count:
        raise DamagedRow(f"row does not have {field_count} fields")
    return values


def unpack_all(rows: Sequence[bytes], field_count: int) -> list[list[Any]]:
    """Return the fields of each row. This takes a third of the time of single calls of `unpack`.
    Raise DamagedRow if a row is damaged."""
    bodies = [row[CRC.size :] for row in rows]
    if not all(bodies):
        raise DamagedRow("a row is too short for a checksum")
    checksums = np.frombuffer(b"".join([row[: CRC.size] for row in rows]), ">u4")
    check_all(checksums, bodies)
    found: list[list[Any]] = _DECODER.decode(f"[{b','.join(bodies).decode()}]")
    if len(found) != len(rows) or {(type(one), len(one)) for one in found} - {(list, field_count)}:
        raise DamagedRow(f"a row does not have {field_count} fields")
    return found


def _rows_of(noun: type) -> Callable[[Any], bytes]:
    """Return an encoder for a type; its row has all fields of the type in order."""
    values_of = attrgetter(*(field.name for field in fields(noun)))
    return lambda value: pack(list(values_of(value)))


node_row: Final[Callable[[Node], bytes]] = _rows_of(Node)
container_row: Final[Callable[[Container], bytes]] = _rows_of(Container)
allocation_row: Final[Callable[[Allocation], bytes]] = _rows_of(Allocation)
_TRANSACTION_FIELDS: Final = attrgetter(*(field.name for field in fields(DeleteTransaction)))
hold_row: Final[Callable[[Hold], bytes]] = _rows_of(Hold)


def node_from(row: bytes) -> Node:
    """Decode a node."""
    values = unpack(row, _NODE_FIELDS)
    values[5] = OpState(values[5])
    return Node(*values)


def container_from(row: bytes) -> Container:
    """Decode a container."""
    return _container_of(unpack(row, _CONTAINER_FIELDS))


def containers_from(rows: Sequence[bytes]) -> list[Container]:
    """Decode containers field by field. This takes a third of the constructor's time, and there are
    millions. Raise ValueError or TypeError if a row is invalid."""
    columns: list[Iterable[Any]] = list(zip(*unpack_all(rows, _CONTAINER_FIELDS), strict=True))
    if not columns:
        return []
    columns[1] = [_CONTAINER_STATES.get(state) or ContainerState(state) for state in columns[1]]
    columns[5] = map(tuple, columns[5])
    made = [Container.__new__(Container) for _ in rows]
    for place, values in zip(_CONTAINER_PLACES, columns, strict=True):
        deque(map(place, made, values), maxlen=0)
    return made


def promised_counts(rows: Sequence[bytes]) -> list[int]:
    """Return how many blocks were ever allocated in containers, without decoding the other
    fields."""
    return [values[_PROMISED] for values in unpack_all(rows, _CONTAINER_FIELDS)]


class ClosedContainerColumns(NamedTuple):
    """Facts about closed containers that wait for no datanode, read from their rows: the positions
    of the rows, the container ids, and their replica counts (NO_COUNT if erasure-coded)."""

    places: list[int]
    ids: list[int]
    replica_counts: list[int]


def at_rest(rows: Sequence[bytes]) -> ClosedContainerColumns:
    """Find the closed containers that wait for no datanode, of which there are millions, without
    decoding their rows. The rows are decoded later, which cannot fail then. Raise DamagedRow if a
    row is damaged.

    Most rows differ only in their digits. Their checksums are verified, so rows of the same form
    have their numbers at the same positions. One row of each form is decoded as a check.
    """
    if rows and min(map(len, rows)) < CRC.size:
        raise DamagedRow("a row is too short for a checksum")
    checksums = np.frombuffer(b"".join([row[: CRC.size] for row in rows]), ">u4")
    bodies = [row[CRC.size :] for row in rows]
    check_all(checksums, bodies)
    kinds = [body.translate(None, _DIGITS) for body in bodies]
    looked_at = [
        (kind, match)
        for kind, body in dict(zip(kinds, bodies, strict=True)).items()
        if (match := _AT_REST.fullmatch(body)) is not None
    ]
    is_coded = {kind: bool(match["scheme"]) for kind, match in looked_at}
    places = [place for place, kind in enumerate(kinds) if kind in is_coded]
    return ClosedContainerColumns(
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


def check_all(found: NDArray[np.uint32], bodies: Sequence[bytes]) -> None:
    """Compare the stored checksums with those of the bodies. Raise DamagedRow if one differs."""
    expected = np.fromiter(map(zlib.crc32, bodies), np.uint32, len(bodies))
    is_damaged = found != expected
    if is_damaged.any():
        size = len(bodies[int(is_damaged.argmax())]) + CRC.size
        raise DamagedRow(f"row of {size} bytes does not match its checksum")


def check(row: bytes) -> None:
    """Verify the checksum of one row. Raise DamagedRow if it differs."""
    if len(row) < CRC.size or CRC.unpack_from(row)[0] != zlib.crc32(row[CRC.size :]):
        raise DamagedRow(f"row of {len(row)} bytes does not match its checksum")


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
    """Decode keys, of which there are millions. Raise ValueError or TypeError if a row is
    invalid."""
    return list(map(_key_of, unpack_all(rows, _KEY_FIELDS)))


def _key_of(values: list[Any]) -> Key:
    name, size_bytes, created_at_ms, blocks = values
    return Key(name, size_bytes, created_at_ms, tuple(KeyBlock(*block) for block in blocks))


def pending_row(pending: PendingCommand) -> bytes:
    """Encode a command without its sending time, because a restarted SCM sends it again."""
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


def pending_from(row: bytes) -> PendingCommand:
    """Decode a command; it is queued, as if it had not been sent."""
    *values, why, shards = unpack(row, _PENDING_FIELDS)
    values[1] = CommandKind(values[1])
    values[4] = CommandPriority(values[4])
    made_of = tuple((index, datanode_id) for index, datanode_id in shards)
    return replace(PendingCommand(*values), why=why, shards=made_of)


def transaction_row(transaction: DeleteTransaction) -> bytes:
    """Encode a transaction of block deletes."""
    return pack(list(_TRANSACTION_FIELDS(transaction)))


def transaction_from(row: bytes) -> DeleteTransaction:
    """Decode a transaction of block deletes."""
    values = unpack(row, 6)
    values[2] = tuple(values[2])
    values[4] = tuple(values[4])
    return DeleteTransaction(*values)


def deleted_row(deleted: DeletedBlocks) -> bytes:
    """Encode deleted blocks. Each id is stored as the difference from the previous id."""
    steps = [after - before for before, after in pairwise((0, *deleted.local_ids))]
    return pack([deleted.container_id, deleted.transaction_id, steps, deleted.is_unproven])


def deleted_from(row: bytes) -> DeletedBlocks:
    """Decode deleted blocks."""
    container_id, transaction_id, steps, is_unproven = unpack(row, 4)
    return DeletedBlocks(container_id, transaction_id, tuple(accumulate(steps)), is_unproven)


def hold_from(row: bytes) -> Hold:
    """Decode a hold."""
    return Hold(*unpack(row, 4))


def forgotten_row(forgotten: ForgottenContainer) -> bytes:
    """Encode a forgotten container."""
    container = base64.b64encode(container_row(forgotten.container)).decode("ascii")
    return pack([container, forgotten.at_ms, forgotten.key_count])


def forgotten_from(row: bytes) -> ForgottenContainer:
    """Decode a forgotten container."""
    container, at_ms, key_count = unpack(row, 3)
    return ForgottenContainer(container_from(base64.b64decode(container)), at_ms, key_count)


def outcome_row(outcome: CommandOutcome) -> bytes:
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


def outcome_from(row: bytes) -> CommandOutcome:
    """Decode an outcome."""
    values = unpack(row, 9)
    values[3] = OutcomeState(values[3])
    values[8] = base64.b64decode(values[8])
    return CommandOutcome(*values)
