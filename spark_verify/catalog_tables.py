"""The tables of a run in a catalog of Spark's session, such as Apache Iceberg's or Delta's.

    rows of a finished run ─► <catalog>.<namespace>.<table>

A commit there is of one table. So the run's row of `runs` goes first and comes last, as with files:
rows of a run that `runs` does not have are none. What was there of the run before is replaced, so a
repetition does no harm. Catalogs and formats are the session's own: its configuration says what
they are, and where their files lie.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyspark.sql.functions as f
from pyspark.sql import SparkSession

from spark_verify.errors import FlagRefused
from spark_verify.result_tables import RESULTS, RUN_ID, RUNS, described, type_name
from spark_verify.runs import table_of
from spark_verify.snapshot.tables import parquet_reader
from spark_verify.sql_text import quoted, text
from spark_verify.storage import spark_path

LAST: Final = (*(name for name in RESULTS if name != RUNS), RUNS)
"""`runs` says that all the others are whole."""

FORMATS: Final = ("iceberg", "delta")


@dataclass(frozen=True, slots=True)
class Catalog:
    """Tables of a namespace, `catalog.name`, that get the rows of runs."""

    spark: SparkSession
    namespace: str
    kind: str
    """One of FORMATS."""

    def publish(self, out: str, *, run_id: str, attempt: str) -> None:
        """Put the rows of a finished run into the tables; create those that do not exist. Raise
        what Spark raises."""
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {quoted(self.namespace)}")
        for name in LAST:
            self.spark.sql(self._creation(name))
        self.withdraw([run_id], tables=(RUNS,))
        for name in LAST:
            path = table_of(out, name, run_id=run_id, attempt=attempt)
            self._replace(path, name=name, run_id=run_id)

    def withdraw(self, run_ids: Sequence[str], *, tables: Sequence[str] = LAST[::-1]) -> None:
        """Remove the rows of runs; first those of `runs`."""
        if not run_ids:
            return
        named = ", ".join(map(text, run_ids))
        for name in tables:
            self.spark.sql(f"DELETE FROM {self._table(name)} WHERE run_id IN ({named})")  # noqa: S608 -- quoted

    def _replace(self, path: str, *, name: str, run_id: str) -> None:
        """Replace what a table has of a run, in one commit."""
        schema = ", ".join(f"`{c.name}` {type_name(c.type)}" for c in RESULTS[name].schema)
        rows = parquet_reader(self.spark).schema(schema).parquet(spark_path(path))
        named = rows.withColumn(RUN_ID[0], f.lit(run_id))
        if self.kind == "iceberg":
            named.writeTo(self._table(name)).overwrite(f.col(RUN_ID[0]) == run_id)
            return
        only = f"{RUN_ID[0]} = {text(run_id)}"
        writer = named.write.format(self.kind).mode("overwrite").option("replaceWhere", only)
        writer.saveAsTable(self._table(name))

    def _creation(self, name: str) -> str:
        """Return SQL that creates a table, unless it exists."""
        table = described(name)
        partition = dict(zip(("name", "type", "comment"), RUN_ID, strict=True))
        shown = ", ".join(
            f"`{one['name']}` {one['type']} COMMENT {text(one['comment'])}"
            for one in [*table["columns"], partition]
        )
        return (
            f"CREATE TABLE IF NOT EXISTS {self._table(name)} ({shown}) USING {self.kind} "
            f"PARTITIONED BY ({RUN_ID[0]}) COMMENT {text(table['comment'])} "
            f"TBLPROPERTIES ('suture.version' = '{table['version']}')"
        )

    def _table(self, name: str) -> str:
        return quoted(f"{self.namespace}.{name}")


def check_catalog(namespace: str, kind: str) -> None:
    """Raise FlagRefused for what is no `catalog.namespace`, or a format that is not known."""
    if len(namespace.split(".")) < 2 or not all(namespace.split(".")):
        raise FlagRefused(
            f"--catalog: {namespace!r} is no CATALOG.NAMESPACE",
            hint="the catalog is one of the session's: spark.sql.catalog.CATALOG",
        )
    if kind not in FORMATS:
        raise FlagRefused(f"--format: {kind!r} is none of {', '.join(FORMATS)}")
