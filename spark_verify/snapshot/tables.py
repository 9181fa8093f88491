"""The tables of a snapshot as typed DataFrames.

    <dir>/manifest.json
    <dir>/{containers,replicas,nodes,pending_ops}/*.parquet

Spark reads a column that a file lacks as null, skips files that are empty or hidden, and widens
some types silently. So the schema of each file is compared with the declared one before any row is
read, and the row counts with those of the manifest (`checks`).
"""

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.types import StructType

from spark_verify.errors import SnapshotRefused, failures, told
from spark_verify.input_columns import TABLES, spark_schema
from spark_verify.snapshot.manifest import SCAN_AGAIN
from spark_verify.storage import spark_path

READER_OPTIONS: Final = {
    # The path is a name, whatever characters it has.
    "__globPaths__": "false",
    # A directory `a=1` is no column.
    "recursiveFileLookup": "true",
    # A cluster may have set the opposite of these as its defaults.
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "mergeSchema": "false",
    # Flipped bits are found where they are read.
    "parquet.page.verify-checksum.enabled": "true",
}
TWICE: Final = re.compile(r"COLUMN_ALREADY_EXISTS.*?`(\w+)`", re.DOTALL)
"""What Spark says of a file that has a column twice."""

FOOTERS_AT_ONCE: Final = 8
"""Files whose schema is read at the same time: each takes a small job of Spark."""

REASON_CHARACTERS_MAX: Final = 1500
"""Characters of a library's message that are shown."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The tables of a snapshot."""

    containers: DataFrame
    replicas: DataFrame
    nodes: DataFrame
    pending_ops: DataFrame

    def table(self, name: str) -> DataFrame:
        """Return the table of this name."""
        frame: DataFrame = getattr(self, name)
        return frame


def open_snapshot(spark: SparkSession, directory: str) -> Snapshot:
    """Return the tables of the snapshot in `directory`. Raise SnapshotRefused if a table is
    missing, or a file of it is damaged or has other columns."""
    return Snapshot(**{name: _open_table(spark, directory, name) for name in TABLES})


def parquet_reader(spark: SparkSession) -> DataFrameReader:
    """Return a reader that refuses what Spark would skip by default."""
    return spark.read.options(**READER_OPTIONS)


def _open_table(spark: SparkSession, directory: str, name: str) -> DataFrame:
    path = spark_path(f"{directory}/{name}")
    try:
        table = parquet_reader(spark).schema(spark_schema(name)).parquet(path)
        files = sorted(unquote(file) for file in table.inputFiles())
    except failures() as error:
        if "PATH_NOT_FOUND" in str(error):
            raise SnapshotRefused(f"{directory} has no table {name}/", hint=SCAN_AGAIN) from error
        raise unreadable(name, error) from error
    if not files:
        raise SnapshotRefused(f"table {name}/ cannot be read: it has no file", hint=SCAN_AGAIN)
    with ThreadPoolExecutor(min(FOOTERS_AT_ONCE, len(files))) as pool:
        for file, schema in zip(
            files, pool.map(lambda f: _schema(spark, name, f), files), strict=True
        ):
            check_columns(name, file.rpartition("/")[2], schema)
    return table


def _schema(spark: SparkSession, name: str, file: str) -> StructType:
    try:
        return parquet_reader(spark).parquet(file).schema
    except failures() as error:
        file_name = file.rpartition("/")[2]
        twice = TWICE.search(str(error))
        if twice is None:
            raise unreadable(name, error, file_name) from error
        raise SnapshotRefused(
            f"table {name}/, {file_name}: column {twice[1]} is there twice", hint=SCAN_AGAIN
        ) from error


def unreadable(name: str, error: Exception, file: str = "") -> SnapshotRefused:
    """Return the refusal of a table of which a file is damaged."""
    reason = " ".join(told(error).split())[:REASON_CHARACTERS_MAX]
    named = f"{file}: " if file else ""
    return SnapshotRefused(f"table {name}/ cannot be read: {named}{reason}", hint=SCAN_AGAIN)


def check_columns(name: str, file_name: str, schema: StructType) -> None:
    """Refuse a file that lacks a column, or has it with another type."""
    types = {field.name: field.dataType.simpleString() for field in schema}
    wanted = {field.name: field.dataType.simpleString() for field in spark_schema(name)}
    faults = [*_faults(wanted, types)]
    if faults:
        raise SnapshotRefused(f"table {name}/, {file_name}: {'; '.join(faults)}", hint=SCAN_AGAIN)


def _faults(wanted: dict[str, str], types: dict[str, str]) -> Iterable[str]:
    for column, kind in wanted.items():
        if column not in types:
            yield f"column {column} is missing"
        elif types[column] != kind:
            yield f"column {column} is {types[column]}, must be {kind}"
