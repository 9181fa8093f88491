"""The published vectors through Spark: a whole run of the job for all that share the rules."""

from dataclasses import replace
from pathlib import Path

import pytest

from spark_verify.options import VerifyOptions
from spark_verify.pipeline import VerifyRequest, verify
from tests.support.verification.classifier import Opinion
from tests.support.verification.vectors import Told, Vector, by_rules, told, vectors, world
from tests.support.verification.verified import opinions

pytestmark = pytest.mark.spark

GROUPS = by_rules(vectors())
RULES = {name: own for own in GROUPS for name, _ in own}
"""One group for each rule: what each number of a rule changes is tested with the judge alone."""


@pytest.mark.usefixtures("spark")
def test_the_spark_job_finds_what_the_vectors_say(tmp_path: Path) -> None:
    """One snapshot is written and judged, and `health/` equals the table."""
    snapshot = world(GROUPS[()]).write(tmp_path / "snapshot")

    in_tasks = VerifyRequest(str(snapshot), tmp_path / "out")
    result = verify(replace(in_tasks, options=VerifyOptions(reporting_min_percent=0)))

    assert expected(GROUPS[()]) == named(GROUPS[()], opinions(result))


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("own", RULES.values(), ids=str)
def test_rules_of_their_own_reach_the_judge_on_spark(
    own: tuple[tuple[str, int], ...], tmp_path: Path
) -> None:
    """
    Vectors with other rules than the defaults, which the snapshot brings from the control plane.
    """
    snapshot = world(GROUPS[own]).write(tmp_path / "snapshot", manifest={"rules": dict(own)})

    in_tasks = VerifyRequest(str(snapshot), tmp_path / "out")
    result = verify(replace(in_tasks, options=VerifyOptions(reporting_min_percent=0)))

    assert expected(GROUPS[own]) == named(GROUPS[own], opinions(result))


def expected(group: list[Vector]) -> list[tuple[str, Told]]:
    """Return what the table says of vectors."""
    return [(vector.name, vector.told) for vector in group]


def named(group: list[Vector], found: dict[int, Opinion]) -> list[tuple[str, Told]]:
    """Return what was found of each vector, in words of the table."""
    assert len(found) == len(group)
    return [(vector.name, told(found[i])) for i, vector in enumerate(group, 1)]
