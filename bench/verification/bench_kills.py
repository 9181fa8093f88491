"""Kills the driver of a verification at BENCH_KILLS points, on a local disk and on an S3 server.

Each driver is a process with its own Java. It is killed when a certain number of new files and
directories exists in its results, from the first to nearly the last of an undisturbed run. After
each kill, a reader must find no run or the complete run: by files (`_SUCCESS`) and by SQL (`runs`).
All drivers use one directory of results. In the end one of the killed runs is done again.

The S3 server is that of moto. Spark uses Hadoop's S3A, whose libraries Maven fetches.
BENCH_KILLS_PLACES names the places, by default `disk,s3`.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow.fs as pafs

from bench.measure import Measure, at_least, at_most
from spark_verify.report.sql_views import ORDER, views
from spark_verify.runs import finished_runs
from spark_verify.storage import LocalStorage
from suture.wire.mapping.file_systems import FsPath
from tests.support.verification.maven import class_path
from tests.support.verification.object_store import object_store, put
from tests.support.verification.snapshots import container, gather
from tests.support.verification.spark_cluster import kill_tree

KILLS = int(os.environ.get("BENCH_KILLS", "10"))
PLACES = os.environ.get("BENCH_KILLS_PLACES", "disk,s3").split(",")
POM = Path(__file__).parents[2] / "tests" / "support" / "verification" / "s3a" / "pom.xml"
CODES = (0, 2, 4)
LOOK_S = 0.05

Rows = dict[str, list[str]]
"""The rows of a run, by table."""


@dataclass(frozen=True, slots=True)
class Place:
    """A directory with a snapshot, as Spark and as this process reach it."""

    address: str
    files: FsPath
    environment: Mapping[str, str]

    def paths(self) -> set[str]:
        """Return the lasting files and directories of the results, which may change meanwhile."""
        found = pafs.FileSelector(f"{self.files.path}/out", allow_not_found=True, recursive=True)
        with suppress(FileNotFoundError):  # a directory was removed while it was listed
            paths = {info.path for info in self.files.files.get_file_info(found)}
            return {path for path in paths if "/_temporary" not in path}
        return set()

    def copied(self, to: Path) -> Path:
        """Return a copy of the results as they are now."""
        to.mkdir()
        local = pafs.LocalFileSystem()
        pafs.copy_files(f"{self.files.path}/out", str(to), self.files.files, local)
        return to


def measures() -> list[Measure]:
    """Return the number of kills, of results that read as complete but are not, and of rows that
    differ after the repetition."""
    found: list[Measure] = []
    with tempfile.TemporaryDirectory(prefix="suture-kills-") as name:
        for kind in PLACES:
            root = Path(name) / kind
            root.mkdir()
            with disk(root) if kind == "disk" else s3(root) as place:
                found += _killed(kind, place, root)
    return found


@contextmanager
def disk(root: Path) -> Iterator[Place]:
    """Yield a place on the local disk."""
    _snapshot(root / "place")
    yield Place(str(root / "place"), FsPath.of(root / "place"), os.environ)


@contextmanager
def s3(root: Path) -> Iterator[Place]:
    """Yield a place on an S3 server."""
    jars = class_path(POM, root / "jars").strip()
    with object_store() as store:
        address = store.address("place")
        put(_snapshot(root / "own"), f"{store.address('place/s')}")
        settings = {
            "endpoint": f"http://{store.host}",
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
        }
        options = [f"--conf=spark.hadoop.fs.s3a.{key}={value}" for key, value in settings.items()]
        submit = shlex.join(["--driver-class-path", jars, *options, "pyspark-shell"])
        environment = os.environ | {"PYSPARK_SUBMIT_ARGS": submit}
        yield Place(address.partition("?")[0], FsPath.of(address), environment)


def _snapshot(root: Path) -> Path:
    """Return the directory of a written snapshot of a cluster with several faults."""
    kinds = ("C=7x3", "C=7x2 C=9", "C=7x2", "C=7x4", "U=7x3")
    rows = gather([container(i, "R CLOSED 10", kinds[i % len(kinds)]) for i in range(1, 31)])
    return rows.write(root / "s")


def _killed(kind: str, place: Place, root: Path) -> list[Measure]:
    whole = _verified(place, "whole", after=None)
    assert whole, "the undisturbed run has ended by itself"
    expected = _read(place.copied(root / "whole"), "whole")
    assert all(expected[name] for name in ("health", "plan", "reconcile_plan"))
    kills, partial = 0, 0
    for number in range(KILLS):
        run_id = f"killed-{number}"
        kills += not _verified(place, run_id, after=1 + whole * number // KILLS)
        copy = place.copied(root / run_id)
        is_finished = run_id in finished_runs(LocalStorage(str(copy)))
        rows = _read(copy, run_id)
        partial += rows not in ({}, expected) or (is_finished and not rows)
    _verified(place, "killed-0", after=None)
    again = _read(place.copied(root / "again"), "killed-0")
    differing = sum(again.get(name) != rows for name, rows in expected.items())
    return [
        at_least(f"kills_{kind}", kills, "kills", KILLS, compared_with="of running drivers"),
        at_most(f"kills_{kind}_partial", partial, "results", 0, compared_with=f"of {KILLS}"),
        at_most(f"kills_{kind}_differing", differing, "tables", 0, compared_with="done again"),
    ]


def _verified(place: Place, run_id: str, *, after: int | None) -> int:
    """Verify, and kill the driver when `after` new paths exist in the results; None = never.

    Return 0 if it was killed, otherwise the number of new paths.
    """
    snapshot, out = f"{place.address}/s", f"{place.address}/out"
    command = ["spark_verify.start", snapshot, "--out", out, "--run-id", run_id]
    before, seen = place.paths(), set[str]()
    with tempfile.TemporaryFile() as said:
        driver = subprocess.Popen(
            [sys.executable, "-m", *command],
            env=place.environment,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
        try:
            while driver.poll() is None:
                seen |= place.paths() - before
                if after is not None and len(seen) >= after:
                    return 0
                time.sleep(LOOK_S)
        finally:
            kill_tree(driver.pid)
            driver.wait()
        said.seek(0)
        assert driver.returncode in CODES, said.read().decode()
    return len(seen)


def _read(out: Path, run_id: str) -> Rows:
    """Return the rows of a run that SQL finds, by table; empty if it finds no row."""
    found: Rows = {}
    with duckdb.connect() as connection:
        for name, view in zip(ORDER, views(str(out), "duckdb"), strict=True):
            query = f"SELECT * EXCLUDE (run_id, attempt) FROM {name} WHERE run_id = ?"  # noqa: S608
            try:
                connection.execute(view)
                rows = connection.execute(query, [run_id]).fetchall()
            except (duckdb.IOException, duckdb.CatalogException):
                continue  # no file of the table exists
            found[name] = sorted(map(str, rows))
    return found if any(found.values()) else {}
