"""What a run says of nodes that leave and of replicas nobody has scanned: one run, many looks."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_verify.errors import SnapshotRefused
from spark_verify.pipeline import VerifyRequest, VerifyResult, verify
from tests.support.verification.snapshots import container, gather

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> VerifyResult:
    """One cluster with a leaving node of every kind, verified."""
    parts = [
        container(1, "R CLOSED 10", "C=7x3 C=7/d"),
        container(2, "R CLOSED 10", "C=7x2 C=7/d"),
        container(3, "R CLOSED 10", "C=7/d"),
        container(4, "R OPEN 10", "O O O/d"),
        container(5, "R CLOSED 10", "C=7x2 C=7/d", ops="+"),
        container(6, "R CLOSED 10", "C=0 C=7x2"),
        container(7, "R CLOSED 10", "C=7x2 C=0?s"),
        container(8, "R OPEN 10", "O=0x3"),
        container(9, "EC CLOSED", "C#1=1 C#2=2 C#3=3 C#4=4 C#5=5/d"),
        container(10, "R CLOSED 10", "C=7x2 C=7/e"),
    ]
    directory = tmp_path_factory.mktemp("views")
    snapshot = gather(parts).write(directory / "snapshot")
    return verify(VerifyRequest(str(snapshot), directory / "out"))


def test_a_scan_is_planned_for_each_replica_whose_root_could_be_known(result: VerifyResult) -> None:
    """
    A silent node cannot scan, and an open replica has no root to find.
    """
    plan = pq.read_table(result.table("plan")).to_pylist()

    scans = [
        (row["container_id"], row["targets"], row["priority"], row["reason"])
        for row in plan
        if row["action"] == "scan"
    ]
    assert scans == [(6, ["dn-6-0"], 8, "root not known")]
    assert result.summary["plan"]["scan"] == {"rows": 1, "bytes": 1000}


def test_a_snapshot_of_a_silent_cluster_is_refused(tmp_path: Path) -> None:
    """
    The job asks the quorum: with two of three nodes silent nothing is planned or written.
    """
    snapshot = container(1, "R CLOSED 10", "C=7 C=7?s C=7?d").write(tmp_path / "snapshot")

    with pytest.raises(SnapshotRefused, match=r"only 1 of 3 nodes .*dn-1-1, dn-1-2"):
        verify(VerifyRequest(str(snapshot), tmp_path / "out"))

    assert not (tmp_path / "out").exists()
