"""SQL that gives the tables of all whole runs names, for engines that read files."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from spark_verify.file_systems import Place
from spark_verify.result_tables import RESULTS, RUNS

ORDER: Final = (RUNS, *(name for name in RESULTS if name != RUNS))
"""Views before those that ask them."""


ATTEMPT: Final = "regexp_extract({}, '(-[0-9a-f]{{12}})?[.]parquet$', 1)"
"""Which attempt wrote a file, by its name; empty on a local disk."""


def _duckdb(out: Place, name: str) -> str:
    own = f"(run_id, {ATTEMPT.format('filename')})"
    rows = f"SELECT * EXCLUDE (filename) FROM {_read_parquet(out, name)}"  # noqa: S608 -- names are ours, paths are quoted
    whole = f"SELECT {own[1:-1]} FROM {_read_parquet(out, RUNS)}"  # noqa: S608 -- as above
    return f"CREATE OR REPLACE VIEW {name} AS {rows}{_within(name, own=own, whole=whole)};"


def _read_parquet(out: Place, name: str) -> str:
    given = "filename = true, hive_types = {'run_id': VARCHAR}"
    return f"read_parquet('{_quoted(out)}/{name}/*/*.parquet', {given})"


def _spark(out: Place, name: str) -> str:
    own = f"(run_id, {ATTEMPT.format('_metadata.file_name')})"
    columns = ", ".join((*RESULTS[name].schema.names, "run_id"))
    rows = f"SELECT {columns} FROM {_parquet(out, name)}"  # noqa: S608 -- as above
    whole = f"SELECT {own[1:-1]} FROM {_parquet(out, RUNS)}"  # noqa: S608 -- as above
    return (
        f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {rows}{_within(name, own=own, whole=whole)};"
    )


def _parquet(out: Place, name: str) -> str:
    # Hadoop knows a store by another name.
    place = replace(out, scheme="s3a") if out.scheme == "s3" else out
    return f"parquet.`{_quoted(place)}/{name}`"


def _within(name: str, *, own: str, whole: str) -> str:
    """Return the condition that leaves rows of whole runs, of the attempt that became the run."""
    return "" if name == RUNS else f" WHERE {own} IN ({whole})"


def _quoted(out: Place) -> str:
    return str(out).partition("?")[0].replace("'", "''").replace("`", "``")


ENGINES: Final[dict[str, Callable[[Place, str], str]]] = {"duckdb": _duckdb, "spark": _spark}


SETTINGS: Final = {
    # A run id may look like a number or a day: Spark would make it one, and two such runs the same.
    "spark": ("SET spark.sql.sources.partitionColumnTypeInference.enabled=false;",)
}
"""Statements before all views."""


def views(out: Place, engine: str) -> list[str]:
    """Return a statement a table of the results at `out`: a view with the rows of whole runs only;
    and before them those of SETTINGS.

    DuckDB and Spark reach a store by settings of their own; what stands after `?` in an address is
    left out.
    """
    return [*SETTINGS.get(engine, ()), *(ENGINES[engine](out, name) for name in ORDER)]
