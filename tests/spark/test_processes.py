"""The verification in processes of one machine: what Spark finds, without Spark."""

import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_verify import pipeline
from spark_verify.errors import ProcessLost, SnapshotRefused
from spark_verify.pipeline import Request, Result, verify
from spark_verify.result_tables import RESULTS
from spark_verify.snapshot import ranges, snapshot_reading
from spark_verify.tasks import distribution, judge_batches, processes, row_exchange
from tests.support.verification.random_clusters import random_cluster
from tests.support.verification.snapshots import AS_OF_MS
from tests.support.verification.spark_cluster import tree
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
LOOP = """
import sys
from spark_verify import pipeline
from spark_verify.pipeline import Request, verify
from spark_verify.snapshot import snapshot_reading
from spark_verify.tasks import row_exchange

if __name__ == "__main__":
    snapshot_reading.ROWS_PER_PART, row_exchange.ROWS_PER_PARTITION = 1, 1
    verify(Request(sys.argv[1], sys.argv[2], run_id="r", here_rows=0, reporting_min_percent=0))
"""

HANGS = """
import os, signal
from pathlib import Path
from spark_verify.tasks import processes

def judge_range(number, own, job):
    (Path(__file__).parent / f"task-{os.getpid()}").touch()
    signal.pause()

processes.judge_range = processes._judge = judge_range
"""


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cluster in which everything odd is far more often than in life."""
    rows = random_cluster(random.Random(23), 400)
    return rows.write(tmp_path_factory.mktemp("processes") / "snapshot")


def asked(snapshot: Path, out: Path, here_rows: int = 0) -> Request:
    return Request(str(snapshot), out, "r", here_rows=here_rows, reporting_min_percent=0)


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many parts, partitions and slices."""
    monkeypatch.setattr(snapshot_reading, "ROWS_PER_PART", 100)
    monkeypatch.setattr(row_exchange, "ROWS_PER_PARTITION", 150)
    monkeypatch.setattr(judge_batches, "ROWS_PER_SLICE", 50)


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that no other test gave a session of Spark."""
    monkeypatch.setattr(pipeline, "has_session", lambda: False)


def blobs(result: Result) -> dict[str, bytes]:
    """Return all files of a run's tables."""
    return {
        f"{name}/{path.name}": path.read_bytes()
        for name in RESULTS
        for path in result.table(name).iterdir()
    }


@pytest.mark.spark
@pytest.mark.usefixtures("spark", "many")
def test_they_write_what_spark_writes(
    snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Byte by byte, and the same numbers; nothing that was exchanged is left.
    """
    spark = verify(asked(snapshot, tmp_path / "spark"))
    monkeypatch.setattr(pipeline, "has_session", lambda: False)
    said: list[str] = []

    own = verify(asked(snapshot, tmp_path / "own"), said.append)

    assert blobs(spark) == blobs(own)
    assert len(blobs(own)) > 5 * len(RESULTS)
    assert spark.summary == own.summary
    assert [text for text in said if text.endswith(" processes")]
    assert [path for path in (tmp_path / "own").iterdir() if path.name.startswith(".")] == []


@pytest.mark.spark
@pytest.mark.usefixtures("spark", "many")
@pytest.mark.parametrize("is_on_spark", [False, True])
def test_a_snapshot_in_the_order_of_its_containers_is_judged_where_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_on_spark: bool
) -> None:
    """
    In ranges of containers, with what the run before found of them: nobody reads for an exchange,
    and the rows and numbers are those of one process.
    """
    for module, name in ((processes, "_read"), (distribution, "_reading")):
        monkeypatch.setattr(module, name, None)
    monkeypatch.setattr(ranges, "ROWS_PER_RANGE", 150)
    monkeypatch.setattr(ranges, "ROWS_OF_OPENING", 0)
    monkeypatch.setattr(ranges, "READING_MAX", 3)
    monkeypatch.setattr(pipeline, "has_session", lambda: is_on_spark)
    rows = random_cluster(random.Random(23), 400)
    for name in ("containers", "replicas", "pending_ops"):
        getattr(rows, name).sort(key=lambda row: row.container_id)
    found = {}
    for way, here_rows in (("ranges", 0), ("here", 10**6)):
        for as_of_ms in (AS_OF_MS, AS_OF_MS + 1):
            snapshot = rows.write(
                tmp_path / f"{way}{as_of_ms}", manifest={"as_of_ms": as_of_ms}, rows_per_group=40
            )
            request = replace(asked(snapshot, tmp_path / way, here_rows), run_id=str(as_of_ms))
            found[way] = verify(request)

    assert found["ranges"].summary == found["here"].summary
    assert found["ranges"].summary["previous"]
    files = set()
    for name in RESULTS:
        own, other = (pq.read_table(found[way].table(name)).to_pylist() for way in found)
        assert sorted(map(str, own)) == sorted(map(str, other)), name
        files |= {path.name for path in found["ranges"].table(name).iterdir()}
    assert len(files) > 10


@pytest.mark.usefixtures("many", "no_session")
def test_what_a_snapshot_is_refused_for_is_told_as_ever(tmp_path: Path) -> None:
    """
    Rows that cannot be, found where they are read.
    """
    rows = random_cluster(random.Random(5), 200)
    rows.replicas[150] = replace(rows.replicas[150], used_bytes=-1)
    bad = rows.write(tmp_path / "bad")

    with pytest.raises(SnapshotRefused) as told:
        verify(asked(bad, tmp_path / "out"))
    with pytest.raises(SnapshotRefused) as known:
        verify(asked(bad, tmp_path / "here", here_rows=10**6))

    assert str(known.value) == str(told.value)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.usefixtures("many", "no_session")
def test_an_error_of_a_task_is_raised_with_where_it_was(tmp_path: Path) -> None:
    """
    Here a file that another process takes away between the look at it and its reading.
    """

    def said(text: str) -> None:
        if text.endswith(" processes"):
            for path in (tmp_path / "s" / "replicas").iterdir():
                path.unlink()

    rows = random_cluster(random.Random(23), 400).write(tmp_path / "s")

    with pytest.raises(SnapshotRefused, match=r"replicas/ cannot be read: part-0") as raised:
        verify(asked(rows, tmp_path / "out"), said)

    assert "pages_of" in "".join(raised.value.__notes__)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("who", ["one that works", "who started them"])
def test_who_is_killed_takes_nobody_with_it_and_leaves_nobody(
    snapshot: Path, tmp_path: Path, who: str
) -> None:
    """
    A process that died is told, and no result is there; with the first one all others end.
    """
    (tmp_path / "loop.py").write_text(LOOP)
    command = [sys.executable, tmp_path / "loop.py", snapshot, tmp_path / "out"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as verifying:
        wait_until(lambda: working(verifying.pid) != [], within_s=120)
        children = working(verifying.pid)
        os.kill(children[0] if who == "one that works" else verifying.pid, signal.SIGKILL)
        _, said = verifying.communicate(timeout=120)

    assert verifying.returncode == (1 if who == "one that works" else -signal.SIGKILL)
    assert ("ProcessLost: a process of the verification was killed" in said) == (
        who == "one that works"
    )
    wait_until(lambda: not any(map(is_running, children)), within_s=60)
    assert not (tmp_path / "out" / "run_id=r").exists()
    assert ProcessLost.code == "PROCESS_LOST"


def test_a_task_ends_with_who_asked_for_it(snapshot: Path, tmp_path: Path) -> None:
    """
    One of minutes, too: until then it would read, take memory, and write rows that nobody wants.
    """
    (tmp_path / "loop.py").write_text(HANGS + LOOP)
    command = [sys.executable, tmp_path / "loop.py", snapshot, tmp_path / "out"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    said = tmp_path / "said"
    with (
        said.open("w") as errors,
        subprocess.Popen(command, env=environment, stderr=errors) as verifying,
    ):
        wait_until(lambda: list(tmp_path.glob("task-*")) != [], within_s=120)
        children = working(verifying.pid)
        verifying.terminate()

    try:
        wait_until(lambda: not any(map(is_running, children)), within_s=60)
    finally:
        for pid in filter(is_running, children):
            os.kill(pid, signal.SIGKILL)
    assert said.read_text() == ""


def is_running(pid: int) -> bool:
    """Whether a process does anything still."""
    return Path(f"/proc/{pid}/cwd").exists()


def working(pid: int) -> list[int]:
    """Return the processes that a verification started to read and judge."""
    found = []
    for one in tree(pid)[1:]:
        command = Path(f"/proc/{one}/cmdline")
        if command.exists() and b"spawn_main" in command.read_bytes():
            found.append(one)
    return found
