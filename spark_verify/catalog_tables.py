"""Publishes the result tables of a run to a catalog of the Spark session, such as Iceberg or Delta
Lake.

    rows of a finished run ─► <catalog>.<namespace>.<table>

A commit changes only one table. Therefore, the row of the run in the table `runs` is deleted first
and written last. Readers ignore rows of a run without a row in `runs`. If a run is published again,
its rows are replaced. The configuration of the session defines the catalogs, the format of their
tables, and the location of their files.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyspark.sql.functions as f
from pyspark.sql import SparkSession

from health.tables.snapshot_columns import RESULT_VERSION
from spark_verify.errors import FlagRefused
from spark_verify.result_tables import RESULTS, RUNS
from spark_verify.runs import table_of
from spark_verify.snapshot.tables import read_rows
from spark_verify.sql_text import quoted, text, types_of


@dataclass(frozen=True, slots=True)
class Catalog:
    """The tables in one namespace of a catalog (`catalog.name`), to which runs are published."""

    spark: SparkSession
    namespace: str
    kind: str
    """Format of the tables: `iceberg` or `delta`."""

    def publish(self, out: str, *, run_id: str, attempt: str) -> None:
        """Create the tables that do not exist, and write the rows of a finished run to them.

        Errors of Spark are not converted.
        """
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {quoted(self.namespace)}")
        for name in RESULTS:
            self.spark.sql(self._creation(name))
        self.withdraw([run_id], tables=(RUNS,))
        for name in RESULTS:  # the order ends with `runs`
            path = table_of(out, name, run_id=run_id, attempt=attempt)
            self._replace(path, name=name, run_id=run_id)

    def withdraw(
        self, run_ids: Sequence[str], *, tables: Sequence[str] = tuple(RESULTS)[::-1]
    ) -> None:
        """Delete the rows of these runs from all tables, beginning with the table `runs`."""
        if not run_ids:
            return
        named = ", ".join(map(text, run_ids))
        for name in tables:
            self.spark.sql(f"DELETE FROM {self._table(name)} WHERE run_id IN ({named})")  # noqa: S608 -- quoted

    def _replace(self, path: str, *, name: str, run_id: str) -> None:
        """Replace the rows of a run in one table by one commit."""
        rows = read_rows(self.spark, RESULTS[name].schema, path)
        named = rows.withColumn("run_id", f.lit(run_id))
        named.writeTo(self._table(name)).overwrite(f.col("run_id") == run_id)

    def _creation(self, name: str) -> str:
        """Return the SQL that creates a table if it does not exist."""
        table = RESULTS[name]
        types = {**types_of(table.schema), "run_id": "string"}
        meanings = (*table.meanings, "name of the run")
        shown = ", ".join(
            f"`{column}` {kind} COMMENT {text(meaning)}"
            for (column, kind), meaning in zip(types.items(), meanings, strict=True)
        )
        return (
            f"CREATE TABLE IF NOT EXISTS {self._table(name)} ({shown}) USING {self.kind} "
            f"PARTITIONED BY (run_id) COMMENT {text(table.meaning)} "
            f"TBLPROPERTIES ('suture.version' = '{RESULT_VERSION}')"
        )

    def _table(self, name: str) -> str:
        return quoted(f"{self.namespace}.{name}")


def check_catalog(namespace: str) -> None:
    """Raise FlagRefused if `namespace` does not have the form `catalog.name`."""
    if len(namespace.split(".")) < 2 or not all(namespace.split(".")):
        raise FlagRefused(
            f"invalid --catalog {namespace!r}: expected CATALOG.NAMESPACE",
            hint="configure the catalog in Spark: spark.sql.catalog.CATALOG",
        )
