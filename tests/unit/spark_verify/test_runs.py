"""What names a run, when a finished one is returned again, and who may write one."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from health.tables.snapshot_columns import RESULT_VERSION
from spark_verify.errors import FlagRefused, RunConflict
from spark_verify.options import VerifyOptions
from spark_verify.runs import (
    LEFT_MS,
    PACKAGES,
    Attempt,
    code_checksum,
    finished,
    inputs_of,
    remove_left,
    run_id_of,
)
from spark_verify.snapshot.manifest import SnapshotManifest
from spark_verify.storage import LocalStorage

MANIFEST = SnapshotManifest(2, "s1", 5_000, 1, "c", {"containers": 1, "replicas": 3})


def inputs(manifest: SnapshotManifest = MANIFEST, *nodes: str, **options: int) -> dict[str, object]:
    return inputs_of(manifest, nodes, VerifyOptions(**options))


def kept(out: Path, summary: object, run_id: str = "r") -> LocalStorage:
    """Write a finished run."""
    directory = out / f"run_id={run_id}"
    directory.mkdir()
    text = summary if isinstance(summary, str) else json.dumps(summary)
    (directory / "summary.json").write_text(text)
    (directory / "_SUCCESS").write_text("own")
    return LocalStorage(str(out))


class TestName:
    """The default id."""

    def test_runs_of_other_nodes_have_other_names(self) -> None:
        """
        In any order, however often they are named.
        """
        names = [(), ("a",), ("b",), ("a", "b")]

        ids = [run_id_of("", MANIFEST, nodes) for nodes in names]

        assert ids[0] == "s1"
        assert len(set(ids)) == len(names)
        assert run_id_of("", MANIFEST, ("b", "a", "b")) == ids[3]

    def test_run_name_that_the_scm_rejects_is_refused(self) -> None:
        """Otherwise all the work would be done before the plan is rejected."""
        assert run_id_of("r" * 128, MANIFEST, ()) == "r" * 128
        with pytest.raises(FlagRefused, match="129 characters are more than 128"):
            run_id_of("r" * 129, MANIFEST, ())
        with pytest.raises(RunConflict, match="more than 128"):
            run_id_of("", replace(MANIFEST, snapshot_id="s" * 120), ("a",))

    @pytest.mark.parametrize("name", ["a/b", "..", "a b", "-."])
    def test_run_name_that_is_no_directory_name_is_refused(self, name: str) -> None:
        """Nothing is written outside of the results directory."""
        with pytest.raises(FlagRefused, match="expected a directory name"):
            run_id_of(name, MANIFEST, ())


class TestReuse:
    """A finished run is returned for the same question only."""

    def test_the_same_question_gets_the_same_answer(self, tmp_path: Path) -> None:
        """
        Nodes named twice or in another order are the same nodes.
        """
        storage = kept(tmp_path, {"inputs": inputs(MANIFEST, "a", "b"), "exit_code": 2})

        found = finished(storage, "r", inputs(MANIFEST, "b", "a", "a"))

        assert found is not None
        assert found["exit_code"] == 2

    @pytest.mark.parametrize(
        ("asked", "words"),
        [
            (inputs(MANIFEST, "b"), "changed_nodes: [] there, ['b'] here"),
            (inputs(replace(MANIFEST, snapshot_id="s2")), "snapshot_id: s1 there, s2 here"),
            (inputs(replace(MANIFEST, cluster_id="d")), "cluster_id: c there, d here"),
            (inputs(replace(MANIFEST, term=2)), "term: 1 there, 2 here"),
            (inputs(replace(MANIFEST, rows={"containers": 2})), "rows.containers: 1 there, 2 here"),
            (inputs(maintenance_min=1), "rules.maintenance_min: 2 there, 1 here"),
            (inputs(reporting_min_percent=90), "reporting_min_percent: 50 there, 90 here"),
            (inputs() | {"result_version": 99}, f"result_version: {RESULT_VERSION} there, 99 here"),
            (inputs() | {"code": "fff"}, "code: "),
        ],
    )
    def test_another_question_is_refused_and_what_differs_is_named(
        self, tmp_path: Path, asked: dict[str, object], words: str
    ) -> None:
        """
        With the way out.
        """
        storage = kept(tmp_path, {"inputs": inputs()})

        with pytest.raises(RunConflict) as raised:
            finished(storage, "r", asked)

        assert words in str(raised.value)
        assert "--run-id" in raised.value.hint

    @pytest.mark.parametrize(
        ("summary", "words"),
        [
            ("", "no readable summary.json"),
            ("[]", "no readable summary.json"),
            ({"snapshot_id": "s1"}, "no readable summary.json"),
            ({"inputs": ["s1"]}, "no readable summary.json"),
        ],
    )
    def test_a_result_that_says_nothing_of_its_question_is_refused(
        self, tmp_path: Path, summary: object, words: str
    ) -> None:
        """
        Damaged, or written by an older version.
        """
        with pytest.raises(RunConflict, match=words):
            finished(kept(tmp_path, summary), "r", inputs())

    def test_success_without_a_summary_is_no_result(self, tmp_path: Path) -> None:
        """The run is neither returned nor replaced."""
        storage = kept(tmp_path, {})
        (tmp_path / "run_id=r" / "summary.json").unlink()

        with pytest.raises(RunConflict, match=r"no readable summary\.json"):
            finished(storage, "r", inputs())

    def test_a_run_that_was_cut_off_is_no_result(self, tmp_path: Path) -> None:
        """
        Without _SUCCESS it counts for nothing, whatever lies there.
        """
        storage = kept(tmp_path, {"inputs": inputs()})
        (tmp_path / "run_id=r" / "_SUCCESS").unlink()

        assert finished(storage, "r", inputs()) is None

    def test_the_code_has_a_version_that_nobody_needs_to_raise(self) -> None:
        """The version is computed from the sources of the job."""
        assert len(code_checksum()) == 12
        assert code_checksum() == code_checksum()


def test_rows_of_killed_attempts_are_removed_after_a_day(tmp_path: Path) -> None:
    """
    The rows of a finished run stay, and those of an attempt that still grows.
    """
    storage = kept(tmp_path, {}, "done")
    places = {
        name: tmp_path / "health" / f"run_id={run_id}" / f"attempt={name}"
        for run_id, name in (("done", "own"), ("done", "other"), ("dead", "half"), ("dead", "new"))
    }
    for name, place in places.items():
        place.mkdir(parents=True)
        (place / "part-00000.parquet").touch()
        if name == "new":
            os.utime(place / "part-00000.parquet", (10**9, 10**9))
        else:
            os.utime(place / "part-00000.parquet", (1, 1))

    remove_left(storage, now_ms=10**12 + LEFT_MS)

    assert {"own", "new"} == {name for name, place in places.items() if place.exists()}


def test_an_attempt_that_fails_removes_its_own_rows_only(tmp_path: Path) -> None:
    """
    Another process may be writing the same run.
    """
    storage = LocalStorage(str(tmp_path))
    mine, other = Attempt(storage, "r"), Attempt(storage, "r")
    for attempt in (mine, other):
        Path(attempt.table("health")).mkdir(parents=True)

    mine.abandon()

    assert not Path(mine.table("health")).exists()
    assert Path(other.table("health")).exists()


def test_every_source_that_a_result_follows_from_is_asked() -> None:
    """
    A finished run of other code is not returned, in whatever folder the change is.
    """
    root = Path(__file__).parents[3]
    folders = {
        path.parent.relative_to(root).as_posix().replace("/", ".")
        for package in ("health", "spark_verify")
        for path in (root / package).rglob("__init__.py")
    }

    assert folders == set(PACKAGES)
