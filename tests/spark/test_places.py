"""Snapshots and results in an object store and in HDFS, and by address on a local disk."""

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from agent.errors import Refused, Unavailable
from agent.rpc.wire.addresses import check_address
from agent.rpc.wire.plan_file import Run, read_plan
from scm.state.options import ScmOptions
from spark_verify import webhdfs
from spark_verify.errors import PlaceRefused, RunConflict
from spark_verify.file_systems import Place
from spark_verify.pipeline import Request, Result, verify
from spark_verify.previous_run import Previous
from spark_verify.report.sql_views import ORDER, views
from spark_verify.result_tables import RESULTS, describe_tables
from spark_verify.runs import (
    LEFT_MS,
    SUCCESS,
    TEXTS,
    Attempt,
    attempt,
    finished_runs,
    remove_left,
    table_of,
)
from tests.support.control.scm_world import ScmWorld
from tests.support.verification.hdfs.mini_hdfs import Hdfs, mini_hdfs
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
def s3() -> Iterator[ObjectStore]:
    with object_store() as found:
        yield found


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with mini_hdfs(tmp_path_factory.mktemp("hdfs")) as found:
        yield found


@pytest.fixture(scope="module", params=["s3", "hdfs"])
def store(request: pytest.FixtureRequest) -> ObjectStore | Hdfs:
    """A file system that is no disk of this machine."""
    found: ObjectStore | Hdfs = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The cluster verified on a local disk."""
    directory = tmp_path_factory.mktemp("local")
    return verify(Request(str(cluster().write(directory / "s")), directory / "out", run_id="r"))


@pytest.fixture(scope="module")
def there(store: ObjectStore | Hdfs, local: Result) -> str:
    """The same snapshot in the store."""
    put(local.directory.parents[1] / "s", store.address("s"))
    return store.address("s")


def contents(run: Place) -> dict[str, Any]:
    """Return all rows of a run, and what is said of it but for its time and its attempt."""
    rows = {
        name: pq.read_table(table_of(run, name).path, filesystem=run.files).to_pylist()
        for name in TABLES
    }
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["seconds"], manifest["attempt"]
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
    tmp_path: Path, store: ObjectStore | Hdfs, there: str, local: Result, here_rows: int
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


def test_a_run_that_was_killed_on_a_disk_is_none_and_is_done_again(
    tmp_path: Path, local: Result
) -> None:
    """
    At ten points from the first change to the last: no result that reads as whole, by its files or
    by SQL, and the next run of the same name is whole and leaves nothing else.
    """
    snapshot = str(local.directory.parents[1] / "s")
    kill_and_do_again(snapshot, str(tmp_path / "whole"), str(tmp_path / "killed"), local)


def test_a_run_that_was_killed_elsewhere_is_none_and_is_done_again(
    store: ObjectStore | Hdfs, there: str, local: Result
) -> None:
    """
    As on a disk, where nothing can be locked, and in a store nothing renamed.
    """
    kill_and_do_again(there, store.address("whole"), store.address("killed"), local)


def kill_and_do_again(snapshot: str, whole_run: str, killed_run: str, local: Result) -> None:
    """Kill runs at ten points, then let one end; `whole_run` tells how many changes there are."""
    describe_tables(Place.of(whole_run))
    changes = int(killed(0, snapshot, whole_run).stdout)
    points = sorted({1 + i * (changes - 1) // (KILLS - 1) for i in range(KILLS)})
    out = Place.of(killed_run)
    whole = seen(local.place.parent)
    describe_tables(out)

    for point in points:
        assert killed(point, snapshot, killed_run).returncode == -signal.SIGKILL
        assert finished_runs(out) == [], f"killed before change {point} of {changes}"
        if out.is_local:
            assert seen(out) in (NOTHING, whole), "half a run is none, whoever asks"

    result = verify(Request(snapshot, killed_run, run_id="r"))
    assert contents(local.place) == contents(result.place)
    assert blobs(local.place) == blobs(result.place)
    left = [one.place.name for one in out.listed(recursive=True) if "." in one.place.name]
    assert len(left) == 2 * len(TABLES) + 3, "a file and a schema of each table, and three texts"
    assert len(points) == KILLS


def test_a_run_that_another_process_finished_first_is_refused(
    store: ObjectStore | Hdfs, there: str
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


def test_what_a_killed_process_left_in_a_finished_run_is_not_read(
    store: ObjectStore | Hdfs, there: str, local: Result
) -> None:
    """
    Its tasks ended after another process had finished the run: neither the plan nor the next run
    has its rows, and they go after a day.
    """
    out = Place.of(store.address("beside"))
    run = verify(Request(there, str(out), run_id="r")).place
    whole = blobs(run)
    for name in TABLES:
        for one in table_of(run, name).listed():
            stray = table_of(run, name) / "part-00000-0123456789ab.parquet"
            with stray.created() as stream:
                stream.write(one.place.opened().readall())

    plan = read_plan(Run.opened(str(run)))
    before = Previous(run, {}).parts()
    remove_left(out)
    young = blobs(run)
    remove_left(out, now_ms=4_000_000_000_000)

    assert len(plan.rows) == len(read_plan(Run.opened(str(local.place))).rows)
    assert [1] == [len(part.groups) for part in before]
    assert len(young) == 2 * len(whole)
    assert whole == blobs(run)
    assert (run / SUCCESS).read_text() == json.loads((run / "manifest.json").read_text())["attempt"]


def test_of_two_that_end_together_one_becomes_the_run(
    store: ObjectStore | Hdfs, there: str, local: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Each has seen that the other is about to; the result is whole, and the other one is told.
    """
    both, met, listed = threading.Barrier(2), set[str](), Attempt.claims

    def claims(own: Attempt) -> list[Place]:
        if own.suffix not in met and own._own_claim.is_file():
            met.add(own.suffix)
            both.wait(60)
        return listed(own)

    monkeypatch.setattr(Attempt, "claims", claims)
    request = Request(there, store.address("together"), run_id="r")
    with ThreadPoolExecutor(2) as pool:
        ended = [pool.submit(verify, request) for _ in range(2)]

    (refused,) = [error for one in ended if (error := one.exception())]
    (result,) = [one.result() for one in ended if not one.exception()]
    assert isinstance(refused, RunConflict)
    assert "another process writes run r" in str(refused)
    assert contents(local.place) == contents(result.place)
    assert blobs(local.place) == blobs(result.place)


def test_what_killed_runs_left_goes_after_a_day(store: ObjectStore | Hdfs) -> None:
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
    tmp_path: Path, store: ObjectStore | Hdfs
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
        exported = [world.control.queries.export_snapshot() for _ in range(3)]

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
    tmp_path: Path, store: ObjectStore | Hdfs
) -> None:
    """
    On the control plane's own disk, for who asks again; and a wrong address stops the start.
    """
    address = store.nowhere("scm")
    with ScmWorld(tmp_path, ScmOptions(snapshot_address=address)).running() as world:
        world.join("dn1")
        with pytest.raises(Unavailable, match="cannot be written to") as raised:
            world.control.queries.export_snapshot()

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
    with pytest.raises(PlaceRefused, match="gopher://host/ cannot be opened"):
        Place.of("gopher://host/x").is_file()


def test_a_file_in_hdfs_is_not_seen_before_it_is_whole(hdfs: Hdfs) -> None:
    """
    It grows under a hidden name, and takes the place of what was there.
    """
    place = Place.of(hdfs.address("grows/part.parquet"))
    place.write_text("old")

    with place.created() as stream:
        stream.write(b"new " * 3_000_000)  # more than is sent at once
        listed = [one.place.name for one in place.parent.listed()]
        assert place.read_text() == "old"
    with pytest.raises(TypeError), place.created() as stream:
        stream.write("no bytes")

    assert ["part.parquet"] == [name for name in listed if not name.startswith(".")]
    assert place.read_text() == "new " * 3_000_000
    assert [place] == [one.place for one in place.parent.listed()], "nothing is left"


def test_hdfs_that_declines_is_an_error(hdfs: Hdfs) -> None:
    """
    It answers a rename over a file, and what cannot be done, with words or a bare no.
    """
    first, second = Place.of(hdfs.address("words/a")), Place.of(hdfs.address("words/b"))
    first.write_text("a")
    second.write_text("b")

    with pytest.raises(OSError, match="declines rename"):
        first.move(second)
    with pytest.raises(OSError, match=r"refuses mkdirs: .*is not a directory"):
        (first / "below").create()
    assert ("a", "b") == (first.read_text(), second.read_text())


def test_a_name_node_that_does_not_answer_is_not_an_empty_place(
    hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Neither one that is away nor one that hangs: to believe so would be to believe in no leftovers.
    """
    monkeypatch.setattr(webhdfs, "DEADLINES_S", (0.5, 0.5))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for address in (hdfs.nowhere("x"), f"webhdfs://127.0.0.1:{port}/x"):
            place = Place.of(address)
            for ask in (place.is_file, place.is_directory, place.listed, place.read_text):
                with pytest.raises(OSError, match=r"timed out|refused"):
                    ask()


def test_what_hdfs_needs_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    By the extra, and by the address that needs nothing of Hadoop's.
    """
    monkeypatch.setitem(sys.modules, "spark_verify.webhdfs", None)  # as if fsspec were not there
    with pytest.raises(PlaceRefused, match="webhdfs://name:1/ cannot be opened") as extra:
        Place.of("webhdfs://name:1/x").is_file()
    with pytest.raises(PlaceRefused, match="hdfs://name:8020/ cannot be opened") as library:
        Place.of("hdfs://name:8020/x").is_file()

    assert "suture[webhdfs]" in extra.value.hint
    assert "webhdfs:// does not" in library.value.hint
