"""The published vectors through Spark: a whole run of the job for all that share the rules."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from health.rules import Rules
from health.words import Health, flag_names
from spark_verify.batches import nodes_of
from spark_verify.judging import Case, judged
from spark_verify.manifest import read_manifest
from spark_verify.pipeline import Request, verify
from spark_verify.snapshot import open_snapshot
from spark_verify.verdict_rows import Stamp
from tests.support.classifier import Opinion
from tests.support.vectors import Told, Vector, by_rules, rack_count, told, vectors, world
from tests.support.verified import opinions

pytestmark = pytest.mark.spark

GROUPS = by_rules(vectors())


@pytest.mark.usefixtures("spark")
def test_the_spark_job_finds_what_the_vectors_say(tmp_path: Path) -> None:
    """
    One snapshot, screened, exchanged and judged: `health/` holds what the table says.
    """
    snapshot = world(GROUPS[()]).write(tmp_path / "snapshot")

    in_tasks = Request(str(snapshot), tmp_path / "out", direct_rows=0, here_rows=0)
    result = verify(replace(in_tasks, reporting_min_percent=0))

    assert expected(GROUPS[()]) == named(GROUPS[()], opinions(result.directory))


@pytest.mark.parametrize("own", [own for own in GROUPS if own], ids=str)
def test_rules_of_their_own_reach_the_judge_on_spark(
    own: tuple[tuple[str, int], ...], spark: SparkSession, tmp_path: Path
) -> None:
    """
    Vectors with other rules than the defaults, judged where Spark judges, without the files.
    """
    rows = world(GROUPS[own])
    directory = str(rows.write(tmp_path / "snapshot"))
    manifest = read_manifest(directory)
    rules = Rules(rack_count=rack_count(rows), **dict(own))
    case = Case(nodes_of(rows.table("nodes")), rules, Stamp("s", "r", 1), manifest)

    answer = judged(open_snapshot(spark, directory, manifest), case).select("health.*").toArrow()

    found = {
        row["container_id"]: Opinion(
            row["checksum_class"],
            row["eligibility"],
            frozenset(),
            Health(row["health_state"]).name,
            row["queue"],
            row["is_qc_stuck"],
            frozenset(flag_names(row["flags"])),
        )
        for row in answer.to_pylist()
        if row["container_id"] is not None
    }
    assert expected(GROUPS[own]) == named(GROUPS[own], found)


def expected(group: list[Vector]) -> list[tuple[str, Told]]:
    """Return what the table says of vectors."""
    return [(vector.name, vector.told) for vector in group]


def named(group: list[Vector], found: dict[int, Opinion]) -> list[tuple[str, Told]]:
    """Return what was found of each vector, in words of the table."""
    assert len(found) == len(group)
    return [(vector.name, told(found[i])) for i, vector in enumerate(group, 1)]
