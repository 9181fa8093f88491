"""What is removed beside runs that begin and end: never rows of theirs."""

import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_verify import pipeline
from spark_verify.errors import RunConflict
from spark_verify.file_systems import Place
from spark_verify.pipeline import Request, verify
from spark_verify.result_tables import RESULTS
from spark_verify.retention import Keep, retain
from spark_verify.run_directories import work_directory
from spark_verify.runs import TEXTS, attempt, finished_runs, remove_left, run_of, table_of
from spark_verify.tasks.result_files import write
from tests.support.verification.snapshots import container, gather
from tests.support.waiting import wait_until

ROWS = pa.table({"snapshot_id": ["s1"]})
OF_RUNS = RESULTS["runs"].schema.empty_table()


def finish(out: Place, *, as_of_ms: int = 1) -> None:
    """Begin run `r`, write a row of each table, and finish it."""
    said = {"cluster_id": "c", "as_of_ms": as_of_ms, "changed_nodes": []}
    with attempt(out, "r") as grown:
        for name in RESULTS:
            write(ROWS, table_of(run_of(grown.root, "r"), name), "00000")
        grown.commit(dict.fromkeys(TEXTS, json.dumps(said)), OF_RUNS)


class Beside:
    """Another process, which begins at the worst moment of this one: until it is done, or waits
    until it may begin, this one does nothing."""

    def __init__(self, pool: ThreadPoolExecutor, patch: pytest.MonkeyPatch) -> None:
        self._pool = pool
        self._waits = threading.Event()
        self.ended: Future[None] | None = None
        patch.setattr(time, "sleep", lambda _: self._waits.set())

    def does(self, what: Callable[[], None], until: Callable[[], bool] = lambda: False) -> None:
        """Let it do something, the first time that this is called."""
        if self.ended is None:
            self.ended = ended = self._pool.submit(what)
            wait_until(lambda: ended.done() or until() or self._waits.is_set(), within_s=60)


def test_a_run_that_begins_where_another_ended_keeps_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Who clears up had opened the directory of the one that ended, and could lock it then: with the
    path it would have removed the rows of the one that began, which would have ended without them.
    """
    out, path = Place.of(tmp_path), tmp_path / ".run_id=r.partial"
    opened, has_begun, may_end = os.open, threading.Event(), threading.Event()
    found: list[str] = []

    def begin() -> None:
        with work_directory(tmp_path, "r") as work:
            (work / "rows").touch()
            has_begun.set()
            may_end.wait(60)
            found.extend(file.name for file in path.glob("*"))

    with ExitStack() as first, ThreadPoolExecutor(1) as pool:
        beside = Beside(pool, monkeypatch)
        first.enter_context(work_directory(tmp_path, "r"))

        def at(name: Any, *arguments: Any, **options: Any) -> int:
            handle = opened(name, *arguments, **options)
            if name == path and threading.current_thread() is threading.main_thread():
                monkeypatch.setattr(os, "open", opened)
                first.close()
                beside.does(begin, has_begun.is_set)
            return handle

        monkeypatch.setattr(os, "open", at)
        remove_left(out)
        assert has_begun.wait(60)
        may_end.set()
        assert beside.ended is not None
        beside.ended.result(60)

    assert found == ["rows"]


def clear_up(out: Place) -> None:
    """Remove what a killed run left, as every run does that begins."""
    run_of(out, "r").remove()
    remove_left(out)


def keep_one(out: Place) -> None:
    """Remove an old run, as a run does that ended."""
    retain(out, Keep(count=1))


@pytest.mark.parametrize("remove", [clear_up, keep_one])
def test_a_run_that_is_done_again_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remove: Callable[[Place], None]
) -> None:
    """
    While another process removes what there was of it: else it would be there as a whole, and its
    tables not, or some of them.
    """
    out = Place.of(tmp_path)
    finish(out)
    (out / "run_id=newer" / "summary.json").write_text(
        json.dumps({"cluster_id": "c", "as_of_ms": 2, "changed_nodes": []})
    )
    (out / "run_id=newer" / "_SUCCESS").write_text("")
    removed = Place.remove
    with ThreadPoolExecutor(1) as pool:
        beside = Beside(pool, monkeypatch)

        def at(place: Place) -> None:
            is_own = threading.current_thread() is threading.main_thread()
            if is_own and place.parent.name in RESULTS:
                beside.does(lambda: finish(out))
            removed(place)

        monkeypatch.setattr(Place, "remove", at)
        remove(out)
        assert beside.ended is not None
        beside.ended.result(60)

    assert run_of(out, "r") in finished_runs(out)
    for name in RESULTS:
        assert len(table_of(run_of(out, "r"), name).listed()) == 1, name


def test_what_another_process_finished_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It ended between the look for a finished run and the lock; the same question gets its answer,
    and another one is refused.
    """
    snapshots = [
        str(
            gather([container(i, "R CLOSED 10", "C=7x3") for i in range(count)]).write(
                tmp_path / name, manifest={"cluster_id": name}
            )
        )
        for name, count in (("one", 1), ("two", 2))
    ]

    def after_another(out: Place, run_id: str) -> Any:
        monkeypatch.setattr(pipeline, "attempt", attempt)
        verify(Request(snapshots[0], str(out), run_id=run_id))
        return attempt(out, run_id)

    for number, snapshot in enumerate(snapshots):
        out = tmp_path / f"out{number}"
        monkeypatch.setattr(pipeline, "attempt", after_another)
        said: list[str] = []
        if number:
            with pytest.raises(RunConflict, match="is the result of another run: cluster: one"):
                verify(Request(snapshot, out, run_id="r"), said.append)
        else:
            verify(Request(snapshot, out, run_id="r"), said.append)
            assert said == ["run r is finished already"]
        assert pq.read_table(out / "health" / "run_id=r").num_rows == 1
        assert list(out.glob(".*")) == []


def test_a_run_whose_files_went_while_it_grew_is_not_finished(tmp_path: Path) -> None:
    """
    On a local disk as in a store: whoever removed them, rows are missing.
    """
    out = Place.of(tmp_path)

    with attempt(out, "r") as grown:
        grown.parts = 2
        for name in RESULTS:
            for number in ("00000", "00001"):
                write(ROWS, table_of(run_of(grown.root, "r"), name), number)
        (table_of(run_of(grown.root, "r"), "replica_class") / "part-00001.parquet").remove()
        with pytest.raises(RunConflict, match="table replica_class/ has 1 of 2"):
            grown.commit(dict.fromkeys(TEXTS, "{}"), OF_RUNS)

    assert list(tmp_path.iterdir()) == []
