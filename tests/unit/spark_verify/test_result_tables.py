"""Files of a result, and a result of which something is missing."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_verify.errors import SnapshotRefused
from spark_verify.file_systems import Place
from spark_verify.pipeline import _check_counts
from spark_verify.report.sql_views import views
from spark_verify.result_tables import RESULTS
from spark_verify.runs import run_of, table_of
from spark_verify.snapshot.manifest import Manifest
from spark_verify.tasks.result_files import sweep, write
from spark_verify.tasks.tallies import Tallies

OTHER = "-0123456789ab"
TABLE = pa.table({"container_id": [1, 2, 3]})


def test_a_task_that_is_done_twice_leaves_one_file(tmp_path: Path) -> None:
    """
    And one that died while it wrote leaves nothing.
    """
    for _ in range(2):
        write(TABLE, Place.of(tmp_path / "health"), "00007")
    half = tmp_path / "health" / ".part-00008.parquet.1234"
    half.write_bytes(b"PAR1")

    sweep(Place.of(tmp_path))

    assert ["part-00007.parquet"] == [path.name for path in (tmp_path / "health").iterdir()]
    assert TABLE == pq.read_table(tmp_path / "health")


def test_sql_sees_no_half_run(tmp_path: Path) -> None:
    """
    Nor does it take the name of a run for a number, nor see what an attempt left that did not
    become the run.
    """
    out = Place.of(tmp_path)
    for name in ("001", "002"):
        for table in RESULTS:
            rows = [dict.fromkeys(RESULTS[table].schema.names)]
            run = table_of(run_of(out, name), table)
            write(pa.Table.from_pylist(rows, schema=RESULTS[table].schema), run, "00000")
            write(pa.Table.from_pylist(rows, schema=RESULTS[table].schema), run, f"00000{OTHER}")
    table_of(run_of(out, "002"), "runs").remove()
    (table_of(run_of(out, "001"), "runs") / f"part-00000{OTHER}.parquet").remove()

    with duckdb.connect() as connection:
        for statement in views(out, "duckdb"):
            connection.execute(statement)
        for table in RESULTS:
            found = connection.execute(f"SELECT run_id FROM {table}").fetchall()  # noqa: S608
            assert [("001",)] == found, table


@pytest.mark.parametrize("shown", [(1, 3, 0), (2, 3, 0), (2, 2, 1)])
def test_a_row_that_nobody_judged_refuses_the_run(shown: tuple[int, int, int]) -> None:
    """
    Whatever table it stands in.
    """
    rows = {"containers": 2, "replicas": 3, "nodes": 9, "pending_ops": 1}
    manifest = Manifest(4, "s", 5_000, 1, "c", rows)
    whole, less = Tallies(), Tallies()
    whole.count_rows(containers=1, replicas=2, ops=0)
    whole.count_rows(containers=1, replicas=1, ops=1)
    less.count_rows(**dict(zip(("containers", "replicas", "ops"), shown, strict=True)))

    _check_counts(manifest, whole)
    with pytest.raises(SnapshotRefused, match="were judged of 2, 3 and 1"):
        _check_counts(manifest, less)
