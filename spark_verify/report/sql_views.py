"""SQL that gives the tables of all whole runs names, for engines that read files."""

from collections.abc import Callable
from typing import Final

from spark_verify.result_tables import RESULTS, RUNS
from spark_verify.storage import spark_path

ORDER: Final = (RUNS, *(name for name in RESULTS if name != RUNS))
"""Views before those that ask them."""

WHOLE: Final = " WHERE (run_id, attempt) IN (SELECT run_id, attempt FROM runs)"
"""The condition that leaves rows of whole runs, of the attempt that became the run."""


def _duckdb(out: str, name: str) -> str:
    given = "hive_types = {'run_id': VARCHAR, 'attempt': VARCHAR}"
    if name == RUNS:
        given = "hive_types = {'run_id': VARCHAR}"
    place = out.replace("s3a://", "s3://", 1) if out.startswith("s3a://") else out
    depth = "*" if name == RUNS else "*/*"
    rows = f"SELECT * FROM read_parquet('{_quoted(place)}/{name}/{depth}/*.parquet', {given})"  # noqa: S608 -- names are ours, paths are quoted
    return f"CREATE OR REPLACE VIEW {name} AS {rows}{_within(name)};"


def _spark(out: str, name: str) -> str:
    rows = f"SELECT * FROM parquet.`{_quoted(spark_path(out))}/{name}`"  # noqa: S608 -- as above
    return f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {rows}{_within(name)};"


def _within(name: str) -> str:
    return "" if name == RUNS else WHOLE


def _quoted(out: str) -> str:
    return out.replace("'", "''").replace("`", "``")


ENGINES: Final[dict[str, Callable[[str, str], str]]] = {"duckdb": _duckdb, "spark": _spark}


SETTINGS: Final = {
    # A run id may look like a number or a day: Spark would make it one, and two such runs the same.
    "spark": ("SET spark.sql.sources.partitionColumnTypeInference.enabled=false;",)
}
"""Statements before all views."""


def views(out: str, engine: str) -> list[str]:
    """Return a statement a table of the results at `out`: a view with the rows of whole runs only;
    and before them those of SETTINGS. DuckDB and Spark reach a store by settings of their own."""
    return [*SETTINGS.get(engine, ()), *(ENGINES[engine](out, name) for name in ORDER)]
