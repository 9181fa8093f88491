"""The job end to end: what it writes, how it ends, and that it can be repeated."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark_verify import session, stage_progress
from spark_verify.errors import RunConflict
from spark_verify.pipeline import VerifyRequest, VerifyResult, verify
from spark_verify.result_tables import PLAN_LIFE_MS, RESULTS
from spark_verify.session import open_session
from suture.runtime.exit_codes import ExitCode
from suture.wire.mapping.plan_file import FinishedRun, read_plan
from tests.support.verification.snapshots import AS_OF_MS, SnapshotRows, container, gather

ROOT = Path(__file__).parents[2]
TABLES = tuple(RESULTS)
LARGE = 10_000_000  # rows, of which a partition has a part

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def clean() -> SnapshotRows:
    return gather([container(i, "R CLOSED 10", "C=7x3") for i in range(1, 5)])


def divergent() -> SnapshotRows:
    """Return differing replicas; of three containers the control plane says how they are."""
    return gather(
        [
            container(1, "R CLOSED 10", "C=7x3", health_state="OVER_REPLICATED"),
            container(2, "R CLOSED 10", "C=7x2 C=9", health_state="HEALTHY"),
            container(3, "R CLOSED 10", "C=7 C=8 C=9"),
            container(4, "R CLOSED 10", "C=7x2 U=5*2", health_state="MISSING"),
            container(5, "R CLOSED 10", "C=7x2 C=9", suppressed=True),
            container(6, "EC CLOSED", "C#1=7 C#1=9 C#2=2 C#3=3 C#4=4 C#5=5"),
            container(7, "R CLOSED 10", "C=0 C=7"),
        ]
    )


@dataclass(frozen=True, slots=True)
class Done:
    """A run that several tests look at; none of them changes it."""

    snapshot: Path
    out: Path
    result: VerifyResult
    said: list[str]
    """Lines of progress; one every hundredth of a second while a stage runs."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The divergent cluster, verified as run r1."""
    directory = tmp_path_factory.mktemp("done")
    snapshot, out = divergent().write(directory / "snapshot"), directory / "out"
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_progress, "EVERY_S", 0.01)
        result = verify(VerifyRequest(str(snapshot), out, run_id="r1"), said.append)
    return Done(snapshot, out, result, said)


@pytest.fixture(scope="module")
def redone(tmp_path_factory: pytest.TempPathFactory) -> VerifyResult:
    """The clean cluster, verified as run r1 where a run of this name was cut off."""
    directory = tmp_path_factory.mktemp("redone")
    half = directory / "out" / "run_id=r1"
    table = directory / "out" / "health" / "run_id=r1"
    for cut in (half, table):
        cut.mkdir(parents=True)
    (table / "part-0.parquet").write_bytes(b"half")
    (half / "summary.json").write_bytes(b"half")
    return verify(
        VerifyRequest(str(clean().write(directory / "s")), directory / "out", run_id="r1")
    )


class TestResult:
    """What a run leaves behind."""

    def test_the_plan_holds_what_the_control_plane_needs(self, done: Done) -> None:
        """
        Eligible divergent containers, most urgent first, with reasons, replicas and an end.
        """
        plan = pq.read_table(done.result.table("reconcile_plan")).to_pylist()

        assert [(row["container_id"], row["priority"], row["reason"]) for row in plan] == [
            (3, 0, "roots differ, no majority"),
            (2, 1, "roots differ, minority"),
            (4, 1, "roots differ, minority; replica UNHEALTHY; scan findings"),
        ]
        assert plan[1]["replicas"] == [
            {
                "datanode_id": f"dn-2-{i}",
                "state": "CLOSED",
                "root": root,
                "tree_algorithm": "xxh3_64",
            }
            for i, root in enumerate([7, 7, 9])
        ]
        assert {row["expires_at_ms"] for row in plan} == {AS_OF_MS + PLAN_LIFE_MS}
        assert done.result.summary["exit_code"] == 2

    def test_a_finished_run_is_whole_and_says_so(self, done: Done) -> None:
        """
        Tables, summary, report, manifest, and _SUCCESS; no partial leftovers.
        """
        names = {path.name for path in done.result.directory.iterdir()}

        assert names == {
            "summary.json",
            "report.html",
            "manifest.json",
            "_SUCCESS",
        }
        manifest = json.loads((done.result.directory / "manifest.json").read_text())
        assert manifest["rows"]["containers"] == 7
        for table in TABLES:
            assert ["run_id=r1"] == [path.name for path in (done.out / table).iterdir()]
            assert list(done.result.table(table).glob("*.parquet"))
        assert {path.name for path in done.out.iterdir()} == {"run_id=r1", *TABLES}

    def test_containers_that_scm_and_judge_see_differently_are_listed(self, done: Done) -> None:
        """Each container is listed with both states, also if nothing else is wrong with it.
        Containers without a state of the control plane are not compared.
        """
        assert {
            "compared": 3,
            "differing": 2,
            "differences": [
                {"scm": "MISSING", "judge": "UNDER_REPLICATED", "containers": 1, "ids": [4]},
                {"scm": "OVER_REPLICATED", "judge": "HEALTHY", "containers": 1, "ids": [1]},
            ],
        } == done.result.summary["agreement"]

    def test_the_plan_is_applied_most_urgent_first(self, done: Done) -> None:
        """
        Scans are written apart and still come last; within a priority containers go in order.
        """
        rows = pq.read_table(done.result.table("plan")).to_pylist()
        wanted = sorted((row["priority"], row["container_id"], row["action"]) for row in rows)
        assert {row["action"] for row in rows} > {"scan"}

        plan = read_plan(FinishedRun.opened(str(done.result.directory)))

        actions = [(row.container_id, row.action) for row in plan.rows if row.action != "reconcile"]
        assert actions == [(i, action) for _, i, action in wanted]

    def test_tasks_of_running_stages_are_printed_with_their_step(self, done: Done) -> None:
        """The numbers are those of Spark, and the step is the description of its jobs."""
        step = re.compile(r"judging 7 containers, \d+ replicas: (\d+) of (\d+) tasks")
        found = [match for line in done.said if (match := step.fullmatch(line))]

        assert found, done.said
        assert all(int(match[1]) <= int(match[2]) for match in found)

    def test_settings_of_the_session_survive_unless_a_result_depends_on_them(
        self, spark: SparkSession, done: Done, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The number of partitions costs time only; a time zone could change a result."""
        monkeypatch.setitem(session._is_own, session._id_of(spark), False)
        name, zone = "spark.sql.shuffle.partitions", "spark.sql.session.timeZone"
        chosen = str(spark.conf.get(name))
        spark.conf.set(name, "3")
        spark.conf.set(zone, "Asia/Tokyo")
        try:
            open_session(row_count=done.result.summary["rows"]["replicas"])

            assert (spark.conf.get(name), spark.conf.get(zone)) == ("3", "UTC")
        finally:
            spark.conf.set(name, chosen)
            monkeypatch.undo()
        open_session(row_count=LARGE)

        assert spark.conf.get(name) not in (chosen, "3")
        open_session(row_count=0)

        assert spark.conf.get(name) == chosen

    def test_a_clean_cluster_ends_with_zero(self, redone: VerifyResult) -> None:
        """
        Nothing to do is exit code 0 and an empty plan.
        """
        assert redone.summary["exit_code"] == 0
        assert redone.summary["plan"]["reconcile"]["rows"] == 0

    def test_a_container_without_a_healthy_replica_is_data_at_risk(self, tmp_path: Path) -> None:
        """
        All replicas UNHEALTHY, or none at all where there were keys.
        """
        parts = [
            clean(),
            container(7, "R CLOSED 10", "U=7x3"),
            container(8, "R CLOSED 10", ""),
            container(9, "R CLOSED 10", "", key_count=0),
        ]

        result = verify(
            VerifyRequest(str(gather(parts).write(tmp_path / "snapshot")), tmp_path / "out")
        )

        assert result.summary["exit_code"] == ExitCode.DATA_AT_RISK
        assert result.summary["samples"]["flags"]["DATA_AT_RISK"] == [7, 8]

    def test_the_report_needs_no_network(self, done: Done) -> None:
        """
        Nothing in the HTML is fetched from anywhere.
        """
        html = (done.result.directory / "report.html").read_text()
        assert "MISMATCH_SPLIT" in html
        assert [w for w in ("http://", "https://", "<script", "@import", "src=") if w in html] == []


class TestRepeat:
    """A run id names one result for ever."""

    def test_the_same_run_again_returns_the_same_result(self, done: Done, tmp_path: Path) -> None:
        """
        The second call does no work: it succeeds although the tables are gone.
        """
        shutil.copy(done.snapshot / "manifest.json", tmp_path)

        second = verify(VerifyRequest(str(tmp_path), done.out, run_id="r1"))

        assert done.result == second

    def test_a_run_that_was_cut_off_is_done_again(self, redone: VerifyResult) -> None:
        """
        A directory without _SUCCESS counts for nothing and is replaced.
        """
        assert pq.read_table(redone.table("health"), partitioning=None).num_rows == 4
        assert "r1" == redone.run_id
        assert (redone.directory / "_SUCCESS").is_file()

    def test_a_run_id_of_another_snapshot_is_refused(self, done: Done, tmp_path: Path) -> None:
        """
        A result is never replaced by that of other input.
        """
        directory = clean().write(tmp_path / "two", manifest={"snapshot_id": "snap-2"})

        with pytest.raises(RunConflict):
            verify(VerifyRequest(str(directory), done.out, run_id="r1"))
