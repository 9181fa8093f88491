"""Opens the tables of a snapshot as DataFrames.

    <dir>/manifest.json
    <dir>/{containers,replicas,nodes,pending_ops}/*.parquet

Spark reads a missing column as null, ignores empty and hidden files, and converts some types
without an error. Therefore, the schema of each file is checked before any row is read, and the
number of rows is compared with the manifest (see `checks`).
"""

from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_verify.errors import FAILURES, SnapshotRefused, describe_error
from spark_verify.input_columns import TABLES
from spark_verify.snapshot.manifest import SCAN_AGAIN
from spark_verify.sql_text import types_of
from spark_verify.storage import spark_path, storage_of

READER_OPTIONS: Final = {
    # Read the path literally, even if it has characters of a pattern.
    "__globPaths__": "false",
    # Do not read a directory name `a=1` as a column.
    "recursiveFileLookup": "true",
    # Set explicitly, because a cluster's defaults may be the opposite.
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "mergeSchema": "false",
    # Verify checksums, to detect flipped bits.
    "parquet.page.verify-checksum.enabled": "true",
}
FOOTERS_AT_ONCE: Final = 8
"""Number of files whose footers are read at the same time."""

FOOTER_BYTES_MAX: Final = 1 << 26
"""Maximum size of a footer. A damaged length must not let the driver read a complete file."""

SPARK_TYPES: Final = (
    dict.fromkeys(("INT64", "Int(bitWidth=64, isSigned=true)"), "bigint")
    | dict.fromkeys(("INT32", "Int(bitWidth=32, isSigned=true)"), "int")
    | {"String": "string", "BOOLEAN": "boolean"}
)
"""Spark's types of the columns in the input, by their type in Parquet."""

Snapshot = Mapping[str, DataFrame]
"""The tables of a snapshot, by name."""


def open_snapshot(spark: SparkSession, directory: str) -> Snapshot:
    """Open all tables of the snapshot in `directory`.

    Raise SnapshotRefused if a table is missing, or if a file is damaged or has other columns.
    """
    return {name: _open_table(spark, directory, name) for name in TABLES}


def parquet_reader(spark: SparkSession) -> DataFrameReader:
    """Return a reader of Parquet files that raises an error where Spark would skip data by
    default."""
    return spark.read.options(**READER_OPTIONS)


def read_rows(spark: SparkSession, schema: pa.Schema, *addresses: str) -> DataFrame:
    """Read the columns of `schema` from Parquet files or directories."""
    return (
        parquet_reader(spark).schema(from_arrow_schema(schema)).parquet(*map(spark_path, addresses))
    )


def _open_table(spark: SparkSession, directory: str, name: str) -> DataFrame:
    table, schema = f"table {name}/", TABLES[name]
    rows, files = read_below(spark, f"{directory}/{name}", table, schema)
    if rows is None:
        raise SnapshotRefused(f"{directory} has no {table}", hint=SCAN_AGAIN)
    if not files:
        raise SnapshotRefused(f"{table} cannot be read: it has no file", hint=SCAN_AGAIN)
    check_files(spark, table, {file.rpartition("/")[2]: file for file in files}, schema)
    return rows


def read_below(
    spark: SparkSession, directory: str, table: str, schema: pa.Schema
) -> tuple[DataFrame | None, list[str]]:
    """Return the rows of all Parquet files in a directory and its subdirectories, and the paths of
    the files.

    If the directory does not exist, return None and an empty list.
    """
    try:
        rows = read_rows(spark, schema, directory)
        return rows, sorted(unquote(file) for file in rows.inputFiles())
    except FAILURES as error:
        if "PATH_NOT_FOUND" in str(error):
            return None, []
        raise unreadable(table, error) from error


def check_files(
    spark: SparkSession, table: str, files: Mapping[str, str], schema: pa.Schema
) -> None:
    """Raise SnapshotRefused if a file is damaged, or if a column is missing or has another type.

    `files` has the path of each file, by a name for error messages.
    """

    def types(name: str) -> Mapping[str, list[str]]:
        try:
            return _types_in(spark, files[name])
        except (*FAILURES, pa.ArrowException) as error:
            raise unreadable(table, error, name) from error

    with ThreadPoolExecutor(min(FOOTERS_AT_ONCE, len(files))) as pool:
        for name, found in zip(files, pool.map(types, files), strict=True):
            faults = [
                f"column {column} is {' and '.join(found[column]) or 'missing'}, must be {kind}"
                for column, kind in types_of(schema).items()
                if found[column] != [kind]
            ]
            if faults:
                raise SnapshotRefused(f"{table}, {name}: {'; '.join(faults)}", hint=SCAN_AGAIN)


def _types_in(spark: SparkSession, file: str) -> Mapping[str, list[str]]:
    """Return the types in the footer of a file, by column. The driver reads the footer, because a
    Spark job for each file would cost more than the file's rows in a small snapshot."""
    directory, _, name = file.removeprefix("file://").rpartition("/")
    storage = storage_of(directory, spark)
    size = int.from_bytes(storage.read_tail(name, 8)[:4], "little") + 8
    tail = storage.read_tail(name, min(size, FOOTER_BYTES_MAX))
    footer = pq.read_metadata(pa.BufferReader(tail)).schema
    found = defaultdict[str, list[str]](list)
    for column in map(footer.column, range(len(footer))):
        logical = str(column.logical_type)
        kind = column.physical_type if logical == "None" else logical
        kind += " list" * column.max_repetition_level
        found[column.path].append(SPARK_TYPES.get(kind, kind))
    return found


def unreadable(table: str, error: Exception, name: str = "") -> SnapshotRefused:
    """Return the error for a table with a file that cannot be read."""
    reason = " ".join(describe_error(error).split())
    named = f"{name}: " if name else ""
    return SnapshotRefused(f"{table} cannot be read: {named}{reason}", hint=SCAN_AGAIN)
