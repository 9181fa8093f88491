"""The manual's SQL, on the results of two runs."""

import re
from pathlib import Path
from typing import Any

import duckdb
import pytest

from spark_verify.pipeline import Request, verify
from tests.support.snapshots import AS_OF_MS, container, gather

MANUAL = Path(__file__).parents[2] / "docs" / "SPARK.md"
QUERIES = re.findall(r"```sql\n(.+?)```", MANUAL.read_text(encoding="utf-8"), re.DOTALL)

EXPECTED: list[list[tuple[Any, ...]]] = [
    [("r1",), ("r2",)],
    [("r1", 1, 1), ("r2", 2, 1)],
    [(3,)],
    [("dn-1-2", "v0", 2)],
    [(1, 1, 2), (4, 1, 2)],
    [("r1", "replicate", 1, 1000), ("r2", "replicate", 2, 2000)],
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: a container that differs in both, one that lacks a replica in both, one that lacks
    one in the second only, and one all of whose replicas are bad in both."""
    directory = tmp_path_factory.mktemp("sql")
    for number, last in ((1, "C=7x3"), (2, "C=7x2")):
        rows = gather(
            [
                container(1, "R CLOSED 10", "C=7x2 C=9"),
                container(2, "R CLOSED 10", "C=7x2"),
                container(3, "R CLOSED 10", last),
                container(4, "R CLOSED 10", "U=7x3"),
            ]
        )
        snapshot = rows.write(directory / f"s{number}", manifest={"as_of_ms": AS_OF_MS + number})
        verify(Request(str(snapshot), directory / "results", f"r{number}"))
    return directory / "results"


@pytest.mark.parametrize("number", range(len(EXPECTED)))
def test_a_query_of_the_manual_answers(results: Path, number: int) -> None:
    """
    As the manual has it, with the place of the results alone changed.
    """
    query = QUERIES[number].replace("'results/", f"'{results}/")

    found = duckdb.connect().execute(query).fetchall()

    assert EXPECTED[number] == found


def test_every_query_of_the_manual_is_tried() -> None:
    """
    None was added without an answer.
    """
    assert len(EXPECTED) == len(QUERIES)
