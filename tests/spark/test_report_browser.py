"""The report of a verification in a real browser, on a wide screen and on a telephone."""

from dataclasses import replace
from pathlib import Path

import pytest

from spark_verify.pipeline import VerifyRequest, VerifyResult, verify
from spark_verify.report.pages import html_report
from tests.support.browser import CHROMIUM, overflow, shown
from tests.support.verification.snapshots import SnapshotRows, container, gather

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.usefixtures("spark"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]

LONG = "x" * 120  # no place to break it


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> VerifyResult:
    """A cluster of which everything is told, and a volume to blame on a datanode of a long name."""
    directory = tmp_path_factory.mktemp("report")
    told = [
        container(1, "R CLOSED 10", "C=7x2 C=9"),
        container(2, "R CLOSED 10", "U=7x3"),
        container(3, "R CLOSED 10", "C=7x4"),
        container(4, "EC CLOSED", "C#1=7 C#1=9 C#2=2 C#3=3 C#4=4"),
        container(5, "R QUASI_CLOSED 10", "Q@10x2 Q@9"),
        container(6, "R CLOSED 10", "C=7x2 C"),
        container(7, "R CLOSED 10", ""),
    ]
    blamed = [container(number, "R CLOSED 10", "C=7x2 C=9") for number in range(100, 140)]
    rows = gather([*told, *map(_on_a_bad_disk, blamed)])
    rows.nodes.append(replace(rows.nodes[0], datanode_id=LONG, rack=f"/{LONG}"))
    snapshot = rows.write(directory / "snapshot", manifest={"cluster_id": LONG})
    return verify(VerifyRequest(str(snapshot), directory / "out"))


@pytest.fixture
def report(result: VerifyResult) -> Path:
    return result.directory / "report.html"


def _on_a_bad_disk(rows: SnapshotRows) -> SnapshotRows:
    """Have the replica that differs lie on one volume."""
    rows.replicas[:] = [
        replace(one, datanode_id=LONG, volume_id=LONG) if one.root == 9 else one
        for one in rows.replicas
    ]
    return rows


def test_a_browser_shows_it_without_a_complaint(report: Path, tmp_path: Path) -> None:
    """Nothing is fetched, nothing is blocked, and who is to blame stands there."""
    page = shown(report.as_uri(), tmp_path / "profile")

    assert "CLOSED" in page
    assert LONG in page


@pytest.mark.parametrize("width", [390, 1400])
def test_report_fits_the_screen_width(report: Path, tmp_path: Path, width: int) -> None:
    """The page needs no horizontal scrolling, however long the names are."""
    assert 0 >= overflow(report.as_uri(), tmp_path / "profile", width=width)


def test_state_counts_fit_a_phone_screen(result: VerifyResult, tmp_path: Path) -> None:
    """The counts fit also with all of Ozone's states, whose names are long."""
    counted = ("states", "health_states", "checksum_classes", "flags")
    counts = {name: dict.fromkeys(result.summary[name], 123) for name in counted}
    assert "QUASI_CLOSED_STUCK_UNDER_REPLICATED" in counts["health_states"]
    page = tmp_path / "report.html"
    page.write_text(html_report(result.summary | counts, str(result.directory)), encoding="utf-8")

    assert 0 >= overflow(page.as_uri(), tmp_path / "profile", width=390, within=".two .card")
