"""What no row of a snapshot may say, whatever the other rows say: written once, asked by Spark of
tables that it reads and by Arrow of rows that are at hand."""

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column as SparkColumn

from health.erasure import INDEX_MAX
from spark_verify.manifest import Manifest
from spark_verify.rows import AHEAD_MAX_MS, TABLES, Column

Condition = Any
"""What holds for a row or not: an expression of Spark's, or of Arrow's."""

ColumnOf = Callable[[str], Condition]
"""`functions.col` of Spark or `field` of Arrow: what no row may do is written once for both."""

_INSTANTS: Final = {
    "containers": "state_since_ms",
    "replicas": "reported_at_ms",
    "nodes": "last_heartbeat_at_ms",
}
"""Columns that the control plane's own clock filled in."""


def impossible(name: str, table: pa.Table, manifest: Manifest, *, is_proven: bool = True) -> bool:
    """Return whether `check_rows` would refuse any row of an Arrow table."""
    wrong = [w for _, w in violations(name, manifest, pc.field, is_proven=is_proven)]
    return bool(table.filter(reduce(or_, wrong)).num_rows)


def violations(
    name: str, manifest: Manifest, column: ColumnOf, *, is_proven: bool
) -> list[tuple[str, Condition]]:
    """Return what no row of table `name` may say; of rows that `prove_rows` let pass (`is_proven`)
    only what that left open."""
    own = word_violations(name, column)
    return own if is_proven else numeric_violations(name, manifest, column) + own


def numeric_violations(
    name: str, manifest: Manifest, column: ColumnOf
) -> list[tuple[str, Condition]]:
    """Return what no row of table `name` may do that minima and maxima of its columns can tell."""
    columns = TABLES[name]
    found: list[tuple[str, Condition]] = [
        (f"{c.name} is null", is_null(column(c.name))) for c in columns if not c.nullable
    ]
    found += [
        (f"{c.name} is negative", column(c.name) < 0) for c in columns if _must_not_be_negative(c)
    ]
    found.append(
        ("snapshot_id is not the manifest's", column("snapshot_id") != manifest.snapshot_id)
    )
    if name in _INSTANTS:
        latest = manifest.as_of_ms + AHEAD_MAX_MS
        instant = _INSTANTS[name]
        found.append((f"{instant} is later than the snapshot", column(instant) > latest))
    if name in ("replicas", "pending_ops"):
        found.append((f"replica_index is above {INDEX_MAX}", column("replica_index") > INDEX_MAX))
    return found


def word_violations(name: str, column: ColumnOf) -> list[tuple[str, Condition]]:
    """Return what else no row may do: say a word nobody knows, name a code that is none."""
    found: list[tuple[str, Condition]] = [
        (
            f"{c.name} is none of {', '.join(c.words)}",
            ~is_null(column(c.name)) & ~column(c.name).isin(list(c.words)),
        )
        for c in TABLES[name]
        if c.words
    ]
    if name != "containers":
        found.append(("datanode_id is empty", column("datanode_id") == ""))
    return found + (code_violations(column) if name == "containers" else [])


def _must_not_be_negative(column: Column) -> bool:
    signed = {"root", "tombstones_checksum"}
    numeric = column.type.simpleString() in ("int", "bigint")
    return numeric and column.name not in signed


def code_violations(column: ColumnOf) -> list[tuple[str, Condition]]:
    """Return what no container row may say of its replication."""
    data, parity = column("ec_data"), column("ec_parity")
    no_code = is_null(data) | is_null(parity) | (data < 1) | (parity < 1)
    no_code = no_code | (data + parity > INDEX_MAX)
    return [
        ("ec_data and ec_parity name no code", (column("replication_type") == "EC") & no_code),
        ("replication_factor is below 1", column("replication_factor") < 1),
    ]


def is_null(value: Condition) -> Condition:
    """Return whether a value is missing, as an expression of whichever engine it is one of."""
    return value.isNull() if isinstance(value, SparkColumn) else value.is_null()
