"""Encodes and decodes the rows of the state.

A row consists of a CRC32 (big-endian) and a UTF-8 JSON array with the fields of a value in a fixed
order. The CRC32 is that of the array.

JSON allows an operator to read the state with any LMDB tool in an emergency. Only replicas have a
binary format, because there are millions of them (`scm.state.replicas.replica_rows`). The CRC32
detects a damaged page before the control plane uses wrong data. The order of the fields is part of
the format, so it changes only together with `FORMAT_VERSION`.
"""

import base64
import json
import re
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import (
    Any,
    Final,
    Generic,
    NamedTuple,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from numpy.typing import NDArray

from scm.state.entities import (
    Allocation,
    CommandOutcome,
    Container,
    ContainerState,
    DeletedBlocks,
    DeleteTransaction,
    ForgottenContainer,
    Hold,
    Key,
    Node,
    PendingCommand,
    WorkControl,
)

V = TypeVar("V")

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
"""Value for the required number of replicas if a single number cannot describe it.

An erasure-coded container has this value, for instance.
"""


class DamagedRow(ValueError):
    """Raised if a row on disk is damaged or has an invalid format."""


def pack(values: list[Any]) -> bytes:
    """Encode the fields of a row as a CRC32 and a JSON array."""
    body = json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()
    return CRC.pack(zlib.crc32(body)) + body


def unpack(row: bytes, field_count: int) -> list[Any]:
    """Decode a row, and return its fields.

    Raise DamagedRow if the row is damaged, or if it does not have `field_count` fields.
    """
    body = row[CRC.size :]
    if len(row) < CRC.size or CRC.unpack_from(row)[0] != zlib.crc32(body):
        raise DamagedRow(f"row of {len(row)} bytes does not match its checksum")
    values = _DECODER.decode(body.decode())
    if not isinstance(values, list) or len(values) != field_count:
        raise DamagedRow(f"row does not have {field_count} fields")
    return values


def unpack_all(rows: Sequence[bytes], field_count: int) -> list[list[Any]]:
    """Decode many rows, and return the fields of each row.

    This takes a third of the time of separate calls of `unpack`. Raise DamagedRow if a row is
    damaged.
    """
    bodies = [row[CRC.size :] for row in rows]
    if not all(bodies):
        raise DamagedRow("a row is too short for a checksum")
    checksums = np.frombuffer(b"".join([row[: CRC.size] for row in rows]), ">u4")
    check_all(checksums, bodies)
    found: list[list[Any]] = _DECODER.decode(f"[{b','.join(bodies).decode()}]")
    if len(found) != len(rows) or {(type(one), len(one)) for one in found} - {(list, field_count)}:
        raise DamagedRow(f"a row does not have {field_count} fields")
    return found


@dataclass(frozen=True, slots=True)
class RowFormat(Generic[V]):
    """Functions that convert the values of a table to rows and back.

    `value` and `values` raise DamagedRow, ValueError or TypeError if a row is invalid.
    """

    row: Callable[[V], bytes]
    value: Callable[[bytes], V]
    values: Callable[[Sequence[bytes]], list[V]]


class Codec(NamedTuple):
    """Functions that convert a field to a type that JSON supports, and back."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def row_format(noun: type[V], *names: str, **codecs: Codec) -> RowFormat[V]:
    """Return the row format of the dataclass `noun`.

    A row has the fields `names` in this order, or all fields if `names` is empty. `codecs` has the
    conversion of some fields by name. All other fields are converted according to their types.
    """
    all_names = tuple(field.name for field in fields(cast(Any, noun)))
    names = names or all_names
    values_of = attrgetter(*names)
    hints = get_type_hints(noun)
    converted = [
        (place, codec)
        for place, name in enumerate(names)
        if (codec := codecs.get(name) or _codec_of(hints[name])) is not None
    ]
    is_in_order = names == all_names[: len(names)]

    def row(value: V) -> bytes:
        values = list(values_of(value))
        for place, codec in converted:
            values[place] = codec.encode(values[place])
        return pack(values)

    def made(values: list[Any]) -> V:
        for place, codec in converted:
            values[place] = codec.decode(values[place])
        if is_in_order:
            return noun(*values)
        return noun(**dict(zip(names, values, strict=True)))

    return RowFormat(
        row,
        lambda row: made(unpack(row, len(names))),
        lambda rows: list(map(made, unpack_all(rows, len(names)))),
    )


def _codec_of(hint: Any) -> Codec | None:
    """Return the conversion for fields of this type. Return None if JSON supports the type."""
    if hint is bytes:
        return BASE64
    if is_dataclass(hint):
        values_of = attrgetter(*(field.name for field in fields(hint)))
        return Codec(values_of, lambda values: cast(Any, hint)(*values))
    if get_origin(hint) is tuple:
        codec = _codec_of(get_args(hint)[0]) if Ellipsis in get_args(hint) else None
        if codec is None:
            return Codec(list, tuple)
        encode, decode = codec
        return Codec(
            lambda items: list(map(encode, items)), lambda items: tuple(map(decode, items))
        )
    return Codec(str, hint) if isinstance(hint, type) and issubclass(hint, StrEnum) else None


BASE64: Final = Codec(lambda data: base64.b64encode(data).decode("ascii"), base64.b64decode)
_STEPS: Final = Codec(
    lambda ids: [after - before for before, after in pairwise((0, *ids))],
    lambda steps: tuple(accumulate(steps)),
)
"""Codec for ascending ids. Each id is stored as the difference from the previous id."""

NODE: Final = row_format(Node)
CONTAINER: Final = row_format(Container)
ALLOCATION: Final = row_format(Allocation)
TRANSACTION: Final = row_format(DeleteTransaction)
DELETED: Final = row_format(DeletedBlocks, local_ids=_STEPS)
HOLD: Final = row_format(Hold)
SETTING: Final = row_format(WorkControl)
KEY: Final = row_format(Key)
FORGOTTEN: Final = row_format(
    ForgottenContainer,
    container=Codec(
        lambda container: BASE64.encode(CONTAINER.row(container)),
        lambda text: CONTAINER.value(BASE64.decode(text)),
    ),
)
PENDING: Final = row_format(
    PendingCommand,
    *("command_id", "kind", "container_id", "datanode_id", "priority", "bcsid", "force"),
    *("created_at_ms", "target_id", "size_bytes", "keep_count", "op_state", "op_expiry_ms"),
    *("why", "shards"),
)
"""Row format of a command.

A row does not have the time when the command was sent, because a restarted SCM sends it again.
"""
OUTCOME: Final = row_format(
    CommandOutcome,
    *("command_id", "datanode_id", "reported_at_ms", "state", "kind", "container_id"),
    *("code", "message", "detail"),
)


def containers_from(rows: Sequence[bytes]) -> list[Container]:
    """Decode the rows of containers.

    The fields are decoded column by column, because there are millions of rows and the constructor
    takes three times as long. Raise ValueError or TypeError if a row is invalid.
    """
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
    """Return, for each row of a container, the number of blocks that were ever allocated in it.

    The other fields are not converted.
    """
    return [values[_PROMISED] for values in unpack_all(rows, _CONTAINER_FIELDS)]


class ClosedContainerColumns(NamedTuple):
    """Facts about closed containers with an empty pipeline, as columns.

    `places` are the positions of their rows. `replica_counts` are the required numbers of replicas;
    NO_COUNT for an erasure-coded container. The pipeline lists the chosen datanodes that have not
    reported their replica yet.
    """

    places: list[int]
    ids: list[int]
    replica_counts: list[int]


def at_rest(rows: Sequence[bytes]) -> ClosedContainerColumns:
    """Find the rows of closed containers with an empty pipeline. Return their facts as columns.

    The pipeline lists the chosen datanodes that have not reported their replica yet. The rows are
    not decoded, because there are millions. A later decoding of these rows cannot fail, because
    their checksums are verified and their form is checked. Most rows differ only in their digits,
    so one row of each form is parsed as a check. Raise DamagedRow if a row is damaged.
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


def check_all(found: NDArray[np.uint32], bodies: Sequence[bytes]) -> None:
    """Compute the checksums of the bodies, and compare them with `found`.

    Raise DamagedRow if one of them differs.
    """
    expected = np.fromiter(map(zlib.crc32, bodies), np.uint32, len(bodies))
    is_damaged = found != expected
    if is_damaged.any():
        size = len(bodies[int(is_damaged.argmax())]) + CRC.size
        raise DamagedRow(f"row of {size} bytes does not match its checksum")


def check(row: bytes) -> None:
    """Verify the checksum of one row. Raise DamagedRow if it does not match."""
    if len(row) < CRC.size or CRC.unpack_from(row)[0] != zlib.crc32(row[CRC.size :]):
        raise DamagedRow(f"row of {len(row)} bytes does not match its checksum")
