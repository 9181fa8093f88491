"""Declares the columns and limits of the job's input.

Spark has no unsigned 64-bit integer, so roots and tombstone checksums are stored as signed longs
with the same 64 bits (two's complement). They are only ever compared for equality.
"""

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from health.tables import report_columns, snapshot_columns

AHEAD_MAX_MS: Final = 3_600_000
"""Maximum difference by which a time may be in the future: clocks may differ by up to an hour."""


KINDS: Final[dict[str, pa.DataType]] = {
    "long": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "boolean": pa.bool_(),
}


def schema_of(text: str) -> pa.Schema:
    """Return the schema of columns written as `name kind, ...`."""
    return pa.schema([(name, KINDS[kind]) for name, kind in map(str.split, text.split(","))])


def _schema(columns: Iterable[snapshot_columns.Column]) -> pa.Schema:
    return pa.schema([pa.field(c.name, KINDS[c.kind], c.is_nullable) for c in columns])


TABLES: Final = {name: _schema(columns) for name, columns in snapshot_columns.TABLES.items()}
"""The input tables by name. Each is a directory of Parquet files."""

REPORT: Final = _schema(report_columns.REPORT)
"""Columns of a datanode's report, the other input. Each report is one file."""

NOT_JUDGED: Final = (
    *("snapshot_id", "state_since_ms", "tree_generation", "data_scan_at_ms", "reported_at_ms"),
    *("deadline_ms", "command_id"),
)

CASE: Final = {
    name: pa.schema([column for column in TABLES[name] if column.name not in NOT_JUDGED])
    for name in ("containers", "replicas", "pending_ops")
}
"""The tables whose rows belong to a container, with only the columns that the judge needs."""
