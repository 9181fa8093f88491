"""Which old runs go."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_verify.job import app
from spark_verify.result_tables import RESULTS
from spark_verify.runs import (
    DAY_MS,
    RunSummary,
    finished_runs,
    old_runs,
    remove_run,
    runs_to_remove,
    table_of,
)
from spark_verify.storage import LocalStorage
from tests.support.verification.snapshots import AS_OF_MS, container, gather

NOW_MS = 100 * DAY_MS


SUMMARY = {
    "cluster_id": "c",
    "changed_nodes": [],
    "containers": 0,
    "flagged": 0,
    "flags": {},
    "checksum_classes": {},
    "divergent": 0,
    "inputs": {},
}
"""The fields of a summary that later runs use."""


def runs(*days: int, partial: tuple[int, ...] = ()) -> list[RunSummary]:
    """Return runs of so many days ago, and partial ones."""
    return [
        RunSummary.model_validate(
            SUMMARY
            | {"run_id": f"{'p' if nodes else 'r'}{day}", "as_of_ms": NOW_MS - day * DAY_MS}
            | {"changed_nodes": nodes}
        )
        for nodes, own in (([], days), (["dn1"], partial))
        for day in own
    ]


@pytest.mark.parametrize(
    ("known", "keep", "gone"),
    [
        (runs(9, 5, 1), (0, 0), ""),
        (runs(9, 5, 1), (2, 0), "r9"),
        (runs(1, 9, 5), (1, 0), "r9 r5"),
        (runs(9, 5, 1), (0, 6), "r9"),
        (runs(9, 5, 1), (1, 6), "r9"),
        (runs(9, 5), (0, 2), "r9"),
        (runs(9, partial=(3, 2, 1)), (1, 0), "p3 p2"),
        (runs(9, partial=(3, 2, 1)), (0, 1), "p3 p2"),
        (runs(partial=(3, 2)), (0, 1), "p3 p2"),
        ([], (1, 0), ""),
    ],
)
def test_runs_beyond_the_retention_are_deleted(
    known: list[RunSummary], keep: tuple[int, int], gone: str
) -> None:
    """The oldest go first, and the latest full run never goes."""
    count, days = keep

    found = runs_to_remove(known, keep_runs=count, keep_days=days, now_ms=NOW_MS)

    assert gone.split() == found


def finished(out: Path, name: str, **summary: object) -> None:
    """Write a finished run."""
    for table in RESULTS:
        place = Path(table_of(str(out), table, run_id=name, attempt="own"))
        place.mkdir(parents=True)
        (place / "part-00000.parquet").write_text("rows")
    (out / f"run_id={name}").mkdir()
    (out / f"run_id={name}" / "summary.json").write_text(json.dumps(SUMMARY | summary))
    (out / f"run_id={name}" / "_SUCCESS").write_text("own")


@pytest.mark.parametrize("keep", [(2, 0), (0, 1), (1, 1)])
def test_the_run_that_was_asked_for_stays(tmp_path: Path, keep: tuple[int, int]) -> None:
    """This holds also if its snapshot is older than all others, as after a clock was set back."""
    out = LocalStorage(str(tmp_path))
    for instant in (1, 2, 3, 4):
        finished(tmp_path, f"r{instant}", cluster_id="c", as_of_ms=instant, changed_nodes=[])
    count, days = keep

    old = old_runs(out, keep_runs=count, keep_days=days, asked="r1")

    assert old
    assert "r1" not in old


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_command_does_not_remove_what_it_made(tmp_path: Path) -> None:
    """Its snapshot is older than that of the existing run."""
    said = {"cluster_id": "cluster-1", "as_of_ms": AS_OF_MS + 1, "changed_nodes": []}
    finished(tmp_path / "out", "newer", **said)
    snapshot = gather([container(1, "R CLOSED 10", "C=7x3")]).write(tmp_path / "s")
    asked = [str(snapshot), "--out", str(tmp_path / "out"), "--run-id", "r", "--keep-runs", "1"]

    ended = CliRunner().invoke(app, asked)

    report = tmp_path / "out" / "run_id=r" / "report.html"
    assert str(report) in ended.stdout
    assert report.is_file()


def test_a_run_goes_with_its_rows_and_the_others_stay(tmp_path: Path) -> None:
    """
    Each cluster has its own latest; what cannot be read, or was never finished, is not touched.
    """
    out = LocalStorage(str(tmp_path))
    for cluster, instant in (("a", 1), ("a", 2), ("b", 1)):
        said = {"cluster_id": cluster, "as_of_ms": instant, "changed_nodes": []}
        finished(tmp_path, f"{cluster}{instant}", **said)
    finished(tmp_path, "strange")
    (tmp_path / "run_id=half").mkdir()
    (tmp_path / "run_id=half" / "summary.json").write_text("{}")

    old = old_runs(out, keep_runs=1, keep_days=0)
    for run_id in old:
        remove_run(out, run_id)

    assert ["a1"] == old
    kept = ["a2", "b1", "strange"]
    assert kept == finished_runs(out)
    for table in RESULTS:
        assert kept == [one.removeprefix("run_id=") for one in out.listed(table)]
    assert (tmp_path / "run_id=half").is_dir()
    assert not list(tmp_path.glob(".*"))
