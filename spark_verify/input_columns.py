"""The columns of what the job reads, and the versions and limits of what it reads and writes.

Spark has no unsigned 64-bit integer, so roots and tombstone checksums travel as signed longs in
two's complement: the same 64 bits, read with a sign. They are only ever compared for equality.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from health.tables import report_columns, snapshot_columns

SCHEMA_VERSION: Final = snapshot_columns.SCHEMA_VERSION
"""Of the input. A snapshot of another version is refused: an older one lacks columns."""

RESULT_VERSION: Final = 3
"""Of the output, written into its manifest and summary."""

ROWS_PER_CONTAINER_MAX: Final = snapshot_columns.ROWS_PER_CONTAINER_MAX
"""Replicas, or pending ops: what is judged side by side is bounded."""

SAMPLE_MAX: Final = 100
"""Container ids kept per kind of container unless an option says otherwise, as many as Ozone's
report shows."""

AHEAD_MAX_MS: Final = 3_600_000
"""How far an instant may lie in the future: clocks differ, but not by more than an hour."""


@dataclass(frozen=True, slots=True)
class InputColumn:
    """One column of a table: its words are checked when `words` is not empty."""

    name: str
    type: pa.DataType
    nullable: bool = False
    words: tuple[str, ...] = ()


KINDS: Final[dict[str, pa.DataType]] = {
    "long": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "boolean": pa.bool_(),
}
SPARK_KINDS: Final[dict[pa.DataType, DataType]] = {
    pa.int64(): LongType(),
    pa.int32(): IntegerType(),
    pa.string(): StringType(),
    pa.bool_(): BooleanType(),
}


def _typed(columns: Iterable[snapshot_columns.Column]) -> tuple[InputColumn, ...]:
    return tuple(InputColumn(c.name, KINDS[c.kind], c.is_nullable, c.words) for c in columns)


TABLES: Final[dict[str, tuple[InputColumn, ...]]] = {
    name: _typed(columns) for name, columns in snapshot_columns.TABLES.items()
}
"""The input: one directory of Parquet files each."""

REPORT: Final = _typed(report_columns.REPORT)
"""The other input: one file for each report of a datanode."""

CONTAINERS: Final = TABLES["containers"]
REPLICAS: Final = TABLES["replicas"]
PENDING_OPS: Final = TABLES["pending_ops"]


def schema_of(columns: tuple[InputColumn, ...]) -> pa.Schema:
    """Return the Arrow schema of a table."""
    return pa.schema([pa.field(c.name, c.type, c.nullable) for c in columns])


def spark_schema(columns: tuple[InputColumn, ...]) -> StructType:
    """Return the schema by which Spark reads a table. All columns may be null: what must not be
    is checked row by row, because Parquet files do not have to say it."""
    return StructType([StructField(c.name, SPARK_KINDS[c.type]) for c in columns])
