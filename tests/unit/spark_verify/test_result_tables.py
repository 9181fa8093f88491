"""The tables of a result, as engines of SQL see them."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from spark_verify.report.sql_views import views
from spark_verify.result_tables import RESULTS, RUNS
from spark_verify.runs import table_of


def write(out: Path, table: str, run_id: str, attempt: str) -> None:
    """Write a row of an attempt at a run, all of whose columns are null but `attempt`."""
    schema = RESULTS[table].schema
    row = dict.fromkeys(schema.names) | ({"attempt": attempt} if table == RUNS else {})
    place = Path(table_of(str(out), table, run_id=run_id, attempt=attempt))
    place.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([row], schema=schema), place / "part-00000.parquet")


def test_sql_sees_no_half_run(tmp_path: Path) -> None:
    """
    Run ids are no numbers, and rows of an attempt that did not become the run are none.
    """
    for run_id in ("001", "002"):
        for table in RESULTS:
            if table != RUNS:
                write(tmp_path, table, run_id, "own")
                write(tmp_path, table, run_id, "killed")
    write(tmp_path, RUNS, "001", "own")

    with duckdb.connect() as connection:
        for statement in views(str(tmp_path), "duckdb"):
            connection.execute(statement)
        for table in RESULTS:
            query = f"SELECT run_id, attempt FROM {table}"  # noqa: S608
            assert [("001", "own")] == connection.execute(query).fetchall(), table
