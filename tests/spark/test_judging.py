"""The judge on Spark says of each container what the reference says, however the rows travel."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from spark_verify.options import VerifyOptions
from spark_verify.pipeline import VerifyRequest, verify
from tests.property.test_judge_reference import RACKS, reference
from tests.support.verification.random_clusters import random_cluster
from tests.support.verification.verified import opinions

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

CONTAINERS = 1_500


def test_exchange_and_judge_agree_with_the_reference(tmp_path: Path) -> None:
    """
    A random cluster, exchanged by container and judged in slices; health/ and replica_class/ hold
    the reference's opinions, and no container is lost or there twice.
    """
    rows = random_cluster(random.Random(11), CONTAINERS)
    snapshot = rows.write(tmp_path / "snapshot")
    expected = reference(rows)

    in_tasks = VerifyRequest(str(snapshot), tmp_path / "out")
    result = verify(replace(in_tasks, options=VerifyOptions(reporting_min_percent=0)))

    found = opinions(result)
    assert result.summary["rules"]["rack_count"] == RACKS
    assert len(found) == CONTAINERS
    assert expected == found
