"""Declares the columns and limits of the job's input, and the versions of input and output.

Spark has no unsigned 64-bit integer, so roots and tombstone checksums are stored as signed longs
with the same 64 bits (two's complement). They are only ever compared for equality.
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
"""Version of the input. Other versions are rejected, because older ones lack columns."""

RESULT_VERSION: Final = 3
"""Version of the output, written into its manifest and summary."""

ROWS_PER_CONTAINER_MAX: Final = snapshot_columns.ROWS_PER_CONTAINER_MAX
"""Maximum replicas, or pending ops, of a container, because they are judged together."""

SAMPLE_MAX: Final = 100
"""Default number of container ids kept per kind of container, as in Ozone's report."""

AHEAD_MAX_MS: Final = 3_600_000
"""How far an instant may lie in the future, because clocks differ by up to an hour."""


@dataclass(frozen=True, slots=True)
class InputColumn:
    """A column of a table; if `words` is not empty, other values are invalid."""

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
"""The input tables: one directory of Parquet files each."""

REPORT: Final = _typed(report_columns.REPORT)
"""Columns of the other input: one file per report of a datanode."""

CONTAINERS: Final = TABLES["containers"]
REPLICAS: Final = TABLES["replicas"]
PENDING_OPS: Final = TABLES["pending_ops"]


def schema_of(columns: tuple[InputColumn, ...]) -> pa.Schema:
    """Return the Arrow schema of a table."""
    return pa.schema([pa.field(c.name, c.type, c.nullable) for c in columns])


def spark_schema(columns: tuple[InputColumn, ...]) -> StructType:
    """Return the schema with which Spark reads a table. All columns are nullable, because Parquet
    files need not declare it; nulls are checked row by row.
    """
    return StructType([StructField(c.name, SPARK_KINDS[c.type]) for c in columns])
