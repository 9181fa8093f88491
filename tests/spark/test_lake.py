"""The tables of runs in a catalog of Apache Iceberg and in one of Delta Lake.

Their libraries are for older releases of Spark, of which a Python of its own is asked for:

    python -m venv lake && lake/bin/pip install 'pyspark==4.1.*' './.[spark]' 'pandas<3'
    SUTURE_ICEBERG_PYTHON=lake/bin/python pytest tests/spark/test_lake.py
    python -m venv delta && delta/bin/pip install 'pyspark==4.0.*' './.[spark]' 'pandas<3'
    SUTURE_DELTA_PYTHON=delta/bin/python pytest tests/spark/test_lake.py
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
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
STORY = """
import json, sys
from spark_verify import job

told = {"codes": []}
tables = sys.argv[2]
for command in json.loads(sys.argv[1]):
    sys.argv[1:] = command
    try:
        job.main()
    except SystemExit as end:
        told["codes"].append(end.code)
from pyspark.sql import SparkSession
spark = SparkSession.getActiveSession()
for name in json.loads(sys.stdin.read()):
    table = f"{tables}.{name}"
    told[name] = [
        [json.loads(row) for row in spark.sql(query).toJSON().collect()]
        for query in (f"SELECT * FROM {table}", f"DESCRIBE {table}")
    ]
print(json.dumps(told))
"""
"""All commands in one process, whose Java takes longest to start; then what is in the tables."""


@dataclass(frozen=True, slots=True)
class Lake:
    """A format of tables, and how a session gets a catalog of it."""

    kind: str
    releases: tuple[str, ...]
    """The releases of Spark for which the pom.xml names a library."""
    tables: str
    """Catalog and namespace."""
    settings: Mapping[str, str]
    """Settings of the session; {} is a directory of the test."""

    def python(self) -> str:
        """Return a Python whose Spark has a library of this format; skip the test without one."""
        variable = f"SUTURE_{self.kind.upper()}_PYTHON"
        python = os.environ.get(variable, sys.executable)
        asked = [python, "-c", "import pyspark; print(pyspark.__version__)"]
        found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        if not found.startswith(self.releases):
            pytest.skip(
                f"{self.kind} has no library for Spark {found or '(none)'}: {variable} names a "
                f"Python with that of {' or '.join(self.releases)}"
            )
        return python

    def run(self, place: Path, commands: list[list[str]]) -> "subprocess.CompletedProcess[str]":
        """Run commands in that Python, whose sessions have the catalog."""
        skip_without_java()
        python = self.python()
        pom = ROOT / "tests" / "support" / "verification" / self.kind / "pom.xml"
        jars = class_path(pom, place / "jars").strip().replace(":", ",")
        settings = {key: value.format(place) for key, value in self.settings.items()}
        options = [f"--conf {key}={value}" for key, value in settings.items()]
        submit = " ".join(["--jars", jars, *options, "--conf spark.ui.enabled=false"])
        environment = os.environ | {"PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell"}
        environment |= {"PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
        environment["PYTHONPATH"] = str(ROOT)
        environment.pop("SPARK_HOME", None)
        return subprocess.run(
            [python, "-c", STORY, json.dumps(commands), self.tables],
            env=environment,
            input=json.dumps([*RESULTS]),
            capture_output=True,
            text=True,
            check=False,
        )


LAKES = (
    Lake(
        "iceberg",
        ("4.0", "4.1"),
        "lake.suture.verify",
        {
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": "{}/warehouse",
        },
    ),
    Lake(
        "delta",
        ("4.0",),
        "spark_catalog.verify",
        {
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.warehouse.dir": "{}/warehouse",
            "spark.databricks.delta.snapshotPartitions": "1",
        },
    ),
)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("lake", LAKES, ids=lambda lake: lake.kind)
def test_catalog_has_what_the_files_have_of_the_runs_that_stay(tmp_path: Path, lake: Lake) -> None:
    """
    Row by row, with what columns mean; once, also where it was done again; and what --keep-runs
    removes goes there as well. A catalog that is none takes nothing from the result.
    """
    out, commands = tmp_path / "out", []
    for number in (2026, 2027, 2028):
        parts = [container(1, "R CLOSED 10", "C=7x2 C=9"), container(2, "R CLOSED 10", "C=7x2")]
        rows = gather([*parts, container(number, "R CLOSED 10", "C=7x3")])
        snapshot = rows.write(tmp_path / f"s{number}", manifest={"as_of_ms": AS_OF_MS + number})
        command = [str(snapshot), "--out", str(out), "--run-id", str(number)]
        commands.append([*command, "--format", lake.kind, "--catalog", lake.tables])
    again, kept = commands[1], ["2027", "2028"]
    last = [*commands.pop(), "--keep-runs", "2"]

    done = lake.run(tmp_path, [*commands, again, last, [*last[:8], "nowhere.verify"]])

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
    """Return the rows of a run, as those of a catalog are printed: without what is null."""
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
