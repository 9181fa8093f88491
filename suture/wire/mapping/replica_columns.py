"""Converts reports of replicas to columns and back. Each field is declared once, with its width and
bounds.

`columns_of` converts `ReplicaReport` messages to `Columns`. `columns_from` converts a received
`ReplicaColumns` message to `Columns`. `message_of` converts `Columns` to a `ReplicaColumns`
message.

In `Columns`, a replica is a row of numbers. A Python object is created for a replica only if
something about it is new. The control plane stores the fields of `COLUMNS` in the same order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from health.tables.replica_numbers import NUMBERS
from merkle.checksum import Algorithm
from merkle.replica import ID_MAX, ReplicaState
from merkle.tree_summary import TreeSummary
from suture.errors import Code, RefusedError
from suture.wire.mapping.codec import ALGORITHMS, STATES, malformed, summary_message
from suture.wire.v1 import container_pb2 as pb
from suture.wire.v1 import scm_pb2

EMPTY: Final = 1
HAS_TREE: Final = 2
CONTRADICTORY: Final = 4
FLAGS: Final = EMPTY | HAS_TREE | CONTRADICTORY
WORD_TYPE: Final = "<u4"
REPLICAS_MAX: Final = 100_000  # maximum number of replicas in one message
_UNKNOWN: Final = 255


@dataclass(frozen=True, slots=True)
class ReplicaColumn:
    """A numeric field of a replica: its name and numpy type in `ReplicaColumns`, its path in
    `ReplicaReport`, and its bounds. A path `tree.x` names a field of the tree. If `high` is None,
    there is no upper bound."""

    name: str
    type: str
    field: str
    high: int | None = None
    low: int = 0


def _column_from(name: str) -> ReplicaColumn:
    number = NUMBERS[name]
    return ReplicaColumn(name, number.reported, name, number.high)


ID: Final = ReplicaColumn("container_id", "<u8", "container_id", ID_MAX, 1)
COLUMNS: Final = (
    ReplicaColumn("state", "|u1", "state"),
    _column_from("replica_index"),
    ReplicaColumn("flags", "|u1", "", FLAGS),
    ReplicaColumn("algorithm", "|u1", "tree.algorithm"),
    *map(_column_from, ("finding_count", "used_bytes", "block_count", "bcsid", "data_scan_at_ms")),
    ReplicaColumn("root", "<u8", "tree.root"),
    ReplicaColumn("generation", "<u8", "tree.generation", ID_MAX),
    ReplicaColumn("tree_block_count", "<u8", "tree.block_count", ID_MAX),
    ReplicaColumn("tombstone_count", "<u8", "tree.tombstone_count", ID_MAX),
    ReplicaColumn("tombstones_checksum", "<u8", "tree.tombstones_checksum"),
)
"""The numeric fields of a replica without its id. In `Columns`, the values of the state and the
algorithm are positions in the Python enumerations, not protobuf's numbers."""

WORDS: Final = ("origin", "volume", "error")
"""Names of the columns with texts. Each value is an index in a list of texts, whose first text is
empty."""
_WORD_FIELDS: Final = ("origin_datanode_id", "volume_id", "load_error")

_PLAIN: Final = tuple(c for c in (ID, *COLUMNS) if c.field and "." not in c.field)
_OF_TREE: Final = tuple(c for c in COLUMNS if c.field.startswith("tree."))
_PLAIN_OF: Final[Callable[[Any], tuple[int, ...]]] = attrgetter(*(c.field for c in _PLAIN))
_TREE_OF: Final[Callable[[Any], tuple[int, ...]]] = attrgetter(
    *(c.field.removeprefix("tree.") for c in _OF_TREE)
)
_FLAGS_OF: Final[Callable[[Any], tuple[bool, int]]] = attrgetter("is_empty", "contradiction_count")
_WORDS_OF: Final[Callable[[Any], tuple[str, ...]]] = attrgetter(*_WORD_FIELDS)
_NUMBER_FIELDS: Final = tuple(c.field for c in _PLAIN if c.name != "state")
_NUMBERS_OF: Final[Callable[[Any], tuple[int, ...]]] = attrgetter(*_NUMBER_FIELDS)
_NO_TREE: Final = (0,) * len(_OF_TREE)


def _codes(words: Sequence[Any], numbers: Mapping[int, Any]) -> NDArray[np.uint8]:
    """Return an array that converts protobuf's number of an enumeration to the position in
    `words`."""
    found = np.full(256, _UNKNOWN, np.uint8)
    for number, word in numbers.items():
        found[number] = words.index(word)
    return found


_STATE_CODES: Final = _codes(tuple(ReplicaState), STATES)
_ALGORITHM_CODES: Final = _codes(tuple(Algorithm), ALGORITHMS)
_UNHEALTHY: Final = tuple(ReplicaState).index(ReplicaState.UNHEALTHY)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The replicas of one datanode, as columns. Element i of each array belongs to replica i."""

    numbers: Mapping[str, NDArray[Any]]  # by name: `ID`, `COLUMNS` and `WORDS`
    words: Sequence[str]  # the words that the `WORDS` columns index; the first is empty
    refused_ids: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Ids of the containers whose replicas were omitted, because a field is invalid."""
    refused: str = ""
    """Path of the first invalid field, and its fault; "" if all fields are valid."""

    def __len__(self) -> int:
        return len(self.numbers[ID.name])

    def without(self, is_out: NDArray[np.bool_], why: str) -> "Columns":
        """Return the columns without the replicas for which `is_out` is True, because they are
        invalid. `why` describes the first fault."""
        if not is_out.any():
            return self
        ids = self.numbers[ID.name][is_out]
        known = ids[(ids >= ID.low) & (ids <= ID_MAX)].astype(np.int64)
        return Columns(
            {name: values[~is_out] for name, values in self.numbers.items()},
            self.words,
            np.concatenate((self.refused_ids, known)),
            self.refused or why,
        )


def columns_of(messages: Sequence[pb.ReplicaReport], where: str) -> Columns:
    """Convert reports to columns. Reports with an invalid field are omitted."""
    numbers: dict[str, NDArray[Any]] = {}
    for column, values in zip(_PLAIN, _turned(map(_PLAIN_OF, messages), _PLAIN), strict=True):
        kind = np.int64 if column.name == "state" else np.uint64  # enums may be negative
        numbers[column.name] = np.array(values, kind)
    has_tree = [message.HasField("tree") for message in messages]
    trees = (
        _TREE_OF(message.tree) if there else _NO_TREE
        for message, there in zip(messages, has_tree, strict=True)
    )
    for column, values in zip(_OF_TREE, _turned(trees, _OF_TREE), strict=True):
        kind = np.int64 if column.name == "algorithm" else np.uint64
        numbers[column.name] = np.array(values, kind)
    numbers["flags"] = np.array(has_tree, np.uint8) * HAS_TREE
    empty, contradictions = _turned(map(_FLAGS_OF, messages), ("", ""))
    numbers["flags"] |= np.array(empty, np.uint8) * EMPTY
    numbers["flags"] |= (np.array(contradictions, np.int64) > 0).astype(np.uint8) * CONTRADICTORY
    places = {"": 0}
    for name, words in zip(WORDS, _turned(map(_WORDS_OF, messages), WORDS), strict=True):
        numbers[name] = np.array([places.setdefault(w, len(places)) for w in words], np.uint32)
    return _checked(numbers, list(places), lambda i, field: f"{where}[{i}].{field}")


def columns_from(message: scm_pb2.ReplicaColumns, where: str) -> Columns:
    """Convert a received message to columns. Replicas with an invalid field are omitted.

    Raise RefusedError if a complete column is invalid. The message names the column.
    """
    count = message.count
    if count > REPLICAS_MAX:
        raise malformed(f"{where}.count", f"{count} are more than {REPLICAS_MAX} in one call")
    numbers: dict[str, NDArray[Any]] = {}
    for name, kind in (*((c.name, c.type) for c in (ID, *COLUMNS)), *_WORD_TYPES):
        data, width = getattr(message, name), np.dtype(kind).itemsize
        if data and len(data) != count * width:
            raise malformed(f"{where}.{name}", f"{len(data)} bytes are not {count} of {width}")
        numbers[name] = np.frombuffer(data, kind) if data else np.zeros(count, kind)
    if "" in message.words:
        raise malformed(f"{where}.words", "one is empty")
    words = ["", *message.words]
    for name in WORDS:
        last = int(numbers[name].max(initial=0))
        if last >= len(words):
            raise malformed(f"{where}.{name}", f"word {last} of {len(words) - 1}")
    return _checked(numbers, words, lambda i, field: f"{where}.{field}[{i}]")


def message_of(columns: Columns) -> scm_pb2.ReplicaColumns:
    """Convert columns to a message."""
    message = scm_pb2.ReplicaColumns(count=len(columns), words=columns.words[1:])
    for name, kind in (*((c.name, c.type) for c in (ID, *COLUMNS)), *_WORD_TYPES):
        values = columns.numbers[name]
        if name in _WIRE_CODES:
            values = _WIRE_CODES[name][values]
            if name == "algorithm":
                values = np.where(columns.numbers["flags"] & HAS_TREE, values, 0)
        if values.any():
            setattr(message, name, values.astype(kind).tobytes())
    return message


class ReportableReplica(Protocol):
    """A replica that can be reported. It has an attribute for each field of `COLUMNS`."""

    @property
    def state(self) -> ReplicaState:
        """State of the replica, as the datanode reports it."""
        ...

    @property
    def tree(self) -> TreeSummary | None:
        """Summary of the replica's tree; None if the replica has no tree."""
        ...

    @property
    def origin_datanode_id(self) -> str:
        """Id of the datanode that created the replica."""
        ...

    @property
    def volume_id(self) -> str:
        """Id of the volume that stores the replica."""
        ...

    @property
    def is_empty(self) -> bool:
        """True if it is known that the replica has no blocks."""
        ...


def report_of(
    known: ReportableReplica, *, contradiction_count: int, load_error: str = ""
) -> pb.ReplicaReport:
    """Return the report of one replica as a message. The field `tree` is not set if the replica has
    no tree."""
    return pb.ReplicaReport(
        state=known.state,
        origin_datanode_id=known.origin_datanode_id,
        volume_id=known.volume_id,
        is_empty=known.is_empty,
        tree=None if known.tree is None else summary_message(known.tree),
        load_error=load_error,
        contradiction_count=contradiction_count,
        **dict(zip(_NUMBER_FIELDS, _NUMBERS_OF(known), strict=True)),
    )


def column_report(page: scm_pb2.ContainerReport) -> scm_pb2.ColumnReport:
    """Convert a page of a complete report to columns. Raise RefusedError if a field of a replica is
    invalid, because its value may not fit into the column."""
    columns = columns_of(page.replicas, "replicas")
    if columns.refused:
        raise RefusedError(Code.MALFORMED_REQUEST, columns.refused)
    return scm_pb2.ColumnReport(
        report_id=page.report_id,
        page=page.page,
        last=page.last,
        replicas=message_of(columns),
    )


_WORD_TYPES: Final = tuple((name, WORD_TYPE) for name in WORDS)
_WIRE_CODES: Final = {
    "state": np.array([_STATE_CODES.tolist().index(i) for i in range(len(ReplicaState))], np.uint8),
    "algorithm": np.array(
        [_ALGORITHM_CODES.tolist().index(i) for i in range(len(Algorithm))], np.uint8
    ),
}
"""For each enumeration, an array that converts the position of a member to protobuf's number."""


def _turned(rows: Any, names: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Convert rows to columns. If there are no rows, return an empty column for each name."""
    return list(zip(*rows, strict=True)) or [()] * len(names)


class _RowFilter:
    """Collects the replicas with invalid fields and keeps the first error. The function `path`
    returns the path of a replica's field for the error."""

    def __init__(self, count: int, path: Callable[[int, str], str]) -> None:
        self.is_out = np.zeros(count, np.bool_)
        self.first = ""
        self._path = path

    def refuse(
        self, is_out: NDArray[np.bool_], field: str, values: NDArray[Any], what: str
    ) -> None:
        """Record that the replicas for which `is_out` is True are invalid because of `field`.
        `what` is the text of the error."""
        if not is_out.any():
            return
        i = int(is_out.argmax())
        self.first = self.first or f"{self._path(i, field)}: {what.format(int(values[i]))}"
        self.is_out |= is_out


def _checked(
    numbers: dict[str, NDArray[Any]], words: Sequence[str], path: Callable[[int, str], str]
) -> Columns:
    """Return the columns without the replicas that have an invalid field.

    Protobuf's numbers of states and algorithms are converted to positions in the Python
    enumerations. `path` returns the path of a replica's field for an error.
    """
    sieve = _RowFilter(len(numbers[ID.name]), path)
    for column in (ID, *COLUMNS):
        values = numbers[column.name]
        is_out = values < column.low if column.low else np.zeros(len(values), np.bool_)
        if column.high is not None:
            is_out |= values > column.high
        bounds = f"{{}} is not within {column.low}..{column.high}"
        sieve.refuse(is_out, column.field or column.name, values, bounds)
    is_loaded = numbers["error"] == 0
    # The state of a replica that cannot be loaded is unknown.
    state = np.where(is_loaded, _coded(numbers["state"], _STATE_CODES), _UNHEALTHY)
    sieve.refuse(state == _UNKNOWN, "state", numbers["state"], "replica state {} is unknown")
    has_tree = (numbers["flags"] & HAS_TREE).astype(np.bool_)
    algorithm = np.where(has_tree, _coded(numbers["algorithm"], _ALGORITHM_CODES), 0)
    unknown = "tree algorithm {} is unknown"
    sieve.refuse(algorithm == _UNKNOWN, "tree.algorithm", numbers["algorithm"], unknown)
    numbers["state"], numbers["algorithm"] = state, algorithm
    if not has_tree.all():
        for column in _OF_TREE:
            numbers[column.name] = np.where(has_tree, numbers[column.name], 0)
    return Columns(numbers, words).without(sieve.is_out, sieve.first)


def _coded(numbers: NDArray[Any], codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Convert protobuf's numbers of an enumeration to positions. An unknown number becomes
    `_UNKNOWN`, because another process may send any number."""
    is_small = (numbers >= 0) & (numbers < len(codes))
    return np.where(is_small, codes[np.where(is_small, numbers, 0)], _UNKNOWN)
