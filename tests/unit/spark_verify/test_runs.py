"""What names a run, when a finished one is returned again, and who may write one."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from health.rules import Rules
from spark_verify.errors import FlagRefused, RunConflict
from spark_verify.file_systems import Place
from spark_verify.input_columns import RESULT_VERSION
from spark_verify.run_directories import work_directory
from spark_verify.runs import (
    PACKAGES,
    TEXTS,
    attempt,
    code_checksum,
    files_of,
    finished,
    inputs_of,
    remove_left,
    run_id_of,
    run_of,
    table_of,
)
from spark_verify.snapshot.manifest import Manifest
from spark_verify.tasks.result_files import write

MANIFEST = Manifest(2, "s1", 5_000, 1, "c", {"containers": 1, "replicas": 3})


def inputs(
    manifest: Manifest = MANIFEST,
    *nodes: str,
    rules: Rules | None = None,
    reporting_min_percent: int = 50,
) -> dict[str, object]:
    return inputs_of(
        manifest,
        changed_nodes=nodes,
        rules=rules or Rules(),
        reporting_min_percent=reporting_min_percent,
    )


def kept(directory: Path, summary: object) -> Path:
    """Write a finished run."""
    directory.mkdir()
    text = summary if isinstance(summary, str) else json.dumps(summary)
    (directory / "summary.json").write_text(text)
    (directory / "_SUCCESS").touch()
    return directory


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

    def test_what_the_control_plane_takes_for_no_name_is_refused(self) -> None:
        """
        A plan of which no row could be applied would be found out after all the work.
        """
        assert run_id_of("r" * 128, MANIFEST, ()) == "r" * 128
        with pytest.raises(FlagRefused, match="129 characters are more than 128"):
            run_id_of("r" * 129, MANIFEST, ())
        with pytest.raises(RunConflict, match="more than 128"):
            run_id_of("", replace(MANIFEST, snapshot_id="s" * 120), ("a",))

    @pytest.mark.parametrize("name", ["a/b", "..", "a b", "-."])
    def test_what_names_no_directory_is_refused(self, name: str) -> None:
        """
        Nothing is written outside of the directory of results.
        """
        with pytest.raises(FlagRefused, match="is no name for a directory"):
            run_id_of(name, MANIFEST, ())


class TestReuse:
    """A finished run is returned for the same question only."""

    def test_the_same_question_gets_the_same_answer(self, tmp_path: Path) -> None:
        """
        Nodes named twice or in another order are the same nodes.
        """
        target = kept(tmp_path / "r", {"inputs": inputs(MANIFEST, "a", "b"), "exit_code": 2})

        found = finished(target, inputs(MANIFEST, "b", "a", "a"))

        assert found is not None
        assert found["exit_code"] == 2

    @pytest.mark.parametrize(
        ("asked", "words"),
        [
            (inputs(MANIFEST, "b"), "changed nodes: none there, b here"),
            (inputs(replace(MANIFEST, snapshot_id="s2")), "snapshot: s1 there, s2 here"),
            (inputs(replace(MANIFEST, cluster_id="d")), "cluster: c there, d here"),
            (inputs(replace(MANIFEST, term=2)), "term: 1 there, 2 here"),
            (inputs(replace(MANIFEST, rows={"containers": 2})), "rows of the snapshot"),
            (inputs(rules=Rules(maintenance_min=1)), "rules.maintenance_min: 2 there, 1 here"),
            (inputs(reporting_min_percent=90), "reporting_min_percent: 50 there, 90 here"),
            (inputs() | {"result_version": 99}, f"result version: {RESULT_VERSION} there, 99 here"),
            (inputs() | {"code": "fff"}, "version of the code"),
        ],
    )
    def test_another_question_is_refused_and_what_differs_is_named(
        self, tmp_path: Path, asked: dict[str, object], words: str
    ) -> None:
        """
        With the way out.
        """
        target = kept(tmp_path / "r", {"inputs": inputs()})

        with pytest.raises(RunConflict) as raised:
            finished(target, asked)

        assert words in str(raised.value)
        assert "--run-id" in raised.value.hint

    @pytest.mark.parametrize(
        ("summary", "words"),
        [
            ("", "no summary.json that can be read"),
            ("[]", "no summary.json that can be read"),
            ({"snapshot_id": "s1"}, "does not say what it was made from"),
            ({"inputs": ["s1"]}, "does not say what it was made from"),
        ],
    )
    def test_a_result_that_says_nothing_of_its_question_is_refused(
        self, tmp_path: Path, summary: object, words: str
    ) -> None:
        """
        Damaged, or written by an older version.
        """
        with pytest.raises(RunConflict, match=words):
            finished(kept(tmp_path / "r", summary), inputs())

    def test_success_without_a_summary_is_no_result(self, tmp_path: Path) -> None:
        """
        It is neither returned nor replaced.
        """
        target = kept(tmp_path / "r", {})
        (target / "summary.json").unlink()

        with pytest.raises(RunConflict, match=r"no summary\.json"):
            finished(target, inputs())

    def test_a_run_that_was_cut_off_is_no_result(self, tmp_path: Path) -> None:
        """
        Without _SUCCESS it counts for nothing, whatever lies there.
        """
        target = kept(tmp_path / "r", {"inputs": inputs()})
        (target / "_SUCCESS").unlink()

        assert finished(target, inputs()) is None

    def test_the_code_has_a_version_that_nobody_needs_to_raise(self) -> None:
        """
        It follows from the sources of the job.
        """
        assert len(code_checksum()) == 12
        assert code_checksum() == code_checksum()


class TestWork:
    """The hidden directory in which a run grows."""

    def test_two_runs_of_one_name_do_not_write_into_one_directory(self, tmp_path: Path) -> None:
        """
        The second is refused while the first is alive; what a dead one left is cleared away.
        """
        program = (
            "import sys, time\n"
            "from pathlib import Path\n"
            "from spark_verify.run_directories import work_directory\n"
            "with work_directory(Path(sys.argv[1]), 'r') as work:\n"
            "    (work / 'half').touch()\n"
            "    print('begun', flush=True)\n"
            "    time.sleep(600)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        ) as other:
            try:
                assert other.stdout is not None
                assert other.stdout.readline() == b"begun\n"
                with pytest.raises(RunConflict, match="another process"):
                    work_directory(tmp_path, "r").__enter__()
                assert (tmp_path / ".run_id=r.partial" / "half").exists()
            finally:
                other.kill()

        with work_directory(tmp_path, "r") as work:
            assert list(work.iterdir()) == []
        assert list(tmp_path.iterdir()) == []

    def test_what_tasks_of_a_killed_run_still_write_is_no_part_of_the_next(
        self, tmp_path: Path
    ) -> None:
        """
        They outlive who asked for them, and the lock does not: a run of the same name begins
        while they have rows of another snapshot to write, with more partitions than it has.
        """
        out = Place.of(tmp_path)
        program = (
            "import os, sys\n"
            "from spark_verify.file_systems import Place\n"
            "from spark_verify.runs import attempt\n"
            "with attempt(Place.of(sys.argv[1]), 'r') as killed:\n"
            "    print(killed.root, flush=True)\n"
            "    os._exit(1)\n"
        )
        command = [sys.executable, "-c", program, str(tmp_path)]
        killed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        theirs = Place.of(killed.stdout.strip())
        row = pa.table({"snapshot_id": ["s1"]})

        with attempt(out, "r") as grown:
            write(row, table_of(run_of(grown.root, "r"), "health"), "00000")
            for number in ("00000", "00001"):
                write(pa.table({"snapshot_id": ["s0"]}), theirs / "health" / "run_id=r", number)
            grown.commit(dict.fromkeys(TEXTS, ""), row)

        files = files_of(run_of(out, "r"), "health")
        assert [file.name for file in files] == ["part-00000.parquet"]
        assert pq.read_table(files[0].path, partitioning=None).to_pylist() == row.to_pylist()
        assert list(tmp_path.glob(".*")) == []


def test_rows_of_a_run_that_never_ended_go(tmp_path: Path) -> None:
    """
    Those of a finished one stay, and of one that another process is about to finish.
    """
    for name in ("dead", "done", "moves"):
        place = tmp_path / "health" / f"run_id={name}"
        place.mkdir(parents=True)
        (place / "part-00000.parquet").touch()
    kept(tmp_path / "run_id=done", {})

    with work_directory(tmp_path, "moves"):
        remove_left(Place.of(tmp_path))

    assert ["run_id=done", "run_id=moves"] == sorted(
        path.name for path in (tmp_path / "health").iterdir()
    )


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

    assert folders - {"spark_verify.synthetic"} == set(PACKAGES)
