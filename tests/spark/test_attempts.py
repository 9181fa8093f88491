"""Attempts that write one run at once, where nothing can be locked: one of them becomes it."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent.errors import Refused
from agent.rpc.wire.plan_file import Run, read_plan
from spark_verify import runs
from spark_verify.errors import RunConflict
from spark_verify.file_systems import Place
from spark_verify.result_tables import RESULTS
from spark_verify.runs import SUCCESS, TEXTS, Attempt, attempt, table_of
from tests.support.verification.object_store import ObjectStore, object_store
from tests.support.waiting import wait_until

ROW = RESULTS["runs"].schema.empty_table()


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as found:
        yield found


def test_a_run_whose_files_are_of_two_attempts_is_refused(store: ObjectStore) -> None:
    """
    And so is one that has no file of its own: it is not an empty plan.
    """
    run = Place.of(store.address("mixed")) / "run_id=r"
    said = {"result_version": 3, "attempt": "-000000000001", "run_id": "r", "snapshot_id": "s"}
    (run / "manifest.json").write_text(json.dumps(said))
    (run / SUCCESS).write_text("-000000000002")
    with pytest.raises(Refused, match="are of two attempts"):
        Run.opened(str(run))

    (run / SUCCESS).write_text("-000000000001")
    (table_of(run, "reconcile_plan") / "part-00000-000000000002.parquet").write_text("")
    with pytest.raises(Refused, match="has no file of attempt -000000000001"):
        read_plan(Run.opened(str(run)))


@pytest.mark.parametrize("other", ["a", "c"])
def test_who_comes_while_another_becomes_the_run_is_refused(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """
    The first did not see it; whichever name is lower, the first one's result stays.
    """
    out = Place.of(store.address(f"first-{other}"))
    first, later = (Attempt(out, out, "r", f"-{letter * 12}") for letter in ("b", other))
    is_claimed, may_go = threading.Event(), threading.Event()

    def held(_: Place) -> None:
        is_claimed.set()
        may_go.wait(60)

    monkeypatch.setattr(runs, "describe_tables", held)
    with ThreadPoolExecutor(2) as pool:
        finishes = pool.submit(first.commit, dict.fromkeys(TEXTS, "{}"), ROW)
        is_claimed.wait(60)
        refused = pool.submit(later.commit, dict.fromkeys(TEXTS, "{}"), ROW)
        wait_until(lambda: refused.done() or len(first.claims()) == 2, within_s=60)
        may_go.set()

    assert finishes.exception() is None
    assert "another process writes run r" in str(refused.exception())
    assert first.suffix == (first.target / SUCCESS).read_text()


def test_who_was_taken_for_killed_does_not_become_the_run(store: ObjectStore) -> None:
    """
    Another process began while it was at its end; that one becomes the run.
    """
    out = Place.of(store.address("held-up"))
    slow = Attempt(out, out, "r", "-aaaaaaaaaaaa")
    is_claimed, may_go = threading.Event(), threading.Event()

    def held(_: Place) -> None:
        is_claimed.set()
        may_go.wait(60)

    with ThreadPoolExecutor(1) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "describe_tables", held)
        ended = pool.submit(slow.commit, dict.fromkeys(TEXTS, "{}"), ROW)
        is_claimed.wait(60)
        with attempt(out, "r") as later:
            may_go.set()
            assert "another process" in str(ended.exception())
            later.commit(dict.fromkeys(TEXTS, "{}"), ROW)

    assert later.suffix == (later.target / SUCCESS).read_text()


def test_a_run_of_which_files_are_gone_is_not_finished(store: ObjectStore) -> None:
    """
    Another process that finished the run removed them, and its own result was removed then.
    """
    out = Place.of(store.address("gone"))

    late = Attempt(out, out, "r", "-aaaaaaaaaaaa", parts=1)
    with pytest.raises(RunConflict, match=r"removed files of run r: table health/ has 0 of 1"):
        late.commit(dict.fromkeys(TEXTS, "{}"), ROW)
    late.abandon()

    assert not [one for one in out.listed(recursive=True) if one.is_file]
