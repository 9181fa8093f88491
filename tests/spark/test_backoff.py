"""What the run before this one said, and runs over the containers of changed nodes only."""

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from spark_verify import pipeline
from spark_verify.errors import FAILURES, RunConflict, SnapshotRefused
from spark_verify.frames.previous_run import divergent_before, previous_run
from spark_verify.job import app
from spark_verify.pipeline import VerifyRequest, VerifyResult, verify
from spark_verify.runs import RunSummary, remove_run
from spark_verify.snapshot.manifest import read_manifest
from spark_verify.storage import LocalStorage
from suture.runtime.exit_codes import ExitCode
from tests.support.verification.snapshots import AS_OF_MS, SnapshotRows, container, gather

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def divergent() -> SnapshotRows:
    return gather(
        [container(1, "R CLOSED 10", "C=7x2 C=9"), container(2, "R CLOSED 10", "C=7 C=8 C=9")]
    )


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two snapshots of one cluster, `s0` and `s1`, and `out` with a run `r0` of the first."""
    directory = tmp_path_factory.mktemp("once")
    for number in range(2):
        divergent().write(directory / f"s{number}", manifest={"as_of_ms": AS_OF_MS + number})
    verify(VerifyRequest(str(directory / "s0"), directory / "out", "r0"))
    return directory


@pytest.fixture
def old(once: Path, tmp_path: Path) -> VerifyResult:
    """A copy of run `r0`, finished: what was verified once is returned."""
    shutil.copytree(once / "out", tmp_path / "out")
    return verify(VerifyRequest(str(once / "s0"), tmp_path / "out", "r0"))


def test_a_divergence_that_no_repair_moves_is_asked_ever_more_rarely(
    once: Path, old: VerifyResult, tmp_path: Path
) -> None:
    """
    Planned while it is new; backed off and named once the same roots come back a fourth time.
    """
    plans, backed_off = [], []
    repaired = divergent()  # somebody repaired container 1 into another divergence
    repaired.replicas[2] = container(1, "R CLOSED 10", "C=7x2 C=5").replicas[2]
    snapshots = [once / "s0", once / "s1"]
    for number, rows in ((2, divergent()), (3, repaired)):
        at = {"as_of_ms": AS_OF_MS + number}
        snapshots.append(rows.write(tmp_path / f"s{number}", manifest=at))
    for number, snapshot in enumerate(snapshots):
        result = verify(VerifyRequest(str(snapshot), old.out, f"r{number}"))
        table = pq.read_table(result.table("reconcile_plan")).to_pylist()
        plans.append(sorted(row["container_id"] for row in table))
        backed_off.append(result.summary["no_progress"])

    assert plans == [[1, 2], [1, 2], [1, 2], [1]]
    assert backed_off == [[], [], [], [2]]
    assert result.summary["previous"]["run_id"] == "r2"
    assert result.summary["backed_off"] == 1
    assert (
        "1 container(s) differed in the same way" in (result.directory / "report.html").read_text()
    )
    asked = [str(tmp_path / "s3"), "--out", str(tmp_path / "out"), "--run-id", "r3"]
    assert "1 not to reconcile in this plan" in CliRunner().invoke(app, asked).stdout


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[40] ^= 255
    path.write_bytes(bytes(whole))


def untold(path: Path) -> None:
    """Damage rows in a way that no checksum tells, as in a file of an earlier release."""
    table = pq.read_table(path, partitioning=None)
    place = table.schema.get_field_index("attempts")
    field = table.schema.field(place)
    values = pa.array([-7] * len(table), field.type)
    pq.write_table(table.set_column(place, field, values), path)


def before(once: Path, old: VerifyResult) -> RunSummary | None:
    """Return what the next run takes for the run before it."""
    manifest = read_manifest(LocalStorage(str(once / "s1")))
    return previous_run(LocalStorage(old.out), manifest, "r1")


@pytest.mark.parametrize("damage", [None, cut, emptied, flipped, untold, Path.unlink])
def test_old_rows_are_read_only_from_an_undamaged_result(
    spark: SparkSession,
    once: Path,
    old: VerifyResult,
    tmp_path: Path,
    damage: Callable[[Path], None] | None,
) -> None:
    """Otherwise an error is raised that a new run reports."""
    (path,) = old.table("divergent").glob("*.parquet")
    if damage:
        damage(path)

    def keep(name: str, rows: DataFrame) -> DataFrame:
        pipeline.write(str(tmp_path / name), rows)
        return spark.read.schema(rows.schema).parquet(str(tmp_path / name))

    previous = before(once, old)
    assert previous is not None
    with pytest.raises(FAILURES) if damage else nullcontext():
        assert divergent_before(spark, LocalStorage(old.out), previous, keep).count()


CHANGES: list[dict[str, object]] = [
    {"flagged": None},
    {"cluster_id": 7},
    {"flags": {"LOST": "1"}},
    {"changed_nodes": None},
]
"""Fields of a summary that are not what they should be."""


def test_damaged_old_results_do_not_stop_a_new_one(once: Path, old: VerifyResult) -> None:
    """The rows of one are damaged, and the summaries of others. The count of attempts starts again,
    and the damaged run is named.
    """
    (path,) = old.table("divergent").glob("*.parquet")
    untold(path)
    for number, change in enumerate(CHANGES):
        later = {"run_id": f"r0{number}", "as_of_ms": old.summary["as_of_ms"]}
        other = old.directory.with_name(f"run_id=r0{number}")
        shutil.copytree(old.directory, other)
        (other / "summary.json").write_text(json.dumps(old.summary | later | change))
    said: list[str] = []

    result = verify(VerifyRequest(str(once / "s1"), old.out, "r1"), said.append)

    rows = pq.read_table(result.table("divergent")).to_pylist()
    assert [(1, 0), (2, 0)] == sorted((row["container_id"], row["attempts"]) for row in rows)
    told = [text for text in said if "run r0 cannot be read, attempts begin again" in text]
    assert len(told) == 1
    assert result.summary["previous"]["run_id"] == "r0"


def test_an_old_result_that_goes_meanwhile_does_not_stop_a_new_one(
    once: Path, old: VerifyResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Another process removed it with --keep-runs after this one had looked for it.
    """
    read = pipeline.divergent_before

    def late(*given: Any) -> Any:
        remove_run(LocalStorage(old.out), old.run_id)
        return read(*given)

    monkeypatch.setattr(pipeline, "divergent_before", late)
    said: list[str] = []

    verify(VerifyRequest(str(once / "s1"), old.out, "r1"), said.append)

    assert any("run r0 cannot be read" in text for text in said)


@pytest.mark.parametrize("change", [{}, *CHANGES])
def test_an_old_summary_that_lacks_something_is_none(
    once: Path, old: VerifyResult, change: dict[str, object]
) -> None:
    """
    Nothing follows from it.
    """
    (old.directory / "summary.json").write_text(json.dumps(old.summary | change))

    assert (not change) == (before(once, old) is not None)


@pytest.fixture(scope="module")
def partial(tmp_path_factory: pytest.TempPathFactory) -> tuple[VerifyRequest, VerifyResult]:
    """A cluster with lost data, verified as far as one sound node's container goes."""
    directory = tmp_path_factory.mktemp("partial")
    parts = [container(1, "R CLOSED 10", "U=7x3"), container(2, "R CLOSED 10", "C=7x3")]
    snapshot = gather(parts).write(directory / "snapshot")
    request = VerifyRequest(str(snapshot), directory / "out", changed_nodes=("dn-2-1",))
    return request, verify(request)


class TestPartial:
    """A run over the containers of changed nodes only."""

    def test_partial_run_judges_the_containers_of_changed_nodes_only(
        self, partial: tuple[VerifyRequest, VerifyResult]
    ) -> None:
        """Other containers are not in the result, and every report calls it partial."""
        _, result = partial

        health = pq.read_table(result.table("health")).to_pylist()
        html = (result.directory / "report.html").read_text()
        scope = "Only the 1 of 2 containers with a replica on dn-2-1 were verified"
        assert [row["container_id"] for row in health] == [2]
        assert (result.summary["containers"], result.summary["exit_code"]) == (1, 0)
        assert result.summary["is_partial"]
        assert result.summary["text_report"].startswith("PARTIAL ")
        assert scope in result.summary["text_report"]
        assert ">partial: clean<" in html
        assert scope in html

    def test_the_full_run_of_the_same_snapshot_is_another_run(
        self, partial: tuple[VerifyRequest, VerifyResult]
    ) -> None:
        """The full run does not return the partial result, and each result can be returned
        again.
        """
        request, result = partial

        full = verify(replace(request, changed_nodes=()))

        assert full.summary["exit_code"] == ExitCode.DATA_AT_RISK
        assert not full.summary["is_partial"]
        assert verify(request) == result
        assert verify(replace(request, changed_nodes=())) == full

    def test_a_run_id_names_one_question(self, partial: tuple[VerifyRequest, VerifyResult]) -> None:
        """
        Asked for under the partial run's id, the full run is refused, and what differs is named.
        """
        request, result = partial
        run_id = result.summary["run_id"]

        with pytest.raises(RunConflict, match=r"changed_nodes: \['dn-2-1'\] there") as raised:
            verify(replace(request, changed_nodes=(), run_id=run_id))

        assert "--run-id" in raised.value.hint

    def test_a_node_that_nobody_knows_is_refused(
        self, partial: tuple[VerifyRequest, VerifyResult]
    ) -> None:
        """
        Its containers are none: that is no clean result but a slip of the pen.
        """
        request, _ = partial

        with pytest.raises(SnapshotRefused, match="nodes/ lists no datanode dn-2-9"):
            verify(replace(request, changed_nodes=("dn-2-1", "dn-2-9")))
