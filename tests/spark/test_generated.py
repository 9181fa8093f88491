"""Seeded clusters end to end."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.verification.score import score
from bench.verification.synthetic import Shape, generate
from spark_verify.pipeline import VerifyRequest, verify
from suture.runtime.exit_codes import ExitCode

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("generated") / "snapshot"
    shape = Shape(6_000, faults_per_million=60_000, bad_node=40, bad_per_million=900_000)
    generate(spark, shape, directory)
    return directory


def test_every_seeded_fault_is_found_and_nothing_else(
    spark: SparkSession, cluster: Path, tmp_path: Path
) -> None:
    """
    All thirteen faults classed as seeded; maintenance, EC, unscanned and old trees are none.
    """
    result = verify(VerifyRequest(str(cluster), tmp_path / "out"))

    found = score(spark, str(cluster), str(result.directory))
    assert found["wrong"] == []
    assert found["right"] == found["seeded"] > 200
    assert len(found["faults"]) == 13
    assert result.summary["exit_code"] == ExitCode.DATA_AT_RISK
    # The volume that damages what it holds is ranked before its node and its rack.
    first = result.summary["blame"][0]
    assert (first["attribute"], first["value"]) == ("volume", "dn-00040 v2")
