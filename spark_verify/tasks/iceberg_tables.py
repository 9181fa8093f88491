"""The tables of a run in a catalog of Spark's session, such as Apache Iceberg's.

    out/<table>/run_id=<id>/*.parquet ─► tasks that read ─► <catalog>.<namespace>.<table>

A commit there is of one table. So the run's row of `runs` goes first and comes last, as with files:
rows of a run that `runs` does not have are none. Whatever was there of the run before is replaced,
so it may be done again, as often as somebody likes. Catalogs and formats are the session's own: its
configuration says what they are, and where their files lie.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_verify.errors import FlagRefused
from spark_verify.file_systems import Place
from spark_verify.result_tables import RESULTS, RUN_ID, RUNS, described
from spark_verify.run_directories import RUN
from spark_verify.runs import files_of
from spark_verify.snapshot.snapshot_reading import ROWS_PER_PAGE, parquet_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAST: Final = (*(name for name in RESULTS if name != RUNS), RUNS)
"""`runs` says that all the others are whole."""

Batches = Iterator[pa.RecordBatch]


def check_namespace(name: str) -> None:
    """Raise FlagRefused for what is no `catalog.namespace`."""
    if len(name.split(".")) < 2 or not all(name.split(".")):
        raise FlagRefused(
            f"--iceberg: {name!r} is no CATALOG.NAMESPACE",
            hint="the catalog is one of the session's: spark.sql.catalog.CATALOG",
        )


def publish(spark: "SparkSession", run: Place, namespace: str) -> None:
    """Put the rows of a finished run into the tables of a namespace, `catalog.name`; what is not
    there is made. Raises what Spark raises."""
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {_quoted(namespace)}")
    for name in LAST:
        spark.sql(_made(namespace, name))
    withdraw(spark, [run.name], namespace, tables=(RUNS,))
    for name in LAST:
        _replace(spark, run, name, namespace)


def withdraw(
    spark: "SparkSession",
    runs: Sequence[str],
    namespace: str,
    *,
    tables: Sequence[str] = LAST[::-1],
) -> None:
    """Remove the rows of runs, given by the names of their directories; first those of `runs`."""
    if not runs:
        return
    named = ", ".join(_text(run.removeprefix(RUN)) for run in runs)
    for name in tables:
        spark.sql(f"DELETE FROM {_quoted(f'{namespace}.{name}')} WHERE run_id IN ({named})")  # noqa: S608 -- quoted


def _replace(spark: "SparkSession", run: Place, name: str, namespace: str) -> None:
    """Replace what a table has of a run, in one commit."""
    from pyspark.sql import functions as f

    files = [str(file) for file in files_of(run, name)]
    columns = ", ".join(f"{one['name']} {one['type']}" for one in described(name)["columns"])
    numbers = spark.range(0, len(files), 1, max(len(files), 1))
    rows = numbers.mapInArrow(_reading(files, name), columns)
    run_id = run.name.removeprefix(RUN)
    named = rows.withColumn(RUN_ID[0], f.lit(run_id))
    named.writeTo(_quoted(f"{namespace}.{name}")).overwrite(f.col(RUN_ID[0]) == run_id)


def _reading(files: Sequence[str], name: str) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        schema = RESULTS[name].schema
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with parquet_file(Place.of(files[number])) as opened:
                    for rows in opened.iter_batches(ROWS_PER_PAGE, use_threads=False):
                        yield from pa.Table.from_batches([rows]).cast(schema).to_batches()

    return run


def _made(namespace: str, name: str) -> str:
    """Return SQL that makes a table, unless it is there."""
    table = described(name)
    columns = [*table["columns"], *table["partitioned_by"]]
    shown = ", ".join(
        f"`{one['name']}` {one['type']} COMMENT {_text(one['comment'])}" for one in columns
    )
    return (
        f"CREATE TABLE IF NOT EXISTS {_quoted(f'{namespace}.{name}')} ({shown}) USING iceberg "
        f"PARTITIONED BY ({RUN_ID[0]}) COMMENT {_text(table['comment'])} "
        f"TBLPROPERTIES ('suture.version' = '{table['version']}')"
    )


def _quoted(name: str) -> str:
    return ".".join(f"`{part.replace('`', '``')}`" for part in name.split("."))


def _text(words: str) -> str:
    return "'" + words.replace("\\", "\\\\").replace("'", "\\'") + "'"
