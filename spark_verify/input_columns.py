"""The columns and the limits of the input of the job.

Spark has no unsigned 64-bit integers. Therefore, roots and tombstone checksums are stored as signed
integers with the same 64 bits (two's complement). They are only compared for equality.
"""

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from health.tables import report_columns, snapshot_columns

AHEAD_MAX_MS: Final = 3_600_000
"""Maximum number of milliseconds by which a time may be in the future. Clocks may differ by an
hour."""


KINDS: Final[dict[str, pa.DataType]] = {
    "long": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "boolean": pa.bool_(),
}


def schema_of(text: str) -> pa.Schema:
    """Return the schema for a text of the form `name kind, name kind, ...`."""
    return pa.schema([(name, KINDS[kind]) for name, kind in map(str.split, text.split(","))])


def _schema(columns: Iterable[snapshot_columns.Column]) -> pa.Schema:
    return pa.schema([pa.field(c.name, KINDS[c.kind], c.is_nullable) for c in columns])


TABLES: Final = {name: _schema(columns) for name, columns in snapshot_columns.TABLES.items()}
"""Schemas of the input tables by name. Each table is a directory of Parquet files."""

REPORT: Final = _schema(report_columns.REPORT)
"""Columns of a datanode's report, which is the other kind of input. Each report is one file."""

NOT_JUDGED: Final = (
    *("snapshot_id", "state_since_ms", "tree_generation", "data_scan_at_ms", "reported_at_ms"),
    *("deadline_ms", "command_id"),
)

CASE: Final = {
    name: pa.schema([column for column in TABLES[name] if column.name not in NOT_JUDGED])
    for name in ("containers", "replicas", "pending_ops")
}
"""Schemas of the tables with rows about containers, with only the columns that `health/` needs."""
