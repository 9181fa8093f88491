"""Snapshots and results in an object store, and by address on a local disk."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from agent.errors import Refused, Unavailable
from agent.rpc.wire.addresses import check_address
from scm.state.options import ScmOptions
from spark_verify.errors import PlaceRefused, RunConflict
from spark_verify.pipeline import Request, Result, verify
from spark_verify.places import Place
from spark_verify.report.views import ORDER, views
from spark_verify.results import RESULTS
from spark_verify.runs import (
    LEFT_MS,
    TEXTS,
    attempt,
    describe_tables,
    finished_runs,
    remove_left,
    table_of,
)
from tests.support.control.scm_world import ScmWorld
from tests.support.verification.object_store import ObjectStore, object_store, put
from tests.support.verification.snapshots import SnapshotRows, container, gather

KILLED = "tests.support.verification.killed_verify"
ROOT = Path(__file__).parents[2]
TABLES = tuple(RESULTS)
KILLS = 10
NOTHING = [0] * len(TABLES)


def cluster() -> SnapshotRows:
    """Return sound containers, one that differs, one that lost a replica, and one with too many."""
    parts = [container(i, "R CLOSED 10", "C=7x3") for i in range(1, 40)]
    parts += [container(40, "R CLOSED 10", "C=7x2 C=9"), container(41, "R CLOSED 10", "C=7x2")]
    return gather([*parts, container(42, "R CLOSED 10", "C=7x4")])


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as found:
        yield found


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The cluster verified on a local disk."""
    directory = tmp_path_factory.mktemp("local")
    return verify(Request(str(cluster().write(directory / "s")), directory / "out", run_id="r"))


@pytest.fixture(scope="module")
def there(store: ObjectStore, local: Result) -> str:
    """The same snapshot in the store."""
    put(local.directory.parents[1] / "s", store.address("s"))
    return store.address("s")


def contents(run: Place) -> dict[str, Any]:
    """Return all rows of a run, and what is said of it but for the time it took."""
    rows = {
        name: pq.read_table(table_of(run, name).path, filesystem=run.files).to_pylist()
        for name in TABLES
    }
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["seconds"]
    return rows | {"manifest": manifest, "summary": (run / "summary.json").read_text()}


def blobs(run: Place) -> list[bytes]:
    """Return the files of the tables of a run, byte by byte."""
    return [
        one.place.opened().readall()
        for name in TABLES
        for one in table_of(run, name).listed()
        if one.is_file
    ]


def seen(out: Place) -> list[int]:
    """Return how many rows of each table SQL finds on a local disk; none where no file is."""
    connection, found = duckdb.connect(), []
    for name, view in zip(ORDER, views(out, "duckdb"), strict=True):
        try:
            connection.execute(view)
            found.append(len(connection.execute(f"FROM {name}").fetchall()))
        except (duckdb.IOException, duckdb.CatalogException):
            found.append(0)
    connection.close()
    return found


def killed(count: int, snapshot: str, out: str) -> subprocess.CompletedProcess[str]:
    """Verify in a process that dies before its n-th change."""
    return subprocess.run(
        [sys.executable, "-m", KILLED, str(count), snapshot, out],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_result_in_a_store_is_that_on_a_local_disk(
    tmp_path: Path, store: ObjectStore, there: str, local: Result, here_rows: int
) -> None:
    """
    Read and written by address, in this process and in tasks of Spark; bit for bit the same, and
    returned without work when it is asked for again.
    """
    snapshot = str(local.directory.parents[1] / "s")
    out = store.address(f"out-{here_rows}")

    own = verify(Request(snapshot, tmp_path, run_id="r", here_rows=here_rows))
    result = verify(Request(there, out, run_id="r", here_rows=here_rows))

    assert contents(own.place) == contents(result.place)
    assert blobs(own.place) == blobs(result.place)
    assert [result.place] == finished_runs(Place.of(out))
    said: list[str] = []
    assert result.summary == verify(Request(there, out, run_id="r"), said.append).summary
    assert said == ["run r is finished already"]


def test_an_address_of_a_local_disk_is_its_path(tmp_path: Path, local: Result) -> None:
    """
    file:// in and out.
    """
    snapshot = local.directory.parents[1] / "s"

    result = verify(Request(snapshot.as_uri(), (tmp_path / "out").as_uri(), run_id="r"))

    assert tmp_path / "out" / "run_id=r" == result.directory
    assert blobs(local.place) == blobs(result.place)


@pytest.mark.parametrize("kind", ["local", "store"])
def test_a_run_that_was_killed_is_none_and_is_done_again(
    tmp_path: Path, kind: str, store: ObjectStore, there: str, local: Result
) -> None:
    """
    At ten points from the first change to the last: no result that reads as whole, by its files or
    by SQL, and the next run of the same name is whole and leaves nothing else.
    """
    is_local = kind == "local"
    snapshot = str(local.directory.parents[1] / "s") if is_local else there
    address = str(tmp_path / "whole") if is_local else store.address("whole")
    describe_tables(Place.of(address))
    changes = int(killed(0, snapshot, address).stdout)
    points = sorted({1 + i * (changes - 1) // (KILLS - 1) for i in range(KILLS)})
    out = Place.of(tmp_path / "killed" if is_local else store.address("killed"))
    whole = seen(local.place.parent)
    describe_tables(out)

    for point in points:
        assert killed(point, snapshot, str(out)).returncode == -signal.SIGKILL
        assert finished_runs(out) == [], f"killed before change {point} of {changes}"
        if is_local:
            assert seen(out) in (NOTHING, whole), "half a run is none, whoever asks"

    result = verify(Request(snapshot, str(out), run_id="r"))
    assert contents(local.place) == contents(result.place)
    assert blobs(local.place) == blobs(result.place)
    left = [one.place.name for one in out.listed(recursive=True) if "." in one.place.name]
    assert len(left) == 2 * len(TABLES) + 3, "a file and a schema of each table, and three texts"
    assert len(points) == KILLS


def test_a_run_that_another_process_finished_first_is_refused(
    store: ObjectStore, there: str
) -> None:
    """
    Nothing can be locked in a store: who comes second finds a finished run, and leaves it whole.
    """
    out = Place.of(store.address("twice"))

    texts = dict.fromkeys(TEXTS, "{}")
    with attempt(out, "r") as second:
        half = table_of(second.target, "health") / f"part-0{second.suffix}.parquet"
        half.write_text("half")
        first = verify(Request(there, str(out), run_id="r"))
        whole = blobs(first.place)
        with pytest.raises(RunConflict, match="another process"):
            second.commit(texts, RESULTS["runs"].schema.empty_table())

    assert first.summary == verify(Request(there, str(out), run_id="r")).summary
    assert whole == blobs(first.place)
    assert [f for f in out.listed(recursive=True) if second.suffix in f.place.name] == []


def test_what_killed_runs_left_goes_after_a_day(store: ObjectStore) -> None:
    """
    Not what still grows, and never a finished run.
    """
    out = Place.of(store.address("left"))
    half = table_of(out / "run_id=dead", "health")
    (half / "part-0.parquet").write_text("half")
    (out / "run_id=done" / "_SUCCESS").write_text("")

    remove_left(out)
    young = [one.place.name for one in out.listed()]
    (newest,) = [f.changed_at_ms for f in half.listed()]
    remove_left(out, now_ms=newest + LEFT_MS + 1)

    assert ["health", "run_id=done"] == young
    left = [one.place.name for one in out.listed(recursive=True)]
    assert "run_id=dead" not in left
    assert "run_id=done" in left


def test_the_control_plane_puts_its_snapshots_where_spark_reads_them(
    tmp_path: Path, store: ObjectStore
) -> None:
    """
    The same files as on its own disk, as many as are kept, and nothing of one that was begun and
    not finished.
    """
    address = store.address("scm")
    begun = Place.of(address) / "0000000000001-t1"
    (begun / "replicas" / "part-00000.parquet").write_text("half")
    options = ScmOptions(snapshot_address=address, snapshot_keep_count=2)
    with ScmWorld(tmp_path, options).running() as world:
        world.join("dn1", "dn2", "dn3")
        world.made_closed()
        exported = [world.control.export_snapshot() for _ in range(3)]

    assert [one.snapshot_id for one in exported[1:]] == [
        one.place.name for one in Place.of(address).listed()
    ]
    newest = exported[-1]
    own = sorted(path for path in newest.path.rglob("*") if path.is_file())
    there = [one.place for one in Place.of(newest.place).listed(recursive=True) if one.is_file]
    assert [path.read_bytes() for path in own] == [place.opened().readall() for place in there]
    result = verify(Request(newest.place, store.address("scm-results"), reporting_min_percent=0))
    assert result.summary["containers"] == 1


def test_a_snapshot_that_cannot_be_put_there_is_told_and_kept(
    tmp_path: Path, store: ObjectStore
) -> None:
    """
    On the control plane's own disk, for who asks again; and a wrong address stops the start.
    """
    address = store.address("scm").replace("/snapshots/", "/no-such-bucket/")
    with ScmWorld(tmp_path, ScmOptions(snapshot_address=address)).running() as world:
        world.join("dn1")
        with pytest.raises(Unavailable, match="cannot be written to") as raised:
            world.control.export_snapshot()

    assert (
        Path(raised.value.hint.removeprefix("it is whole in ")).joinpath("manifest.json").is_file()
    )
    for wrong in ("bucket/snapshots", "s3://key:secret@bucket/x"):
        with pytest.raises(Refused):
            check_address(wrong)


def test_an_address_with_credentials_is_refused() -> None:
    """
    It would be printed and remembered; and what is no file system is named.
    """
    with pytest.raises(PlaceRefused, match="holds credentials"):
        Place.of("s3://key:secret@bucket/x")
    with pytest.raises(PlaceRefused, match="gopher:// cannot be opened"):
        Place.of("gopher://host/x").is_file()
