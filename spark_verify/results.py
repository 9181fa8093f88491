"""The tables of a result: Arrow where this process holds the rows, Spark's where it does not.

All that a run writes into its directory as a table is written here.
"""

from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

Rows = Any
"""Of one table: a DataFrame, or an Arrow table."""

OWN_FILE: Final = "part-judged.parquet"
"""What this process writes, beside files of other names that Spark's tasks write."""


def write(rows: Rows, path: Path) -> None:
    """Add rows to the table at `path`."""
    if isinstance(rows, DataFrame):
        rows.write.option("compression", "zstd").mode("append").parquet(str(path))
        return
    path.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path / OWN_FILE, compression="zstd")


def kept(rows: Rows, path: Path) -> Rows:
    """Write rows and return them; those of Spark as they are read from there."""
    write(rows, path)
    return read(rows, path) if isinstance(rows, DataFrame) else rows


def read(like: DataFrame, path: Path) -> DataFrame:
    """Return the rows at `path`; told what they look like, Spark need not open a file to see."""
    return like.sparkSession.read.schema(like.schema).parquet(str(path))


def ordered(rows: Rows, *columns: str) -> Rows:
    """Return the rows such that each file has them in this order."""
    if isinstance(rows, DataFrame):
        return rows.sortWithinPartitions(*columns)
    return rows.sort_by([(column, "ascending") for column in columns])


def split(rows: Rows, column: str) -> tuple[Rows, Rows]:
    """Return the rows for which a boolean column is true, and the others."""
    if isinstance(rows, DataFrame):
        return rows.filter(column), rows.filter(f"NOT {column}")
    return rows.filter(pc.field(column)), rows.filter(~pc.field(column))


def lowest(rows: Rows, column: str, count: int) -> list[int]:
    """Return the lowest numbers of a column."""
    if isinstance(rows, DataFrame):
        return [row[column] for row in rows.orderBy(column).limit(count).collect()]
    return list(rows.sort_by(column)[column].slice(0, count).to_pylist())


def total(rows: Rows, column: str) -> tuple[int, int]:
    """Return how many rows there are, and the sum of a column."""
    if isinstance(rows, DataFrame):
        found = rows.agg(f.count(f.lit(1)), f.coalesce(f.sum(column), f.lit(0))).first()
        assert found is not None, "an aggregate without groups has one row"
        return found[0], found[1]
    return rows.num_rows, pc.sum(rows[column]).as_py() or 0
