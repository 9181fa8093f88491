"""What the run before this one said, and runs over the containers of changed nodes only."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_verify.pipeline import Request, verify
from tests.support.snapshots import AS_OF_MS, SnapshotRows, container, gather

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def divergent() -> SnapshotRows:
    return gather(
        [container(1, "R CLOSED 10", "C=7x2 C=9"), container(2, "R CLOSED 10", "C=7 C=8 C=9")]
    )


def test_a_divergence_that_no_repair_moves_is_asked_ever_more_rarely(tmp_path: Path) -> None:
    """
    Planned while it is new; backed off and named once the same roots come back a fourth time.
    """
    plans, backed_off = [], []
    for number in range(4):
        rows = divergent()
        if number == 3:  # somebody repaired container 1 into another divergence
            rows.replicas[2] = container(1, "R CLOSED 10", "C=7x2 C=5").replicas[2]
        snapshot = rows.write(tmp_path / f"s{number}", manifest={"as_of_ms": AS_OF_MS + number})
        result = verify(Request(str(snapshot), tmp_path / "out", run_id=f"r{number}"))
        table = pq.read_table(result.directory / "reconcile_plan").to_pylist()
        plans.append(sorted(row["container_id"] for row in table))
        backed_off.append(result.summary["no_progress"])

    assert plans == [[1, 2], [1, 2], [1, 2], [1]]
    assert backed_off == [[], [], [], [2]]
    assert result.summary["previous"]["run_id"] == "r2"


def test_an_incremental_run_judges_the_containers_of_changed_nodes_only(tmp_path: Path) -> None:
    """
    One node changed: its container is judged, the others are not even in the result.
    """
    snapshot = divergent().write(tmp_path / "snapshot")

    result = verify(Request(str(snapshot), tmp_path / "out", changed_nodes=("dn-2-1",)))

    health = pq.read_table(result.directory / "health").to_pylist()
    assert [row["container_id"] for row in health] == [2]
    assert result.summary["containers"] == 1
