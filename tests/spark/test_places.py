"""Results on disks and in Hadoop's file systems: whole or none, whenever the driver dies."""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession

from scm.state.options import ScmOptions
from spark_verify import pipeline
from spark_verify.errors import PathRefused
from spark_verify.pipeline import VerifyRequest, VerifyResult, verify
from spark_verify.report.sql_views import ORDER, views
from spark_verify.result_tables import RESULTS, RUNS
from spark_verify.runs import finished_runs
from spark_verify.storage import HadoopStorage, LocalStorage, address_of
from suture.errors import RefusedError, UnavailableError
from suture.wire.mapping.addresses import check_address
from suture.wire.mapping.file_systems import FsPath
from tests.support.control.scm_world import ScmWorld
from tests.support.verification.object_store import ObjectStore, object_store
from tests.support.verification.snapshots import SnapshotRows, container, gather

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("spark")]

KILLS_MIN = 10


def cluster() -> SnapshotRows:
    return gather([container(1, "R CLOSED 10", "C=7x3"), container(2, "R CLOSED 10", "C=7x2 C=9")])


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> VerifyResult:
    """The cluster verified on a local disk."""
    directory = tmp_path_factory.mktemp("local")
    return verify(
        VerifyRequest(str(cluster().write(directory / "s")), directory / "out", run_id="r")
    )


def contents(run: VerifyResult) -> dict[str, Any]:
    """Return all rows of a run but that of `runs`, which names the attempt."""
    return {
        name: sorted(map(str, pq.read_table(run.table(name), partitioning=None).to_pylist()))
        for name in RESULTS
        if name != RUNS
    }


def seen(out: Path) -> list[int]:
    """Return how many rows of each table SQL finds; none where no file is."""
    found = []
    with duckdb.connect() as connection:
        for name, view in zip(ORDER, views(str(out), "duckdb"), strict=True):
            try:
                connection.execute(view)
                found.append(len(connection.execute(f"FROM {name}").fetchall()))
            except (duckdb.IOException, duckdb.CatalogException):
                found.append(0)
    return found


@contextmanager
def watched(before: Callable[[], object]) -> Iterator[None]:
    """Call `before` before each change of what is stored."""

    def told(change: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            before()
            return change(*given)

        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "write", told(pipeline.write))
        patch.setattr(LocalStorage, "write_text", told(LocalStorage.write_text))
        patch.setattr(LocalStorage, "delete", told(LocalStorage.delete))
        yield


def add_attempt(out: Path, to: Path, name: str) -> None:
    """Add the files of an attempt to a directory, as if the attempt had this name."""
    for path in sorted(out.rglob("*")):
        own = re.sub(r"attempt=\w+", f"attempt={name}", str(path.relative_to(out)))
        if path.is_dir():
            (to / own).mkdir(exist_ok=True)
        else:
            shutil.copy(path, to / own)


def test_a_run_whose_driver_died_is_none_and_is_done_again(
    tmp_path: Path, local: VerifyResult
) -> None:
    """
    Before each change that it makes: what is there then reads as whole neither by its files nor by
    SQL, and the next run of the same name is whole beside all of that.
    """
    snapshot, out = str(local.directory.parents[1] / "s"), tmp_path / "whole"
    left: list[Path] = []

    def dies() -> None:
        left.append(tmp_path / str(len(left)))
        shutil.copytree(out, left[-1])

    out.mkdir()
    with watched(dies):
        verify(VerifyRequest(snapshot, out, run_id="r"))
    last = left.pop()  # what follows only removes intermediate rows
    whole = seen(out)

    again = Path(shutil.copytree(left[-1], tmp_path / "again"))
    for number, place in enumerate(left):
        assert finished_runs(LocalStorage(str(place))) == [], f"killed before change {number}"
        assert seen(place) in ([0] * len(ORDER), whole), "half a run is none"
        add_attempt(place, again, f"{number:012x}")
    assert finished_runs(LocalStorage(str(last))) == ["r"]
    assert len(left) >= KILLS_MIN

    result = verify(VerifyRequest(snapshot, again, run_id="r"))
    assert contents(local) == contents(result)
    assert whole == seen(again)


def test_a_run_that_another_process_finishes_first_is_returned(
    tmp_path: Path, local: VerifyResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Both write into directories of their own: the second removes its rows, and leaves the first's.
    """
    request = VerifyRequest(str(local.directory.parents[1] / "s"), tmp_path, run_id="r")
    commit = pipeline._run
    first: list[VerifyResult] = []

    def late(run: pipeline.VerificationRun) -> dict[str, Any]:
        summary = commit(run)
        if not first:
            first.append(VerifyResult("", "", {}))
            first[0] = verify(request)
        return summary

    monkeypatch.setattr(pipeline, "_run", late)

    second = verify(request)

    assert first == [second]
    assert contents(local) == contents(second)
    names = {path.name for path in (tmp_path / "health" / "run_id=r").iterdir()}
    assert {f"attempt={second.attempt}"} == names


def test_an_address_of_a_local_disk_is_its_path(tmp_path: Path, local: VerifyResult) -> None:
    """
    file:// in and out, with characters that patterns of file names and addresses have.
    """
    odd = tmp_path / "a b{1}[x]*%20ä"
    snapshot = cluster().write(odd / "s")

    result = verify(VerifyRequest(snapshot.as_uri(), (odd / "out").as_uri(), run_id="r"))

    assert odd / "out" / "run_id=r" == result.directory
    assert contents(local) == contents(result)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("s3a://key:secret@bucket/x", "with credentials"),
        ("s3a://bucket/x?endpoint=y", "is not supported"),
        ("hdfs://name:1/x#1", "is not supported"),
        ("file://data/s", "expected a local path"),
    ],
)
def test_an_address_that_says_too_much_is_refused(address: str, words: str) -> None:
    """
    Addresses are printed and recorded, and no part of one is ignored.
    """
    with pytest.raises((PathRefused, RefusedError), match=words):
        address_of(address)


def test_hadoop_reads_the_end_of_a_file(tmp_path: Path, spark: SparkSession) -> None:
    """Footers are read so, from any file system; a smaller file is read from its beginning."""
    (tmp_path / "file").write_bytes(b"0123456789\xff")
    for storage in (LocalStorage(str(tmp_path)), HadoopStorage(tmp_path.as_uri(), spark)):
        assert storage.read_tail("file", 3) == b"89\xff"
        assert storage.read_tail("file", 12) == b"0123456789\xff"
        with pytest.raises(FileNotFoundError):
            storage.read_tail("none", 3)


def test_workers_of_a_local_session_have_the_modules_of_this_process(spark: SparkSession) -> None:
    """They import compiled modules, and not those of an archive that Spark or the job made."""

    def imported(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = (pyspark.__file__, pipeline.__file__)
        yield pa.RecordBatch.from_pydict({"path": list(map(str, names))})

    rows = spark.range(1).coalesce(1).mapInArrow(imported, "path string").collect()

    assert [pyspark.__file__, pipeline.__file__] == [row["path"] for row in rows]


def test_a_file_system_that_is_not_there_is_told_in_a_line(tmp_path: Path) -> None:
    """The kind is unknown, or its library is missing."""
    with pytest.raises(OSError, match=r"gopher://host/x: .*gopher"):
        verify(VerifyRequest("gopher://host/x", tmp_path))


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as found:
        yield found


def test_the_control_plane_puts_its_snapshots_into_a_store(
    tmp_path: Path, store: ObjectStore
) -> None:
    """
    The same files as on its own disk, as many as are kept, and nothing of one that was begun and
    not finished.
    """
    address = store.address("scm")
    begun = FsPath.of(address) / "0000000000001-t1"
    with (begun / "replicas" / "part-00000.parquet").created() as stream:
        stream.write(b"half")
    options = ScmOptions(snapshot_address=address, snapshot_keep_count=2)
    with ScmWorld(tmp_path, options).running() as world:
        world.join("dn1", "dn2", "dn3")
        world.made_closed()
        exported = [world.control.queries.export_snapshot() for _ in range(3)]

    assert [one.snapshot_id for one in exported[1:]] == [
        one.place.name for one in FsPath.of(address).listed()
    ]
    newest = exported[-1]
    own = sorted(path for path in newest.path.rglob("*") if path.is_file())
    there = [one.place for one in FsPath.of(newest.place).listed(recursive=True) if one.is_file]
    assert [path.read_bytes() for path in own] == [
        place.files.open_input_file(place.path).readall() for place in there
    ]


def test_a_snapshot_that_cannot_be_put_there_is_told_and_kept(
    tmp_path: Path, store: ObjectStore
) -> None:
    """
    On the control plane's own disk, for who asks again; and a wrong address stops the start.
    """
    address = store.nowhere("scm")
    with ScmWorld(tmp_path, ScmOptions(snapshot_address=address)).running() as world:
        world.join("dn1")
        with pytest.raises(UnavailableError, match="cannot write snapshot") as raised:
            world.control.queries.export_snapshot()

    assert (
        Path(raised.value.hint.removeprefix("a complete copy is in "))
        .joinpath("manifest.json")
        .is_file()
    )
    for wrong in ("bucket/snapshots", "s3://key:secret@bucket/x"):
        with pytest.raises(RefusedError):
            check_address(wrong)
