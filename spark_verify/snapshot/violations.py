"""What no row of a snapshot may say, whatever the other rows say."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from health.ec_replication import INDEX_MAX
from health.segments import Bools
from spark_verify.input_columns import AHEAD_MAX_MS, TABLES, Column
from spark_verify.snapshot.manifest import Manifest

EXAMPLES_MAX: Final = 5
"""Rows named in a refusal: enough to find the cause, few enough to read."""

_INSTANTS: Final = {
    "containers": "state_since_ms",
    "replicas": "reported_at_ms",
    "nodes": "last_heartbeat_at_ms",
}
"""Columns that the control plane's own clock filled in."""

_SIGNED: Final = ("root", "settled_root", "tombstones_checksum")


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is wrong with some rows of a table, and the first of them as people read it."""

    what: str
    count: int
    examples: list[str]


def wrong_rows(name: str, table: pa.Table, manifest: Manifest) -> Iterator[Wrong]:
    """Yield what is wrong with rows of table `name`; nothing when all are possible."""
    for what, find in _rules(name, manifest):
        rows = np.flatnonzero(find(table))
        if len(rows):
            yield Wrong(what, len(rows), examples(name, table.take(rows[:EXAMPLES_MAX])))


def examples(name: str, rows: pa.Table) -> list[str]:
    """Return rows of table `name` as people read them: their keys, and what they are."""
    keys = {"containers": ["container_id"], "nodes": ["datanode_id"]}.get(
        name, ["container_id", "datanode_id"]
    )
    shown = ("state", "replica_index", "health", "op_state", "op", "replication_type")
    return [
        f"({', '.join(f'{key} {row[key]}' for key in keys)}: "
        f"{', '.join(f'{word}={row[word]}' for word in shown if word in row)})"
        for row in rows.to_pylist()
    ]


Find = Callable[[pa.Table], Bools]
"""Returns for each row of a table whether it is wrong."""


def _rules(name: str, manifest: Manifest) -> list[tuple[str, Find]]:
    columns = TABLES[name]
    rules: list[tuple[str, Find]] = [
        (f"{c.name} is null", _is_null(c.name)) for c in columns if not c.nullable
    ]
    rules += [(f"{c.name} is negative", _is_below(c.name, 0)) for c in columns if _is_count(c)]
    own = [manifest.snapshot_id]
    rules.append(("snapshot_id is not the manifest's", _is_none_of("snapshot_id", own)))
    if name in _INSTANTS:
        instant = _INSTANTS[name]
        latest = manifest.as_of_ms + AHEAD_MAX_MS
        rules.append((f"{instant} is later than the snapshot", _is_above(instant, latest)))
    if name in ("replicas", "pending_ops"):
        rules.append((f"replica_index is above {INDEX_MAX}", _is_above("replica_index", INDEX_MAX)))
    rules += [
        (f"{c.name} is none of {', '.join(c.words)}", _is_none_of(c.name, c.words))
        for c in columns
        if c.words
    ]
    if name == "containers":
        rules.append(("ec_data and ec_parity name no code", _names_no_code))
        rules.append(("replication_factor is below 1", _is_below("replication_factor", 1)))
    else:
        rules.append(("datanode_id is empty", _is_empty_word("datanode_id")))
    return rules


def _is_count(column: Column) -> bool:
    return pa.types.is_integer(column.type) and column.name not in _SIGNED


def _nobody(table: pa.Table) -> Bools:
    return np.zeros(table.num_rows, dtype=np.bool_)


def _mask(values: Any) -> Bools:
    """Return a column of booleans, of which what is null is no."""
    return np.asarray(pc.fill_null(values, False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _is_null(name: str) -> Find:
    def find(table: pa.Table) -> Bools:
        column = table[name]
        return _mask(pc.is_null(column)) if column.null_count else _nobody(table)

    return find


def _is_below(name: str, least: int) -> Find:
    def find(table: pa.Table) -> Bools:
        lowest = pc.min(table[name]).as_py()
        is_fine = lowest is None or lowest >= least
        return _nobody(table) if is_fine else _mask(pc.less(table[name], least))

    return find


def _is_above(name: str, most: int) -> Find:
    def find(table: pa.Table) -> Bools:
        highest = pc.max(table[name]).as_py()
        is_fine = highest is None or highest <= most
        return _nobody(table) if is_fine else _mask(pc.greater(table[name], most))

    return find


def _is_none_of(name: str, words: Any) -> Find:
    known = pa.array(words, pa.string())

    def find(table: pa.Table) -> Bools:
        strange = set(words_of(table[name])) - {*words, None}
        if not strange:
            return _nobody(table)
        text = table[name].cast(pa.string())
        return _mask(pc.and_(pc.is_valid(text), pc.invert(pc.is_in(text, value_set=known))))

    return find


def _is_empty_word(name: str) -> Find:
    def find(table: pa.Table) -> Bools:
        if "" not in words_of(table[name]):
            return _nobody(table)
        return _mask(pc.equal(table[name].cast(pa.string()), ""))

    return find


def words_of(column: pa.ChunkedArray) -> list[str | None]:
    """Return the words that occur in a column, which may be one with a dictionary."""
    found: list[str | None] = pc.unique(column.unify_dictionaries()).to_pylist()
    return found


def _names_no_code(table: pa.Table) -> Bools:
    is_ec = _mask(pc.equal(table["replication_type"].cast(pa.string()), "EC"))
    data, parity = (
        np.asarray(pc.fill_null(table[name], 0).to_numpy(), dtype=np.int64)
        for name in ("ec_data", "ec_parity")
    )
    found: Bools = is_ec & ((data < 1) | (parity < 1) | (data + parity > INDEX_MAX))
    return found
