"""The judge on Spark says of each container what the reference says, however the rows travel."""

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from health.words import Health, flag_names
from spark_verify.pipeline import Request, verify
from tests.property.test_judge_reference import RACKS, reference
from tests.support.classifier import Opinion
from tests.support.random_clusters import random_cluster

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

CONTAINERS = 1_500


def test_screen_exchange_and_judge_agree_with_the_reference(tmp_path: Path) -> None:
    """
    A random cluster, screened, exchanged by container and judged in batches; health/ and
    replica_class/ hold the reference's opinions, and no container is lost or there twice.
    """
    rows = random_cluster(random.Random(11), CONTAINERS)
    snapshot = rows.write(tmp_path / "snapshot")
    expected = reference(rows)

    result = verify(
        Request(str(snapshot), tmp_path / "out", direct_rows=0, reporting_min_percent=0)
    )

    lost: dict[int, set[str]] = {}
    for row in pq.read_table(result.directory / "replica_class").to_pylist():
        if row["is_minority"]:
            lost.setdefault(row["container_id"], set()).add(row["datanode_id"])
    health = pq.read_table(result.directory / "health").to_pylist()
    found = {
        row["container_id"]: Opinion(
            row["checksum_class"],
            row["eligibility"],
            frozenset(lost.get(row["container_id"], ())),
            Health(row["health_state"]).name,
            row["queue"],
            row["is_qc_stuck"],
            frozenset(flag_names(row["flags"])),
        )
        for row in health
    }
    assert result.summary["rules"]["rack_count"] == RACKS
    assert len(health) == CONTAINERS
    assert expected == found
