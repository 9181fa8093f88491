"""Generates SQL views of the rows of complete runs, for engines that read files."""

from collections.abc import Callable
from typing import Final

from spark_verify.result_tables import RESULTS, RUNS
from spark_verify.storage import spark_path

ORDER: Final = tuple(reversed(RESULTS))
"""Views in order of creation: `runs` first, because the others query it."""

WHOLE: Final = " WHERE (run_id, attempt) IN (SELECT run_id, attempt FROM runs)"
"""The condition for valid rows: of a complete run, and of the attempt that its row names."""


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
    # Spark would parse run ids that look like numbers or dates, and could make two ids the same.
    "spark": ("SET spark.sql.sources.partitionColumnTypeInference.enabled=false;",)
}
"""Statements that precede all views."""


def views(out: str, engine: str) -> list[str]:
    """Return the statements of SETTINGS and one view per table, with the rows of complete runs.

    `out` is the directory of results. DuckDB and Spark access an object store with their own
    settings.
    """
    return [*SETTINGS.get(engine, ()), *(ENGINES[engine](out, name) for name in ORDER)]
