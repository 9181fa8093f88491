"""The tables of runs in a catalog of Apache Iceberg.

Its library is for Spark 4.0 and 4.1, of which a Python of its own is asked for:

    python -m venv iceberg && iceberg/bin/pip install 'pyspark==4.1.*' './.[spark]' 'pandas<3'
    SUTURE_ICEBERG_PYTHON=iceberg/bin/python pytest tests/spark/test_lake.py
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from spark_verify.catalog_tables import check_catalog
from spark_verify.errors import FlagRefused
from spark_verify.result_tables import RESULTS
from suture.runtime.exit_codes import ExitCode
from tests.support.verification.java import skip_without_java
from tests.support.verification.maven import class_path
from tests.support.verification.snapshots import AS_OF_MS, container, gather

ROOT = Path(__file__).parents[2]
POM = ROOT / "tests" / "support" / "verification" / "iceberg" / "pom.xml"
RELEASES = ("4.0", "4.1")
TABLES = "lake.suture.verify"
STORY = """
import json, sys
from spark_verify import job

told = {"codes": []}
for command in json.loads(sys.argv[1]):
    sys.argv[1:] = command
    try:
        job.main()
    except SystemExit as end:
        told["codes"].append(end.code)
from pyspark.sql import SparkSession
spark = SparkSession.getActiveSession()
for name in json.loads(sys.stdin.read()):
    table = f"lake.suture.verify.{name}"
    told[name] = [
        [json.loads(row) for row in spark.sql(query).toJSON().collect()]
        for query in (f"SELECT * FROM {table}", f"DESCRIBE {table}")
    ]
print(json.dumps(told))
"""
"""All commands in one process, whose Java takes longest to start; then what is in the tables."""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def python_of_iceberg() -> str:
    """Return a Python whose Spark has a library of Iceberg's; skip the test without one."""
    python = os.environ.get("SUTURE_ICEBERG_PYTHON", sys.executable)
    asked = [python, "-c", "import pyspark; print(pyspark.__version__)"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if not found.startswith(RELEASES):
        pytest.skip(
            f"Iceberg has no library for Spark {found or '(none)'}: SUTURE_ICEBERG_PYTHON names a "
            f"Python with that of {' or '.join(RELEASES)}"
        )
    return python


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a program in that Python, whose sessions have a catalog `lake`."""
    skip_without_java()
    python = python_of_iceberg()
    catalog = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".warehouse": str(tmp_path / "warehouse"),
    }
    settings = [f"--conf spark.sql.catalog.lake{key}={value}" for key, value in catalog.items()]
    jars = ["--jars", class_path(POM, tmp_path / "jars").strip().replace(":", ",")]
    submit = " ".join([*jars, *settings, "--conf spark.ui.enabled=false", "pyspark-shell"])
    environment = os.environ | {"PYSPARK_SUBMIT_ARGS": submit, "PYTHONPATH": str(ROOT)}
    environment |= {"PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("SPARK_HOME", None)

    def started(commands: list[list[str]]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [python, "-c", STORY, json.dumps(commands)],
            env=environment,
            input=json.dumps([*RESULTS]),
            capture_output=True,
            text=True,
            check=False,
        )

    return started


@pytest.mark.spark
@pytest.mark.slow
def test_iceberg_has_what_the_files_have_of_the_runs_that_stay(tmp_path: Path, run: Run) -> None:
    """
    Row by row, with what columns mean; once, also where it was done again; and what --keep-runs
    removes goes there as well. A catalog that is none takes nothing from the result.
    """
    out, commands = tmp_path / "out", []
    for number in (2026, 2027, 2028):
        parts = [container(1, "R CLOSED 10", "C=7x2 C=9"), container(2, "R CLOSED 10", "C=7x2")]
        rows = gather([*parts, container(number, "R CLOSED 10", "C=7x3")])
        snapshot = rows.write(tmp_path / f"s{number}", manifest={"as_of_ms": AS_OF_MS + number})
        command = [str(snapshot), "--out", str(out), "--run-id", str(number), "--catalog"]
        commands.append([*command, TABLES])
    again, kept = commands[1], ["2027", "2028"]
    last = [*commands.pop(), "--keep-runs", "2"]

    done = run([*commands, again, last, [*last[:6], "nowhere.verify"]])

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert [ExitCode.TO_DO] * 4 + [ExitCode.FAILED] == told["codes"]
    assert "to nowhere.verify" in done.stderr
    assert kept == sorted(path.name.removeprefix("run_id=") for path in out.glob("run_id=*"))
    for name, table in RESULTS.items():
        found, shown = told[name]
        files = [row for run_id in kept for row in rows_of(out, name, run_id)]
        assert sorted(map(str, files)) == sorted(map(str, found)), name
        meanings = zip(table.schema.names, table.meanings, strict=True)
        comments = {row["col_name"]: row.get("comment") for row in shown}
        assert dict(meanings).items() <= comments.items()


def rows_of(out: Path, name: str, run_id: str) -> list[dict[str, Any]]:
    """Return the rows of a run, as those of Iceberg are printed: without what is null."""
    files = [str(path) for path in (out / name / f"run_id={run_id}").rglob("*.parquet")]
    rows = pq.read_table(files, partitioning=None).to_pylist()
    return [
        {key: value for key, value in (row | {"run_id": run_id}).items() if value is not None}
        for row in rows
    ]


@pytest.mark.parametrize("name", ["verify", "lake.", ".verify", "lake..verify"])
def test_a_name_that_is_no_catalog_and_namespace_is_refused(name: str) -> None:
    """
    Before anything is read.
    """
    with pytest.raises(FlagRefused, match="expected CATALOG"):
        check_catalog(name)
