"""Generates SQL views of the result tables, for engines that read files.

The views have only rows of complete runs.
"""

from collections.abc import Callable
from typing import Final

from spark_verify.result_tables import RESULTS, RUNS
from spark_verify.storage import spark_path

ORDER: Final = tuple(reversed(RESULTS))
"""Views in the order of their creation: `runs` is first, because the other views use it."""

WHOLE: Final = " WHERE (run_id, attempt) IN (SELECT run_id, attempt FROM runs)"
"""SQL condition for the rows of complete runs, written by the attempt that the table `runs`
names."""


def _duckdb(out: str, name: str) -> str:
    place = out.replace("s3a://", "s3://", 1) if out.startswith("s3a://") else out
    keys = ("run_id",) if name == RUNS else ("run_id", "attempt")
    files = f"{_quoted(place)}/{name}/{'/'.join('*' for _ in keys)}/*.parquet"
    types = ", ".join(f"'{key}': VARCHAR" for key in keys)
    rows = f"read_parquet('{files}', hive_types = {{{types}}})"
    return f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM {rows}"  # noqa: S608 -- names are ours, paths are quoted


def _spark(out: str, name: str) -> str:
    rows = f"parquet.`{_quoted(spark_path(out))}/{name}`"
    return f"CREATE OR REPLACE TEMPORARY VIEW {name} AS SELECT * FROM {rows}"  # noqa: S608 -- as above


def _within(name: str) -> str:
    return "" if name == RUNS else WHOLE


def _quoted(out: str) -> str:
    return out.replace("'", "''").replace("`", "``")


ENGINES: Final[dict[str, Callable[[str, str], str]]] = {"duckdb": _duckdb, "spark": _spark}


STRINGS: Final = "SET spark.sql.sources.partitionColumnTypeInference.enabled=false;"
"""Setting for Spark to read run ids as text.

Without it, Spark reads run ids as numbers or dates, and two different ids may become equal.
"""


def views(out: str, engine: str) -> list[str]:
    """Return SQL statements that create one view for each table, with the rows of complete runs.

    If the engine is Spark, the first statement is a setting. `out` is the directory of results.
    DuckDB and Spark access an object store with their own settings.
    """
    own = [f"{ENGINES[engine](out, name)}{_within(name)};" for name in ORDER]
    return [STRINGS, *own] if engine == "spark" else own
