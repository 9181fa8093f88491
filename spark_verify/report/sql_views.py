"""SQL that gives the tables of all whole runs names, for engines that read files."""

from collections.abc import Callable
from typing import Final

from spark_verify.file_systems import Place
from spark_verify.result_tables import RESULTS, RUNS

ORDER: Final = (RUNS, *(name for name in RESULTS if name != RUNS))
"""Views before those that ask them."""


def _duckdb(out: Place, name: str) -> str:
    source = (
        f"read_parquet('{_quoted(out)}/{name}/*/*.parquet', hive_types = {{'run_id': VARCHAR}})"
    )
    return f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM {source}{_whole(name)};"  # noqa: S608 -- names are ours, paths are quoted


def _spark(out: Place, name: str) -> str:
    # A run id may look like a number or a day; Spark would make it one.
    source = f"parquet.`{_quoted(out)}/{name}`"
    columns = ", ".join(RESULTS[name].schema.names)
    rows = f"SELECT {columns}, CAST(run_id AS STRING) AS run_id FROM {source}"  # noqa: S608 -- as above
    return f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {rows}{_whole(name)};"


def _whole(name: str) -> str:
    return "" if name == RUNS else f" WHERE run_id IN (SELECT run_id FROM {RUNS})"  # noqa: S608 -- as above


def _quoted(out: Place) -> str:
    return str(out).partition("?")[0].replace("'", "''").replace("`", "``")


ENGINES: Final[dict[str, Callable[[Place, str], str]]] = {"duckdb": _duckdb, "spark": _spark}


def views(out: Place, engine: str) -> list[str]:
    """Return a statement a table of the results at `out`: a view with the rows of whole runs only.

    DuckDB and Spark reach a store by settings of their own; what stands after `?` in an address is
    left out.
    """
    return [ENGINES[engine](out, name) for name in ORDER]
