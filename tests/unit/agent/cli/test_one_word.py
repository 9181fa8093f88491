"""docs/VOCABULARY.md: the same state has the same word in every place."""

import re
from pathlib import Path
from typing import Final

import pytest

from agent.cli.inspect.status_tables import containers_line
from health.cluster_verdict import ContainerProblems, problem_texts
from health.words import CLASSES, FLAGS, HealthState
from suture.wire.v1 import scm_pb2

ROOT: Final = Path(__file__).resolve().parents[4]
TEXT: Final = (ROOT / "docs" / "VOCABULARY.md").read_text()
SECTION: Final = TEXT.partition("## One state, one word")[2].partition("\n## ")[0]
ROWS: Final = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in SECTION.splitlines()
    if line.startswith("| ") and "`" not in line
]
COUNTED: Final = (
    "lost",
    "missing_blocks",
    "contradict",
    "unhealthy",
    "differ",
    "few_replicas",
    "unknown",
)


def test_status_says_just_these_words() -> None:
    """
    Each count of the control plane has one row, in the order of the line.
    """
    counts = scm_pb2.CountContainersResponse(all=9, whole=3, **dict.fromkeys(COUNTED, 1))

    line = containers_line(counts)

    assert len(COUNTED) + 1 == len(ROWS)
    assert [True] * len(ROWS) == [row[0] in line for row in ROWS], line
    left = line
    for row in ROWS:
        left = left.replace(row[0], "")
    assert "3 of 9 closed containers are on all replicas; 1 , 1 , 1 , 1 , 1 , 1 , 1 ; 0 open" == (
        re.sub(r" +", " ", left)
    )


def test_the_headline_says_the_same_words() -> None:
    """
    That of `suture status`, of `scm report` and of the pages.
    """
    said = "; ".join(
        problem_texts(
            ContainerProblems(
                lost=1, missing_blocks=1, contradict=1, damaged=1, differ=1, few=1, unknown=1
            )
        )
    )

    assert [True] * (len(ROWS) - 1) == [row[0] in said for row in ROWS[1:]], said


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_others_say_words_of_the_judge(row: list[str]) -> None:
    """
    Reports count health states, Spark writes flags and classes; there are no further words.
    """
    reported, spark = (re.findall(r"[A-Z_]{4,}", cell) for cell in row[1:])

    assert set(reported) <= set(HealthState.__members__)
    assert spark or row[2].strip() == "none of these"
    assert set(spark) <= {*FLAGS, *CLASSES}
