"""Scans that a plan lists, and a mass of them."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_verify.frames import result_frames
from spark_verify.pipeline import VerifyRequest, verify
from tests.support.verification.snapshots import AS_OF_MS, SnapshotRows, container, gather

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def cluster(unscanned: int, scanned: int) -> SnapshotRows:
    """Return containers of three replicas of which some have no root yet; one volume has most."""
    rows = gather(
        [container(i, "R CLOSED 10", "Cx3") for i in range(1, unscanned + 1)]
        + [container(1000 + i, "R CLOSED 10", "C=7x3") for i in range(scanned)]
    )
    own = rows.nodes[0]
    for i, row in enumerate(rows.replicas):
        name = "dn0" if i % 3 == 0 else f"dn{i % 5 + 1}-{i % 3}"
        rows.replicas[i] = replace(row, datanode_id=name)
    names = sorted({row.datanode_id for row in rows.replicas})
    rows.nodes = [replace(own, datanode_id=name) for name in names]
    return rows


def listed(directory: Path, rows: SnapshotRows) -> tuple[list[dict[str, object]], dict[str, int]]:
    """Return the scans that a plan lists, and what the summary counts."""
    snapshot = rows.write(directory / "s", manifest={"as_of_ms": AS_OF_MS})
    result = verify(VerifyRequest(str(snapshot), directory / "out"))
    found = pq.read_table(result.table("plan")).to_pylist()
    scans = [row for row in found if row["action"] == "scan"]
    counted = result.summary["plan"]["scan"] | {"listed": result.summary["scans_listed"]}
    return scans, counted


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts as a mass is small."""
    monkeypatch.setattr(result_frames, "SCANS_MAX", 22)


def test_a_mass_of_scans_is_counted_and_not_listed(tmp_path: Path) -> None:
    """
    All of them in the summary; in the plan as many as fit, of every volume alike, each once.
    """
    scans, counted = listed(tmp_path, cluster(unscanned=60, scanned=10))

    assert {"rows": 180, "bytes": 180_000, "listed": 22} == counted
    assert 22 == len({(row["container_id"], str(row["targets"])) for row in scans})
    by_node = Counter(str(row["targets"]) for row in scans)
    assert 11 == len(by_node)
    assert {2} == set(by_node.values())


def test_many_scans_that_are_no_mass_are_all_listed(tmp_path: Path) -> None:
    """
    Most replicas have a root: those that have none are worth a look each.
    """
    scans, counted = listed(tmp_path, cluster(unscanned=20, scanned=70))

    assert 60 == len(scans) == counted["rows"] == counted["listed"]
