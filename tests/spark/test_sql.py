"""The manual's SQL, on the results of two whole runs, by the engines it names."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from spark_verify.pipeline import VerifyRequest, verify
from spark_verify.report.sql_views import ENGINES, views
from spark_verify.result_tables import RESULTS
from spark_verify.runs import SUCCESS
from suture.runtime.exit_codes import ExitCode
from tests.support.verification.snapshots import AS_OF_MS, container, gather
from tests.unit.spark_verify.test_result_tables import write

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

MANUAL = Path(__file__).parents[2] / "docs" / "SPARK.md"
QUERIES = re.findall(r"```sql\n(.+?);\n```", MANUAL.read_text(encoding="utf-8"), re.DOTALL)

EXPECTED: list[list[tuple[Any, ...]]] = [
    [("2026", 4, 3, ExitCode.DATA_AT_RISK), ("2027", 4, 4, ExitCode.DATA_AT_RISK)],
    [("2026", 1, 1), ("2027", 2, 1)],
    [(3,)],
    [("dn-1-2", "v0", 2)],
    [(1, 1, 2), (4, 1, 2)],
    [("2026", "replicate", 1, 1000), ("2027", "replicate", 2, 2000)],
    [],  # no reports were compared: test_reports asks it of some
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: a container that differs in both, one that lacks a replica in both, one that lacks
    one in the second only, and one all of whose replicas are bad in both. A third, with the rows of
    the first, was killed after its tables had got their places; so was one that wrote the second,
    too. All have names that look
    like numbers."""
    directory = tmp_path_factory.mktemp("sql")
    out = directory / "results"
    for number, last in ((2026, "C=7x3"), (2027, "C=7x2")):
        rows = gather(
            [
                container(1, "R CLOSED 10", "C=7x2 C=9"),
                container(2, "R CLOSED 10", "C=7x2"),
                container(3, "R CLOSED 10", last),
                container(4, "R CLOSED 10", "U=7x3"),
            ]
        )
        snapshot = rows.write(directory / f"s{number}", manifest={"as_of_ms": AS_OF_MS + number})
        verify(VerifyRequest(str(snapshot), out, str(number)))
    shutil.copytree(out / "run_id=2026", out / "run_id=2028")
    (out / "run_id=2028" / SUCCESS).unlink()
    for name in RESULTS:
        if name != "runs":
            shutil.copytree(out / name / "run_id=2026", out / name / "run_id=2028")
            (own,) = (out / name / "run_id=2027").iterdir()
            shutil.copytree(own, own.with_name("attempt=0123456789ab"))
    return out


def answers(results: Path, query: str) -> list[Any]:
    """Return what DuckDB answers, asked of its views."""
    with duckdb.connect() as connection:
        for statement in views(str(results), "duckdb"):
            connection.execute(statement)
        return connection.execute(query).fetchall()


@pytest.mark.parametrize("number", range(len(EXPECTED)))
def test_a_query_of_the_manual_answers(results: Path, number: int) -> None:
    """The manual's queries run over the views that the command prints, and an unfinished run is
    refused.
    """
    assert EXPECTED[number] == answers(results, QUERIES[number])


@pytest.fixture(scope="module")
def viewed(spark: SparkSession, results: Path) -> SparkSession:
    """A session with the views of the results."""
    session = spark.newSession()
    for statement in views(str(results), "spark"):
        session.sql(statement.removesuffix(";"))
    return session


@pytest.mark.spark
@pytest.mark.parametrize("number", range(len(EXPECTED)))
def test_queries_of_the_manual_work_in_spark(viewed: SparkSession, number: int) -> None:
    """The statements are the same, over views of the same names."""
    assert EXPECTED[number] == [tuple(row) for row in viewed.sql(QUERIES[number]).collect()]


@pytest.mark.spark
def test_run_ids_that_look_like_numbers_stay_what_they_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    In Spark as in DuckDB, also where those of all runs do.
    """
    names = ["007", "1.1", "1.10", "7"]
    for name in names:
        for table in RESULTS:
            write(tmp_path, table, name, "own")
    query = "SELECT run_id, count(*) FROM health GROUP BY run_id ORDER BY run_id"
    session = spark.newSession()

    for statement in views(str(tmp_path), "spark"):
        session.sql(statement.removesuffix(";"))

    assert [(name, 1) for name in names] == [tuple(row) for row in session.sql(query).collect()]
    assert [(name, 1) for name in names] == answers(tmp_path, query)


def test_a_store_has_the_name_that_each_engine_knows() -> None:
    """
    Hadoop has another one than everybody else.
    """
    place = "s3a://cluster/results"

    assert all("`s3a://cluster/results/" in words for words in views(place, "spark")[1:])
    assert all("'s3://cluster/results/" in words for words in views(place, "duckdb"))


def test_every_query_of_the_manual_is_tried() -> None:
    """
    None was added without an answer.
    """
    assert len(EXPECTED) == len(QUERIES)


def test_result_tables_have_the_declared_columns(results: Path) -> None:
    """Names and types are compared with those that DuckDB finds in the files."""
    types = {"int64": "BIGINT", "int32": "INTEGER", "string": "VARCHAR", "bool": "BOOLEAN"}
    for name, table in RESULTS.items():
        found = {row[0]: row[1] for row in answers(results, f"DESCRIBE {name}")}

        declared = {field.name: str(field.type) for field in table.schema}
        assert {*declared, "run_id", "attempt"} == set(found), name
        plain = {column: types[kind] for column, kind in declared.items() if kind in types}
        assert plain == {column: found[column] for column in plain}
        assert all(table.meanings)


def test_the_command_prints_the_views(results: Path) -> None:
    """
    For the engine that is named; another one is refused.
    """
    command = [sys.executable, "-m", "spark_verify.job", "views", str(results), "--engine"]

    printed = subprocess.run([*command, "spark"], capture_output=True, text=True, check=True)
    refused = subprocess.run([*command, "excel"], capture_output=True, text=True, check=False)
    command[4] = "s3://user:word@bucket/x"
    told = subprocess.run([*command, "spark"], capture_output=True, text=True, check=False)

    assert views(str(results), "spark") == printed.stdout.splitlines()
    assert ExitCode.USAGE == refused.returncode
    assert "'excel' is not one of 'duckdb', 'spark'" in refused.stderr
    assert ExitCode.FAILED == told.returncode
    assert (
        "suture-verify: cannot use an address of s3:// with credentials"
        == told.stderr.splitlines()[0]
    )
    assert {"duckdb", "spark"} == set(ENGINES)
